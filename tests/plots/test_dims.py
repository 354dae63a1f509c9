from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from layerprobe.plots.dims import Method, draw, draw_by_bytes, method_names, method_of, method_styles, table
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from layerprobe.values.views import PostProcessings, Selected, Sized
from tests.scores import CLUSTERS, with_layer

Overlaps = Callable[[Figure], list[tuple[str, str]]]

RANDOM = "random:64x5+l2"


def sized(
    layer: str,
    post_processing: str,
    value: float | None,
    dim: int | None,
    *,
    chosen: bool = False,
    notes: tuple[str, ...] = (),
) -> Sized:
    """With an interval of 2 % to both sides."""
    ranked = RankedLayer(LayerKey(layer, "none"), post_processing, "cosine")
    interval = None if value is None else Interval(value - 0.02, value + 0.02)
    score = Score("netA", "e", 0, 16, "test", ranked, "R@1", value, interval, 1360, notes)
    return Sized(score, dim, post_processing != "none" and dim is not None, chosen)


def post_processings(
    *values: Sized, run: str = "netA", on: str | None = "validation", notes: tuple[str, ...] = ()
) -> PostProcessings:
    values = tuple(replace(one, score=replace(one.score, run=run)) for one in values)
    return PostProcessings(run, 16, "test", values, on, notes)


ONE = post_processings(
    sized("pool5.3", "none", 0.85, 512, chosen=True),
    sized("pool5.3", "l2+pca:64+l2", 0.8, 64),
    sized("pool5.3", RANDOM, 0.79, 64, notes=("mean of 5 draws",)),
    sized("fc6", "none", 0.8, 256),
    sized("fc6", "l2+pca:64+l2", 0.82, 64, chosen=True),
    sized("fc6", RANDOM, 0.78, 64, notes=("mean of 5 draws",)),
)
MANY = post_processings(
    sized("pool5.3", "none", 0.85, 512, chosen=True),
    *(sized("pool5.3", f"l2+pca:{dim}+l2", 0.7 + dim / 1000, dim) for dim in (32, 64, 128)),
    sized("fc6", "none", 0.8, 256),
    *(sized("fc6", f"l2+pca:{dim}+l2", 0.71 + dim / 1000, dim, chosen=dim == 64) for dim in (32, 64, 128)),
)


def lines(axes: Axes) -> dict[str, list[float]]:
    return {str(line.get_label()): np.asarray(line.get_ydata()).tolist() for line in axes.lines}


def caption(figure: Figure) -> list[str]:
    return figure.texts[-1].get_text().splitlines()


def test_at_one_dimension_each_method_has_a_point_at_every_layer() -> None:
    (axes,) = draw([ONE]).axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["pool5.3", "fc6"]
    found = lines(axes)
    assert found["raw"] == pytest.approx([85, 80])
    assert found["PCA"] == pytest.approx([80, 82])
    assert found["random projection"] == pytest.approx([79, 78])
    assert [text.get_text() for text in axes.texts] == ["raw", "PCA", "random projection"]
    assert axes.get_title("left").splitlines() == ["netA, epoch 16", "at 64 dimensions"]


def test_points_and_intervals_of_a_layer_stand_beside_each_other() -> None:
    (axes,) = draw([ONE]).axes
    places = {str(line.get_label()): np.asarray(line.get_xdata()) for line in axes.lines}
    assert places["raw"][0] < places["PCA"][0] < places["random projection"][0] < 0.5
    bars = {str(each.get_label()): each for each in axes.collections}["_interval of PCA"]
    ends = np.asarray([path.vertices for path in bars.get_paths()])
    assert ends[:, :, 0] == pytest.approx(np.stack([places["PCA"]] * 2, axis=1))
    assert ends[:, :, 1] == pytest.approx(np.array([[78, 82], [80, 84]]))


def test_a_ring_is_around_the_best_post_processing_of_each_layer() -> None:
    (axes,) = draw([ONE]).axes
    rings = {str(line.get_label()): np.asarray(line.get_xydata()) for line in axes.lines}
    assert rings["_best"] == pytest.approx(np.array([rings["raw"][0], rings["PCA"][1]]))
    assert "Ring: a layer's best post-processing, chosen on validation" in caption(draw([ONE]))
    (without,) = draw([replace(ONE, values=tuple(replace(v, chosen=False) for v in ONE.values), chosen_on=None)]).axes
    assert lines(without)["_best"] == []


def test_a_best_post_processing_without_a_line_has_its_ring_in_the_middle() -> None:
    other = sized("pool5.3", "layernorm", 0.86, 512, chosen=True)
    other = replace(other, equal=False)
    (axes,) = draw([replace(ONE, values=(*ONE.values[1:], other))]).axes
    rings = {str(line.get_label()): line.get_xydata() for line in axes.lines}["_best"]
    assert [0.0, 86.0] in np.round(np.asarray(rings), 6).tolist()


