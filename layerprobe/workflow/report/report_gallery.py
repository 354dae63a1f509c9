"""The galleries of a report: which queries are shown, and what every layer finds for them at every epoch.

galleries = galleries_of([(run, page)])
galleries.galleries, galleries.pictures  # for `Report`
galleries.notes                          # why a run has none
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.reductions.chain import parse_chain
from layerprobe.report.album import LIMIT, UncutGallery, fit_galleries, small_picture
from layerprobe.report.values import Gallery, GalleryQuery, RunPage
from layerprobe.system.computing import OfEach, in_threads
from layerprobe.system.errors import DataError, LayerprobeError, NumericError
from layerprobe.values.facts import at_epoch_text
from layerprobe.values.layers import RankedLayer
from layerprobe.values.views import Item
from layerprobe.workflow.plot.neighbours import RunGallery, neighbours_of, open_gallery
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
SEARCHED = 2_000_000  # rows of features, over all layers, epochs and runs, that are read for a page
_PANELS = "layerprobe plot panels"  # fits a reduction at one epoch alone


@dataclass(frozen=True, eq=False)
class Galleries:
    """The galleries of some runs."""

    galleries: tuple[Gallery, ...] = ()
    pictures: tuple[bytes, ...] = ()
    notes: tuple[str, ...] = ()


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


@dataclass(frozen=True, eq=False)
class _EpochNeighbours:
    """What the layers of a run find at an epoch.

    Args:
        rows: (L, Q, K) of the searched items, nearest first; -1 where there is none.
        right: (L, Q, K) whether it is a right answer.
        absent: layers whose features are not stored, or not finite.
    """

    rows: NDArray[np.int32]
    right: NDArray[np.bool_]
    absent: tuple[RankedLayer, ...]


@dataclass(eq=False)
class _Pictures:
    """Small pictures of the images that some runs search, each read once."""

    read: dict[str, bytes | None] = field(default_factory=dict)

    def of(self, opened: RunGallery, name: str) -> bytes | None:
        """The picture of an image, by its id; None where it cannot be read."""
        if name not in self.read:
            try:
                self.read[name] = small_picture(opened.image(name))
            except DataError:
                self.read[name] = None
        return self.read[name]


@dataclass(eq=False)
class _Queries:
    """The queries of runs that search the same images.

    Args:
        rules: row of the query -> why it is shown; those that matter most first.
        notes: run -> how its share of them was chosen, in a line each.
    """

    rules: dict[int, list[str]] = field(default_factory=dict)
    notes: dict[str, list[str]] = field(default_factory=dict)


def galleries_of(runs: Sequence[tuple[Run, RunPage]], limit: int = LIMIT) -> Galleries:
    """The galleries of some runs, from their stored features and ranks; nothing is written.

    The queries are chosen at the last epoch: those that the layer before the embedding gets right and the embedding
    wrong, the reverse, those whose nearest right item is farthest down by the embedding, and some at random. Runs that
    search the same images show the same queries, of which each chooses a share. A layer whose reduction is fitted or
    drawn is excluded, as that would be done anew at every epoch. Epochs in between are excluded where all of them would
    take minutes, because so many images are searched.
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
    galleries: dict[str, UncutGallery] = {}
    with in_threads() as map_in_threads:
        for group in groups:
            queries, pictures = _queries_of(group), _Pictures()
            galleries |= {
                gallery_run.page.name: _fill_gallery(gallery_run, queries, map_in_threads, pictures)
                for gallery_run in group
            }
    return Galleries(
        *fit_galleries([galleries[gallery_run.page.name] for gallery_run in gallery_runs], limit), tuple(notes)
    )


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
    opened = open_gallery(run, SPLIT)
    epochs = _thin_epochs(stored, rows // (len(layers) * len(opened.items)))
    notes = []
    if len(layers) < len(all_layers):
        left_out = f"{len(all_layers) - len(layers)}. {_PANELS} shows them"
        notes.append(f"Layers with a fitted or drawn reduction are not shown: {left_out}")
    if len(epochs) < len(stored):
        notes.append(
            f"{len(epochs)} of {len(stored)} epochs are here: {len(opened.items):,} images are searched at each"
        )
    return _GalleryRun(page, opened, open_ranked_split(run, stored[-1], SPLIT), epochs, layers, tuple(notes))


def _thin_epochs(epochs: Sequence[int], count: int) -> tuple[int, ...]:
    """`count` epochs, evenly spaced from the first to the last; only the last where `count` is below 2."""
    if count >= len(epochs):
        return tuple(epochs)
    indices = np.linspace(len(epochs) - 1, 0, max(1, count)).round().astype(int)
    return tuple(epochs[index] for index in sorted(indices.tolist()))


def _is_fitted_anew(ranked: RankedLayer) -> bool:
    """Whether a layer's reduction differs between epochs, because it is fitted or drawn anew."""
    chain = parse_chain(ranked.reduction)
    return chain.fits or chain.draws or chain.needs_classifier


def _queries_of(group: Sequence[_GalleryRun]) -> _Queries:
    """The queries of runs that search the same images: in turns one by each rule of each run."""
    queries, lists = _Queries(), []
    for gallery_run in group:
        ranked_split = gallery_run.ranked_split
        notes = queries.notes.setdefault(gallery_run.page.name, [])
        for rule in _query_rules(gallery_run):
            text = rule_text(rule, ranked_split)
            try:
                chosen = choose_queries(
                    rule, ranked_split, gallery_run.opened.class_names, max(1, QUERIES // len(group))
                )
            except DataError as error:
                notes.append(f"No queries by the rule {text}: {error.message}")
                continue
            notes.append(f"{chosen.text}, {at_epoch_text(ranked_split.epoch, gallery_run.page.data.weights)}")
            run_text = f" ({gallery_run.page.name})" if len(group) > 1 and not isinstance(rule, RandomQueries) else ""
            lists.append((text + run_text, chosen.rows.tolist()))
    for turn in range(QUERIES):
        for text, rows in lists:
            for row in rows[turn : turn + 1]:
                rules = queries.rules.setdefault(row, [])
                rules += [text] * (text not in rules)
    return queries


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


def _fill_gallery(
    gallery_run: _GalleryRun, queries: _Queries, map_in_threads: OfEach, pictures: _Pictures
) -> UncutGallery:
    """What every layer finds for some queries at every epoch."""
    opened, rows = gallery_run.opened, np.array(list(queries.rules), np.int64)
    by_epoch: list[_EpochNeighbours] = map_in_threads(
        lambda epoch: _find_neighbours(gallery_run, epoch, rows), gallery_run.epochs
    )
    absent: dict[str, list[str]] = {}
    for epoch, neighbours in zip(gallery_run.epochs, by_epoch, strict=True):
        for layer in neighbours.absent:
            absent.setdefault(str(layer.layer), []).append(str(epoch))
    weights = gallery_run.page.data.weights
    absent_epochs = {layer: at_epoch_text(", ".join(map(str, epochs)), weights) for layer, epochs in absent.items()}
    splits = [opened.items] if opened.items is opened.queries else [opened.items, opened.queries]
    items = [
        Item(name, opened.class_names[label])
        for split in splits
        for name, label in zip(split.ids, split.labels.tolist(), strict=True)
    ]
    first_query = len(items) - len(opened.queries)  # the index of the first query among the items
    return UncutGallery(
        run=gallery_run.page.name,
        split=SPLIT,
        epochs=gallery_run.epochs,
        layers=gallery_run.layers,
        items=items,
        queries=tuple(GalleryQuery(first_query + row, tuple(rules)) for row, rules in queries.rules.items()),
        found=np.stack([neighbours.rows for neighbours in by_epoch]),
        right=np.stack([neighbours.right for neighbours in by_epoch]),
        picture=lambda index: pictures.of(opened, items[index].id),
        notes=(
            *queries.notes[gallery_run.page.name],
            *gallery_run.notes,
            *(f"{layer} has no features that can be searched {at}" for layer, at in absent_epochs.items()),
        ),
    )


def _find_neighbours(gallery_run: _GalleryRun, epoch: int, rows: NDArray[np.int64]) -> _EpochNeighbours:
    try:
        nearest = neighbours_of(gallery_run.opened, epoch, gallery_run.layers, rows, NEIGHBOURS)
    except (DataError, NumericError):
        return _find_neighbours_by_layer(gallery_run, epoch, rows)
    return _EpochNeighbours(nearest.rows.astype(np.int32), nearest.right, ())


def _find_neighbours_by_layer(gallery_run: _GalleryRun, epoch: int, rows: NDArray[np.int64]) -> _EpochNeighbours:
    """As `_find_neighbours`, for an epoch at which some layers cannot be searched."""
    shape = len(gallery_run.layers), len(rows), min(NEIGHBOURS, len(gallery_run.opened.items) - 1)
    neighbour_rows, right, absent = np.full(shape, -1, np.int32), np.zeros(shape, bool), []
    for i, layer in enumerate(gallery_run.layers):
        try:
            nearest = neighbours_of(gallery_run.opened, epoch, [layer], rows, NEIGHBOURS)
        except (DataError, NumericError):
            absent.append(layer)
        else:
            neighbour_rows[i], right[i] = nearest.rows[0], nearest.right[0]
    return _EpochNeighbours(neighbour_rows, right, tuple(absent))
