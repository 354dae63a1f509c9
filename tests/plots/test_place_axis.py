from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from matplotlib.figure import Figure

from layerprobe.plots.figure import Layout, make_panels
from layerprobe.plots.place_axis import ValueAxis


def drawn(places: Sequence[float | str]) -> tuple[Figure, list[str]]:
    """A figure with the axis, 2.4 inches wide, and the texts at its ticks."""
    axis = ValueAxis(places)
    figure, (axes,) = make_panels(["title"], Layout(2.4, 2, 0.5, below=axis.height_below(2.4)))
    axis.set(axes, "net.fc")
    return figure, [label.get_text() for label in axes.get_xticklabels()]


@pytest.mark.parametrize(
    ("places", "is_log"), [((4, 16, 64), True), ((1, 8), True), ((1, 7.9), False), ((0, 64), False), ((-1, 64), False)]
)
def test_numbers_that_spread_over_a_factor_of_eight_have_a_logarithmic_axis(
    places: Sequence[float], is_log: bool
) -> None:
    axis = ValueAxis(places)
    assert axis.is_log == is_log
    steps = [axis.position(place) for place in places]
    assert steps == ([2, 4, 6] if places == (4, 16, 64) else [0, 3] if is_log else list(places))


def test_texts_and_single_numbers_are_categories_whose_points_stand_side_by_side() -> None:
    assert [ValueAxis(["none", "4", "64"]).position(place) for place in ("none", "4", "64")] == [0, 1, 2]
    axis = ValueAxis([64])
    assert axis.numbers == []
    assert [axis.position(64, line, 3) for line in range(3)] == pytest.approx([-0.14, 0, 0.14])


def test_ticks_are_the_values_without_those_whose_texts_would_touch(
    overlaps: Callable[[Figure], list[tuple[str, str]]],
) -> None:
    assert drawn([0.1, 0.5, 1])[1] == ["0.1", "0.5", "1"]
    figure, texts = drawn([100, 101, 300, 512])
    assert texts == ["100", "300", "512"]
    assert overlaps(figure) == []


def test_long_names_of_categories_are_upright(overlaps: Callable[[Figure], list[tuple[str, str]]]) -> None:
    names = ["smooth_triplet", "multi_similarity", "structured_clustering"]
    figure, texts = drawn(names)
    assert texts == names
    assert {label.get_rotation() for label in figure.axes[0].get_xticklabels()} == {90}
    assert overlaps(figure) == []
