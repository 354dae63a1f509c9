"""The best layer, the split on which it was chosen, and the layers that training made worse."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from layerprobe.system.wording import first_named
from layerprobe.values.facts import chosen_on_text

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
