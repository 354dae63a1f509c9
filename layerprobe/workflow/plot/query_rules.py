"""Rules that choose the queries to show: `pool5.3 right, fc6 wrong`, worst, random, or a class."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.plots.drawn_scores import match_layers
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.layers import RankedLayer, layer_names
from layerprobe.values.retrieval import Ranks
from layerprobe.workflow.run.class_names import class_name
from layerprobe.workflow.run.references import RankedSplit, layer_flags, probe_fix

_FORM = "Write 'LAYER right, LAYER wrong', worst, random or 'class NAME'"
_FORM_OF_IMAGES = "Write 'LAYER right, LAYER wrong' or 'class NAME'"
_OUTCOMES = {"right": True, "wrong": False}
_CLASS = "class "
_WORST = "worst"
_WITHOUT_LAYERS = (_WORST, "random")


@dataclass(frozen=True)
class QueriesByOutcome:
    """Queries whose nearest item is right, or wrong, by each of some layers.

    A query counts as neither if a positive ties with a negative, or if it has no positive.
    """

    outcomes: tuple[tuple[RankedLayer, bool], ...]


@dataclass(frozen=True)
class WorstQueries:
    """The queries whose nearest positive has the highest rank by a layer; queries without one are skipped."""

    layer: RankedLayer


@dataclass(frozen=True)
class RandomQueries:
    """Any query."""


@dataclass(frozen=True)
class QueriesOfClass:
    """Queries of a class."""

    name: str


@dataclass(frozen=True)
class QueryOfImage:
    """One query."""

    name: str


Rule = QueriesByOutcome | WorstQueries | RandomQueries | QueriesOfClass | QueryOfImage


@dataclass(frozen=True, eq=False)
class ChosenQueries:
    """Queries that satisfy a rule.

    Args:
        rows: (Q,) of the split, in display order; may be empty.
        text: the rule, and how these were chosen among the queries that satisfy it.
    """

    rows: NDArray[np.int64]
    text: str


def parse_rule(text: str, layers: Sequence[RankedLayer], embedding: RankedLayer | None) -> Rule:
    """Parse `--where`.

    Args:
        embedding: by which queries are worst; None where the rule chooses images, which are neither worst nor random.
    """
    words = text.strip()
    if words.startswith(_CLASS):
        return QueriesOfClass(words.removeprefix(_CLASS).strip())
    if words in _WITHOUT_LAYERS and embedding is not None:
        return WorstQueries(embedding) if words == _WORST else RandomQueries()
    outcomes = []
    for term in words.split(","):
        name, _, outcome = term.strip().rpartition(" ")
        if not name or outcome not in _OUTCOMES:
            raise RecipeError(
                f"--where {text!r}: {term.strip()!r} is not a rule", fix=_FORM if embedding else _FORM_OF_IMAGES
            )
        matches = match_layers([name.strip()], layers) or []
        if len(matches) > 1:
            names = ", ".join(layer_names(matches))
            raise RecipeError(f"--where {text!r}: {name.strip()} names several layers", fix=f"Choose one of {names}")
        outcomes.append((matches[0], _OUTCOMES[outcome]))
    return QueriesByOutcome(tuple(outcomes))


def names_layers(text: str | None) -> bool:
    """Whether a rule of `--where` names the layers by which queries are right or wrong."""
    return text is not None and text.strip() not in _WITHOUT_LAYERS and not text.strip().startswith(_CLASS)


def rule_text(rule: Rule, ranked_split: RankedSplit) -> str:
    """The rule in the form of `--where`, with the layer of `worst`."""
    match rule:
        case QueriesByOutcome(outcomes):
            return ", ".join(f"{ranked_split.name(layer)} {'right' if right else 'wrong'}" for layer, right in outcomes)
        case WorstQueries(layer):
            return f"worst by {ranked_split.name(layer)}"
        case RandomQueries():
            return "random"
        case QueriesOfClass(name):
            return f"class {name}"
        case QueryOfImage(name):
            return f"image {name}"


def choose_queries(rule: Rule, ranked_split: RankedSplit, class_names: Sequence[str], count: int) -> ChosenQueries:
    """At most `count` queries that satisfy a rule: a random sample by the run's seed, or the first of the worst."""
    text = rule_text(rule, ranked_split)
    if isinstance(rule, WorstQueries):
        expected = _expected_ranks(_ranks(ranked_split, rule.layer))
        order = np.argsort(-expected, kind="stable")[: int(np.isfinite(expected).sum())]
        description = f"Queries: {text}, the {count:,} whose nearest right item is farthest down"
        return ChosenQueries(order[:count], description)
    satisfied = np.flatnonzero(_satisfying_queries(rule, ranked_split, class_names))
    if isinstance(rule, QueryOfImage):
        return ChosenQueries(satisfied, f"Query: {rule.name}")
    # One permutation of all queries for every rule: queries that two rules share have the same order.
    order = np.random.default_rng(ranked_split.record.seed).permutation(len(ranked_split.stored.labels))
    rows = order[np.isin(order, satisfied)][:count]
    seed = f"at random by seed {ranked_split.record.seed}"
    sample = f"all {len(satisfied):,}" if len(rows) == len(satisfied) else f"{len(rows):,} of {len(satisfied):,} {seed}"
    return ChosenQueries(rows, f"Queries: {text}, {sample}")


