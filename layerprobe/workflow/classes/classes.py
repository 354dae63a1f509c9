"""classes: two layers of a run, named or chosen -> each test class by both, and the confusions of classes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from layerprobe.measure.confusions import NearestItem
from layerprobe.statistics.bootstrap import holm
from layerprobe.statistics.class_differences import (
    EQUAL,
    ChanceOfLosing,
    chance_of_losing,
    paired_counts,
    paired_intervals,
    shrink_means,
    sign_tests,
)
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.system.wording import first_named
from layerprobe.values.classes import (
    ComparedClass,
    ComparedClasses,
    Confusion,
    MistakenImage,
    TwoNames,
    sort_classes,
)
from layerprobe.values.layers import RankedLayer, spoken_name
from layerprobe.workflow.choose.candidates import whole_units
from layerprobe.workflow.choose.choose_once import choice_to_take
from layerprobe.workflow.classes.class_tables import classes_csv, confusions_csv
from layerprobe.workflow.classes.nearest_items import (
    SplitLayer,
    nearest_by_layer,
    nearest_within_folds,
    require_searchable,
)
from layerprobe.workflow.classes.request import ClassesRequest
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.run.class_names import class_name
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.references import (
    RankedSplit,
    Reference,
    embedding_among,
    find_layers_of,
    last_two,
    open_ranked_split,
    parse_reference,
    reference_text,
    require_any_right_item,
    require_same_queries,
)
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import split_to_choose_on
from layerprobe.workflow.run.stored_choice import stored_choice

_SPLIT = "test"
_EXAMPLES = 2
_Names = Callable[[int], str]  # label -> the name of the class


@dataclass(frozen=True)
class LayerPair:
    """The layer to switch to, a, and the present one, b.

    Args:
        within_folds: whether a is fitted within folds of the test classes, so that both are searched in these.
        cluster: that the folds divide; None for the classes.
        notes: on how they were chosen.
    """

    a: SplitLayer
    b: SplitLayer
    within_folds: bool = False
    cluster: str | None = None
    notes: tuple[str, ...] = ()


def compare_classes(run: Run, request: ClassesRequest, listener: Listener) -> ComparedClasses:
    """Compare two layers within each test class, and list the classes that are found in place of others.

    The layers are those of the request; without them the one that `choose` prefers and the embedding: of the stored
    choice where it holds, else of the one that `choose` makes at the last epoch. Where nothing can be chosen they are
    the layer before the embedding and the embedding.

    Raises:
        DataError: ranks or features that are gone, or search rules that have changed.
        NumericError: NaN or Inf.
        RecipeError: a layer that is not ranked, or a name of several; the same layer twice.
    """
    for path in (request.csv, request.confusions):
        if path is not None:
            require_output(path, "csv")
    pair = _name_pair(run, request.layers) if request.layers else _advise_pair(run, listener)
    sides = (pair.a, pair.b)
    fitted_on = FITTED_ON if FITTED_ON in run.read().manifests else _selection_split(run)
    for side in sides:
        require_searchable(side, fitted_on)
    stored = pair.a.ranked_split.stored
    units = whole_units(run, _SPLIT, stored.labels, stored.ids, pair.cluster)
    both = []
    with listener.task(f"classes of {run.name}", len(sides), "layers") as task:
        for side in sides:
            both.append(nearest_within_folds(side, units) if pair.within_folds else nearest_by_layer(side, fitted_on))
            task.advance()
    compared = _compare(pair, (both[0], both[1]), request)
    for path, text in ((request.csv, classes_csv(compared)), (request.confusions, confusions_csv(compared))):
        if path is not None:
            write_output(path, text.encode(errors="surrogateescape"))
    return compared


def _selection_split(run: Run) -> str:
    record = run.read()
    return split_to_choose_on(run, record, [record.epochs_done])


def _name_pair(run: Run, names: Sequence[str]) -> LayerPair:
    """The layers of two names."""
    references = [parse_reference(name, bare="layer") for name in names]
    for name, reference in zip(names, references, strict=True):
        if reference.run not in (None, run.name):
            raise RecipeError(f"--layers {name}: the run is {run.name}", fix="Name layers of one run")
    splits = [require_any_right_item(open_ranked_split(run, x.epoch, _SPLIT)) for x in references]
    a, b = _single_layers(names, list(zip(splits, references, strict=True)))
    require_same_queries(a.ranked_split, b.ranked_split)
    if (a.ranked_split.epoch, a.ranked) == (b.ranked_split.epoch, b.ranked):
        raise RecipeError(f"--layers {','.join(names)}: the same layer twice", fix="Name two layers")
    return LayerPair(a, b)


def _single_layers(names: Sequence[str], references: Sequence[tuple[RankedSplit, Reference]]) -> list[SplitLayer]:
    sides = []
    for name, (split, _), layers in zip(names, references, find_layers_of(references), strict=True):
        if len(layers) > 1:
            fix = f"Choose one of {', '.join(map(str, layers))}"
            raise RecipeError(f"--layers {name} names several layers", fix=fix)
        sides.append(SplitLayer(split, layers[0]))
    return sides


def _advise_pair(run: Run, listener: Listener) -> LayerPair:
    """What `choose` prefers and the embedding; where that is one layer, or nothing is chosen, the last two layers."""
    record = run.read()
    try:
        choice, why = choice_to_take(run, listener, lambda: split_to_choose_on(run, record, [record.epochs_done]))
    except (DataError, RecipeError) as error:
        listener.say(f"{run.name}: no layer is chosen ({error.message}): the last two layers are compared")
        return _last_two(run)
    preferred = choice.preferred_test
    if preferred is None:
        raise DataError(f"{run.name} has no test classes", file=run.folder, fix="Probe it with --splits test")
    a = SplitLayer(open_ranked_split(run, preferred.epoch, _SPLIT), preferred.ranked)
    if choice.embedding is not None:
        of_embedding = choice.embedding.whole_gallery or choice.embedding.test
        b = SplitLayer(open_ranked_split(run, of_embedding.epoch, _SPLIT), of_embedding.ranked)
    else:
        b = _last_two(run).b
    if (a.ranked_split.epoch, a.ranked) == (b.ranked_split.epoch, b.ranked):
        listener.say(f"{run.name}: choose prefers the embedding ({why}): the layer before it is compared")
        return _last_two(run)
    listener.say(f"{run.name}: {a.name} against the embedding {b.name}, {why}")
    stored = stored_choice(run)
    notes: tuple[str, ...] = ()
    if choice.chosen.split == _SPLIT:
        notes = (f"{a.name} was chosen on these classes: its numbers are those of the best of {choice.candidates:,}",)
    within_folds = choice.within_folds and not a.is_ranked
    return LayerPair(a, b, within_folds, None if stored is None else stored.request.get("cluster"), notes)


def _last_two(run: Run) -> LayerPair:
    """The layer before the embedding, and the embedding."""
    ranked_split = require_any_right_item(open_ranked_split(run, None, _SPLIT))
    pair = last_two(ranked_split.record, ranked_split.layers)
    if pair is None:
        embedding = embedding_among(ranked_split.record, ranked_split.layers)
        message = "the embedding is not known" if embedding is None else "no layer before the embedding is ranked"
        raise RecipeError(f"{run.name}: {message}", fix=f"Name two of {_named(ranked_split.layers)} by --layers")
    return LayerPair(SplitLayer(ranked_split, pair.before), SplitLayer(ranked_split, pair.embedding))


def _named(layers: Sequence[RankedLayer]) -> str:
    return first_named([str(layer) for layer in layers])


def _compare(pair: LayerPair, both: tuple[NearestItem, NearestItem], request: ClassesRequest) -> ComparedClasses:
    """Every number of the result, from the nearest items by both layers."""
    ranked_split, run = pair.a.ranked_split, pair.a.ranked_split.run
    names = partial(class_name, run.feature_head(ranked_split.epoch, _SPLIT).class_names)
    itself = run.ranks(ranked_split.epoch, _SPLIT).searched_itself
    searched_ids = run.feature_head(ranked_split.epoch, _SPLIT if itself else "gallery").ids
    ids = (ranked_split.stored.ids, ranked_split.stored.ids if pair.within_folds else searched_ids)
    classes = _class_rows(both, names)
    # The others cannot lose.
    has_right_item, labels = both[0].right_items > 0, both[0].labels
    chance = chance_of_losing((both[0].hits - both[1].hits)[has_right_item], labels[has_right_item])
    searchable = {names(label) for label in np.unique(labels[has_right_item]).tolist()}
    return ComparedClasses(
        run.name,
        (ranked_split.epoch, pair.b.ranked_split.epoch),
        pair.a.ranked,
        pair.b.ranked,
        len(both[0].labels),
        sort_classes(classes, request.order),
        _confusions(both, names, ids),
        _two_names(both, names),
        verdict_text([x for x in classes if x.name in searchable], chance, _spoken_names(pair)),
        pair.within_folds,
        (*pair.notes, *_notes(both, within_folds=pair.within_folds)),
    )


def _class_rows(both: tuple[NearestItem, NearestItem], names: _Names) -> tuple[ComparedClass, ...]:
    a, b, labels = both[0].hits, both[1].hits, both[0].labels
    present, members, images = np.unique(labels, return_inverse=True, return_counts=True)
    recall_a, recall_b, differences = ((np.bincount(members, x) / images).tolist() for x in (a, b, a - b))
    is_searchable = np.bincount(members, both[0].right_items > 0) > 0
    rows = is_searchable[members]
    counts, shrunk = paired_counts(a[rows], b[rows], labels[rows]), shrink_means((a - b)[rows], labels[rows])
    shrunk_means = itertools.repeat(None) if shrunk is None else shrunk.tolist()
    estimates = iter(zip(paired_intervals(counts), holm(sign_tests(counts)), shrunk_means, strict=False))
    return tuple(
        ComparedClass(names(label), *numbers, *(next(estimates) if has_right_item else ()))
        for label, *numbers, has_right_item in zip(
            present.tolist(), images.tolist(), recall_a, recall_b, differences, is_searchable.tolist(), strict=True
        )
    )


def _confusions(
    both: tuple[NearestItem, NearestItem], names: _Names, ids: tuple[Sequence[str], Sequence[str]]
) -> tuple[Confusion, ...]:
    """The pairs that either layer confuses, the largest first.

    Args:
        ids: of the queries, and of the items that are searched.
    """
    of_layers = [nearest.confusions() for nearest in both]
    with_right = np.bincount(both[0].labels, both[0].right_items > 0)
    none: NDArray[np.int64] = np.empty(0, np.int64)
    confusions = []
    for name, other in dict.fromkeys([*of_layers[0], *of_layers[1]]):
        a, b = (pairs.get((name, other), none) for pairs in of_layers)
        by_both = np.isin(a, b)
        examples = [(0, row) for row in (*a[by_both], *a[~by_both])] + [(1, row) for row in b[~np.isin(b, a)]]
        pictures = [MistakenImage(ids[0][row], ids[1][both[side].rows[row]]) for side, row in examples[:_EXAMPLES]]
        confusions.append(Confusion(names(name), names(other), int(with_right[name]), len(a), len(b), tuple(pictures)))
    return tuple(sorted(confusions, key=lambda x: (-x.count, -(x.a + x.b), x.name, x.nearest)))


def _two_names(both: tuple[NearestItem, NearestItem], names: _Names) -> tuple[TwoNames, ...]:
    by_layer = {side: nearest.two_names() for side, nearest in zip("AB", both, strict=True)}
    pairs = dict.fromkeys(pair for of_layer in by_layer.values() for pair in of_layer)
    return tuple(
        TwoNames((names(pair[0]), names(pair[1])), tuple(side for side in by_layer if pair in by_layer[side]))
        for pair in pairs
    )


def verdict_text(classes: Sequence[ComparedClass], chance: ChanceOfLosing, layers: tuple[str, str]) -> str:
    """`41 of 350 classes lose by switching from output to blocks.6.0, 190 gain; ...`, in one sentence.

    Args:
        classes: those of which an image has a right item to find.
        layers: names of a and b.
    """
    tested = sum(x.p is not None for x in classes)
    lost = sum(x.difference < -EQUAL for x in classes)
    gained = sum(x.difference > EQUAL for x in classes)
    significant = [x.name for x in classes if x.p is not None and x.p < 0.05 and x.difference < 0]
    by_chance = "more than chance alone would make lose" if chance.p < 0.025 else "as many may lose by chance"
    p = f"= {chance.p:.2g}" if chance.p > 0.001 else "≤ 0.001"
    loss = f"the loss of {first_named(significant)} is" if significant else "the loss of no single class is"
    tests = f"McNemar's exact tests, corrected by Holm for {tested:,} classes"
    if tested < len(classes):
        untested = len(classes) - tested
        tests += f"; {untested:,} {'has' if untested == 1 else 'have'} ties and no test"
    singly = f"{loss} significant ({tests})" if tested else "no class is tested, as right and wrong items tie in each"
    return (
        f"{lost:,} of {len(classes):,} classes lose by switching from {layers[1]} to {layers[0]}, and {gained:,} gain;"
        f" {by_chance} ({chance.low:,} to {chance.high:,} would lose if switching"
        f" did the same to every class, one-sided p {p}),"
        f" and {singly}."
    )


def _spoken_names(pair: LayerPair) -> tuple[str, str]:
    """The layers for people; their full names where these are alike, and where their epochs are not."""
    a, b = spoken_name(pair.a.ranked), spoken_name(pair.b.ranked)
    if a != b and pair.a.ranked_split.epoch == pair.b.ranked_split.epoch:
        return a, b
    return tuple(reference_text(x.ranked_split.subject(x.ranked)) for x in (pair.a, pair.b))  # type: ignore[return-value] # two


def _notes(both: tuple[NearestItem, NearestItem], *, within_folds: bool) -> list[str]:
    notes = ["both are searched within fifths of the classes, by maps fitted on the others"] if within_folds else []
    if lone := int((both[0].right_items == 0).sum()):
        notes.append(f"without a right item to find, so misses and in no confusion: {lone:,} image{'s' * (lone != 1)}")
    is_tied = np.any([(x.hits % 1) != 0 for x in both], axis=0)
    if tied := int(is_tied.sum()):
        classes = len(np.unique(both[0].labels[is_tied]))
        images = f"{tied:,} images of {classes:,} classes"
        notes.append(f"right and wrong items tie for {images}, which have no interval and no p")
    return notes
