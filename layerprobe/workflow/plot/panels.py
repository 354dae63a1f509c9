"""The queries, the layers and the neighbours that panels show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import PIL.Image
from numpy.typing import NDArray

from layerprobe.plots.drawn_scores import match_layers
from layerprobe.plots.plot import PlotOptions, ReadImage
from layerprobe.plots.selected import selected_at, selected_text
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError
from layerprobe.values.facts import WITHIN_FOLDS
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, last_two_layers
from layerprobe.values.scores import Score
from layerprobe.values.views import FoundItem, Item, QueryNeighbours, Selected
from layerprobe.workflow.plot.neighbours import (
    NearestItems,
    Rows,
    RunGallery,
    neighbours_of,
    open_ranked_gallery,
    selected_neighbours,
)
from layerprobe.workflow.plot.query_rules import (
    ChosenQueries,
    QueriesByOutcome,
    QueryOfImage,
    RandomQueries,
    Rule,
    choose_queries,
    parse_rule,
    rule_text,
)
from layerprobe.workflow.run.experiments import have_other_images
from layerprobe.workflow.run.opened_run import equal_layers
from layerprobe.workflow.run.references import RankedSplit, open_ranked_split, require_finite
from layerprobe.workflow.run.runs import Run

_SPLIT = "test"  # of the queries
_QUERIES = 4
_NEIGHBOURS = 5
_SIDE = 256  # pixels of a picture, at most


@dataclass(frozen=True, eq=False)
class _PanelRun:
    """A run in the panels."""

    ranked_split: RankedSplit
    opened: RunGallery
    layers: tuple[RankedLayer, ...]


def panels_of(
    runs: Sequence[Run],
    scores: Sequence[Score],
    options: PlotOptions,
    embeddings: Mapping[str, RankedLayer],
    selected: Mapping[str, Selected] | None = None,
) -> tuple[list[QueryNeighbours], ReadImage]:
    """The neighbours of some test queries by some layers of runs, and a function that reads the images.

    By default, the layers are the embedding, the one before it, and the selected candidate. The queries are those whose
    nearest item is right by the first layer and wrong by the embedding, or random ones if there are none. They are
    chosen in the first run.

    Args:
        runs: at least one.
        embeddings: run -> its embedding layer, where that is known.
        selected: run -> the selected candidate of its choice.

    Returns:
        The neighbours by query, run and layer, in this order; and run and id -> pixels, at most 256 a side.
    """
    neighbours, opened = find_neighbours(runs, scores, options, embeddings, selected)
    return neighbours, lambda run, name: _shrink(opened[run].image(name))


def find_neighbours(
    runs: Sequence[Run],
    scores: Sequence[Score],
    options: PlotOptions,
    embeddings: Mapping[str, RankedLayer],
    selected: Mapping[str, Selected] | None = None,
) -> tuple[list[QueryNeighbours], dict[str, RunGallery]]:
    """As `panels_of`, with the opened split of each run in place of the function."""
    if options.query is not None and (options.where is not None or options.queries is not None):
        flag = "--where" if options.where is not None else "--queries"
        raise RecipeError(f"--query and {flag} exclude each other", fix="Omit one of them")
    reference = _ranked_split(runs[0], scores, options.epoch)
    rule = None
    if options.where is not None:
        last_layer = _choose_layers(reference, options, embeddings)[-1]
        rule = parse_rule(options.where, reference.layers, last_layer)
    layers = _choose_layers(reference, options, embeddings, rule)
    panel_runs = [_PanelRun(reference, open_ranked_gallery(reference), layers)]
    queries, notes = _choose_queries(rule, panel_runs[0], options)
    for run in runs[1:]:
        ranked_split = _ranked_split(run, scores, options.epoch)
        if have_other_images(reference.record, ranked_split.record, _SPLIT):
            message = f"{run.name} and {runs[0].name} have different {_SPLIT} images"
            raise DataError(message, file=run.folder, fix="Compare runs on the same images")
        panel_runs.append(
            _PanelRun(
                ranked_split,
                open_ranked_gallery(ranked_split),
                _choose_layers(ranked_split, options, embeddings, rule, like=layers),
            )
        )
    if len(runs) > 1:
        notes = tuple(f"{note}, by {runs[0].name}" for note in notes)
    names = [reference.stored.ids[row] for row in queries.rows]
    stars = {} if options.layers is not None else selected_at(selected or {}, options.epoch)
    by_run = [
        _find_run_neighbours(panel_run, names, notes, stars.get(panel_run.ranked_split.run.name))
        for panel_run in panel_runs
    ]
    opened = {panel_run.ranked_split.run.name: panel_run.opened for panel_run in panel_runs}
    in_order = [
        neighbours for query in range(len(names)) for run_queries in by_run for neighbours in run_queries[query]
    ]
    return in_order, opened


def _ranked_split(run: Run, scores: Sequence[Score], epoch: int | None) -> RankedSplit:
    """The stored ranks of an epoch, or of the last one that has test scores."""
    epochs = {score.epoch for score in scores if (score.run, score.split) == (run.name, _SPLIT)}
    return open_ranked_split(run, max(epochs, default=None) if epoch is None else epoch, _SPLIT)


def _choose_layers(
    ranked_split: RankedSplit,
    options: PlotOptions,
    embeddings: Mapping[str, RankedLayer],
    rule: Rule | None = None,
    *,
    like: Sequence[RankedLayer] = (),
) -> tuple[RankedLayer, ...]:
    """The requested layers; else those of the rule; else those of the first run, or the last two."""
    measured = ranked_split.layers
    requested = match_layers(options.layers, measured)
    if requested is not None:
        for layer in requested:
            require_finite(ranked_split, layer)
        return tuple(requested)
    if isinstance(rule, QueriesByOutcome):
        like = list(dict.fromkeys(layer for layer, _ in rule.outcomes))
    if like and set(like) <= set(measured):
        return tuple(like)
    ranked = [layer for layer in measured if layer in ranked_split.stored.ranks]
    plain = [
        x for x in ranked if (x.post_processing, x.similarity) == (NO_POST_PROCESSING, ranked_split.similarity)
    ] or ranked
    embedding = embeddings.get(ranked_split.run.name)
    if not (last_two := last_two_layers(plain, embedding)):
        raise DataError(
            "no layer has ranks",
            file=ranked_split.run.rank_file(ranked_split.epoch, ranked_split.split),
            fix="Probe one",
        )
    # A layer whose features equal the embedding's, such as the module that gives the output, is the same layer.
    equal_names = equal_layers(ranked_split.run, ranked_split.epoch, _SPLIT, last_two[-1].layer.layer)
    return tuple(last_two_layers([x for x in plain if x.layer not in equal_names], last_two[-1]))


def _choose_queries(
    rule: Rule | None, panel_run: _PanelRun, options: PlotOptions
) -> tuple[ChosenQueries, tuple[str, ...]]:
    """The queries, and notes on how they were chosen."""
    ranked_split, names = panel_run.ranked_split, panel_run.opened.class_names
    count = _QUERIES if options.queries is None else options.queries
    if options.query is not None:
        rule = QueryOfImage(options.query)
    if rule is not None:
        queries = choose_queries(rule, ranked_split, names, count)
        if not len(queries.rows):
            message = f"no {ranked_split.split} image at epoch {ranked_split.epoch}: {rule_text(rule, ranked_split)}"
            raise RecipeError(message, fix="Choose another rule, such as --where worst")
        return queries, (queries.text,)
    first_layer, last_layer = panel_run.layers[0], panel_run.layers[-1]
    if first_layer == last_layer:
        queries = choose_queries(RandomQueries(), ranked_split, names, count)
        return queries, (queries.text,)
    disagree = QueriesByOutcome(((first_layer, True), (last_layer, False)))
    queries = choose_queries(disagree, ranked_split, names, count)
    if len(queries.rows):
        return queries, (queries.text,)
    queries = choose_queries(RandomQueries(), ranked_split, names, count)
    return queries, (f"No query has {rule_text(disagree, ranked_split)}", queries.text)


def _find_run_neighbours(
    panel_run: _PanelRun, names: Sequence[str], notes: tuple[str, ...], selected: Selected | None
) -> list[list[QueryNeighbours]]:
    """Query -> its neighbours by each layer of a run, and by its selected candidate."""
    ranked_split, opened = panel_run.ranked_split, panel_run.opened
    rows_of = {name: row for row, name in enumerate(opened.queries.ids)}
    for name in names:
        if name not in rows_of:
            fix = "Compare runs on the same images"
            raise DataError(
                f"{ranked_split.run.name} has no {ranked_split.split} image {name!r}",
                file=ranked_split.run.folder,
                fix=fix,
            )
    rows = np.array([rows_of[name] for name in names], np.int64)
    nearest = neighbours_of(opened, ranked_split.epoch, panel_run.layers, rows, _NEIGHBOURS)
    layers = [(ranked, ranked_split.epoch) for ranked in panel_run.layers]
    by_layer = [
        _label_neighbours(
            opened,
            (ranked, epoch),
            rows,
            nearest.of_layer(i),
            (*notes, *opened.searches.subject(epoch, opened.split, ranked).notes),
        )
        for i, (ranked, epoch) in enumerate(layers)
    ]
    if selected is not None and (layer := (selected.score.ranked, selected.score.epoch)) not in layers:
        try:
            items = selected_neighbours(opened, selected, rows, _NEIGHBOURS)
            fold_notes = (f"{selected_text(selected, layer[1])}: {WITHIN_FOLDS}",) * selected.within_folds
            by_layer.append(_label_neighbours(opened, layer, rows, items, (*notes, *fold_notes)))
        except LayerprobeError as error:
            line = f"{selected_text(selected, layer[1])} is not drawn: {error.message}"
            by_layer = [
                [replace(neighbours, notes=(*neighbours.notes, line)) for neighbours in of_layer]
                for of_layer in by_layer
            ]
    return [list(of_query) for of_query in zip(*by_layer, strict=True)]


def _label_neighbours(
    opened: RunGallery, layer: tuple[RankedLayer, int], rows: Rows, nearest: NearestItems, notes: tuple[str, ...]
) -> list[QueryNeighbours]:
    """The neighbours of each query by one layer at an epoch.

    Args:
        nearest: of this layer alone.
    """

    def item(split_row: int, of_queries: bool) -> Item:
        split = opened.queries if of_queries else opened.items
        return Item(split.ids[split_row], opened.class_names[split.labels[split_row]])

    def neighbours(query: int) -> QueryNeighbours:
        columns = zip(nearest.rows[0, query], nearest.similarities[0, query], nearest.right[0, query], strict=True)
        items = tuple(
            FoundItem(item(int(row), False), float(value), bool(right)) for row, value, right in columns if row >= 0
        )
        ranked, epoch = layer
        return QueryNeighbours(opened.run.name, epoch, opened.split, ranked, item(int(rows[query]), True), items, notes)

    return [neighbours(query) for query in range(len(rows))]


def _shrink(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The image, shrunk to at most `_SIDE` pixels a side."""
    if max(pixels.shape[:2]) <= _SIDE:
        return pixels
    picture = PIL.Image.fromarray(pixels)
    picture.thumbnail((_SIDE, _SIDE))
    return np.asarray(picture)
