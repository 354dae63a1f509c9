"""The best layer, layers that training made worse, and how label-free metrics rank the layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layerprobe.system.wording import first_named
from layerprobe.values.facts import DataFacts, chosen_on_text, split_text
from layerprobe.values.layers import NO_POST_PROCESSING
from layerprobe.values.scores import Score, is_recall

Values = Sequence[float | None]  # fractions of the layers; None without a value


@dataclass(frozen=True)
class Best:
    """The best of some layers.

    Args:
        place: index of the first of equal layers, the one nearest to the image.
        equals: how many layers have this value, itself among them.
    """

    place: int
    split: str
    equals: int


def best_layer(values: Mapping[str, Values]) -> Best | None:
    """The best layer on the first of validation, train and test on which every layer with a test value has one.

    A layer chosen on the split that evaluates it has selection bias; `best_text` says where.

    Args:
        values: split -> values of L layers, in network order; of train only where it is unseen, as
            `DataFacts.chosen_on` says.

    Returns:
        None without a value.
    """
    tested = [index for index, value in enumerate(values.get("test", ())) if value is not None]
    for split in ("validation", "train", "test"):
        split_values = values.get(split, ())
        valid = [value for value in split_values if value is not None]
        if valid and all(split_values[i] is not None for i in tested):
            return Best(split_values.index(max(valid)), split, split_values.count(max(valid)))
    return None


def best_text(
    best: Best, names: Sequence[str], values: Mapping[str, Values], indistinguishable: Sequence[str] | None = None
) -> str:
    """`best on validation: c5, 93.8 %, tied with 1 other; on test 68.8 %; not significantly different: c3, c4`.

    Args:
        values: split -> values of the layers.
        indistinguishable: names of the layers not significantly different from the best on its split; None if unknown.
    """
    how = " (chosen on test)" if best.split == "test" else ""
    equal = f", {tied_text(best.equals)}" if best.equals > 1 else ""
    test = values.get("test", [None] * len(names))[best.place] if best.split != "test" else None
    then = "" if test is None else f"; on test {_percent(test)}"
    value = values[best.split][best.place]
    value_text = "" if value is None else f", {_percent(value)}"
    apart = "" if indistinguishable is None else f"; {apart_text(best, indistinguishable)}"
    return f"best on {chosen_on_text(best.split)}{how}: {names[best.place]}{value_text}{equal}{then}{apart}"


def tied_text(equals: int) -> str:
    """`tied with 1 other`, of so many equal ones."""
    return f"tied with {equals - 1} other{'s' * (equals > 2)}"


def apart_text(best: Best, indistinguishable: Sequence[str]) -> str:
    """`not significantly different: c3, c4`, or `significantly better than all others`."""
    where = "" if best.split == "test" else f" on {chosen_on_text(best.split)}"
    return (
        f"not significantly different{where}: {first_named(indistinguishable)}"
        if indistinguishable
        else f"significantly better than all others{where}"
    )


def worse_text(names: Sequence[str], before: Values, trained: Values, metric: str, start: str = "untrained") -> str:
    """The layers that training made worse on test, in one line; empty if there are none.

    Of the layers that lost at least the last shown decimal, it names the one that was best before training: `training
    made test R@1 worse at 2 of 5 layers, such as pool5: 57.2 %, untrained 60.0 %`.
    """
    both = [(b, a, name) for b, a, name in zip(before, trained, names, strict=True) if not (b is None or a is None)]
    lost = [
        (untrained, after, name) for untrained, after, name in both if round(100 * after, 1) < round(100 * untrained, 1)
    ]
    if not lost:
        return ""
    untrained, after, name = max(lost, key=lambda layer: layer[0])
    reached = any(value is not None and value >= untrained for value in trained)
    unreached = "" if reached else ", which no trained layer reaches"
    which = f"{len(lost)} of {len(both)} layers, such as {name}" if len(both) > 1 else name
    return f"training made test {metric} worse at {which}: {_percent(after)}, {start} {_percent(untrained)}{unreached}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


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
    post_processing: str
    similarity: str
    recall: str
    layers: int
    correlation: float | None


def agreements(scores: Sequence[Score]) -> tuple[Agreement, ...]:
    """The correlation for each label-free metric, epoch, split, post-processing and similarity of scores."""
    recalls = [score.metric for score in scores if is_recall(score.metric)]
    recall = "R@1" if "R@1" in recalls else next(iter(recalls), "R@1")
    recall_values = {(s.epoch, s.split, s.ranked): s.value for s in scores if s.metric == recall}
    pairs: dict[tuple[str, int, str, str, str], list[tuple[float, float]]] = {}
    for score in scores:
        if score.metric in LABEL_FREE:
            group = (score.metric, score.epoch, score.split, score.ranked.post_processing, score.ranked.similarity)
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
    """A line for each metric, epoch, post-processing and similarity, with its splits, and a definition.

    `two-nn at epoch 20: rank correlation with R@1 on train -0.60, on test 0.81, over 6 layers`
    """
    lines: dict[tuple[str, ...], list[Agreement]] = {}
    weights = data[0].weights if len(data) == 1 else ""
    for agreement in correlations:
        post_processed = f" of {agreement.post_processing}" if agreement.post_processing != NO_POST_PROCESSING else ""
        similarity = f", {agreement.similarity}" if len({other.similarity for other in correlations}) > 1 else ""
        network = f" of the {weights}" if weights else f" at epoch {agreement.epoch}"
        subject = f"{agreement.metric}{post_processed}{network}{similarity}"
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
