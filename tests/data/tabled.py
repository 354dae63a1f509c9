"""Images in tables, and the same as files in a folder for each class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

from tests.data.spoiled import photo

NAMES = ("ant", "bee", "cat", "dog")
LABELS = [name for name in NAMES for _ in range(2)]
PATHS = [f"{name}/{i}.jpg" for name in NAMES for i in range(2)]
IMAGES = [photo(seed) for seed in range(8)]


def rows(**further: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Two images of each of four classes, as bytes; further columns are added or take the place of these."""
    return {"image": IMAGES, "label": LABELS, **further}


def write(path: Path, columns: Mapping[str, Sequence[Any]], *, row_group: int | None = None) -> Path:
    """A parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(dict(columns)), path, row_group_size=row_group)
    return path


def as_folder(root: Path) -> Path:
    """The same images as files."""
    for name, content in zip(PATHS, IMAGES, strict=True):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root
