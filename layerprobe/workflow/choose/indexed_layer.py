"""The chosen layer's features on test -> what each kind of index of them costs."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

import numpy as np
import torch

from layerprobe.measure.analysis import Features
from layerprobe.measure.concatenated import side_by_side
from layerprobe.measure.index_costs import Searched, index_costs
from layerprobe.reductions.applying import Blocks, reduced
from layerprobe.reductions.chain import ON_GALLERY, parse_chain
from layerprobe.system.errors import RecipeError
from layerprobe.values.choice import Choice
from layerprobe.values.indexes import IndexCosts, IndexKind
from layerprobe.values.keys import NO_REDUCTION, RankedLayer, members_of
from layerprobe.values.metric_names import is_recall, recall_of
from layerprobe.values.records import RunRecord
from layerprobe.values.retrieval import SearchRules, Similarity
from layerprobe.workflow.choose.row_splits import Rows, RowSplits
from layerprobe.workflow.probe.reducing import FITTED_ON
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.reduction_draws import draws_of
from layerprobe.workflow.run.runs import Run

_SEEN = "ivfpq is trained on train, as are reductions: there are no classes beside those of test"


def require_test_classes(found: object, kinds: tuple[IndexKind, ...]) -> None:
    """Check that there is something to search, where an index is asked for.

    Args:
        found: None without test classes.
    """
    if kinds and found is None:
        what = "--index shows recall on test, and there are no test classes"
        raise RecipeError(what, fix="Leave it out, or give a split test")


def indexes_of_run(run: Run, choice: Choice, kinds: tuple[IndexKind, ...], device: torch.device) -> IndexCosts:
    """Indexes of the chosen layer of a run, from its stored features."""
    ranked, epoch = choice.chosen.ranked_layer, choice.chosen.epoch
    if len(draws_of(ranked)) > 1:
        what = f"{ranked} is a mean of draws, each of which is another map; an index is of one"
        raise RecipeError(what, fix=f"Name one of them, such as --layers {draws_of(ranked)[0]}")
    record = run.read()
    search = StoredSearch(run, epoch, "test", device)
    search.require_plain()
    searched, notes = _as_searched(ranked, record)
    search.require_stored(ranked if searched == ranked else replace(ranked, reduction=NO_REDUCTION))
    queries, gallery = search.features(searched)
    split = _trained_on(choice.chosen.split, record)
    training = None if split is None else search.features_of(split, searched).values
    costs = index_costs(
        Searched(queries, gallery, cast("Similarity", ranked.similarity), training),
        kinds,
        layer=f"{run.name}#{epoch}:{searched}",
        k=_k(choice),
    )
    notes += (_SEEN,) if split not in (None, choice.chosen.split) and "ivfpq" in kinds else ()
    return replace(costs, notes=(*notes, *costs.notes))


def _trained_on(split: str, record: RunRecord) -> str | None:
    """The split on which an index is trained: that of the choice, but never test."""
    if split != "test":
        return split
    return FITTED_ON if FITTED_ON in record.manifests else None


def _as_searched(ranked: RankedLayer, record: RunRecord) -> tuple[RankedLayer, tuple[str, ...]]:
    """The layer with the map that all its test images can have: without a train split fitted on what is searched."""
    chain = parse_chain(ranked.reduction)
    if not chain.fits_on_train or FITTED_ON in record.manifests:
        return ranked, ()
    return replace(ranked, reduction=f"{chain.text}{ON_GALLERY}"), (_TRANSDUCTIVE,)


_TRANSDUCTIVE = "the reduction of these features is fitted on the images searched, as there are no others"


def indexes_of_rows(row_splits: RowSplits, choice: Choice, kinds: tuple[IndexKind, ...], seed: int) -> IndexCosts:
    """Indexes of the chosen layer of given features."""
    given, ranked = row_splits.given, choice.chosen.ranked_layer
    values = side_by_side([given.features[member] for member in members_of(ranked.layer, given.features)])
    test = row_splits.choosing if row_splits.crossed else row_splits.test
    others = row_splits.fitted_on if row_splits.crossed else row_splits.choosing
    fitted_on = row_splits.choosing if row_splits.fitted_on is None else row_splits.fitted_on
    chain = parse_chain(ranked.reduction)
    cpu = torch.device("cpu")
    fit = chain.fit(Blocks(values[fitted_on], cpu), values.shape[1], seed=seed) if chain.parts else None

    def features(rows: Rows) -> Features:
        some = values[rows] if fit is None else reduced(Blocks(values[rows], cpu), fit, len(rows))
        return Features(some, given.labels[rows], [str(row) for row in rows.tolist()])

    rules = None if given.groups is None else SearchRules(groups=given.groups[test])
    training = None if others is None else features(others).values
    costs = index_costs(
        Searched(features(test), None, cast("Similarity", ranked.similarity), training, rules),
        kinds,
        layer=str(ranked),
        k=_k(choice),
    )
    notes = [_TRANSDUCTIVE] if chain.parts and np.array_equal(fitted_on, test) else []
    notes += [_SEEN] if row_splits.crossed and others is not None and "ivfpq" in kinds else []
    return replace(costs, notes=(*notes, *costs.notes))


def _k(choice: Choice) -> int:
    """The K of the metric; 1 of another one than R@K."""
    recall = recall_of(choice.chosen.metric)
    return recall.k if recall is not None and is_recall(choice.chosen.metric) else 1
