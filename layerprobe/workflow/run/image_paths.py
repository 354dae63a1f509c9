"""Where the file of an image lies."""

from __future__ import annotations

from pathlib import Path


def image_path(root: str | None, name: str) -> str:
    """The absolute path of an image's file; "" where there is none.

    Args:
        root: folder of the data, if they have one.
    """
    path = Path(root or "", name).absolute()
    return str(path) if root and path.is_file() else ""