def test_a_line_passes_by_layers_side_by_side() -> None:
    joint = sized("pool5.3+fc6", "l2+pca:64+l2", 0.9, 64)
    (axes,) = draw([replace(ONE, values=(*ONE.values, joint))]).axes
    assert lines(axes)["PCA"] == pytest.approx([80, 82, 90])
    assert lines(axes)["_line of PCA"] == pytest.approx([80, 82])


def test_each_pool_of_the_layers_has_a_line_of_its_own() -> None:
    cls = [
        replace(
            one,
            score=with_layer(one.score, pool="cls"),
        )
        for one in ONE.values
        if one.score.ranked.layer.layer == "pool5.3"
    ]
    (axes,) = draw([replace(ONE, values=(*cls, *ONE.values))]).axes
    of_pca = [np.asarray(line.get_ydata()) for line in axes.lines if line.get_label() == "_line of PCA"]
    assert [len(heights) for heights in of_pca] == [2, 2]  # both with fc6, which has one pool


def test_the_pools_have_dashes_of_their_own_that_a_key_names() -> None:
    cls = [
        replace(
            one,
            score=with_layer(one.score, pool="cls"),
        )
        for one in ONE.values
        if one.score.ranked.layer.layer == "pool5.3"
    ]
    (axes,) = draw([replace(ONE, values=(*cls, *ONE.values))]).axes
    for name in ("PCA", "raw"):
        styles = [line._dash_pattern for line in axes.lines if line.get_label() == f"_line of {name}"]  # type: ignore[attr-defined]
        assert styles[0] == (0, None)  # solid
        assert styles[1] != styles[0]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["pool cls", "pool none"]
    (without,) = draw([ONE]).axes
    assert without.get_legend() is None


def test_two_dimensions_have_a_panel_each_with_the_layers_that_are_there() -> None:
    two = replace(ONE, values=(*ONE.values, sized("fc6", "l2+pca:128+l2", 0.83, 128)))
    first, second = draw([two]).axes
    assert first.get_ylim() == second.get_ylim()
    assert [label.get_text() for label in second.get_xticklabels()] == ["fc6"]
    assert lines(second)["PCA"] == pytest.approx([83])
    assert lines(first)["PCA"] == pytest.approx([80, 82])


def test_at_many_dimensions_each_layer_is_a_line_over_them() -> None:
    (axes,) = draw([MANY]).axes
    line = {str(line.get_label()): line.get_xydata() for line in axes.lines}
    assert line["fc6"] == pytest.approx(np.array([(32, 74.2), (64, 77.4), (128, 83.8)]))
    assert line["_fc6 raw"] == pytest.approx(np.array([(256, 80)]))
    assert axes.get_xscale() == "log"
    assert axes.get_title("left").splitlines() == ["netA, epoch 16", "PCA"]
    assert [text.get_text() for text in axes.texts] == ["pool5.3 82.8 %", "fc6 83.8 %"]
    assert "Hollow: the raw layer, at its own dimensions" in caption(draw([MANY]))


def test_at_many_dimensions_every_method_has_a_panel_of_the_same_scale() -> None:
    codes = [replace(sized("fc6", f"l2+pca:{d}+binary", 0.5, d)) for d in (32, 64)]
    codes = [replace(each, score=with_layer(each.score, similarity="hamming")) for each in codes]
    first, second = draw([replace(MANY, values=(*MANY.values, *codes))]).axes
    titles = {axes.get_title("left").splitlines()[1]: axes for axes in (first, second)}
    assert titles["PCA, binary codes"].get_xlabel() == "bits"
    assert titles["PCA"].get_xlabel() == "dimensions"
    assert (first.get_xlim(), first.get_ylim()) == (second.get_xlim(), second.get_ylim())


@pytest.mark.parametrize("found", [ONE, MANY])
def test_no_label_overlaps_another_and_one_run_is_as_narrow_as_a_column(
    found: PostProcessings, overlaps: Overlaps, covers: Overlaps
) -> None:
    figure = draw([found])
    assert figure.get_size_inches()[0] <= 4.6
    assert (overlaps(figure), covers(figure)) == ([], [])
    near = [
        replace(
            v,
            score=replace(with_layer(v.score, layer=f"{v.score.ranked.layer.layer}{i}"), value=0.8),
        )
        for i in range(4)
        for v in found.values
    ]
    figure = draw([replace(found, values=tuple(near))])
    assert (overlaps(figure), covers(figure)) == ([], [])


