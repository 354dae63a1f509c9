from __future__ import annotations

import csv
import io
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import NDArray

from layerprobe.plots.figure import FONT, width_of
from layerprobe.plots.panels import (
    PLOT,
    draw,
    neighbours_csv,
    replace_missing_glyphs,
    shorten,
    shorten_distinctly,
    wrap_name,
)
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import FoundItem, Item, QueryNeighbours

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
BINARY = RankedLayer(LayerKey("fc6", "none"), "binary", "hamming")
POOL5 = RankedLayer(LayerKey("pool5.3", "max"), "none", "cosine")
DATA = {"one": DataFacts("set", {"train": SplitFacts(8, 4), "test": SplitFacts(16, 4)})}


def image(_: str, name: str) -> NDArray[np.uint8]:
    """An image as wide as it is high, or, of names that begin so, twice as wide."""
    return np.zeros((10, 20 if name.startswith("wide") else 10, 3), np.uint8)


def neighbours(
    ranked: RankedLayer,
    right: Sequence[bool],
    *,
    query: str = "q",
    run: str = "one",
    classes: str = "cat",
    epoch: int = 3,
) -> QueryNeighbours:
    other = f"not {classes}"
    found = [FoundItem(Item(f"{query}{i}", classes if hit else other), 1 - i / 10, hit) for i, hit in enumerate(right)]
    return QueryNeighbours(run, epoch, "test", ranked, Item(query, classes), tuple(found), ("Queries: random",))


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def frames(figure: Figure) -> list[Rectangle]:
    return [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]


def test_right_and_wrong_differ_by_line_and_sign_beside_their_colour() -> None:
    figure = draw([neighbours(FC6, [True, False, True])], image=image, data=DATA)
    _, *shown = frames(figure)
    assert [patch.get_linestyle() for patch in shown] == ["-", (0, (2.5, 1.5)), "-"]
    assert len({patch.get_edgecolor() for patch in shown}) == 2
    assert [text for text in texts(figure) if text in ("✓", "✗")] == ["✓", "✗", "✓"]


def test_a_query_has_a_row_for_each_layer_with_its_neighbours_from_left_to_right() -> None:
    both = [neighbours(POOL5, [True] * 3), neighbours(FC6, [False] * 3)]
    figure = draw([*both, neighbours(POOL5, [True] * 3, query="p")], image=image, data=DATA)
    assert [text for text in texts(figure) if text in ("pool5.3@max", "fc6")] == ["pool5.3@max", "fc6", "pool5.3@max"]
    first, *row = frames(figure)[:4]
    assert [patch.get_x() for patch in row] == sorted(patch.get_x() for patch in row)
    assert first.get_x() < row[0].get_x()
    assert len(figure.axes[0].get_images()) == 2 + 9


def test_an_image_keeps_its_shape() -> None:
    figure = draw([neighbours(FC6, [True], query="wide")], image=image, data=DATA)
    assert [round(patch.get_width() / patch.get_height(), 6) for patch in frames(figure)] == [2, 2]


def test_layers_that_are_compared_in_another_way_say_so() -> None:
    figure = draw([neighbours(FC6, [True]), neighbours(BINARY, [True])], image=image, data=DATA)
    assert {"fc6", "fc6/binary"} <= set(texts(figure))
    same = draw([neighbours(FC6, [True])], image=image, data=DATA)
    assert "Compared by cosine" in " ".join(same.texts[0].get_text().split())


def test_wrong_classes_that_share_beginning_and_end_have_different_names() -> None:
    names = [f"Alphabet_of_the_{alphabet}/character01" for alphabet in ("Magi", "Braille")]
    found = tuple(FoundItem(Item(name, name), 0.5, False) for name in names)
    figure = draw([replace(neighbours(FC6, [True]), found=found)], image=image, data=DATA)
    shown = [text for text in texts(figure) if "…" in text]
    assert len(shown) == len(set(shown)) == 2


def test_several_runs_are_named_at_their_rows() -> None:
    figure = draw([neighbours(FC6, [True]), neighbours(FC6, [True], run="two", epoch=5)], image=image)
    assert {"one#3:fc6", "two#5:fc6"} <= set(texts(figure))
    assert figure.axes[0].get_title(loc="left") == "several runs: nearest test images"
    alike = draw([neighbours(FC6, [True]), neighbours(FC6, [True], run="two")], image=image)
    assert {"one#3:fc6", "two#3:fc6"} <= set(texts(alike))
    assert alike.axes[0].get_title(loc="left") == "several runs, epoch 3: nearest test images"


def test_the_caption_has_the_data_and_the_rule_by_which_queries_were_chosen() -> None:
    caption = draw([neighbours(FC6, [True])], image=image, data=DATA).texts[0].get_text()
    assert "16 queries" in caption
    assert "8 queries" not in caption
    assert "Queries: random" in caption


