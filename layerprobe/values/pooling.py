"""Names of the pools, and GeM."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, get_args

from layerprobe.system.errors import UnknownNameError

if TYPE_CHECKING:
    from torch import Tensor

Pool = Literal["max", "avg", "gem"]  # taps have grid:s, too, for any s
POOLS: tuple[Pool, ...] = get_args(Pool)
TOKEN_POOLS = ("cls", "cls+avg")  # of tokens with a class token: it, and it followed by the mean of the patches
NO_POOL = "none"  # of a vector

_GEM_POWER = 3
_GEM_FLOOR = 1e-6


def require_pool(pool: str) -> None:
    """Check that a pool is known."""
    if pool not in (*POOLS, *TOKEN_POOLS, NO_POOL) and not re.fullmatch("grid:[1-9][0-9]*", pool):
        raise UnknownNameError("pool", pool, (*POOLS, *TOKEN_POOLS, "grid:s"))


def gem(maps: Tensor) -> Tensor:
    """Generalised mean: (B, C, H, W) -> (B, C) the cube root of the mean cube, values below 1e-6 raised to it."""
    return maps.clamp(min=_GEM_FLOOR).pow(_GEM_POWER).mean((2, 3)).pow(1 / _GEM_POWER)
