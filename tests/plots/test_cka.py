from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from layerprobe.plots.cka import draw, matrices_csv
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.scores import Matrix

Overlaps = Callable[[Figure], list[tuple[str, str]]]
NAMES = [f"layer{i}.{j}" for i in range(1, 16) for j in range(4)]


def matrix(
    values: Sequence[Sequence[float | None]],
    *,
    run: str = "netA",
    title: str = "layers",
    names: str = ",".join(NAMES),
    notes: tuple[str, ...] = (),
) -> Matrix:
    rows = tuple(names.split(",")[: len(values)])
    columns = rows if len(values) == len(values[0]) else tuple(map(str, range(len(values[0]))))
    axis = "layer" if columns is rows else "epoch"
    cells = tuple(map(tuple, values))
    return Matrix(run, "test", "linear CKA", title, "layer", axis, rows, columns, cells, 9, notes)


def pair(layers: int, epochs: int, run: str = "netA") -> list[Matrix]:
    """As a run gives them."""
    distances = np.abs(np.subtract.outer(np.arange(layers), np.arange(layers)))
    past = np.outer(np.linspace(1, 0.2, layers), np.linspace(0.1, 1, epochs))
    return [
        matrix(np.exp(-distances / 6).tolist(), run=run),
        matrix(past.tolist(), run=run, title="epochs"),
    ]


def panels(figure: Figure) -> list[Axes]:
    return [axes for axes in figure.axes if axes.images and axes.get_title(loc="left")]


def bars(figure: Figure) -> list[Axes]:
    found = figure.findobj(Axes)
    return [axes for axes in found if isinstance(axes, Axes) and axes.get_ylabel() == "linear CKA"]


def image(axes: Axes) -> NDArray[np.float64]:
    (drawn,) = axes.images
    return np.ma.filled(np.ma.asarray(drawn.get_array(), float), np.nan)


def numbers(axes: Axes) -> list[str]:
    return [text.get_text() for text in axes.texts]


def test_a_panel_for_each_matrix_with_its_values_and_names() -> None:
    first, second = pair(3, 5)
    left, right = panels(draw([first, second]))
    assert image(left).tolist() == [list(row) for row in first.values]
    assert image(right).tolist() == [list(row) for row in second.values]
    assert [label.get_text() for label in left.get_xticklabels()] == NAMES[:3]
    assert [label.get_text() for label in right.get_xticklabels()] == ["0", "1", "2", "3", "4"]
    assert [label.get_text() for label in right.get_yticklabels()] == NAMES[:3]
    assert (left.get_xlabel(), right.get_xlabel(), right.get_ylabel()) == ("layer", "epoch", "layer")
    assert left.get_title(loc="left") == "netA, test:\nlayers"


def test_the_first_layer_is_at_the_bottom() -> None:
    (axes,) = panels(draw([matrix([[1.0, 0.5], [0.5, 1.0]])]))
    low, high = axes.get_ylim()
    assert low < high


def test_one_scale_from_0_to_1_for_all() -> None:
    figure = draw([matrix([[0.4, 0.5], [0.5, 0.4]]), matrix([[1.0, -0.1], [-0.1, 1.0]])])
    assert {axes.images[0].get_clim() for axes in panels(figure)} == {(0.0, 1.0)}
    assert {bar.get_ylim() for bar in bars(figure)} == {(0.0, 1.0)}


def test_a_scale_stands_at_the_end_of_each_row() -> None:
    four = draw([*pair(2, 2, "a"), *pair(2, 2, "b")])
    assert len(bars(four)) == 2
    assert len(bars(draw([matrix([[1.0]])]))) == 1
    assert len(bars(draw([*pair(2, 2, "a"), matrix([[1.0]])]))) == 2


def test_the_two_panels_of_a_run_stand_below_each_other_and_fit_a_column() -> None:
    figure = draw(pair(14, 17))
    first, second = panels(figure)
    assert first.get_position().x0 == pytest.approx(second.get_position().x0)
    assert first.get_position().y0 > second.get_position().y1
    assert figure.get_figwidth() < 5.5


def test_numbers_stand_in_the_cells() -> None:
    (axes,) = panels(draw([matrix([[1.0, 0.876], [-0.024, 0.996], [-0.001, 0.0]])]))
    assert numbers(axes) == ["1", ".88", "-.02", "1", ".00", ".00"]
    assert [text.get_position() for text in axes.texts[:3]] == [(0, 0), (1, 0), (0, 1)]


