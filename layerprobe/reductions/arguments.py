"""What the names of reductions say after their colon."""

from __future__ import annotations

import re

from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.system.errors import RecipeError


def dimensions(name: str, text: str, *, like: str) -> int:
    """A number of dimensions.

    Args:
        name: the whole reduction, for the error.
        text: the number.
        like: a name that is right, for the error.

    Returns:
        At least 1.

    Raises:
        RecipeError: it is no whole number of at least 1, written without leading zeros.
    """
    if not re.fullmatch("[1-9][0-9]*", text, re.ASCII):
        raise RecipeError(f"{name}: {text!r} is no number of dimensions", fix=f"Give a whole number, as in {like}")
    return int(text)


def at_most(name: str, count: int, dim: int) -> int:
    """How many dimensions are wanted.

    Raises:
        NotApplicableError: the features have fewer.
    """
    if count > dim:
        raise NotApplicableError(f"{name}: the features have {dim} dimensions", fix=f"Use at most {dim}")
    return count
