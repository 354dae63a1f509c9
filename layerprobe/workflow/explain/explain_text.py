"""The values of explanations as a table and as JSON."""

from __future__ import annotations

import math
from typing import Any

from layerprobe.tables.tables import TextTable
from layerprobe.values.explanations import Agreement, Attribution, ExplainedQuery
from layerprobe.values.keys import names_by_layer

_COLUMNS = ("layer", "map", "difference", "error %", "steps", "r", "|r|")
_NUMBERS = frozenset(range(2, 7))
_KEY = (
    "difference: similarity less that of the baseline, which integrated gradients sum to; error: by how much they miss"
    " it",
    "r, |r|: Spearman's correlation of the map, and of its absolute values, with that of random weights (Adebayo et al."
    " 2018); near 1, the map does not show what training has changed",
)


def explanation_table(explained: ExplainedQuery) -> TextTable:
    """A row for each layer, each of the two images and each kind of map."""
    names = names_by_layer(one.explanation.ranked for one in explained.neighbours)
    heading = [f"{explained.run}, epoch {explained.epoch}: {explained.split} image {explained.query.id}"]
    rows = []
    for one in explained.neighbours:
        own, name = one.explanation, names[one.explanation.ranked]
        heading.append(f"{name}: nearest is {one.found.item.id}, similarity {own.similarity:.3f}")
        for side, found in own.sides:
            rows.append((name if side == "query" else "", f"{side}, integrated gradients", *_cells(found)))
            if own.places_of:
                rows.append(("", f"{side}, Grad-CAM of {own.places_of}", "", "", "", *_pair(found.random_places)))
    notes = (*_KEY, *explained.notes, *(note for one in explained.neighbours for note in one.explanation.notes))
    return TextTable(_COLUMNS, tuple(rows), _NUMBERS, tuple(heading), tuple(dict.fromkeys(notes)))


def _cells(found: Attribution) -> tuple[str, ...]:
    error = f"{100 * found.error:.2f}" if math.isfinite(found.error) else "-"
    return f"{found.difference:+.3f}", error, str(found.steps), *_pair(found.random_pixels)


def _pair(agreement: Agreement | None) -> tuple[str, str]:
    values = (None, None) if agreement is None else (agreement.signed, agreement.absolute)
    signed, absolute = ("-" if value is None else f"{value:.2f}" for value in values)
    return signed, absolute


def explanation_values(explained: ExplainedQuery) -> dict[str, Any]:
    """What --json has, without the maps."""
    layers = [
        {
            "layer": str(one.explanation.ranked),
            "neighbour": one.found.item.id,
            "right": one.found.right,
            "similarity": one.explanation.similarity,
            "grad_cam": one.explanation.places_of,
            **{side: _values(found) for side, found in one.explanation.sides},
            "notes": list(one.explanation.notes),
        }
        for one in explained.neighbours
    ]
    about = {"run": explained.run, "epoch": explained.epoch, "query": explained.query.id}
    return {**about, "layers": layers, "notes": list(explained.notes)}


def _values(found: Attribution) -> dict[str, Any]:
    return {
        "difference": found.difference,
        "error": found.error if math.isfinite(found.error) else None,
        "steps": found.steps,
        "random": found.random_pixels,
        "random_grad_cam": found.random_places,
    }
