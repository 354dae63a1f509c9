"""By which rule queries are chosen to be shown: `pool5.3 right, fc6 wrong`, worst, random, or a class."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.plots.asked import asked_layers
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.keys import RankedLayer, layer_names
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.run.references import RankedSplit, probe_fix

_FORM = "Write 'LAYER right, LAYER wrong', worst, random or 'class NAME'"
_OUTCOMES = {"right": True, "wrong": False}
_CLASS = "class "


@dataclass(frozen=True)
class ByOutcome:
    """Queries whose nearest item is right, or wrong, by each of some layers.

    A query counts for neither where a right item ties with a wrong one, or where it has no right item at all.
    """

    outcomes: tuple[tuple[RankedLayer, bool], ...]


@dataclass(frozen=True)
class Worst:
    """The queries whose nearest right item is farthest down by a layer; those without one are left out."""

    layer: RankedLayer


@dataclass(frozen=True)
class AtRandom:
    """Any query."""


@dataclass(frozen=True)
class OfClass:
    """Queries of a class."""

    name: str


@dataclass(frozen=True)
class OfImage:
    """One query."""

    name: str


Rule = ByOutcome | Worst | AtRandom | OfClass | OfImage


@dataclass(frozen=True, eq=False)
class ChosenQueries:
    """Queries that fulfil a rule.

    Args:
        rows: (Q,) of the split, in the order in which they are shown; none where no query fulfils the rule.
        text: the rule and how these were taken by it, for people.
    """

    rows: NDArray[np.int64]
    of: int
    text: str


def parse_rule(text: str, known: Sequence[RankedLayer], last: RankedLayer) -> Rule:
    """Read the words of `--where`."""
    words = text.strip()
    if words.startswith(_CLASS):
        return OfClass(words.removeprefix(_CLASS).strip())
    if words in ("worst", "random"):
        return Worst(last) if words == "worst" else AtRandom()
    outcomes = []
    for part in words.split(","):
        name, _, outcome = part.strip().rpartition(" ")
        if not name or outcome not in _OUTCOMES:
            raise RecipeError(f"--where {text!r}: {part.strip()!r} is no rule", fix=_FORM)
        found = asked_layers([name.strip()], known) or []
        if len(found) > 1:
            names = ", ".join(layer_names(found))
            raise RecipeError(f"--where {text!r}: {name.strip()} names several layers", fix=f"Choose one of {names}")
        outcomes.append((found[0], _OUTCOMES[outcome]))
    return ByOutcome(tuple(outcomes))


def rule_text(rule: Rule, ranked_split: RankedSplit) -> str:
    """The rule as `--where` has it; of `worst` the layer, too."""
    match rule:
        case ByOutcome(outcomes):
            return ", ".join(f"{ranked_split.name(layer)} {'right' if right else 'wrong'}" for layer, right in outcomes)
        case Worst(layer):
            return f"worst by {ranked_split.name(layer)}"
        case AtRandom():
            return "random"
        case OfClass(name):
            return f"class {name}"
        case OfImage(name):
            return f"image {name}"


def choose_queries(rule: Rule, ranked_split: RankedSplit, class_names: Sequence[str], count: int) -> ChosenQueries:
    """The queries that a rule takes.

    Of more queries than are wanted, those are taken that come first in a random order by the run's seed; of `worst`
    the worst, and of equally bad ones those of the first rows.

    Args:
        count: how many queries are wanted, at least 1.
    """
    text = rule_text(rule, ranked_split)
    if isinstance(rule, Worst):
        down = _places_down(_ranks(ranked_split, rule.layer))
        order = np.argsort(-down, kind="stable")[: int(np.isfinite(down).sum())]
        told = f"Queries: {text}, the {count:,} whose nearest right item is farthest down"
        return ChosenQueries(order[:count], len(order), told)
    fulfil = np.flatnonzero(_fulfil(rule, ranked_split, class_names))
    if isinstance(rule, OfImage):
        return ChosenQueries(fulfil, len(fulfil), f"Query: {rule.name}")
    order = np.random.default_rng(ranked_split.record.seed).permutation(len(ranked_split.stored.labels))
    rows = order[np.isin(order, fulfil)][:count]
    seed = f"at random by seed {ranked_split.record.seed}"
    shown = f"all {len(fulfil):,}" if len(rows) == len(fulfil) else f"{len(rows):,} of {len(fulfil):,} {seed}"
    return ChosenQueries(rows, len(fulfil), f"Queries: {text}, {shown}")


def _fulfil(rule: Rule, ranked_split: RankedSplit, class_names: Sequence[str]) -> NDArray[np.bool_]:
    """(Q,) which queries fulfil a rule."""
    labels, ids = ranked_split.stored.labels, ranked_split.stored.ids
    fulfil = np.ones(len(labels), bool)
    match rule:
        case ByOutcome(outcomes):
            for layer, right in outcomes:
                ranks = _first_known(ranked_split, layer)
                fulfil &= _is_right(ranks) if right else _is_wrong(ranks)
        case OfClass(name):
            present = [class_names[label] for label in np.unique(labels)]
            _require_known("class", name, present, ranked_split.split)
            fulfil = np.array([class_names[label] == name for label in labels.tolist()])
        case OfImage(name):
            _require_known("image", name, ids, ranked_split.split)
            fulfil = np.array([each == name for each in ids])
    return fulfil


def _is_right(ranks: Ranks) -> NDArray[np.bool_]:
    # Pessimistic and optimistic counts of ties differ where a right item ties with a wrong one.
    right: NDArray[np.bool_] = ranks.hits(1, "pessimistic") == 1
    return right


def _is_wrong(ranks: Ranks) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = (ranks.hits(1, "optimistic") == 0) & (ranks.tied_positives > 0)
    return wrong


def _places_down(ranks: Ranks) -> NDArray[np.float64]:
    """(Q,) how many wrong items are expected before the nearest right one, the tied in random order.

    -inf for a query without a right item. Where the count was not resolved, the middle of its interval is taken.
    """
    closer = (ranks.closer.astype(np.float64) + ranks.closer_high) / 2
    down = closer + ranks.tied_negatives / (ranks.tied_positives + 1.0)
    return np.where(ranks.tied_positives > 0, down, -np.inf)


def _ranks(ranked_split: RankedSplit, layer: RankedLayer) -> Ranks:
    found = ranked_split.stored.ranks.get(layer)
    if found is None:
        reason = ranked_split.stored.invalid.get(layer, "not ranked")
        fix = "Choose queries by another layer"
        raise DataError(
            f"{ranked_split.name(layer)} at epoch {ranked_split.epoch}: {reason}", file=ranked_split.run.folder, fix=fix
        )
    return found


def _first_known(ranked_split: RankedSplit, layer: RankedLayer) -> Ranks:
    """The ranks of a layer, of which it is known whether the nearest item of each query is right."""
    ranks = _ranks(ranked_split, layer)
    if ranks.open([1]).any():
        fix = probe_fix(
            ranked_split.run,
            ranked_split.record,
            ranked_split.epoch,
            ranked_split.split,
            f"--layers {layer.layer} --k 1",
        )
        what = f"{ranked_split.name(layer)} at epoch {ranked_split.epoch} was not ranked for K = 1"
        raise DataError(what, file=ranked_split.run.folder, fix=fix)
    return ranks


def _require_known(kind: str, name: str, known: Sequence[str], split: str) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        fix = f"Did you mean {near[0]!r}?" if near else f"It has such as {known[0]!r}"
        raise RecipeError(f"no {kind} {name!r} in the {split} split", fix=fix)
