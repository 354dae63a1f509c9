"""The galleries of a report: which queries are shown, and what every layer finds for them at every epoch.

galleries = galleries_of([(run, page)])
galleries.galleries, galleries.pictures  # for `Report`
galleries.notes                          # why a run has none
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.projections import kept_neighbours, project
from layerprobe.post_processing.chain import parse_chain
from layerprobe.report.album import LIMIT, fit_galleries, small_picture
from layerprobe.report.values import Gallery, GalleryMap, GalleryQuery, RunPage
from layerprobe.system.computing import OfEach, in_threads
from layerprobe.system.errors import DataError, LayerprobeError, NumericError
from layerprobe.values.facts import at_epoch_text
from layerprobe.values.layers import RankedLayer
from layerprobe.values.retrieval import Similarity
from layerprobe.values.views import ImageSample, Item
from layerprobe.workflow.plot.maps import sample_classes
from layerprobe.workflow.plot.neighbours import RunGallery, neighbours_of, open_ranked_gallery
from layerprobe.workflow.plot.query_rules import (
    QueriesByOutcome,
    RandomQueries,
    Rule,
    WorstQueries,
    choose_queries,
    rule_text,
)
from layerprobe.workflow.run.experiments import have_other_images
from layerprobe.workflow.run.references import RankedSplit, open_ranked_split
from layerprobe.workflow.run.runs import Run

SPLIT = "test"  # whose images are the queries
QUERIES = 12  # by each rule; runs that search the same images share them
NEIGHBOURS = 5
MAPPED = 200  # further queries at most, which are on the map
ON_MAP = "on the map"  # their rule; projection.js has it, too
SEARCHED = 2_000_000  # rows of features, over all layers, epochs and runs, that are read for a page
_PANELS = "layerprobe plot panels"  # fits post-processing at one epoch alone
ReadPicture = Callable[[str], bytes | None]  # id of an image -> its small picture; None where it cannot be read
_Neighbours = tuple[NDArray[np.int32], NDArray[np.bool_], list[RankedLayer]]


@dataclass(frozen=True, eq=False)
class Galleries:
    """The galleries of some runs.

    Args:
        readers: run -> what gives the small picture of one of its images.
    """

    galleries: tuple[Gallery, ...] = ()
    pictures: tuple[bytes, ...] = ()
    notes: tuple[str, ...] = ()
    readers: Mapping[str, ReadPicture] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class _GalleryRun:
    """A run whose gallery is made.

    Args:
        epochs: shown ones, ascending.
    """

    page: RunPage
    opened: RunGallery
    ranked_split: RankedSplit
    epochs: tuple[int, ...]
    layers: tuple[RankedLayer, ...]
    notes: tuple[str, ...]


def galleries_of(runs: Sequence[tuple[Run, RunPage]], limit: int = LIMIT) -> Galleries:
    """The galleries of some runs, from their stored features and ranks; nothing is written.

    The queries are chosen at the last epoch: those that the layer before the embedding gets right and the embedding
    wrong, the reverse, those whose nearest right item is farthest down by the embedding, and some at random. Runs that
    search the same images show the same queries, of which each chooses a share. A layer whose post-processing is fitted
    or drawn is excluded, as that would be done anew at every epoch. Epochs in between are excluded where all of them
    would take minutes, because so many images are searched.
    """
    gallery_runs, notes = [], []
    for run, page in runs:
        try:
            gallery_runs.append(_open_gallery_run(run, page, SEARCHED // len(runs)))
        except LayerprobeError as error:
            notes.append(f"no images of {page.name} are shown: {error}")
    groups: list[list[_GalleryRun]] = []
    for gallery_run in gallery_runs:
        group = next((group for group in groups if _have_same_images(group[0], gallery_run)), None)
        if group is None:
            groups.append(group := [])
        group.append(gallery_run)
    galleries: dict[str, Gallery] = {}
    readers: dict[str, ReadPicture] = {}
    with in_threads() as map_in_threads:
        for group in groups:
            queries = _queries_of(group)
            read: dict[str, bytes | None] = {}  # the runs of a group show the same images
            for gallery_run in group:
                name = gallery_run.page.name
                galleries[name] = _fill_gallery(gallery_run, queries, map_in_threads)
                readers[name] = partial(_read_picture, gallery_run.opened, read)
    in_order = [galleries[gallery_run.page.name] for gallery_run in gallery_runs]
    with_pictures = [(gallery, partial(_picture, gallery, readers[gallery.run])) for gallery in in_order]
    return Galleries(*fit_galleries(with_pictures, limit), tuple(notes), readers)


def _picture(gallery: Gallery, read: ReadPicture, index: int) -> bytes | None:
    return read(gallery.items[index].id)


def _read_picture(opened: RunGallery, read: dict[str, bytes | None], name: str) -> bytes | None:
    """The small picture of an image; None where it cannot be read.

    Args:
        read: id -> picture, of images that were read before; a new one is added.
    """
    if name not in read:
        try:
            read[name] = small_picture(opened.image(name))
        except DataError:
            read[name] = None
    return read[name]


def _have_same_images(run: _GalleryRun, other: _GalleryRun) -> bool:
    has_same_ids = run.opened.queries.ids == other.opened.queries.ids
    return has_same_ids and not have_other_images(run.opened.record, other.opened.record, SPLIT)


def _open_gallery_run(run: Run, page: RunPage, rows: int) -> _GalleryRun:
    """Open a run, with its layers and epochs that can be shown."""
    scored = [score for score in page.scores if score.split == SPLIT]
    stored = [
        epoch
        for epoch in sorted({score.epoch for score in scored})
        if run.has_features(epoch, SPLIT) and run.has_ranks(epoch, SPLIT)
    ]
    measured = {score.ranked for score in scored}
    all_layers = [ranked for ranked in page.layers if ranked in measured]
    layers = tuple(ranked for ranked in all_layers if not _is_fitted_anew(ranked))
    if not (stored and layers):
        raise DataError(
            f"no features of the {SPLIT} split are stored",
            file=run.folder,
            fix=f"Run {run.command('probe', '--splits', SPLIT)}",
        )
    last = open_ranked_split(run, stored[-1], SPLIT)
    opened = open_ranked_gallery(last)
    epochs = _thin_epochs(stored, rows // (len(layers) * len(opened.items)))
    notes = []
    if len(layers) < len(all_layers):
        left_out = f"{len(all_layers) - len(layers)}. {_PANELS} shows them"
        notes.append(f"Layers with a fitted or drawn post-processing are not shown: {left_out}")
    if len(epochs) < len(stored):
        notes.append(
            f"{len(epochs)} of {len(stored)} epochs are here: {len(opened.items):,} images are searched at each"
        )
    return _GalleryRun(page, opened, last, epochs, layers, tuple(notes))


def _thin_epochs(epochs: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` epochs, evenly spaced from the first to the last; only the last where `count` is below 2."""
    if count >= len(epochs):
        return tuple(epochs)
    indices = np.linspace(len(epochs) - 1, 0, max(1, count)).round().astype(int)
    return tuple(epochs[index] for index in sorted(indices.tolist()))


