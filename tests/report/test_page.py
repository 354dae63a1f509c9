from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

from layerprobe.report.page import page_data, render
from layerprobe.values.facts import DataFacts, SplitFacts
from tests.report.fabricated import HOSTILE, report_of, run_page


class Elements(HTMLParser):
    """Every element with its attributes, and the text inside each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._in = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._in = tag
        if tag == "script":
            self.scripts.append("")

    def handle_endtag(self, tag: str) -> None:
        self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data
        else:
            self.text += data


def test_the_page_allows_its_own_script_alone() -> None:
    elements = Elements(render(report_of()))
    (policy,) = [own["content"] for tag, own in elements.found if own.get("http-equiv") == "Content-Security-Policy"]
    digest = base64.b64encode(hashlib.sha256(elements.scripts[1].encode()).digest()).decode()
    assert policy is not None
    assert policy.split("; ")[:4] == [
        "default-src 'none'",
        "img-src data:",
        "style-src 'unsafe-inline'",
        f"script-src 'sha256-{digest}'",
    ]


def test_the_page_points_at_nothing_outside() -> None:
    page = render(report_of())
    pointers = {"src", "href", "action", "srcset", "poster", "data"}
    assert [own for _, own in Elements(page).found if pointers & own.keys()] == []
    # w3.org's is the name of SVG's elements, which nothing loads.
    assert set(re.findall("[a-z]+://[^\"'`\\s]*", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|\bfetch\(|\beval\(|new Function", page)


def test_an_explanation_is_in_the_page_and_its_section_only_then() -> None:
    png = b"\x89PNG of a figure"
    elements = Elements(render(report_of(run_page("one", explanation=png), run_page("two"))))
    (source,) = [own["src"] for tag, own in elements.found if tag == "img"]
    assert source == "data:image/png;base64," + base64.b64encode(png).decode()
    assert "Why these are similar" in elements.text
    assert "Why these are similar" not in Elements(render(report_of())).text


def test_names_are_text() -> None:
    run = run_page(HOSTILE, made=((HOSTILE, HOSTILE),))
    page = render(report_of(run, title=HOSTILE, findings=(HOSTILE,), notes=(HOSTILE,), made=((HOSTILE, HOSTILE),)))
    elements = Elements(page)
    assert len(elements.scripts) == 2
    assert elements.text.count(HOSTILE) >= 8


def test_control_characters_are_replaced_and_lines_kept() -> None:
    page = render(report_of(run_page("one", made=(("recipe", "a = 1\nb\x1b[0m = 2\u202e"),))))
    assert "a = 1\nb\ufffd[0m = 2\ufffd" in page


def test_the_data_are_those_of_page_data() -> None:
    report = report_of(run_page("one"), run_page("two"))
    assert json.loads(Elements(render(report)).scripts[0]) == page_data(report)


def test_splits_keep_their_order() -> None:
    assert '"splits":{"train":' in render(report_of())


def test_runs_on_the_same_data_share_a_line() -> None:
    other = DataFacts("birds", {"test": SplitFacts(7, 2, None, 0.5)})
    text = Elements(render(report_of(run_page("one"), run_page("two"), run_page("three", data=other)))).text
    (first, second) = (text.index("one, two: glyphs"), text.index("three: birds"))
    assert first < second
    assert "one: glyphs" not in text


def test_only_a_page_that_is_written_again_reads_itself_again() -> None:
    assert 'http-equiv="refresh" content="5"' in render(report_of(refresh=5))
    assert 'http-equiv="refresh"' not in render(report_of())
