from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest

from layerprobe.system.wording import as_duration, as_moment, as_size, encoded, first_named, one_line, visible


@pytest.mark.parametrize(
    ("count", "words"), [(0, "0 MB"), (350_000_000, "350 MB"), (999_999_999, "1000 MB"), (1_840_000_000, "1.8 GB")]
)
def test_bytes_are_given_in_mb_or_gb(count: int, words: str) -> None:
    assert as_size(count) == words


@pytest.mark.parametrize(("seconds", "words"), [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7260, "2 h 1 min")])
def test_a_duration_is_given_in_its_two_largest_units(seconds: float, words: str) -> None:
    assert as_duration(seconds) == words


def test_five_names_stand_for_all() -> None:
    assert first_named(list("abcde")) == "a, b, c, d, e"
    assert first_named(list("abcdefg")) == "a, b, c, d, e and 2 more"


def test_a_moment_is_utc() -> None:
    assert as_moment(86400) == "1970-01-02T00:00:00Z"


def test_control_characters_are_replaced_unless_kept() -> None:
    assert visible("a\x1b[2Jb\nc") == "a\N{REPLACEMENT CHARACTER}[2Jb\N{REPLACEMENT CHARACTER}c"
    assert visible("b\nc\x07", keep="\n") == "b\nc\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("point", [*range(0x20), *range(0x7F, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F),
    *range(0x2066, 0x206A), 0xD800, 0xDC9B])  # fmt: skip
def test_what_steers_a_terminal_or_turns_text_round_is_replaced(point: int) -> None:
    assert visible(f"a{chr(point)}b") == "a\N{REPLACEMENT CHARACTER}b"


def test_a_word_longer_than_a_files_name_is_cut_in_its_middle_and_a_path_is_not() -> None:
    shown = one_line(f"ship {'a' * 5000}z now")
    assert shown == f"ship {'a' * 127}\N{HORIZONTAL ELLIPSIS}{'a' * 126}z now"
    path = f"/{'d' * 255}" * 3
    assert one_line(path) == path


def test_a_line_of_many_words_is_cut_too() -> None:
    assert len(one_line("a word " * 100_000)) <= 10_000


@dataclass(frozen=True)
class Inner:
    a: int
    b: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outer:
    inner: Inner
    by_name: dict[str, Inner]
    path: Path
    nothing: None = None


@dataclass(frozen=True)
class Told:
    hidden: int

    def as_json(self) -> dict[str, object]:
        return {"told": Inner(self.hidden)}


def test_a_value_is_encoded_by_its_fields_all_the_way_down() -> None:
    made = encoded(Outer(Inner(1, ("x",)), {"k": Inner(2)}, Path("a/b")))
    expected = {"inner": {"a": 1, "b": ["x"]}, "by_name": {"k": {"a": 2, "b": []}}, "path": "a/b", "nothing": None}
    assert made == expected
    assert json.loads(json.dumps(made)) == expected


def test_a_value_that_says_how_is_encoded_so() -> None:
    assert encoded([Told(3)]) == [{"told": {"a": 3, "b": []}}]


def test_plain_values_stay() -> None:
    assert encoded({"a": [1, 2.5, None, True, "x"]}) == {"a": [1, 2.5, None, True, "x"]}
