"""The format of tables that a command's `--format` names."""

from __future__ import annotations

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.tables.formats import FORMATS, TERMINAL


def chosen_format(name: str | None, *, as_json: bool) -> str:
    """The format that a command's `--format` names."""
    if name is not None and name not in FORMATS:
        raise UnknownNameError("format", name, FORMATS)
    if name is not None and as_json:
        raise RecipeError("--format and --json are two forms of one result", fix="Leave one of them out")
    return name or TERMINAL
