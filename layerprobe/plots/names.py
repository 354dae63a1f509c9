"""What figures call layers: by their names, with pool, reduction and similarity where the name alone is not unique."""

from __future__ import annotations

from collections.abc import Iterable

from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.pooling import NO_POOL


def layer_labels(found: Iterable[tuple[str, RankedLayer]], known: Iterable[RankedLayer] = ()) -> dict[RankedLayer, str]:
    """What each layer is called in a figure; reduction and similarity that all layers of a run have are left out.

    Returns:
        Each layer once, in the order given.
    """
    pairs = list(dict.fromkeys(found))
    keys = list(dict.fromkeys(ranked for _, ranked in pairs))
    runs = len({run for run, _ in pairs})
    # Runs that are each reduced in one way, and searched by one similarity, have these in their titles.
    reduced = len({(run, ranked.reduction) for run, ranked in pairs}) > runs
    several = len({(run, ranked.similarity) for run, ranked in pairs}) > runs
    pools: dict[str, set[str]] = {}
    for ranked in (*keys, *known):
        pools.setdefault(ranked.layer.layer, set()).add(ranked.layer.pool)
    labels: dict[RankedLayer, str] = {}
    for ranked in keys:
        parts = [ranked.layer.layer]
        parts += [f"@{ranked.layer.pool}"] if len(pools[ranked.layer.layer]) > 1 else []
        parts += [f" {ranked.reduction}"] if reduced and ranked.reduction != NO_REDUCTION else []
        parts += [f" {ranked.similarity}"] if several else []
        labels[ranked] = "".join(parts)
    return labels


def common_pool(layers: Iterable[RankedLayer]) -> list[str]:
    """The pool of all layers that are pooled; none where they have several, or none is pooled."""
    pools = {ranked.layer.pool for ranked in layers} - {NO_POOL}
    return list(pools) if len(pools) == 1 else []