def _is_fitted_anew(ranked: RankedLayer) -> bool:
    """Whether a layer's post-processing differs between epochs, because it is fitted or drawn anew."""
    chain = parse_chain(ranked.post_processing)
    return chain.fits or chain.draws or chain.needs_classifier


@dataclass(frozen=True, eq=False)
class _Queries:
    """The queries of runs that search the same images.

    Args:
        rules: row of the query -> why it is shown, those that matter most first.
        mapped: what was drawn for the map.
        notes: run -> how its share was chosen.
    """

    rules: Mapping[int, Sequence[str]]
    mapped: ImageSample
    notes: Mapping[str, Sequence[str]]


def _queries_of(group: Sequence[_GalleryRun]) -> _Queries:
    """The queries of runs that search the same images: in turns one by each rule of each run."""
    rules_by_row: dict[int, list[str]] = {}
    notes_by_run: dict[str, list[str]] = {}
    lists = []
    for gallery_run in group:
        ranked_split, page = gallery_run.ranked_split, gallery_run.page
        notes = notes_by_run.setdefault(page.name, [])
        for rule in _query_rules(gallery_run):
            text = rule_text(rule, ranked_split)
            try:
                chosen = choose_queries(
                    rule, ranked_split, gallery_run.opened.class_names, max(1, QUERIES // len(group))
                )
            except DataError as error:
                notes.append(f"No queries by the rule {text}: {error.message}")
                continue
            notes.append(f"{chosen.text}, {at_epoch_text(ranked_split.epoch, page.data.weights)}")
            run_text = f" ({page.name})" if len(group) > 1 and not isinstance(rule, RandomQueries) else ""
            lists.append((text + run_text, chosen.rows.tolist()))
    first_run = group[0]
    seed, labels = first_run.ranked_split.record.seed, first_run.opened.queries.labels
    mapped, sample = sample_classes(labels, MAPPED, seed)
    chosen_text = f"{len(mapped):,} of {len(labels):,}, {sample} drawn by seed {seed}"
    for notes in notes_by_run.values():
        notes.append(f"Queries: {ON_MAP}, {f'all {len(mapped):,}' if sample == 'all' else chosen_text}")
    for text, row in ((text, rows[turn]) for turn in range(QUERIES) for text, rows in lists if turn < len(rows)):
        if text not in rules_by_row.setdefault(row, []):
            rules_by_row[row].append(text)
    for row in mapped.tolist():
        rules_by_row.setdefault(row, []).append(ON_MAP)
    return _Queries(rules_by_row, sample, notes_by_run)


def _query_rules(gallery_run: _GalleryRun) -> list[Rule]:
    page = gallery_run.page
    single = [ranked for ranked in gallery_run.layers if "+" not in ranked.layer.layer] or list(gallery_run.layers)
    embedding = None if page.embedding is None else page.layers[page.embedding]
    last_layer = embedding if embedding in single else single[-1]
    # Of a layer with several pools that one stands for it which the page shows first.
    headline = [ranked for ranked in single if page.layers.index(ranked) in page.few] or single
    before = [ranked for ranked in headline if ranked.layer.layer != last_layer.layer.layer]
    before = [ranked for ranked in before if single.index(ranked) < single.index(last_layer)]
    pairs = [(before[-1], last_layer), (last_layer, before[-1])] if before else []
    return [
        *(QueriesByOutcome(((right, True), (wrong, False))) for right, wrong in pairs),
        WorstQueries(last_layer),
        RandomQueries(),
    ]


def _fill_gallery(gallery_run: _GalleryRun, queries: _Queries, map_in_threads: OfEach) -> Gallery:
    """What every layer finds for some queries at every epoch, with all items that are searched, without pictures."""
    opened, rules, rows = gallery_run.opened, queries.rules, np.array(list(queries.rules), np.int64)
    by_epoch: list[_Neighbours] = map_in_threads(
        lambda epoch: _find_neighbours(gallery_run, epoch, rows), gallery_run.epochs
    )
    gallery_map = _map_queries(gallery_run, queries, map_in_threads)
    absent: dict[str, list[str]] = {}
    for epoch, (_, _, absent_layers) in zip(gallery_run.epochs, by_epoch, strict=True):
        for layer in absent_layers:
            absent.setdefault(str(layer.layer), []).append(str(epoch))
    weights = gallery_run.page.data.weights
    absent_epochs = {layer: at_epoch_text(", ".join(epochs), weights) for layer, epochs in absent.items()}
    splits = [opened.items] if opened.items is opened.queries else [opened.items, opened.queries]
    items = tuple(
        Item(name, opened.class_names[label])
        for split in splits
        for name, label in zip(split.ids, split.labels.tolist(), strict=True)
    )
    first_query = len(items) - len(opened.queries)  # the index of the first query among the items
    return Gallery(
        run=gallery_run.page.name,
        split=SPLIT,
        epochs=gallery_run.epochs,
        layers=gallery_run.layers,
        items=items,
        pictures=(),
        queries=tuple(GalleryQuery(first_query + row, tuple(row_rules)) for row, row_rules in rules.items()),
        found=np.stack([rows for rows, _, _ in by_epoch]),
        right=np.stack([right for _, right, _ in by_epoch]),
        notes=(
            *queries.notes[gallery_run.page.name],
            *gallery_run.notes,
            *(f"{layer} has no features that can be searched {at}" for layer, at in absent_epochs.items()),
        ),
        map=gallery_map,
    )


def _map_queries(gallery_run: _GalleryRun, queries: _Queries, map_in_threads: OfEach) -> GalleryMap:
    """The queries that are on the map, by PCA, at every epoch and by every layer."""
    opened, layers = gallery_run.opened, gallery_run.layers
    rows = np.array(list(queries.rules), np.int64)
    mapped = np.array([place for place, rules in enumerate(queries.rules.values()) if ON_MAP in rules], np.int64)

    def project_epoch(epoch: int) -> tuple[NDArray[np.float64], NDArray[np.float64], float]:
        points, kept, chance = np.full((len(layers), len(rows), 2), np.nan), np.full(len(layers), np.nan), 0.0
        with opened.features.kept_open(epoch, (opened.items.name, opened.split)):
            for i, ranked in enumerate(layers):
                with contextlib.suppress(DataError, NumericError):
                    if ranked.similarity == "hamming":
                        continue
                    similarity: Similarity = ranked.similarity  # type: ignore[assignment] # text from a file, checked there
                    with opened.searches.post_processed.opened(epoch, opened.split, ranked, None) as (features, _):
                        values = torch.as_tensor(features.of_rows(rows[mapped]).values).cpu().numpy()
                    points[i, mapped] = project(values, "pca", similarity, 0)[0]
                    shares, chance = kept_neighbours(values, points[i, mapped], similarity)
                    kept[i] = shares.mean() if len(shares) else np.nan
        return points, kept, chance

    points, kept, chances = zip(*map_in_threads(project_epoch, gallery_run.epochs), strict=True)
    return GalleryMap(np.stack(points), np.stack(kept), max(chances), len(mapped), len(opened.queries), queries.mapped)


def _find_neighbours(gallery_run: _GalleryRun, epoch: int, rows: NDArray[np.int64]) -> _Neighbours:
    """(L, Q, K) items, nearest first, -1 where there is none; which are right; the layers that cannot be searched."""
    opened, layers = gallery_run.opened, gallery_run.layers
    with contextlib.suppress(DataError, NumericError):
        nearest = neighbours_of(opened, epoch, layers, rows, NEIGHBOURS)
        return nearest.rows.astype(np.int32), nearest.right, []
    # The features of some layers are not stored, or not finite.
    shape = len(layers), len(rows), min(NEIGHBOURS, len(opened.items) - 1)
    neighbours, right, absent = np.full(shape, -1, np.int32), np.zeros(shape, bool), list[RankedLayer]()
    for i, layer in enumerate(layers):
        try:
            nearest = neighbours_of(opened, epoch, [layer], rows, NEIGHBOURS)
        except (DataError, NumericError):
            absent.append(layer)
        else:
            neighbours[i], right[i] = nearest.rows[0], nearest.right[0]
    return neighbours, right, absent
