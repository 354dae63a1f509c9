from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from layerprobe.system.encoding import encoded


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
