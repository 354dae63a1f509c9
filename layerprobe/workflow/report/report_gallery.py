"""The galleries of a report: which queries are shown, and what every layer finds for them at every epoch.

found = galleries_of([(run, page)])
found.galleries, found.pictures        # for `Report`
found.notes                            # why a run has none
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.reductions.chain import parse_chain
from layerprobe.report.album import LIMIT, UncutGallery, within
from layerprobe.report.pictures import small_picture
from layerprobe.report.values import Gallery, GalleryQuery, RunPage
from layerprobe.system.errors import DataError, LayerprobeError, NumericError
from layerprobe.system.threads import OfEach, in_threads
from layerprobe.values.facts import at_epoch_text
from layerprobe.values.keys import RankedLayer
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
from layerprobe.workflow.run.manifests import have_other_images
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
class _Shown:
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
class _Found:
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
    search the same images show the same queries, to each its share. A layer whose reduction is fitted or drawn is
    excluded, as that would be done anew at every epoch; so are epochs in between where so many images are searched that
    all of them would take minutes.
    """
    shown, notes = [], []
    for run, page in runs:
        try:
            shown.append(_shown(run, page, SEARCHED // len(runs)))
        except LayerprobeError as error:
            notes.append(f"no images of {page.name} are shown: {error}")
    groups: list[list[_Shown]] = []
    for each in shown:
        group = next((group for group in groups if _have_one_set_of_images(group[0], each)), None)
        if group is None:
            groups.append(group := [])
        group.append(each)
    wanted: dict[str, UncutGallery] = {}
    with in_threads() as of_each:
        for group in groups:
            queries, pictures = _queries_of(group), _Pictures()
            wanted |= {each.page.name: _wanted(each, queries, of_each, pictures) for each in group}
    return Galleries(*within([wanted[each.page.name] for each in shown], limit), tuple(notes))


def _have_one_set_of_images(one: _Shown, other: _Shown) -> bool:
    named_alike = one.opened.queries.ids == other.opened.queries.ids
    return named_alike and not have_other_images(one.opened.record, other.opened.record, SPLIT)


def _shown(run: Run, page: RunPage, rows: int) -> _Shown:
    """What of a run can be shown."""
    scored = [score for score in page.scores if score.split == SPLIT]
    stored = [
        epoch
        for epoch in sorted({score.epoch for score in scored})
        if run.has_features(epoch, SPLIT) and run.has_ranks(epoch, SPLIT)
    ]
    measured = {score.ranked for score in scored}
    every = [ranked for ranked in page.layers if ranked in measured]
    layers = tuple(ranked for ranked in every if not _changes(ranked))
    if not (stored and layers):
        raise DataError(
            f"no features of the {SPLIT} split are stored",
            file=run.folder,
            fix=f"Run {run.command('probe', '--splits', SPLIT)}",
        )
    opened = open_gallery(run, SPLIT)
    epochs = _thinned(stored, rows // (len(layers) * len(opened.items)))
    notes = []
    if len(layers) < len(every):
        left_out = f"{len(every) - len(layers)}. {_PANELS} shows them"
        notes.append(f"Layers with a fitted or drawn reduction are not shown: {left_out}")
    if len(epochs) < len(stored):
        notes.append(
            f"{len(epochs)} of {len(stored)} epochs are here: {len(opened.items):,} images are searched at each"
        )
    return _Shown(page, opened, open_ranked_split(run, stored[-1], SPLIT), epochs, layers, tuple(notes))


def _thinned(epochs: Sequence[int], count: int) -> tuple[int, ...]:
    """So many of some epochs, evenly spaced from the first to the last; the last one where that is all."""
    if count >= len(epochs):
        return tuple(epochs)
    indices = np.linspace(len(epochs) - 1, 0, max(1, count)).round().astype(int)
    return tuple(epochs[index] for index in sorted(indices.tolist()))


def _changes(ranked: RankedLayer) -> bool:
    """Whether a layer's reduction is another one at every epoch."""
    chain = parse_chain(ranked.reduction)
    return chain.fits or chain.draws or chain.needs_classifier


def _queries_of(group: Sequence[_Shown]) -> _Queries:
    """The queries of runs that search the same images: in turns one by each rule of each run."""
    queries, lists = _Queries(), []
    for each in group:
        ranked_split = each.ranked_split
        notes = queries.notes.setdefault(each.page.name, [])
        for rule in _rules(each):
            text = rule_text(rule, ranked_split)
            try:
                chosen = choose_queries(rule, ranked_split, each.opened.class_names, max(1, QUERIES // len(group)))
            except DataError as error:
                notes.append(f"No queries by the rule {text}: {error.message}")
                continue
            notes.append(f"{chosen.text}, {at_epoch_text(ranked_split.epoch, each.page.data.weights)}")
            whose = f" ({each.page.name})" if len(group) > 1 and not isinstance(rule, RandomQueries) else ""
            lists.append((text + whose, chosen.rows.tolist()))
    for turn in range(QUERIES):
        for text, rows in lists:
            for row in rows[turn : turn + 1]:
                rules = queries.rules.setdefault(row, [])
                rules += [text] * (text not in rules)
    return queries


def _rules(shown: _Shown) -> list[Rule]:
    """The rules by which queries of a run are chosen."""
    page = shown.page
    single = [ranked for ranked in shown.layers if "+" not in ranked.layer.layer] or list(shown.layers)
    embedding = None if page.embedding is None else page.layers[page.embedding]
    last = embedding if embedding in single else single[-1]
    # Of a layer with several pools that one stands for it which the page shows first.
    first = [ranked for ranked in single if page.layers.index(ranked) in page.few] or single
    before = [ranked for ranked in first if ranked.layer.layer != last.layer.layer]
    before = [ranked for ranked in before if single.index(ranked) < single.index(last)]
    pairs = [(before[-1], last), (last, before[-1])] if before else []
    return [
        *(QueriesByOutcome(((one, True), (other, False))) for one, other in pairs),
        WorstQueries(last),
        RandomQueries(),
    ]


def _wanted(shown: _Shown, queries: _Queries, of_each: OfEach, pictures: _Pictures) -> UncutGallery:
    """What every layer finds for some queries at every epoch."""
    opened, rows = shown.opened, np.array(list(queries.rules), np.int64)
    by_epoch: list[_Found] = of_each(lambda epoch: _found(shown, epoch, rows), shown.epochs)
    absent: dict[str, list[str]] = {}
    for epoch, found in zip(shown.epochs, by_epoch, strict=True):
        for layer in found.absent:
            absent.setdefault(str(layer.layer), []).append(str(epoch))
    weights = shown.page.data.weights
    gone = {layer: at_epoch_text(", ".join(map(str, epochs)), weights) for layer, epochs in absent.items()}
    splits = [opened.items] if opened.items is opened.queries else [opened.items, opened.queries]
    items = [
        Item(name, opened.class_names[label])
        for split in splits
        for name, label in zip(split.ids, split.labels.tolist(), strict=True)
    ]
    first = len(items) - len(opened.queries)  # the index of the first query among the items
    return UncutGallery(
        run=shown.page.name,
        split=SPLIT,
        epochs=shown.epochs,
        layers=shown.layers,
        items=items,
        queries=tuple(GalleryQuery(first + row, tuple(rules)) for row, rules in queries.rules.items()),
        found=np.stack([found.rows for found in by_epoch]),
        right=np.stack([found.right for found in by_epoch]),
        picture=lambda index: pictures.of(opened, items[index].id),
        notes=(
            *queries.notes[shown.page.name],
            *shown.notes,
            *(f"{layer} has no features that can be searched {at}" for layer, at in gone.items()),
        ),
    )


def _found(shown: _Shown, epoch: int, rows: NDArray[np.int64]) -> _Found:
    """What every layer finds at an epoch."""
    try:
        found = neighbours_of(shown.opened, epoch, shown.layers, rows, NEIGHBOURS)
    except (DataError, NumericError):
        return _found_apart(shown, epoch, rows)
    return _Found(found.rows.astype(np.int32), found.right, ())


def _found_apart(shown: _Shown, epoch: int, rows: NDArray[np.int64]) -> _Found:
    """What each layer finds at an epoch at which some cannot be searched."""
    shape = len(shown.layers), len(rows), min(NEIGHBOURS, len(shown.opened.items) - 1)
    found, right, absent = np.full(shape, -1, np.int32), np.zeros(shape, bool), []
    for i, layer in enumerate(shown.layers):
        try:
            nearest = neighbours_of(shown.opened, epoch, [layer], rows, NEIGHBOURS)
        except (DataError, NumericError):
            absent.append(layer)
        else:
            found[i], right[i] = nearest.rows[0], nearest.right[0]
    return _Found(found, right, tuple(absent))
