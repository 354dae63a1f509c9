"""A run's stored features -> the columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import torch

from layerprobe.measure.nearest import nearest_items
from layerprobe.plots.drawn_scores import match_layers
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.layers import RankedLayer
from layerprobe.workflow.compare.compare import stored_dim
from layerprobe.workflow.features.feature_table import FeatureTable, LayerColumns, encode_table, require_parquet_texts
from layerprobe.workflow.features.request import FeaturesRequest
from layerprobe.workflow.probe.post_processed_features import query_index
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.class_names import class_name
from layerprobe.workflow.run.image_paths import image_path
from layerprobe.workflow.run.outputs import stream_of, write_output
from layerprobe.workflow.run.references import (
    RankedSplit,
    embedding_among,
    layer_flags,
    open_ranked_split,
    probe_fix,
    require_finite,
)


def write_features(request: FeaturesRequest) -> FeatureTable:
    """Write the table of a run's features, and return it."""
    form = "csv" if stream_of(request.out) else request.out.suffix.lower().removeprefix(".")
    ranked_split = open_ranked_split(request.run, request.epoch, request.split)
    layers = _layers(ranked_split, request.layers)
    if form == "csv" and len(layers) > 1:
        names = ", ".join(map(ranked_split.name, layers))
        message = f"a csv file has a column for each number of one layer, not of {names}"
        raise RecipeError(message, file=request.out, fix="Name one layer, or a .parquet or .npz file")
    table = feature_table(ranked_split, layers, utf8=form == "parquet")
    write_output(request.out, encode_table(table, form))
    return table


def feature_table(ranked_split: RankedSplit, layers: Sequence[RankedLayer], *, utf8: bool = False) -> FeatureTable:
    """The images of a ranked split that are searched for, and some of its layers.

    Args:
        utf8: refuse names that are not UTF-8, before the search.
    """
    run, epoch, split = ranked_split.run, ranked_split.epoch, ranked_split.split
    search = StoredSearch(run, epoch, split, torch.device("cpu"))
    fix = probe_fix(run, ranked_split.record, epoch, split, *layer_flags(ranked_split.record, layers))
    for ranked in layers:
        require_finite(ranked_split, ranked)
        try:
            search.require_stored(ranked)
        except DataError as error:
            raise DataError(error.message, file=run.folder, fix=fix) from error
    classes, ids = query_index(run, epoch, split)
    names, root = run.feature_head(epoch, split).class_names, ranked_split.record.data.get("root")
    labels = [class_name(names, label) for label in classes.tolist()]
    paths = [image_path(root, name) for name in ids]
    if utf8:
        require_parquet_texts(chain(ids, paths, labels, search.item_ids))
    columns = [_layer_columns(search, ranked, ranked_split.name(ranked)) for ranked in layers]
    return FeatureTable(epoch, ids, paths, labels, columns)


def _layers(ranked_split: RankedSplit, names: Sequence[str] | None) -> list[RankedLayer]:
    measured = ranked_split.layers
    requested = match_layers(names, measured)
    if requested is not None:
        return requested
    embedding = embedding_among(ranked_split.record, measured)
    if embedding is None:
        fix = f"Name some: --layers {','.join(map(ranked_split.name, measured))}"
        raise RecipeError("the embedding is not measured", file=ranked_split.run.folder, fix=fix)
    return [embedding]


def _layer_columns(search: StoredSearch, ranked: RankedLayer, name: str) -> LayerColumns:
    queries, gallery = search.features(ranked)
    rows, _, right = nearest_items(queries, gallery, ranked.similarity, 1, search.rules)
    ids = queries.ids if gallery is None else gallery.ids
    nearest = [None if row < 0 else ids[row] for row in rows[:, 0].tolist()]
    vectors = torch.as_tensor(queries.values).numpy()
    bits = stored_dim(search.run, search.epoch, search.split, ranked) if ranked.similarity == "hamming" else None
    return LayerColumns(name, vectors, bits or vectors.shape[1], nearest, right[:, 0])