def test_the_caption_has_the_data_and_what_the_names_stand_for() -> None:
    facts = DataFacts("omniglot", {"train": SplitFacts(9), "test": SplitFacts(1360, 68)})
    found = draw([ONE], data={"netA": facts}).texts[-1].get_text().replace("\n", " ")
    assert "test: 1,360 queries of 68 classes" in found
    assert "train" not in found
    assert "raw: 256 to 512 dimensions; PCA: l2+pca:64+l2; random projection: random:64x5+l2" in found
    assert "Bars: 95 % interval over classes, against this gallery" in found
    assert "random projection: mean of 5 draws" in found


def test_the_caption_speaks_of_nothing_that_is_not_drawn() -> None:
    lines_ = caption(draw([replace(MANY, values=tuple(v for v in MANY.values if v.equal and not v.chosen))]))
    assert not [line for line in lines_ if line.startswith(("Ring", "Hollow"))]


def test_what_single_scores_and_runs_say_is_told() -> None:
    bad = sized("fc7", "l2+pca:64+l2", None, 64, notes=("NaN (3 rows)",))
    odd = sized("fc8", "l2+pca:64+l2", 0.5, 64, notes=("collapsed: 51% tied",))
    found = replace(ONE, values=(*ONE.values, bad, odd), notes=("why there is none",))
    lines_ = caption(draw([found, post_processings(*ONE.values, run="netB")]))
    for text in ("why there is none", "not valid: fc7 PCA: NaN (3 rows)", "fc8 PCA: collapsed: 51% tied"):
        assert f"netA: {text}" in lines_
    assert "random projection: mean of 5 draws" in lines_


def test_intervals_of_different_kinds_are_not_drawn_together() -> None:
    redraw = replace(ONE.values[0], score=replace(ONE.values[0].score, units=CLUSTERS))
    figure = draw([replace(ONE, values=(redraw, *ONE.values[1:]))])
    assert not [each for each in figure.axes[0].collections if str(each.get_label()).startswith("_interval")]
    assert any("intervals of different kinds" in line for line in caption(figure))


def test_the_table_has_the_numbers_drawn_and_what_was_chosen() -> None:
    rows = list(csv.DictReader(table([ONE]).splitlines()))
    assert [(row["layer"], row["post_processing"], row["dimensions"], row["R@1"]) for row in rows[:2]] == [
        ("pool5.3", "none", "512", "0.85"), ("pool5.3", "l2+pca:64+l2", "64", "0.8"),
    ]  # fmt: skip
    column = "best post-processing, chosen on"
    assert [row[column] for row in rows] == ["validation", "", "", "", "validation", ""]
    assert (rows[2]["note"], rows[2]["n"]) == ("mean of 5 draws", "1360")


def test_a_name_is_no_formula_in_the_table() -> None:
    (row, *_) = csv.DictReader(table([post_processings(sized("=1+1", "none", 0.85, 512))]).splitlines())
    assert row["layer"] == "'=1+1"


def test_dimensions_whose_numbers_would_touch_are_not_all_ticks(
    overlaps: Overlaps,
    covers: Overlaps,
) -> None:
    near = post_processings(*(sized("fc6", f"l2+pca:{dim}+l2", 0.8, dim) for dim in (7, 8, 9, 512)))
    figure = draw([near])
    assert (overlaps(figure), covers(figure)) == ([], [])
    assert figure.axes[0].get_xticks()[[0, -1]].tolist() == [7, 512]


def named(*post_processings_: tuple[str, int]) -> list[str]:
    return list(
        method_names([post_processings(*(sized("fc6", name, 0.5, dim) for name, dim in post_processings_))]).values()
    )


@pytest.mark.parametrize(
    ("chain", "name"),
    [
        ("none", "raw"),
        ("l2+pca:64+l2", "PCA"),
        ("l2+whiten:64:0.5+l2", "partially whitened"),
        ("whiten:64:1", "whitened"),
        ("l2+whiten:64:0.3+l2", "whitened by 0.3"),
        ("random:64x5+l2", "random projection"),
        ("l2+pca:64+binary", "PCA, binary codes"),
        ("l2+pca:64+l2@gallery", "PCA, fitted on the gallery"),
        ("shift+pca:64", "shift, PCA"),
    ],
)
def test_a_chain_has_a_name_that_people_know(chain: str, name: str) -> None:
    assert named((chain, 64)) == [name]


def test_dimensions_are_no_part_of_a_method_and_powers_are() -> None:
    assert method_of(sized("fc6", "l2+whiten:1:1+l2", 0.5, 1)) == Method("l2+whiten:D:1+l2", "cosine")
    assert method_of(sized("fc6", "random:16x5+l2", 0.5, 16)) == Method("random:Dx5+l2", "cosine")
    assert named(("l2+pca:8+l2", 8), ("l2+pca:16+l2", 16)) == ["PCA"]