def test_long_and_hostile_names_overlap_nothing(overlaps: Callable[[Figure], list[tuple[str, str]]]) -> None:
    names = [
        "Alphabet_of_the_Magi/character01",
        "$x^2$\n\x1b[0m<script>",
        "W" * 200,
        "\N{CJK UNIFIED IDEOGRAPH-65E5}" * 9,
    ]
    shown = [neighbours(ranked, [False] * 5, query=name, classes=name) for name in names for ranked in (POOL5, BINARY)]
    figure = draw(shown, image=image, data=DATA)
    assert overlaps(figure) == []
    right = max(text.get_window_extent().x1 for text in figure.axes[0].texts)
    assert right <= figure.axes[0].get_window_extent().x1 + 1


def test_the_table_has_whole_names_and_every_number() -> None:
    long = "Alphabet_of_the_Magi/character01"
    rows = list(csv.DictReader(io.StringIO(neighbours_csv([neighbours(BINARY, [True, False], classes=long)]))))
    assert [row["item"] for row in rows] == ["q0", "q1"]
    assert [row["item_class"] for row in rows] == [long, f"not {long}"]
    assert [(row["place"], row["value"], row["right"]) for row in rows] == [("1", "1.0", "true"), ("2", "0.9", "false")]
    first = rows[0]
    assert (first["layer"], first["post_processing"], first["similarity"], first["epoch"]) == (
        "fc6",
        "binary",
        "hamming",
        "3",
    )
    assert (first["query"], first["query_class"], first["note"]) == ("q", long, "Queries: random")


def test_no_name_in_the_table_is_a_formula() -> None:
    text = neighbours_csv([neighbours(FC6, [True], query="=1+1", classes="@SUM(A1)")])
    (row,) = csv.DictReader(io.StringIO(text))
    assert [row[name] for name in ("query", "query_class", "item", "item_class")] == [
        "'=1+1",
        "'@SUM(A1)",
        "'=1+10",
        "'@SUM(A1)",
    ]


def test_it_takes_what_chooses_queries() -> None:
    assert PLOT.options == ("layers", "epoch", "query", "where", "queries")


MAGI = "Alphabet_of_the_Magi/character01"


@pytest.mark.parametrize("name", [MAGI, "W" * 40, "i" * 90, "Jug. (2)"])
@pytest.mark.parametrize("width", [0.7, 1.0, 2.0])
def test_a_shortened_name_fits_and_has_its_beginning_and_its_end(name: str, width: float) -> None:
    short = shorten(name, width, FONT)
    assert width_of([short]) <= width + 0.01
    if width_of([name]) > width:
        head, _, tail = short.partition("…")
        assert name.startswith(head)
        assert name.endswith(tail)
        # nothing more would have fitted
        assert width_of([f"{name[: len(head) + 1]}…{tail}"]) > width
    else:
        assert short == name


def test_lines_end_after_signs_that_divide_words() -> None:
    assert wrap_name(MAGI, 1.0, FONT, 9) == ["Alphabet_of_", "the_Magi/", "character01"]
    assert wrap_name(MAGI, 1.0, FONT, 2) == ["Alphabet_of_", "the_Magi/…r01"]
    assert wrap_name("cat", 1.0, FONT, 2) == ["cat"]
    assert wrap_name("cat", 1.0, FONT, 0) == []


def test_where_little_fits_the_beginning_is_kept() -> None:
    assert shorten(MAGI, 0.42, FONT) == "Al…01"
    assert shorten("W" * 9, 0.3, FONT) == "W…"
    assert shorten(MAGI, 0.1, FONT) == "…"


def test_characters_without_a_picture_are_squares() -> None:
    assert replace_missing_glyphs("a\N{CJK UNIFIED IDEOGRAPH-65E5}\x1b") == "a\N{WHITE SQUARE}\N{REPLACEMENT CHARACTER}"


def test_a_very_long_name_is_shortened_at_once() -> None:
    began = time.monotonic()
    wrap_name("x" * 100_000, 1.0, FONT, 3)
    assert time.monotonic() - began < 60


SAME_ENDS = [f"Alphabet_of_the_{alphabet}/character{n:02}" for alphabet in ("Magi", "Braille") for n in (1, 2, 11)]


@pytest.mark.parametrize("width", [0.8, 1.2, 4.0])
def test_names_that_share_their_beginning_and_end_stay_different(width: float) -> None:
    short = shorten_distinctly(SAME_ENDS, width, FONT)
    assert list(short) == SAME_ENDS
    assert len(set(short.values())) == len(SAME_ENDS)
    assert width_of(list(short.values())) <= width + 0.01


def test_names_begin_where_they_differ() -> None:
    first, second = SAME_ENDS[0], SAME_ENDS[3]
    assert shorten(first, 0.8, FONT) == shorten(second, 0.8, FONT) == "Alphab…r01"
    assert shorten_distinctly([first, second], 0.8, FONT) == {first: "…Magi…r01", second: "…Braill…r01"}
    assert shorten_distinctly([first, "Braille"], 0.8, FONT) == {first: "Alphab…r01", "Braille": "Braille"}


def test_a_name_differs_from_one_that_goes_on() -> None:
    short = shorten_distinctly(["x" * 40, "x" * 41], 0.8, FONT)
    assert list(short.values()) == ["…x", "…xx"]


def test_names_that_no_room_can_tell_apart_end_the_search() -> None:
    assert shorten_distinctly(SAME_ENDS, 0.1, FONT) == dict.fromkeys(SAME_ENDS, "……")
