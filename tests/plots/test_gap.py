from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from layerprobe.plots.gap import draw, gap_csv
from layerprobe.system.errors import DataError
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.scores import Score

MakeScores = Callable[..., list[Score]]
Overlaps = Callable[[Figure], list[tuple[str, str]]]
DEEP = ["pool5.1", "pool5.2", "pool5.3", "fc6"]


def with_values(scores: list[Score], values: dict[tuple[str, str, int], float | None]) -> list[Score]:
    """The scores with these values by layer, split and epoch, and 0.5 elsewhere."""
    return [
        replace(score, value=values.get((score.ranked.layer.layer, score.split, score.epoch), 0.5)) for score in scores
    ]


def cells(axes: Axes) -> NDArray[np.float64]:
    (image,) = axes.images
    return np.ma.filled(np.ma.asarray(image.get_array(), float), np.nan)


def texts(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_cell_is_train_less_test_in_percent_the_first_layer_at_the_bottom(make_scores: MakeScores) -> None:
    values: dict[tuple[str, str, int], float | None] = {("fc6", "train", 4): 0.875, ("pool5.1", "test", 2): 0.625}
    (axes,) = draw(with_values(make_scores(DEEP, [0, 2, 4]), values)).axes
    expected = np.zeros((4, 3))
    expected[3, 2], expected[0, 1] = 37.5, -12.5
    assert cells(axes).tolist() == expected.tolist()
    assert axes.images[0].origin == "lower"
    assert [label.get_text() for label in axes.get_yticklabels()] == DEEP
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "2", "4"]


def test_no_gap_has_the_colour_in_the_middle_in_every_panel(make_scores: MakeScores) -> None:
    scores = with_values(make_scores(DEEP, [0, 4]), {("fc6", "train", 4): 0.875})
    other = with_values(make_scores(DEEP, [0, 4], run="other"), {("fc6", "test", 4): 0.625})
    limits = [axes.images[0].get_clim() for axes in draw([*scores, *other]).axes]
    assert limits == [(-37.5, 37.5)] * 2


def test_the_last_gap_stands_beside_its_row(make_scores: MakeScores) -> None:
    scores = make_scores(["pool5", "fc6"], range(17))
    (axes,) = draw(with_values(scores, {("fc6", "train", 16): 0.875, ("pool5", "train", 16): 0.25})).axes
    assert texts(axes) == ["epoch 16", "\N{MINUS SIGN}25.0", "+37.5"]
    assert [text.get_position()[1] for text in axes.texts[1:]] == [0, 1]


def test_few_epochs_have_their_numbers_in_the_cells(make_scores: MakeScores) -> None:
    (axes,) = draw(with_values(make_scores(["fc6"], [0, 1]), {("fc6", "train", 1): 0.75})).axes
    assert texts(axes) == ["0.0", "+25.0"]


def test_the_gap_before_training_is_explained(make_scores: MakeScores) -> None:
    splits = {"train": SplitFacts(100, 10), "test": SplitFacts(100, 10)}
    for epochs, start, told in (([0, 1], "untrained", True), ([0], "untrained", False), ([0, 1], "epoch 0", False)):
        figure = draw(make_scores(DEEP, epochs), data={"netA": DataFacts("glyphs", splits, start)})
        assert ("The gap of epoch 0 (untrained)" in figure.texts[0].get_text()) == told


def test_a_cell_without_a_value_is_grey_and_the_reason_is_written(make_scores: MakeScores) -> None:
    scores = with_values(make_scores(["pool5", "fc6"], [0, 1]), {("fc6", "test", 1): None})
    figure = draw([replace(s, notes=("NaN (3 rows)",)) if s.value is None else s for s in scores])
    assert np.isnan(cells(figure.axes[0])).tolist() == [[False, False], [False, True]]
    assert "not valid: fc6, test, epoch 1: NaN (3 rows)" in " ".join(figure.texts[0].get_text().split())


def test_without_training_scores_the_command_is_told(make_scores: MakeScores) -> None:
    with pytest.raises(DataError, match="Run layerprobe probe --splits train,test"):
        draw(make_scores(DEEP, splits=("test",)))


def test_splits_of_other_sizes_are_told(make_scores: MakeScores) -> None:
    train, test = SplitFacts(100, 10), SplitFacts(200, 20)
    for other, told in ((test, True), (train, False)):
        data = {"netA": DataFacts("glyphs", {"train": train, "test": other})}
        assert ("The splits differ in size" in draw(make_scores(DEEP), data=data).texts[0].get_text()) == told


@pytest.mark.parametrize(("layers", "epochs"), [(1, 1), (14, 31), (20, 6)])
def test_no_text_covers_another(
    make_scores: MakeScores, overlaps: Overlaps, covers: Overlaps, layers: int, epochs: int
) -> None:
    names = [f"layer{i // 4}.{i % 4}" for i in range(layers)]
    scores = [score for run in ("netA", "netA-softmax") for score in make_scores(names, range(epochs), run=run)]
    figure = draw(scores)
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_the_table_has_the_gap_and_what_it_is_the_difference_of(make_scores: MakeScores) -> None:
    scores = with_values(make_scores(["fc6"], [3]), {("fc6", "train", 3): 0.75, ("fc6", "test", 3): 0.625})
    (row,) = csv.DictReader(gap_csv(scores).splitlines())
    assert [row[name] for name in ("run", "layer", "epoch", "R@1 gap", "train R@1", "test R@1")] == [
        "netA", "fc6", "3", "0.125", "0.75", "0.625",
    ]  # fmt: skip


def test_figure_and_table_have_the_layers_asked_for(make_scores: MakeScores) -> None:
    scores = make_scores(DEEP)
    asked = [score.ranked for score in scores if score.ranked.layer.layer == "fc6"]
    (axes,) = draw(scores, layers=asked).axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["fc6"]
    assert {row["layer"] for row in csv.DictReader(gap_csv(scores, layers=asked).splitlines())} == {"fc6"}
