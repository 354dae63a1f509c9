"""Label-free metrics of layers, and their rank correlation with recall over a run's layers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from layerprobe.values.facts import DataFacts, split_text
from layerprobe.values.keys import NO_REDUCTION
from layerprobe.values.metric_names import is_recall
from layerprobe.values.scores import Score

LABEL_FREE = ("effective-rank", "two-nn", "hubness")
# The rank correlation of three layers is almost meaningless: by chance it is 1 or -1 in a third of all cases.
FEWEST_LAYERS = 4


@dataclass(frozen=True)
class Agreement:
    """The rank correlation of a label-free metric with recall over layers.

    Args:
        metric: effective-rank, two-nn or hubness.
        epoch: 0 = before any step.
        recall: R@1, or another R@K if R@1 is not measured.
        correlation: Spearman's, in [-1, 1], ties sharing their mean rank; None for fewer than 4 layers, and if all
            values of one of the two numbers are equal.
    """

    metric: str
    epoch: int
    split: str
    reduction: str
    similarity: str
    recall: str
    layers: int
    correlation: float | None


def agreements(scores: Sequence[Score]) -> tuple[Agreement, ...]:
    """The correlation for each label-free metric, epoch, split, reduction and similarity of scores."""
    recalls = [score.metric for score in scores if is_recall(score.metric)]
    recall = "R@1" if "R@1" in recalls else next(iter(recalls), "R@1")
    recall_values = {(s.epoch, s.split, s.ranked): s.value for s in scores if s.metric == recall}
    pairs: dict[tuple[str, int, str, str, str], list[tuple[float, float]]] = {}
    for score in scores:
        if score.metric in LABEL_FREE:
            group = (score.metric, score.epoch, score.split, score.ranked.reduction, score.ranked.similarity)
            of_group = pairs.setdefault(group, [])
            value = recall_values.get((score.epoch, score.split, score.ranked))
            if score.value is not None and value is not None:
                of_group.append((score.value, value))
    return tuple(
        Agreement(*group, recall, len(value_pairs), _spearman(value_pairs)) for group, value_pairs in pairs.items()
    )


def last_agreements(scores: Sequence[Score]) -> tuple[Agreement, ...]:
    """The same for the last epoch with label-free metrics."""
    last_epoch = max((score.epoch for score in scores if score.metric in LABEL_FREE), default=None)
    return agreements([score for score in scores if score.epoch == last_epoch])


def _spearman(pairs: Sequence[tuple[float, float]]) -> float | None:
    if len(pairs) < FEWEST_LAYERS or any(len(set(values)) == 1 for values in zip(*pairs, strict=True)):
        return None
    from scipy.stats import spearmanr  # slow to import

    # Rounded, so that equal orders give exactly 1.
    return round(float(spearmanr(*zip(*pairs, strict=True)).statistic), 12)


def agreement_lines(correlations: Sequence[Agreement], data: Sequence[DataFacts] = ()) -> list[str]:
    """A line for each metric, epoch, reduction and similarity, with its splits, and a definition.

    `two-nn at epoch 20: rank correlation with R@1 on train -0.60, on test 0.81, over 6 layers`
    """
    lines: dict[tuple[str, ...], list[Agreement]] = {}
    weights = data[0].weights if len(data) == 1 else ""
    for agreement in correlations:
        reduced = f" of {agreement.reduction}" if agreement.reduction != NO_REDUCTION else ""
        similarity = f", {agreement.similarity}" if len({other.similarity for other in correlations}) > 1 else ""
        network = f" of the {weights}" if weights else f" at epoch {agreement.epoch}"
        subject = f"{agreement.metric}{reduced}{network}{similarity}"
        enough = agreement.layers >= FEWEST_LAYERS
        over = f"over {agreement.layers} layers" if enough else f"of fewer than {FEWEST_LAYERS} layers"
        lines.setdefault((subject, agreement.recall, over), []).append(agreement)
    texts = []
    for (subject, recall, over), of_line in lines.items():
        if all(agreement.layers < FEWEST_LAYERS for agreement in of_line):
            texts.append(f"{subject}: no rank correlation with {recall} {over}")
        else:
            splits = ", ".join(_of_split(agreement, data) for agreement in of_line)
            texts.append(f"{subject}: rank correlation with {recall} {splits}, {over}")
    return [*texts, "rank correlations are Spearman's over these layers; no layer is chosen by such numbers"] * bool(
        correlations
    )


def _of_split(agreement: Agreement, data: Sequence[DataFacts]) -> str:
    split = split_text(agreement.split, data)
    if agreement.correlation is None:
        return f"on {split} none, as all values of one are equal"
    return f"on {split} {agreement.correlation:.2f}"