def test_chains_of_one_name_are_called_by_what_they_are() -> None:
    assert named(("pca:8", 8), ("l2+pca:8+l2", 8)) == ["l2+pca:D+l2", "pca:D"]
    cosine = sized("fc6", "pca:8", 0.5, 8)
    dot = replace(cosine, score=with_layer(cosine.score, similarity="dot"))
    assert list(method_names([post_processings(cosine, dot)]).values()) == ["PCA, cosine", "PCA, dot"]


def test_layers_as_they_are_come_first_and_are_grey_and_all_have_another_look() -> None:
    names = method_names(
        [post_processings(*(sized("fc6", name, 0.5, 8) for name in ("random:8", "none", "pca:8", "whiten:8:1")))]
    )
    assert list(names.values()) == ["raw", "PCA", "random projection", "whitened"]
    styles = list(method_styles(names).values())
    assert len({style.marker for style in styles}) == len({style.colour for style in styles}) == 4
    assert len(set(styles[0].colour)) == 1


def of_size(number: str, size: int, value: float, post_processing: str = "l2") -> Sized:
    return replace(sized("fc6", post_processing, value, 64, chosen=True), number=number, size=size)


BY_BYTES = post_processings(
    of_size("float32", 64, 0.6), of_size("float32", 256, 0.8), of_size("int8", 16, 0.61, "l2+int8"),
    of_size("bit", 8, 0.5, "l2+binary"), of_size("bit", 256, 0.79, "l2+binary"),
)  # fmt: skip


def test_each_type_of_number_has_steps_over_the_bytes() -> None:
    figure = draw_by_bytes([BY_BYTES])
    (axes,) = figure.axes
    found = {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in axes.lines}
    assert found["float32"] == [[64, 60], [256, 80]]
    assert found["int8"] == [[16, 61]]
    assert found["bits"] == [[8, 50], [256, 79]]
    # the last step goes on to the end of the axis
    end = axes.get_xlim()[1]
    assert found["_steps of int8"] == [[16, 61], [end, 61]]
    assert {line.get_drawstyle() for line in axes.lines if str(line.get_label()).startswith("_steps")} == {"steps-post"}
    assert [text.get_text() for text in axes.texts] == ["float32 80.0 %", "int8 61.0 %", "bits 79.0 %"]
    assert (axes.get_xscale(), axes.get_xlabel()) == ("log", "bytes an image")
    assert axes.get_xticks().tolist() == [8, 16, 32, 64, 128, 256]
    assert {str(bars.get_label()) for bars in axes.collections} >= {"_interval of float32", "_interval of bits"}


def test_the_caption_says_on_what_the_best_are_chosen() -> None:
    said = "Steps: the best layer and post-processing of at most so many bytes, {}"
    for split, text in (
        ("validation", "chosen on validation"),
        ("train", "chosen on selection classes"),
        (None, "best on test"),
    ):
        lines_below = " ".join(caption(draw_by_bytes([replace(BY_BYTES, chosen_on=split)])))
        assert said.format(text) in lines_below


def test_the_selected_candidate_is_a_star_at_its_bytes() -> None:
    one = BY_BYTES.values[0].score
    selected = Selected("fc6, l2", replace(one, value=0.7), 64, number="float16", size=128)
    (axes,) = draw_by_bytes([BY_BYTES], selected={"netA": selected}).axes
    (star,) = [line for line in axes.lines if line.get_marker() == "*"]
    assert np.asarray(star.get_xydata()).tolist() == [[128, 70]]
    (without,) = draw_by_bytes([BY_BYTES], selected={"netA": replace(selected, size=None)}).axes
    assert not [line for line in without.lines if line.get_marker() == "*"]


def test_one_size_alone_is_drawn() -> None:
    (axes,) = draw_by_bytes([post_processings(of_size("float32", 100, 0.6))]).axes
    low, high = axes.get_xlim()
    assert low < 100 < high
    assert axes.get_xticks().tolist() == [100]


def test_the_table_by_bytes_has_sizes_and_the_split_of_the_choice() -> None:
    selected = Selected("fc6", replace(BY_BYTES.values[0].score, value=0.7, epoch=3), 64, number="float16", size=128)
    first, *_, last = csv.DictReader(table([BY_BYTES], {"netA": selected}).splitlines())
    assert (first["numbers"], first["bytes"], first["dimensions"], first["R@1"]) == ("float32", "64", "64", "0.6")
    assert first["best of at most so many bytes, chosen on"] == "validation"
    assert (last["numbers"], last["bytes"], last["note"]) == ("float16", "128", "selected by layerprobe choose")
    assert last["best of at most so many bytes, chosen on"] == ""