def _satisfying_queries(rule: Rule, ranked_split: RankedSplit, class_names: Sequence[str]) -> NDArray[np.bool_]:
    """(Q,) whether each query satisfies a rule."""
    labels, ids = ranked_split.stored.labels, ranked_split.stored.ids
    satisfied = np.ones(len(labels), bool)
    match rule:
        case QueriesByOutcome(outcomes):
            for layer, right in outcomes:
                ranks = ranks_exact_for_first(ranked_split, layer)
                # Pessimistic and optimistic counts of ties differ where a right item ties with a wrong one.
                is_right, may_be_right = ranks.hits(1, "pessimistic") == 1, ranks.hits(1, "optimistic") == 1
                satisfied &= is_right if right else ~may_be_right & (ranks.tied_positives > 0)
        case QueriesOfClass(name):
            names = [class_name(class_names, label) for label in np.unique(labels).tolist()]
            _require_name("class", name, names, ranked_split.split)
            satisfied = np.array([class_name(class_names, label) == name for label in labels.tolist()])
        case QueryOfImage(name):
            _require_name("image", name, ids, ranked_split.split)
            satisfied = np.array([image_id == name for image_id in ids])
    return satisfied


def _expected_ranks(ranks: Ranks) -> NDArray[np.float64]:
    """(Q,) expected number of negatives before the nearest positive, with ties in random order.

    -inf for a query without a positive. An unresolved count is taken at the middle of its interval.
    """
    closer = (ranks.closer.astype(np.float64) + ranks.closer_high) / 2
    expected = closer + ranks.tied_negatives / (ranks.tied_positives + 1.0)
    return np.where(ranks.tied_positives > 0, expected, -np.inf)


def _ranks(ranked_split: RankedSplit, layer: RankedLayer) -> Ranks:
    ranks = ranked_split.stored.ranks.get(layer)
    if ranks is None:
        reason = ranked_split.stored.invalid.get(layer, "not ranked")
        fix = "Choose queries by another layer"
        raise DataError(
            f"{ranked_split.name(layer)} at epoch {ranked_split.epoch}: {reason}", file=ranked_split.run.folder, fix=fix
        )
    return ranks


def ranks_exact_for_first(ranked_split: RankedSplit, layer: RankedLayer) -> Ranks:
    """The ranks of a layer, exact for K = 1."""
    ranks = _ranks(ranked_split, layer)
    if ranks.open([1]).any():
        fix = probe_fix(
            ranked_split.run,
            ranked_split.record,
            ranked_split.epoch,
            ranked_split.split,
            *layer_flags(ranked_split.record, [layer]),
            *("--k", "1"),
        )
        message = f"{ranked_split.name(layer)} at epoch {ranked_split.epoch} was not ranked for K = 1"
        raise DataError(message, file=ranked_split.run.folder, fix=fix)
    return ranks


def _require_name(kind: str, name: str, names: Sequence[str], split: str) -> None:
    if name not in names:
        close_names = difflib.get_close_matches(name, names, n=1)
        fix = f"Did you mean {close_names[0]!r}?" if close_names else f"An example is {names[0]!r}"
        raise RecipeError(f"no {kind} {name!r} in the {split} split", fix=fix)
