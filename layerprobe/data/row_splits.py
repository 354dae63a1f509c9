"""Rows of a table, each with the name of its split -> the rows of each split, queries and gallery apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from layerprobe.data.splits import IN_GALLERY

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Row:
    """Where an image belongs.

    Args:
        split: of SPLITS.
        is_query: of a test image, whether it is searched for.
        is_gallery: whether it is searched among.
    """

    split: str
    is_query: bool
    is_gallery: bool


AnyRow = TypeVar("AnyRow", bound=Row)


def with_test(rows: Sequence[AnyRow]) -> Sequence[AnyRow]:
    """The rows; where none is of the split test, those of the split validation are."""
    splits = {row.split for row in rows}
    if "test" in splits or "validation" not in splits:
        return rows
    return [replace(row, split="test") if row.split == "validation" else row for row in rows]


def divide_rows(rows: Sequence[AnyRow]) -> tuple[dict[str, list[AnyRow]], Mapping[str, str]]:
    """The rows of each split, which may be empty, and the data set's `search_in`."""
    members = {name: [row for row in rows if row.split == name] for name in SPLITS}
    if all(row.is_query and row.is_gallery for row in members["test"]):
        return members, {}
    members["gallery"] = [row for row in members["test"] if row.is_gallery]
    members["test"] = [row for row in members["test"] if row.is_query]
    return members, IN_GALLERY
