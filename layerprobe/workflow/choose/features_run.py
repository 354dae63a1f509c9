"""A user's features as a run in memory: its layers as candidates, and the layer that a name means."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.selection_folds import QueryValues
from layerprobe.post_processing.chain import parse_chain
from layerprobe.statistics.choice import folds_of_queries
from layerprobe.system.computing import in_threads
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.progress import Listener
from layerprobe.values.layers import (
    NO_POST_PROCESSING,
    LayerKey,
    RankedLayer,
    concatenated_layers,
    find_layer,
    matching_layers,
)
from layerprobe.values.records import RecordedNetwork, RunRecord
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.choose.candidates import CandidateKey, CandidateRun, StoredValues, whole_units
from layerprobe.workflow.choose.refits import whitened_layers
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.choose.user_features import UserFeatures
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.memory_run import EPOCH, MemoryRun, MemoryTables
from layerprobe.workflow.run.references import RankedSplit, parse_reference
from layerprobe.workflow.run.seen import split_to_choose_on

SIMILARITY = "cosine"
_UNKNOWN = "features"  # of a network that is not known
_REPEATED = "ids repeat: an index names the rows by their numbers"


@dataclass(frozen=True, eq=False)
class _RowsOfLayers(Mapping[LayerKey, NDArray[Any]]):
    """Some rows of each layer, taken when they are read, so that no layer lies in memory twice."""

    layers: Mapping[LayerKey, NDArray[Any]]
    rows: NDArray[np.intp]

    def __getitem__(self, layer: LayerKey) -> NDArray[Any]:
        values = self.layers[layer]
        return values if len(self.rows) == len(values) else values[self.rows]

    def __contains__(self, layer: object) -> bool:  # Mapping's takes the rows
        return layer in self.layers

    def __iter__(self) -> Iterator[LayerKey]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def rows_by_split(user_features: UserFeatures) -> dict[str, NDArray[np.intp]]:
    """Split -> its rows, ascending; all rows are those of test where there is a single split."""
    rows = {split: user_features.rows_of(split) for split in (FITTED_ON, "validation", "test")}
    rows = {split: split_rows for split, split_rows in rows.items() if len(split_rows)}
    return rows if len(rows) > 1 else {"test": np.arange(len(user_features.labels))}


def run_of_features(user_features: UserFeatures, *, seen: bool, seed: int) -> MemoryRun:
    """The run in memory of features, of which nothing is ranked.

    Args:
        seen: whether the network may have been trained on the train rows.
        seed: of folds and of random post-processing.

    Raises:
        RecipeError: all are train rows that may have been seen.
    """
    if seen and user_features.splits is not None and (user_features.splits == FITTED_ON).all():
        fix = "Give test rows of classes that it has not seen; if it has seen none of these, leave the splits out"
        raise RecipeError(
            "all are train rows, on which the network may have been trained", file=user_features.file, fix=fix
        )
    rows, layers = rows_by_split(user_features), tuple(user_features.features)
    ids = (
        user_features.ids
        if user_features.ids is not None and len(set(user_features.ids)) == len(user_features.ids)
        else None
    )
    names = tuple(str(layer.layer) for layer in layers)
    record = RunRecord(
        state="finished",
        recipe_name=_UNKNOWN,
        recipe={"net": {"name": _UNKNOWN}, "train": {"epochs": 0}, "data": {"seen": seen}},
        experiment="",
        seed=int(seed),
        epochs_done=EPOCH,
        hashes={},
        manifests=dict.fromkeys(rows, ""),
        new_parameters=(),
        network=RecordedNetwork(names, layers[-1], {}, None, {}),
        layer_order=names,
        notes=(_REPEATED,) if user_features.ids is not None and ids is None else (),
        untrained=False,
        from_python=True,
    )
    columns = {layer: (values.shape[1], str(values.dtype)) for layer, values in user_features.features.items()}
    tables, rank_files, rules, units = {}, {}, {}, {}
    for split, split_rows in rows.items():
        labels = user_features.labels[split_rows]
        split_ids = tuple(str(row) if ids is None else ids[row] for row in split_rows.tolist())
        head = store.FeatureHead((labels.astype(np.int32), split_ids), {}, columns, user_features.class_names)
        tables[split] = MemoryTables(head, _RowsOfLayers(user_features.features, split_rows))
        rank_files[split] = store.rank_file_of(store.Rows(labels, split_ids), {})
        units[split] = user_features.units[split_rows]
        if user_features.groups is not None:
            rules[split] = SearchRules(groups=user_features.groups[split_rows])
    return MemoryRun(Path(), record, (), tables, rank_files, rules=rules, units=units)


def open_features(
    features: UserFeatures, run: MemoryRun, request: ChooseRequest, listener: Listener, notes: tuple[str, ...] = ()
) -> tuple[CandidateRun, list[RankedLayer]]:
    """The layers of features as candidates, raw and whitened.

    Where post-processing is fitted on the classes that are chosen on, all candidates are searched again within folds of
    these classes, and a value in the whole gallery is computed only where it is asked for.

    Args:
        run: see `run_of_features`.
        notes: on what is left out.

    Returns:
        The candidates, and the whitened layers where these are to be searched within folds.
    """
    split, requested = split_to_choose_on(run, run.record, [EPOCH]), _match_layers(features, request.layers)
    folded, rows = split == FITTED_ON or FITTED_ON not in run.features, rows_by_split(features)
    last_layer = list(features.features)[-1]  # the embedding, with which the choice is compared
    layers = [layer for layer in features.features if layer in requested or layer == last_layer]
    raw = [RankedLayer(layer, NO_POST_PROCESSING, SIMILARITY) for layer in layers]
    whitened = whitened_layers(
        run, split if folded else FITTED_ON, raw, EPOCH, cluster=request.cluster, budget=request.budget
    )
    keys = [(EPOCH, ranked) for ranked in (raw if folded else [*raw, *whitened])]

    def read_values(part: str) -> StoredValues:
        search, rank_file = StoredSearch(run, EPOCH, part, torch.device("cpu")), run.ranks(EPOCH, part)
        units, identities = whole_units(run, part, *rank_file.rows, request.cluster), {}
        values = _SearchedValues(keys, lambda key: search.values(key[1], request.metric))
        if not folded:
            values.search_all(listener, part)
        if part == split:
            for key in keys[: len(raw)]:
                array = run.features[part].read(key[1].layer)
                identities[key] = hashlib.sha256(np.ascontiguousarray(array).data).digest()
        lone = features.count_lone(rows[part])
        score_notes = (*features.notes, *([f"{lone:,} lone queries count as misses"] if lone else []))
        folds = folds_of_queries(units, seed=run.record.seed) if folded and part == split else None
        return StoredValues(
            RankedSplit(run, run.record, EPOCH, part, rank_file.stored),
            units,
            values,
            identities,
            dict.fromkeys(keys, score_notes),
            lambda: features.find_identical(rows[part], folds),
            notes if part == split else (),
            "row" if features.contents is None else "image",
        )

    selection = read_values(split)
    test = selection if split == "test" else read_values("test") if "test" in run.features else None
    candidates = frozenset(key for key in keys if key[1].layer in requested)
    baseline = None if test is None else (EPOCH, raw[-1])
    candidate_run = CandidateRun(run, run.record, split, selection, test, candidates, baseline)
    return candidate_run, whitened if folded else []


def _match_layers(features: UserFeatures, names: Sequence[str]) -> set[LayerKey]:
    """The layers that some names mean; all without names."""
    every = [RankedLayer(layer, NO_POST_PROCESSING, SIMILARITY) for layer in features.features]
    requested = set() if names else set(features.features)
    for text in names:
        matching = {ranked.layer for ranked in matching_layers(text, every)}
        if not matching:
            raise UnknownNameError("layer", text, map(str, every), file=features.file)
        requested |= matching
    return requested


class _SearchedValues(Mapping[CandidateKey, QueryValues]):
    """The values of candidates, each searched when it is first read."""

    def __init__(self, keys: Sequence[CandidateKey], search: Callable[[CandidateKey], QueryValues]) -> None:
        self._keys, self._search = dict.fromkeys(keys), search
        self._values: dict[CandidateKey, QueryValues] = {}

    def __getitem__(self, key: CandidateKey) -> QueryValues:
        if key not in self._keys:
            raise KeyError(key)
        if key not in self._values:
            self._values[key] = self._search(key)
        return self._values[key]

    def __contains__(self, key: object) -> bool:  # Mapping's reads the value
        return key in self._keys

    def __iter__(self) -> Iterator[CandidateKey]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def search_all(self, listener: Listener, split: str) -> None:
        """Search all, several at once."""
        with in_threads() as of_each, listener.task(f"ranking {split}", len(self), "layers") as task:

            def search(key: CandidateKey) -> None:
                self[key]
                task.advance()

            of_each(search, self)


def ranked_of_rows(features: UserFeatures, text: str) -> RankedLayer:
    """The layer, or layers side by side, with post-processing that is one map for all images.

    Raises:
        RecipeError: post-processing without such a map.
        UnknownNameError: a layer of another name.
    """
    layers = list(features.features)
    if text in map(str, layers):  # a layer of a file may have a slash in its name
        return RankedLayer(LayerKey(text, "none"), "none", SIMILARITY)
    reference = parse_reference(text, bare="layer")
    chain = parse_chain(reference.post_processing)
    name = reference.layer or ""
    joined = concatenated_layers(name, layers, [layer.layer for layer in layers])
    layer = joined[0] if joined else find_layer(name, layers)
    ranked = RankedLayer(layer, chain.text, reference.similarity or chain.similarity or SIMILARITY)
    require_one_map(ranked)
    return ranked


def require_one_map(ranked: RankedLayer) -> None:
    """Check that a layer's post-processing is one map for all images, which stored features give again."""
    chain = parse_chain(ranked.post_processing)
    reason = (
        "a mean over draws" if len(chain.members()) > 1
        else "made with the loss's classifier" if chain.needs_classifier
        else "fitted on the searched images, which other images have not" if chain.fits and chain.on_gallery
        else ""
    )  # fmt: skip
    if reason:
        raise RecipeError(f"{ranked}: {reason}", fix="Name a layer with another post-processing, or none")
