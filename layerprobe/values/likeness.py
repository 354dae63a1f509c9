"""Whether two layers are compared like with like."""

from __future__ import annotations

from layerprobe.values.keys import RankedLayer
from layerprobe.values.pooling import NO_POOL


def unlike_text(a: RankedLayer, b: RankedLayer, dims: tuple[int | None, int | None]) -> str:
    """`they differ in pool (max, avg) and dimensions (256, 512)`; empty where they are alike.

    A vector has no pool, so that it differs from a map in none.

    Args:
        dims: of the two; None if unknown.
    """
    pools, differences = (a.layer.pool, b.layer.pool), []
    if NO_POOL not in pools and pools[0] != pools[1]:
        differences.append(f"pool ({pools[0]}, {pools[1]})")
    if None not in dims and dims[0] != dims[1]:
        differences.append(f"dimensions ({dims[0]:,}, {dims[1]:,})")
    if a.reduction != b.reduction:
        differences.append(f"post-processing ({a.reduction}, {b.reduction})")
    if not differences:
        return ""
    before = f"{', '.join(differences[:-1])} and " if len(differences) > 1 else ""
    return f"they differ in {before}{differences[-1]}"
