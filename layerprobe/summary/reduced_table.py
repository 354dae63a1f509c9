"""The parts of a summary that compare reductions, as tables and as the values of JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerprobe.summary.layers import RunSummary
from layerprobe.summary.processed import BestPostProcessing
from layerprobe.summary.reduced import PostProcessing, Reduced, Side, Swap
from layerprobe.tables.tables import Ends, TextTable
from layerprobe.values.best import Best, best_text
from layerprobe.values.intervals import Interval, ShownKind
from layerprobe.values.keys import NO_REDUCTION, LayerKey, RankedLayer

_ABSENT, _BEST, _RAW = "-", "*", "raw"
_NAMED = 2  # pairs of layers that a line names
_BRACKETS = "in brackets"


def reduced_table(summary: RunSummary, section: Reduced) -> TextTable:
    """A row for each layer and a column for each reduction, of one epoch and split.

    A line for each reduction says which layer is best after it, and one says which layers change places. Which is best
    without a reduction says the table of the layers as they are.
    """
    cells = section.values[section.split]
    columns = [[cells.get(way.of(layer)) for layer in section.layers] for way in section.ways]
    ends = [[section.intervals.get(way.of(layer)) for layer in section.layers] for way in section.ways]
    names, pools = _names(section.layers), _pools(section.layers)
    fields = 1 + bool(pools)
    kind = ShownKind(summary.kind if section.intervals else None)
    what = "other reductions" if section.dim is None else f"equal dimension {section.dim}"
    title = f"{what} of {summary.run}, epoch {section.epoch}, {section.split} R@1 in %"
    similarities = list(dict.fromkeys(way.similarity for way in section.ways))
    return TextTable(
        ("layer", *(["pool"] if pools else []), *(_way(way, similarities) for way in section.ways)),
        tuple(
            (layer.layer, *pools[place : place + 1], *(_share(column[place]) for column in columns))
            for place, layer in enumerate(section.layers)
        ),
        numbers=frozenset(range(fields, fields + len(columns))),
        heading=(", ".join([title, *similarities[: len(similarities) == 1]]), *kind.lines(_BRACKETS)),
        notes=(
            *(_best_note(section, way, names, similarities) for way in section.reduced if section.best(way)),
            *order_notes(section, names),
            *_way_notes(section.reduced),
        ),
        intervals={place: tuple(map(_ends_text, column)) for place, column in enumerate(ends, fields) if any(column)},
    )


def processed_table(summary: RunSummary, found: BestPostProcessing) -> TextTable:
    """A row for each layer: the post-processing chosen for it, where it was chosen, and what it gives on test."""
    layers = [layer.ranked.layer for layer in found.layers]
    names, pools = _names(layers), _pools(layers)
    fields = 3 + bool(pools)
    values: dict[str, list[float | None]] = {
        str(found.split): [layer.value for layer in found.layers],
        "test": [layer.test for layer in found.layers],
    }
    most = max(layer.value for layer in found.layers)
    choices = [layer.value for layer in found.layers]
    best = Best(choices.index(most), str(found.split), choices.count(most))
    near = None if found.alike is None else [n for n, key in zip(names, layers, strict=True) if key in found.alike]
    intervals = [layer.interval for layer in found.layers]
    gains = [layer.gain.interval if layer.gain else None for layer in found.layers]
    similarities = list(dict.fromkeys(layer.ranked.similarity for layer in found.layers))
    kind = ShownKind(summary.kind if any([*intervals, *gains]) else None)
    title = f"best post-processing of {summary.run}, epoch {found.epoch}, chosen on {found.split}, R@1 in %"
    words_above = "", "layer", *(["pool"] if pools else []), "post-processing"
    rows = []
    for place, layer in enumerate(found.layers):
        way = PostProcessing(layer.ranked.reduction, layer.ranked.similarity)
        gain = _ABSENT if layer.gain is None else f"{100 * layer.gain.value:+.1f}"
        words = _BEST * (place == best.place), names[place].partition("@")[0], *pools[place : place + 1]
        rows.append((*words, _way(way, similarities), _share(layer.value), _share(layer.test), gain))
    return TextTable(
        (*words_above, f"{found.split}\nR@1", "test\nR@1", "gain\ntest"),
        tuple(rows),
        numbers=frozenset(range(fields, fields + 3)),
        heading=(", ".join([title, *similarities[: len(similarities) == 1]]), *kind.lines(_BRACKETS)),
        notes=(
            f"{_BEST} {best_text(best, names, values, near)}",
            "gain: over the same layer without post-processing",
            *found.notes,
        ),
        marked=best.place,
        intervals={
            place: tuple(map(_ends_text, column))
            for place, column in ((fields + 1, intervals), (fields + 2, gains))
            if any(column)
        },
    )


def order_notes(section: Reduced, names: Sequence[str]) -> list[str]:
    """One sentence on the order of the layers, where there is more than one reduction and layer.

    It names the pairs that are told apart on most sides; what it does not call told apart is not.
    """
    if len(section.ways) < 2 or not section.pairs:
        return []
    if not section.swaps:
        return ["order of layers: the same in all columns"]
    named = dict(zip(section.layers, names, strict=True))
    most = section.swaps[0].apart
    how = ("none of them told apart", "none of them told apart on both sides", "told apart on both sides")
    told = [swap for swap in section.swaps if swap.apart == most]
    examples = "; ".join(_swap_text(swap, named) for swap in told[:_NAMED])
    count = f"{len(told)} of them " if most == 2 else ""
    return [
        f"order of layers: {len(section.swaps)} of {section.pairs} pairs change places, {count}{how[most]}: {examples}"
    ]


def _swap_text(swap: Swap, named: dict[LayerKey, str]) -> str:
    """`fc6 over pool5.3 by raw (80.1, 78.0, told apart), under it by l2+pca:64+l2 (70.2, 70.9)`."""
    sides = [f"{_way_name(side.way)} ({_side_text(side, swap.apart)})" for side in (swap.above, swap.below)]
    return f"{named[swap.first]} over {named[swap.second]} by {sides[0]}, under it by {sides[1]}"


def _side_text(side: Side, apart: int) -> str:
    told = ", told apart" if side.apart and apart == 1 else ""
    return f"{_share(side.first)}, {_share(side.second)}{told}"


def _best_note(section: Reduced, way: PostProcessing, names: Sequence[str], similarities: Sequence[str]) -> str:
    best, alike = section.best(way), section.alike[way]
    if best is None:
        return ""
    near = None if alike is None else [n for n, layer in zip(names, section.layers, strict=True) if layer in alike]
    return f"{_way(way, similarities)}: {best_text(best, names, section.column(way), near)}"


def _way_notes(ways: Sequence[PostProcessing]) -> list[str]:
    found = [f"{way.reduction}: mean of {way.draws} draws" for way in ways if way.draws > 1]
    gallery = [way.reduction for way in ways if way.on_gallery]
    return found + ([f"transductive, fitted on the images searched: {', '.join(gallery)}"] if gallery else [])


def reduced_values(section: Reduced) -> dict[str, Any]:
    """The fields of JSON of a section; the values of its layers stand with the layers."""
    return {
        "dim": section.dim,
        "epoch": section.epoch,
        "split": section.split,
        "reductions": [_order_values(section, way) for way in section.ways],
        "pairs": section.pairs,
        "swaps": [_swap_values(swap) for swap in section.swaps],
    }


def processed_values(found: BestPostProcessing) -> dict[str, Any]:
    """The fields of JSON of the best post-processing."""
    return {
        "chosen_on": found.split,
        "epoch": found.epoch if found.split else None,
        "not_told_apart": None if found.alike is None else list(map(_layer_values, found.alike)),
        "layers": [
            {
                **_ranked_values(layer.ranked),
                "value": layer.value,
                "test": None if layer.test is None else {"value": layer.test, **_ends(layer.interval)},
                "gain": None if layer.gain is None else {"value": layer.gain.value, **_ends(layer.gain.interval)},
            }
            for layer in found.layers
        ],
        "notes": list(found.notes),
    }


def _order_values(section: Reduced, way: PostProcessing) -> dict[str, Any]:
    best, alike = section.best(way), section.alike[way]
    return {
        "reduction": way.reduction,
        "similarity": way.similarity,
        "best": None if best is None else {"split": best.split, **_layer_values(section.layers[best.place])},
        "not_told_apart": None if alike is None else list(map(_layer_values, alike)),
    }


def _swap_values(swap: Swap) -> dict[str, Any]:
    return {
        "first": _layer_values(swap.first),
        "second": _layer_values(swap.second),
        "above": _side_values(swap.above),
        "below": _side_values(swap.below),
    }


def _side_values(side: Side) -> dict[str, Any]:
    return {
        "reduction": side.way.reduction,
        "similarity": side.way.similarity,
        "first": side.first,
        "second": side.second,
        "told_apart": side.apart,
    }


def _layer_values(layer: LayerKey) -> dict[str, str]:
    return {"layer": layer.layer, "pool": layer.pool}


def _ranked_values(ranked: RankedLayer) -> dict[str, str]:
    return {**_layer_values(ranked.layer), "reduction": ranked.reduction, "similarity": ranked.similarity}


def _ends(interval: Interval | None) -> dict[str, float | None]:
    return {"low": interval.low, "high": interval.high} if interval else {"low": None, "high": None}


def _names(layers: Sequence[LayerKey]) -> list[str]:
    """Each layer's name, with its pool where it has several."""
    names = [layer.layer for layer in layers]
    return [str(layer) if names.count(layer.layer) > 1 else layer.layer for layer in layers]


def _pools(layers: Sequence[LayerKey]) -> list[str]:
    """The cells of a column of pools; empty where one layer has no more than one."""
    names = {layer.layer for layer in layers}
    return [layer.pool for layer in layers] if len(names) < len(layers) else []


def _way(way: PostProcessing, similarities: Sequence[str]) -> str:
    return _way_name(way) + (f" {way.similarity}" if len(similarities) > 1 else "")


def _way_name(way: PostProcessing) -> str:
    return _RAW if way.reduction == NO_REDUCTION else way.reduction


def _share(value: float | None) -> str:
    return _ABSENT if value is None else f"{100 * value:.1f}"


def _ends_text(interval: Interval | None) -> Ends | None:
    return None if interval is None else (f"{100 * interval.low:.1f}", f"{100 * interval.high:.1f}")
