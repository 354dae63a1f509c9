"""The packages of layerprobe, each with the question it answers, from the docstrings of their `__init__`."""

from __future__ import annotations

import ast
from pathlib import Path

import layerprobe
from docs._ext.markdown import code, escaped, parsed, table

ROOT = Path(layerprobe.__file__).parent


def rows() -> list[tuple[str, str, str]]:
    """Package, what it is for, and its types and words, in the order of their folders."""
    found = []
    for path in sorted(ROOT.rglob("__init__.py")):
        if path.parent == ROOT:
            continue
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        text, _, types = text.partition("Types and words:")
        name = path.parent.relative_to(ROOT).as_posix()
        found.append(
            (code(name), escaped(parsed(text).summary.replace("\n", " ")), escaped(" ".join(types.split()).rstrip(".")))
        )
    return found


def table_of_packages() -> str:
    """The table."""
    return table([("package", "question", "types and words"), *rows()])
