"""Equal dimension: the reductions that bring layers of different sizes to one number of dimensions."""

from __future__ import annotations

from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.reduction import NotApplicableError

DRAWS = 5  # of random projections, whose mean is taken: one draw may be lucky
_MANY = 2**30, 2**31  # dimensions that no layer has


def equal_dimension(dim: int) -> tuple[str, ...]:
    """The chains that `probe --equal-dim` adds, as equal dimension is not one comparison.

    PCA keeps what varies most, half-whitening evens it out, and a random projection favours no direction: layers may
    stand in another order after each. All three search unit vectors.

    Args:
        dim: numbers that each layer has afterwards.
    """
    return f"l2+pca:{dim}+l2", f"l2+whiten:{dim}:0.5+l2", f"random:{dim}x{DRAWS}+l2"


def equal_dim_of(chain: str) -> int | None:
    """The number of dimensions that a chain gives, whatever layer it is applied to; None where that is the layer's.

    Raises:
        RecipeError: see `parse_chain`.
    """
    parsed = parse_chain(chain)
    try:
        dim_of_small, dim_of_large = (parsed.dim(dim) for dim in _MANY)
    except NotApplicableError:  # it takes features of one size
        return None
    return dim_of_small if dim_of_small == dim_of_large else None