def test_numbers_stand_out_from_their_cells() -> None:
    (axes,) = panels(draw([matrix([[1.0, 0.0]])]))
    assert [text.get_color() for text in axes.texts] == ["black", "white"]


def test_of_many_epochs_some_are_named() -> None:
    (_, right) = panels(draw(pair(14, 61)))
    # 3.8 inches hold 19 names.
    assert [label.get_text() for label in right.get_xticklabels()] == [str(epoch) for epoch in range(0, 61, 4)]
    assert right.get_xticks().tolist() == list(range(0, 61, 4))


def test_no_numbers_where_cells_are_small() -> None:
    left, right = panels(draw(pair(20, 60)))
    assert len(numbers(left)) == 400
    assert numbers(right) == []


def test_a_cell_without_a_value_is_grey_and_its_reason_is_told() -> None:
    figure = draw([matrix([[1.0, None], [None, None]], notes=("b: NaN",)), matrix([[None, 1.0]], notes=("b: NaN",))])
    axes = panels(figure)[0]
    assert np.isnan(image(axes)).tolist() == [[False, True], [True, True]]
    red, green, blue, _ = axes.images[0].to_rgba(np.ma.masked_invalid(image(axes)))[1, 1]
    assert red == green == blue
    assert numbers(axes) == ["1", "", "", ""]
    assert [text.get_text() for text in figure.texts] == ["b: NaN"]


def test_notes_of_several_runs_name_them_where_not_all_have_them() -> None:
    figure = draw([matrix([[1.0]], run=run, notes=("4 of 9 images", f"NaN in {run}")) for run in ("a", "b")])
    assert figure.texts[0].get_text() == "4 of 9 images\na: NaN in a\nb: NaN in b"


def test_the_caption_names_data_and_images() -> None:
    facts = {split: SplitFacts(100, 10, chance=0.1) for split in ("train", "test")}
    text = draw([matrix([[1.0]])], data={"netA": DataFacts("glyphs", facts)}).texts[0].get_text()
    assert "glyphs" in text
    assert text.splitlines()[-1] == "test: 100 images of 10 classes"


def test_a_matrix_without_any_value_is_drawn() -> None:
    assert numbers(panels(draw([matrix([[None, None], [None, None]])]))[0]) == ["", "", "", ""]


@pytest.mark.parametrize(("layers", "epochs"), [(1, 1), (1, 200), (14, 2), (60, 1), (60, 200)])
def test_no_text_covers_another(layers: int, epochs: int, overlaps: Overlaps, covers: Overlaps) -> None:
    figure = draw(pair(layers, epochs))
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_long_names_of_two_runs_do_not_meet(overlaps: Overlaps) -> None:
    names = ",".join(f"features.denseblock4.denselayer{i}" for i in range(14))
    matrices = [matrix(np.eye(14).tolist(), names=names, run=run * 30) for run in ("a", "a", "b", "b")]
    assert overlaps(draw(matrices)) == []


def test_a_dollar_in_a_name_is_itself() -> None:
    named = matrix([[1.0]], names="$x_$", notes=("$y_$",), run="$z_$")
    draw([replace(named, row_axis="layer of $a_$", column_axis="layer of $b_$\n")]).draw_without_rendering()


def test_the_caption_has_the_images_that_are_compared() -> None:
    facts = DataFacts("glyphs", {"train": SplitFacts(9), "test": SplitFacts(1360, 68, chance=0.014)}, held_out=True)
    figure = draw([matrix([[1.0]])], data={"a": facts})
    assert figure.texts[-1].get_text() == "glyphs\ntest: 1,360 images of 68 classes not trained on"


def test_a_table_of_matrices_has_a_line_for_each_cell() -> None:
    facts = ("netA", "test", "linear CKA")
    square = Matrix(*facts, "layers", "layer", "layer", ("a", "b"), ("a", "b"), ((1.0, None), (0.25, 1.0)), 9)
    wide = Matrix(*facts, "epochs", "layer", "epoch", ("a",), ("0", "1"), ((0.5, 1.0),), 9, ("4 of 9 images",))
    assert matrices_csv([square, wide]).splitlines() == [
        "run,split,comparison,row,column,value,note",
        "netA,test,layers,a,a,1.0,",
        "netA,test,layers,a,b,,",
        "netA,test,layers,b,a,0.25,",
        "netA,test,layers,b,b,1.0,",
        "netA,test,epochs,a,0,0.5,4 of 9 images",
        "netA,test,epochs,a,1,1.0,4 of 9 images",
    ]
