"""The gallery of a report as Chromium shows it: query, rule, text, layers, epoch and runs change what is found."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from layerprobe.report.album import small_picture
from layerprobe.report.page import render
from layerprobe.report.values import Gallery, GalleryMap, GalleryQuery, Report, ShownConfusion
from layerprobe.values.classes import MistakenImage
from layerprobe.values.views import Item
from tests.report.fabricated import HOSTILE, LAYERS, report_of, run_page, shown_classes

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

EPOCHS = (0, 1, 2, 4)  # of `run_page`
# Twenty images of four classes; at epoch e the layer l finds the K images that follow 5 e + l places after the query.
ITEMS = tuple(Item(f"{i // 5}/{i}.png", [HOSTILE, "bird", "tree", "boat"][i // 5]) for i in range(20))
PLACE = np.arange(len(EPOCHS))[:, None, None, None] * 5 + np.arange(len(LAYERS))[:, None, None]


def gallery_of(run: str, queries: tuple[int, ...] = (0, 6, 13), **fields: object) -> Gallery:
    asked = np.array(queries)[:, None]
    found = ((PLACE + asked + np.arange(1, 4)) % 20).astype(np.int32)  # (E, L, Q, 3)
    rules = [("first",), ("first", "other"), ("other",)]
    usual = {
        "run": run, "split": "test", "epochs": EPOCHS, "layers": LAYERS, "items": ITEMS,
        "pictures": (*range(19), -1),
        "queries": tuple(GalleryQuery(item, rule) for item, rule in zip(queries, rules, strict=True)),
        "found": found, "right": found // 5 == asked // 5, "notes": ("how they were chosen",),
    }  # fmt: skip
    return Gallery(**(usual | fields))


def report_with(*galleries: Gallery) -> Report:
    pictures = tuple(small_picture(np.full((8, 8, 3), 10 * i, np.uint8)) for i in range(19))
    pages = [run_page(gallery.run) for gallery in galleries]
    return report_of(*pages, galleries=galleries, pictures=pictures)


def found_by(layer: int, epoch: int, query: int) -> list[str]:
    """The alternative texts of three images, by hand from the rule above."""
    places = [(5 * epoch + layer + query + i) % 20 for i in (1, 2, 3)]
    how = ["right" if place // 5 == query // 5 else "wrong" for place in places]
    return [f"{word}: {ITEMS[place].name}, {ITEMS[place].id}" for word, place in zip(how, places, strict=True)]


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Callable[..., Page]]:
    """Opens a report; the test fails where its page told a fault."""
    faults: list[str] = []
    context = browser.new_context()

    def open_(report: Report) -> Page:
        (tmp_path / "report.html").write_text(render(report), encoding="utf-8")
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(dialog.message))
        page.goto((tmp_path / "report.html").as_uri())
        return page

    yield open_
    context.close()
    assert faults == []


def shown(page: Page, layer: str) -> list[str]:
    """The alternative texts of what a layer finds."""
    found: list[str] = page.evaluate(
        "label => [...document.querySelectorAll('#gallery-found ol')].filter(list => list.ariaLabel === label)"
        ".flatMap(list => [...list.querySelectorAll('img, [role=img]')].map(one => one.alt ?? one.ariaLabel))",
        layer,
    )
    return found


def queries(page: Page) -> list[str]:
    """The ids of the queries that may be picked."""
    return [
        title.split(", ")[1]
        for title in page.locator("#gallery-queries label").evaluate_all("all => all.map(one => one.title)")
    ]


def test_the_first_query_is_shown_at_the_last_epoch_by_the_layers_chosen(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(gallery_of("one")))
    assert page.locator("#gallery-found ol").evaluate_all("all => all.map(one => one.ariaLabel)") == [
        "pool1@max", "pool2@max", "pool3@max", "pool4@max", "fc6",
    ]  # fmt: skip
    assert shown(page, "pool3@max") == found_by(2, 3, 0)
    assert shown(page, "fc6") == found_by(4, 3, 0)


def test_a_query_is_picked_by_keyboard(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(gallery_of("one")))
    page.locator("#gallery-query-0").focus()
    page.keyboard.press("ArrowRight")
    assert shown(page, "pool3@max") == found_by(2, 3, 6)
    assert page.locator("#gallery-query figcaption b").text_content() == "bird"


def test_the_epoch_and_the_layers_of_the_page_are_those_of_the_gallery(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(gallery_of("one", (6, 0, 13))))
    page.locator("#epoch").focus()
    page.keyboard.press("ArrowLeft")
    assert shown(page, "pool1@max") == found_by(0, 2, 6)
    page.locator("#choose-layers > summary").click()
    page.get_by_role("checkbox", name="pool2@max").check()
    assert shown(page, "pool2@max") == found_by(1, 2, 6)
    page.get_by_role("checkbox", name="pool1@max").uncheck()
    assert shown(page, "pool1@max") == []


def test_hits_and_misses_differ_in_frame_and_sign(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(gallery_of("one")))  # at epoch 0, pool1 finds 1, 2, 3 of 0's class
    page.locator("#epoch").fill("0")
    rows = page.locator("#gallery-found ol")
    told = (
        "all => all.map(one => [one.querySelector('.gallery-sign').textContent,"
        " getComputedStyle(one.querySelector('.gallery-frame')).borderTopStyle])"
    )
    assert rows.nth(0).locator("li").evaluate_all(told) == [["✓", "solid"]] * 3
    assert rows.nth(4).locator("li").evaluate_all(told) == [["✗", "dashed"]] * 3  # fc6: 5, 6, 7
    assert page.locator(".gallery-layer").all_text_contents()[0] == "pool1@max 3 of 3 right"


def test_classes_that_share_beginning_and_end_have_different_names(open_page: Callable[..., Page]) -> None:
    classes = [f"Alphabet_of_the_{alphabet}/character01" for alphabet in ("Magi", "Braille", "Gurmukhi", "Korean")]
    items = tuple(Item(item.id, classes[i // 5]) for i, item in enumerate(ITEMS))
    page = open_page(report_with(gallery_of("one", items=items)))
    names = page.locator("#gallery-found .gallery-name").all_text_contents()
    assert {"…Magi/character01", "…Korean/character01"} == set(names)


def test_queries_are_filtered_by_rule_and_text(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(gallery_of("one")))
    assert queries(page) == ["0/0.png", "1/6.png", "2/13.png"]
    page.locator("#gallery-rule").select_option("other")
    assert queries(page) == ["1/6.png", "2/13.png"]
    assert shown(page, "pool3@max") == found_by(2, 3, 6)
    page.locator("#gallery-text").fill("TREE")
    assert queries(page) == ["2/13.png"]
    assert shown(page, "pool3@max") == found_by(2, 3, 13)
    assert page.locator("#gallery-count").text_content() == "1 of 3"
    page.locator("#gallery-text").fill("no such class")
    assert page.locator("#gallery-found").text_content() == "No query has this rule and text."


def test_a_query_stays_when_the_page_is_read_again(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(gallery_of("one")))
    page.locator("#gallery-text").fill("tree")
    page.reload()
    assert page.locator("#gallery-text").input_value() == "tree"
    assert shown(page, "pool3@max") == found_by(2, 3, 13)


def test_runs_that_searched_for_a_query_stand_side_by_side(open_page: Callable[..., Page]) -> None:
    drawn = tuple(GalleryQuery(item, ("random",)) for item in (0, 7, 13))
    page = open_page(report_with(gallery_of("one"), replace(gallery_of("two", (0, 7, 13)), queries=drawn)))
    assert page.locator("#gallery-query span:not([class])").all_text_contents() == ["rule: first", "rule: random"]
    assert queries(page) == ["0/0.png", "1/6.png", "2/13.png", "1/7.png"]
    assert page.locator("#gallery-found h3").all_text_contents() == ["one, test, epoch 4", "two, test, epoch 4"]
    assert shown(page, "pool3@max") == found_by(2, 3, 0) * 2
    page.locator("#gallery-queries label").nth(1).click()
    assert shown(page, "pool3@max") == found_by(2, 3, 6)
    assert "It was not searched for in this run." in (page.locator("#gallery-found").text_content() or "")


def test_an_image_without_a_picture_is_named(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(gallery_of("one", (13, 6, 0))))
    page.locator("#epoch").fill("1")
    # pool1 finds 19, 0, 1 for the image 13, and 19 has no picture
    assert shown(page, "pool1@max")[0] == "wrong: boat, 3/19.png"
    assert page.locator("#gallery-found li").first.locator(".gallery-picture").text_content() == "no image"


def test_a_layer_that_found_nothing_says_so(open_page: Callable[..., Page]) -> None:
    found = gallery_of("one").found.copy()
    found[-1, 0] = -1
    page = open_page(report_with(gallery_of("one", found=found)))
    assert page.locator(".gallery-layer").all_text_contents()[0] == "pool1@max nothing stored"


def test_a_report_without_galleries_says_where_the_reason_is(open_page: Callable[..., Page]) -> None:
    page = open_page(report_of())
    assert page.locator("#gallery-none").is_visible()
    assert not page.locator("#gallery-body").is_visible()


def confusion(image: int, nearest: int) -> ShownConfusion:
    example = MistakenImage(ITEMS[image].id, ITEMS[nearest].id)
    names = ITEMS[image].name, ITEMS[nearest].name
    return ShownConfusion(*names, "3 of 5 images by A, 2 by B", (example,), ((image, nearest if nearest < 19 else -1),))


# Images 6 and 13 are queries of the gallery, 2 is none, and 19 has no picture.
CONFUSED = shown_classes(confusions=(confusion(6, 13), confusion(2, 19)), confusion_notes=("all of them",))


def test_a_confused_image_opens_in_the_gallery_where_it_is_a_query(open_page: Callable[..., Page]) -> None:
    page = open_page(replace(report_with(gallery_of("one")), classes=CONFUSED))
    pairs = page.locator("#confusions-pairs li")
    assert pairs.locator("h3").all_text_contents() == ["bird → tree", f"{HOSTILE} → boat"]
    told = "all => all.map(one => one.alt ?? one.ariaLabel)"
    assert pairs.locator("img, [role=img]").evaluate_all(told) == [
        "bird, 1/6.png", "its nearest, wrong: tree, 2/13.png",
        f"{HOSTILE}, 0/2.png", "its nearest, wrong: boat, 3/19.png",
    ]  # fmt: skip
    assert [pair.locator("button").count() for pair in pairs.all()] == [2, 0]
    page.locator("#gallery-text").fill("boat")
    pairs.first.locator("button").nth(1).press("Enter")
    assert page.locator("#gallery-query b").inner_text() == "tree"
    assert page.evaluate("document.activeElement.type") == "radio"


def test_pictures_of_confusions_are_on_the_page_once() -> None:
    with_confusions = replace(report_with(gallery_of("one")), classes=CONFUSED)
    assert render(with_confusions).count("data:image/") == render(report_with(gallery_of("one"))).count("data:image/")


def test_confusions_without_pictures_name_the_images(open_page: Callable[..., Page]) -> None:
    pair = replace(confusion(6, 13), pictures=((-1, -1),))
    page = open_page(report_of(classes=replace(CONFUSED, confusions=(pair,))))
    assert page.locator("#confusions-pairs figure").all_text_contents() == ["1/6.png → 2/13.png"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_fault_in_the_gallery_and_classes(open_page: Callable[..., Page], scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    galleries = report_with(gallery_of("one"), gallery_of("two", (0, 7, 13)))
    page = open_page(replace(galleries, classes=CONFUSED))
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    faults = (
        axe.Axe().run(page, context={"include": [["#gallery"], ["#classes"], ["#confusions"]]}).response["violations"]
    )
    assert [fault["id"] for fault in faults if fault["impact"] in ("serious", "critical")] == []


# Query 13 of a gallery is not on the map. At epoch e the layer l has query 0 at the left end and query 6 at the right.
POINTS = np.full((len(EPOCHS), len(LAYERS), 3, 2), np.nan)
POINTS[:, :, :2] = [[-1, 0], [1, 0.5]]
MAP = GalleryMap(POINTS, np.full(POINTS.shape[:2], 0.25), 0.125, 2, 20, "whole classes")
MAPPED = (GalleryQuery(0, ("first", "on the map")), GalleryQuery(6, ("on the map",)), GalleryQuery(13, ("other",)))


def test_the_map_shows_an_image_with_its_nearest_and_opens_it_by_keyboard(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(replace(gallery_of("netA"), map=MAP, queries=MAPPED)))
    scene = page.locator("#projection .scene").last
    assert scene.locator("svg .own").count() == 2
    scene.focus()
    # To focus scrolls, which hides what is told, at the next frame.
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    layer = page.evaluate("layerprobe.shownGalleries()[0].layers.at(-1)")
    nearest = found_by(layer, 3, 6)[0]
    told = page.locator("#readout").inner_text().split("\n")
    assert told == [f"{ITEMS[6].name}, {ITEMS[6].id}", f"nearest, {nearest}"]
    assert page.locator("#readout img").count() == 2
    page.keyboard.press("Enter")
    assert page.locator("#gallery-query b").inner_text() == ITEMS[6].name
    assert page.evaluate("document.activeElement.type") == "radio"


def test_a_click_on_the_map_opens_an_image_whatever_the_gallery_shows(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(replace(gallery_of("netA"), map=MAP, queries=MAPPED)))
    page.locator("#gallery-rule").select_option("other")
    dot = page.locator("#projection .scene").first.locator("svg .own").nth(1)
    dot.click(force=True)
    assert page.locator("#gallery-query b").inner_text() == ITEMS[6].name
    assert page.locator("#gallery-rule").input_value() == ""


def test_the_share_of_neighbours_stands_under_each_layer(open_page: Callable[..., Page]) -> None:
    page = open_page(report_with(replace(gallery_of("netA"), map=MAP, queries=MAPPED)))
    captions = page.locator("#projection figure .caption").all_inner_texts()
    assert {text.replace("\xa0", " ") for text in captions} == {"neighbours kept: 25.0 %, chance: 12.5 %"}


@pytest.mark.parametrize(
    ("gallery_map", "lead"),
    [
        (MAP, "2 of 20 images, whole classes drawn at random, by the"),
        (replace(MAP, sample="images"), "2 of 20 images, drawn at random, by the"),
        (replace(MAP, total=2, sample="all"), "All 2 images, by the"),
        (replace(MAP, drawn=3), "3 of 20 images, whole classes drawn at random (2 have room here), by the"),
    ],
)
def test_the_map_says_what_was_drawn(open_page: Callable[..., Page], gallery_map: GalleryMap, lead: str) -> None:
    page = open_page(report_with(replace(gallery_of("netA"), map=gallery_map, queries=MAPPED)))
    assert page.locator("#projection-lead").inner_text().startswith(lead)


def test_a_gallery_without_a_map_has_no_section_of_it(open_page: Callable[..., Page]) -> None:
    assert not open_page(report_with(gallery_of("netA"))).locator("#projection").is_visible()
