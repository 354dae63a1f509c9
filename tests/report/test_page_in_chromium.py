"""The page of a report as Chromium shows it: what its figures, menus and table do, by pointer and by keyboard."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from layerprobe.report.page import render
from layerprobe.report.values import Report
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import ScoreTable
from tests.report.fabricated import HOSTILE, report_of, run_page, scores_of, shown_classes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@dataclass
class Opened:
    """A page in the browser, the faults that it told, and the addresses that it asked for."""

    page: Page
    faults: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_text_contents()

    def column(self, split: str) -> list[str]:
        """The cells of a column of the table, with the digits of scores.csv."""
        place = [text.split(" ")[0] for text in self.texts("#table-box > table > thead th")].index(split)
        found: list[str] = self.page.evaluate(
            "i => [...document.querySelectorAll('#table-box > table > tbody > tr:not(.details)')]"
            ".map(row => row.children[i].dataset.value)",
            place,
        )
        return found


Open = Callable[..., Opened]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    contexts = []

    def open_(report: Report | None = None, *, width: int = 1280, scheme: Any = "light") -> Opened:
        file = tmp_path / "report.html"
        file.write_text(render(report or report_of()), encoding="utf-8")
        contexts.append(browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme))
        opened = Opened(contexts[-1].new_page())
        opened.page.on("console", lambda message: opened.faults.append(message.text))
        opened.page.on("pageerror", lambda error: opened.faults.append(str(error)))
        opened.page.on("dialog", lambda dialog: opened.faults.append(dialog.message))
        opened.page.on("request", lambda request: opened.asked.append(request.url))
        opened.page.goto(file.as_uri())
        return opened

    yield open_
    for context in contexts:
        context.close()


def test_the_page_opens_without_a_fault_or_a_request(open_page: Open) -> None:
    opened = open_page(report_of(run_page(HOSTILE), run_page("two")))
    assert opened.faults == []
    assert [url for url in opened.asked if not url.startswith("data:")] == [opened.page.url]
    assert opened.texts("#curves h3") == [HOSTILE, "two"]
    assert opened.page.locator("#curves svg").count() == 2


def test_classes_are_called_new_only_where_they_are(open_page: Open) -> None:
    run = run_page("one")
    other = run_page("two", data=replace(run.data, held_out=False))
    expected = ["train: classes seen in training", "test: classes never seen", "train", "test"]
    assert open_page(report_of(run, other)).texts("#curves .split") == expected


def test_train_is_called_selection_classes_of_the_runs_that_have_not_seen_it(open_page: Open) -> None:
    run = run_page("one")
    opened = open_page(report_of(run, run_page("two", seed=1, data=replace(run.data, held_out=False, seen=False))))
    heads = [text.rstrip(" ↕▲") for text in opened.texts("#table-box th[scope=col]")]
    assert heads == ["run", "layer", "train", "selection", "test", "train or selection \u2212 test"]
    shown = [[cell != "\u2013" for cell in opened.texts(f"tr[data-run={name}] td.number")] for name in ("one", "two")]
    assert shown == [5 * [True, False, True, True], 5 * [False, True, True, True]]
    assert opened.texts("#curves .split")[-2:] == ["selection classes", "test"]
    assert [text[:4] for text in opened.texts("#map .heat .split")] == ["trai", "sele"]
    (caption,) = opened.texts("#map-caption")
    assert "train or selection better" in caption
    assert "train (one) or selection classes (two)" in caption
    opened.page.locator("#map-1").press("End")
    assert "R@1 on selection classes = " in opened.texts("#readout")[0]
    opened.page.locator("tr[data-run=two] button").first.click()
    assert opened.texts(".inner tbody tr td:first-child") == ["selection classes", "test"] * 2


def test_a_layer_that_is_chosen_is_named_at_its_curves(open_page: Open) -> None:
    opened = open_page()
    assert opened.texts("#curves .panel:first-child .label text tspan") != []
    opened.page.locator("#choose-layers > summary").click()
    opened.page.get_by_label("pool2@max").check()
    assert opened.page.locator('#curves [data-label="pool2@max"]').count() == 2  # on train and on test
    opened.page.get_by_label("pool2@max").uncheck()
    assert opened.page.locator('#curves [data-label="pool2@max"]').count() == 0


def test_the_layers_chosen_are_those_of_curves_map_and_table(open_page: Open) -> None:
    opened = open_page()
    opened.page.locator("#choose-layers > summary").click()
    opened.page.get_by_role("button", name="none").click()
    for name in ("pool3@max", "fc6"):
        opened.page.get_by_label(name, exact=True).check()
    places = {"#curves .panel:first-child .label": 2, "#curves .pale path": 0, "#table-box tbody tr": 2}
    assert {place: opened.page.locator(place).count() for place in places} == places
    assert opened.texts("#map .name") == opened.texts("#table-box th[scope=row]") == ["pool3@max", "fc6"]
    assert opened.texts("#table-count") == ["2 of 2 rows; 4 more of layers not chosen above"]


def test_of_many_layers_chosen_few_are_in_colour(open_page: Open) -> None:
    layers = tuple(RankedLayer(LayerKey(f"blocks.{i}", "cls"), "none", "cosine") for i in range(12))
    run = run_page("vit", layers=layers, few=(0, 5, 10, 11), embedding=11, scores=scores_of("vit", layers, (0, 1), 0))
    opened = open_page(report_of(run))
    assert opened.page.locator("#curves .panel:first-child .label").count() == 4
    assert opened.page.locator("#curves .panel:first-child .pale path").count() == 8
    assert opened.page.locator("#map .name").count() == opened.page.locator("#table-box tbody tr").count() == 12


@pytest.mark.parametrize("epochs", [(0,), (0, 1, 2, 4)])
def test_a_narrow_page_shows_the_pool_of_each_layer(open_page: Open, epochs: tuple[int, ...]) -> None:
    names = [f"features.denseblock{i}.denselayer1{i}" for i in range(1, 5)]
    layers = tuple(RankedLayer(LayerKey(name, pool), "none", "cosine") for name in names for pool in ("max", "avg"))
    run = run_page("dense", layers=layers, few=(0, 3), embedding=7, scores=scores_of("dense", layers, epochs, 0))
    opened = open_page(report_of(run), width=390)
    shown = opened.texts("#map .name")
    assert [text.rpartition("@")[2] for text in shown] == ["max", "avg"] * 4
    assert len(set(shown)) == 8
    labels = opened.texts("#curves .label text")
    assert all(re.search(r"@(max|avg) ", text) for text in labels)
    assert len(labels) == (16 if len(epochs) > 1 else 0)
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 390


def test_a_shortened_label_loses_its_post_processing_before_the_name_of_its_layer(open_page: Open) -> None:
    opened = open_page()

    def short(label: str, share: float) -> str:
        width = "layerprobe.widthOf(label)"
        return str(
            opened.page.evaluate(f"([label, share]) => layerprobe.short(label, share * {width})", [label, share])
        )

    assert short("layer2.0@avg", 1) == "layer2.0@avg"
    assert re.fullmatch(r"….*2\.0@avg", short("layer2.0@avg", 0.8))
    assert re.fullmatch(r"layer2\.0@avg/l2.*…", short("layer2.0@avg/l2+pca:64+l2", 0.8))
    assert re.fullmatch(r"….*0@avg…", short("layer2.0@avg/l2+pca:64+l2", 0.35))


def test_the_pools_of_a_layer_have_its_colour_and_lines_of_their_own(open_page: Open) -> None:
    layers = tuple(RankedLayer(LayerKey("c5", pool), "none", "cosine") for pool in ("max", "avg", "gem"))
    run = run_page("one", layers=layers, few=(0,), embedding=None, scores=scores_of("one", layers, (0, 1), 0))
    opened = open_page(report_of(run))
    lines = opened.page.locator("#curves .panel:first-child .line").all()
    assert len({line.get_attribute("stroke-dasharray") for line in lines}) == 3
    assert len({line.evaluate("one => getComputedStyle(one).stroke") for line in lines}) == 1


def test_the_colour_of_a_layer_is_its_depth_in_its_own_network(open_page: Open) -> None:
    names = {"one": ["c1", "c2", "c3", "fc"], "two": ["blocks.0", "blocks.1", "blocks.2", "fc"]}
    runs = []
    for name, own in names.items():
        layers = tuple(RankedLayer(LayerKey(layer, "none"), "none", "cosine") for layer in own)
        scores = scores_of(name, layers, (0, 1), 0)
        runs.append(run_page(name, layers=layers, few=(0, 1, 2, 3), embedding=3, scores=scores))
    opened = open_page(report_of(*runs))
    # the first of four layers is at 0 %, the second at 1/3 of the depth
    for label, depth in (("c1", 0), ("c2", 33.3), ("blocks.0", 0), ("blocks.2", 66.7)):
        assert opened.page.evaluate(f"layerprobe.tint('{label}').style") == f"--at:{depth:.1f}%"


def test_a_run_of_one_epoch_has_no_curves_beside_one_that_has(open_page: Open) -> None:
    opened = open_page(report_of(run_page("frozen", epochs=(0,)), run_page("trained")))
    assert opened.texts("#curves h3") == ["trained"]
    assert opened.texts("#map h3") == ["frozen", "trained"]
    assert "By layer alone, having one epoch: frozen." in opened.texts("#curves-caption")[0]


def test_all_layers_are_chosen_without_their_post_processings(open_page: Open) -> None:
    opened = open_page()
    opened.page.locator("#choose-layers > summary").click()
    opened.page.get_by_role("button", name="all layers").click()
    assert opened.page.evaluate("layerprobe.state.get('layers')") == [
        "pool1@max",
        "pool2@max",
        "pool3@max",
        "pool4@max",
        "fc6",
    ]
    opened.page.get_by_text("post-processing: 1").click()
    opened.page.get_by_label("fc6/l2+pca:64+l2").check()
    assert opened.page.locator("#map .name").last.text_content() == "fc6/l2+pca:64+l2"


def test_the_keyboard_chooses_the_epoch_of_table_and_figures(open_page: Open) -> None:
    run = run_page("one")
    opened = open_page(report_of(run))
    opened.page.locator("#epoch").focus()
    opened.page.keyboard.press("ArrowLeft")  # epochs 0 1 2 4
    expected = [repr(s.value) for s in run.scores if (s.epoch, s.split, s.metric) == (2, "test", "R@1")]
    assert opened.column("test") == expected
    assert "R@1 at epoch 2" in opened.texts("#map .split")


def test_every_number_of_the_table_has_the_digits_of_scores_csv(open_page: Open, tmp_path: Path) -> None:
    run = run_page("one")
    opened = open_page(report_of(run))
    opened.page.evaluate("layerprobe.state.set('layers', layerprobe.labels)")
    ScoreTable(run.scores, layer_order=[layer.layer.layer for layer in run.layers]).write(tmp_path / "scores.csv")
    with (tmp_path / "scores.csv").open(newline="") as stream:
        rows = [row for row in csv.DictReader(stream) if row["metric"] == "R@1"]
    for epoch in ("0", "1", "2", "4"):
        opened.page.evaluate(f"layerprobe.state.set('epoch', {epoch})")
        for split in ("train", "test"):
            own = [row for row in rows if (row["epoch"], row["split"]) == (epoch, split)]
            assert opened.column(split) == [row["value"] for row in own]
            place = ["layer", "train", "test"].index(split) + 1
            shown = opened.texts(f"#table-box tbody tr > :nth-child({place})")
            assert shown == [
                f"{100 * float(row['value']):.1f} {100 * float(row['low']):.1f} to {100 * float(row['high']):.1f}"
                for row in own
            ]


def test_numbers_are_printed_as_python_prints_them(open_page: Open) -> None:
    opened = open_page()
    rng = np.random.default_rng(0)
    values = [k / 400 for k in range(401)] + [k / 1360 for k in range(1361)] + rng.random(200).tolist()  # many ties
    assert any((1000 * value) % 1 == 0.5 for value in values)
    shown = opened.page.evaluate("values => values.map(x => layerprobe.text.shown(x, 'R@1'))", values)
    assert shown == [f"{100 * value:.1f}" for value in values]
    gaps = opened.page.evaluate("values => values.map(x => layerprobe.text.gap(0.4 - x, 'R@1'))", values)
    assert gaps == [f"{100 * (0.4 - value):+.1f}".replace("-", "\N{MINUS SIGN}") for value in values]
    others = [0.0, 1.0, 1e-05, 1.5e-7, 123456789.0, 1e16, 0.1, 5e-324, *values]
    assert opened.page.evaluate("values => values.map(layerprobe.text.full)", others) == [repr(x) for x in others]


def test_a_click_on_a_column_sorts_the_table(open_page: Open) -> None:
    opened = open_page()
    before = opened.column("test")
    opened.page.locator("#sort-test").click()
    assert opened.column("test") == sorted(before, key=float, reverse=True)
    opened.page.locator("#sort-test").press("Enter")  # the button has kept the focus
    assert opened.column("test") == sorted(before, key=float)
    assert opened.page.locator("th[aria-sort=ascending]").text_content() == "test ▲"


def test_rows_start_in_the_order_of_runs_and_of_the_network(open_page: Open) -> None:
    opened = open_page(report_of(run_page("two"), run_page("one", seed=1)))
    rows = opened.texts("#table-box tbody tr > td.name"), opened.texts("#table-box th[scope=row]")
    layers = ["pool1@max", "pool2@max", "pool3@max", "pool4@max", "fc6"]
    assert rows == (5 * ["two"] + 5 * ["one"], 2 * layers)


def test_text_filters_the_rows_of_the_table(open_page: Open) -> None:
    opened = open_page(report_of(run_page("one"), run_page("two")))
    assert opened.texts("#table-count") == ["10 of 10 rows; 2 more of layers not chosen above"]
    opened.page.locator("#choose-layers > summary").click()
    opened.page.get_by_role("button", name="with post-processing").click()
    opened.page.get_by_label("Show rows with").fill("TWO pca:64")
    assert opened.texts("#table-box tbody tr > :nth-child(2)") == ["fc6/l2+pca:64+l2"]
    assert opened.texts("#table-count") == ["1 of 12 rows"]


def test_the_name_of_a_layer_opens_all_that_is_stored_of_it(open_page: Open) -> None:
    run = run_page("one")
    opened = open_page(report_of(run))
    opened.page.get_by_role("button", name="pool3@max", exact=True).click()
    rows = opened.texts(".inner tbody tr")
    expected = [s for s in run.scores if (s.epoch, s.ranked.layer.layer) == (4, "pool3")]
    assert len(rows) == len(expected) == 4
    for score in expected:
        assert any(text.startswith(f"{score.split}{score.metric}{score.value!r}") for text in rows)


def test_what_opens_names_the_weights_of_one_file_instead_of_an_epoch(open_page: Open) -> None:
    run = run_page("one", epochs=(0,))
    opened = open_page(report_of(replace(run, data=replace(run.data, weights="weights of own.pth"))))
    opened.page.get_by_role("button", name="pool3@max", exact=True).click()
    (text,) = opened.texts("tr.details p")
    assert text.startswith("one, weights of own.pth, layer pool3, pool max")


def test_a_run_that_is_not_chosen_is_not_shown(open_page: Open) -> None:
    opened = open_page(report_of(run_page("one"), run_page("two")))
    opened.page.locator("#choose-runs > summary").click()
    opened.page.get_by_role("checkbox", name="one").uncheck()
    assert opened.texts("#curves h3") == opened.texts("#map h3") == ["two"]
    assert opened.page.locator("#table-box tbody tr").count() == 5


def test_what_is_chosen_is_kept_when_the_page_is_read_again(open_page: Open) -> None:
    opened = open_page()
    opened.page.locator("#epoch").focus()
    opened.page.keyboard.press("Home")
    opened.page.reload()
    assert opened.page.evaluate("layerprobe.state.get('epoch')") == 0
    assert opened.page.evaluate("document.activeElement.id") == "epoch"


def test_arrow_keys_move_through_a_figure_and_tell_its_numbers(open_page: Open) -> None:
    run = run_page("one")
    opened = open_page(report_of(run))
    opened.page.locator("#curves-0").focus()
    opened.page.keyboard.press("ArrowUp")  # from fc6 to pool4
    opened.page.keyboard.press("ArrowLeft")
    (value,) = [
        s.value for s in run.scores if (s.epoch, s.ranked.layer.layer, s.split, s.metric) == (2, "pool4", "test", "R@1")
    ]
    assert opened.texts("#readout strong") == ["pool4@max, epoch 2"]
    assert f"R@1 on test = {value!r}" in opened.texts("#readout span")


def test_pointing_at_a_curve_tells_everything_of_its_number(open_page: Open) -> None:
    run = run_page("one")
    opened = open_page(report_of(run))
    opened.page.locator("#curves .panel[data-split=test] [data-layer=fc6] .dot").hover()
    (score,) = [
        s
        for s in run.scores
        if (s.epoch, s.ranked.layer.layer, s.ranked.post_processing, s.split, s.metric)
        == (4, "fc6", "none", "test", "R@1")
    ]
    assert opened.texts("#readout > *") == [
        f"{100 * (score.value or 0):.1f} %",
        f"R@1 on test = {score.value!r}",
        f"interval {score.low!r} to {score.high!r}",
        "fc6, pool none, post-processing none, cosine",
        "one, epoch 4",
    ]


def test_remarks_are_numbered_below_the_table(open_page: Open) -> None:
    run = run_page("one")
    noted = [
        replace(s, value=None, interval=None, notes=("NaN (3 rows)",))
        if (s.ranked.layer.layer, s.split) == ("pool1", "train")
        else replace(s, notes=("few classes",) if s.ranked.layer.layer == "pool2" else ())
        for s in run.scores
    ]
    opened = open_page(report_of(replace(run, scores=tuple(noted))))
    assert opened.texts("#table-remarks li") == ["1 few classes"]
    assert opened.texts("#table-box tr:has(sup) th[scope=row]") == ["pool2@max"]
    assert opened.texts("#table-box .invalid") == ["NaN (3 rows)"]


def test_a_remark_that_most_numbers_have_marks_none_of_them(open_page: Open) -> None:
    run = run_page("one")
    noted = [replace(s, notes=("a", "b") if s.ranked.layer.layer == "pool2" else ("a",)) for s in run.scores]
    opened = open_page(report_of(replace(run, scores=tuple(noted))))
    assert opened.texts("#table-remarks li") == ["Unless marked: a", "1 a; b"]
    assert opened.texts("#table-box tr:has(sup) th[scope=row]") == ["pool2@max"]


def test_a_curve_breaks_where_there_is_no_valid_number(open_page: Open) -> None:
    run = run_page("one")
    scores = [replace(s, value=None, interval=None, notes=("NaN",)) if s.epoch == 1 else s for s in run.scores]
    opened = open_page(report_of(replace(run, scores=tuple(scores))))
    (path,) = {one.get_attribute("d") for one in opened.page.locator("[data-layer=fc6] .line").all()[:1]}
    assert path is not None
    assert [letter for letter in path if letter.isalpha()] == ["M", "M", "L"]  # of the epochs 0, 2 and 4


def test_a_run_of_one_epoch_has_its_layers_and_no_curves(open_page: Open) -> None:
    opened = open_page(report_of(run_page("frozen", epochs=(0,))))
    assert not opened.page.locator("#curves").is_visible()
    assert opened.texts("#map-title") == ["Layer by layer"]
    assert opened.page.locator("#map circle.test").count() == 6  # five layers, and the key


OVERLAPS = """() => [...document.querySelectorAll('#curves svg')].flatMap(svg => {
  const boxes = [...svg.querySelectorAll('.label text')].map(text => [text.textContent, text.getBoundingClientRect()]);
  return boxes.flatMap(([a, one], i) => boxes.slice(i + 1).filter(([b, other]) =>
    Math.min(one.right, other.right) - Math.max(one.left, other.left) > 0.5 &&
    Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top) > 3).map(([b]) => `${a} | ${b}`));
})"""


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_overlaps_or_runs_out_of_the_page(open_page: Open, width: int) -> None:
    opened = open_page(report_of(*(run_page(i * 25 * "n" or "one", range(31), seed=i) for i in range(6))), width=width)
    opened.page.evaluate("layerprobe.state.set('layers', layerprobe.labels)")
    assert opened.page.evaluate(OVERLAPS) == []
    assert opened.page.evaluate("document.documentElement.scrollWidth") == width


def test_a_printed_page_has_no_controls_and_everything_unfolded(open_page: Open) -> None:
    opened = open_page(report_of(run_page("one"), run_page("two")))
    opened.page.emulate_media(media="print")
    assert not any(opened.page.locator(name).is_visible() for name in ("#bar", "#table-tools", "#table .hint"))
    opened.page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert opened.page.evaluate("[...document.querySelectorAll('#made details')].every(one => one.open)")
    opened.page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert not opened.page.evaluate("[...document.querySelectorAll('#made details')].some(one => one.open)")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault(open_page: Open, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    opened = open_page(report_of(run_page("one"), run_page("two")), scheme=scheme)
    opened.page.locator("#choose-layers > summary").click()
    found = axe.Axe().run(opened.page).response["violations"]
    assert [(one["id"], one["impact"], one["nodes"][0]["html"]) for one in found] == []


def test_classes_are_sorted_by_any_column_on_a_narrow_page(open_page: Open) -> None:
    opened = open_page(report_of(classes=shown_classes()), width=390)
    assert opened.texts("#classes .finding") == ["1 of 3 classes lose."]
    rows = "#classes-box tbody th"
    assert opened.texts(rows) == ["bird", HOSTILE, "boat"]  # by shrunk, without which boat is
    assert opened.texts("#classes-box tbody tr:first-child td") == [
        "12", "25.0", "75.0", "\u221250.0 \u221275.0\u00a0to \u221212.5", "\u221225.0",
    ]  # fmt: skip
    opened.page.locator("#sort-classes-difference").press("Enter")
    assert opened.texts(rows) == ["boat", HOSTILE, "bird"]  # numbers start with the largest
    assert opened.page.evaluate("document.activeElement.id") == "sort-classes-difference"
    opened.page.locator("#sort-classes-name").click()
    assert opened.texts(rows) == [HOSTILE, "bird", "boat"]
    assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
    box = "document.getElementById('classes-box')"
    assert opened.page.evaluate(f"{box}.scrollWidth - {box}.clientWidth") == 0
    assert opened.faults == []
