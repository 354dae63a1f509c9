"""The values of explanations as a table and as JSON."""

from __future__ import annotations

import math
from typing import Any

from layerprobe.tables.tables import TextTable
from layerprobe.values.explanations import Attribution, ExplainedQuery, RankCorrelation
from layerprobe.values.keys import names_by_layer

_COLUMNS = ("layer", "image", "s - s0", "error %", "steps", "IG\nr", "IG\n|r|", "CAM\nr", "CAM\n|r|")
_KEY = (
    "s - s0: similarity less that of the baseline; error: by how much the sum of integrated gradients (IG) misses it",
    "r: Spearman's correlation of a map with that of random weights, |r|: of absolute values (Adebayo et al. 2018);"
    " near 1, the map does not show what training has changed",
)


def explanation_table(explained: ExplainedQuery) -> TextTable:
    """A row for each layer and each of the two images."""
    names = names_by_layer(one.explanation.ranked for one in explained.neighbours)
    heading = [f"{explained.run}, {explained.when}: {explained.split} image {explained.query.id}"]
    rows = []
    for one in explained.neighbours:
        own = one.explanation
        places = f"; Grad-CAM of {own.places_of}" if own.places_of else ""
        heading.append(f"{names[own.ranked]}: similarity {own.similarity:.3f} with {one.found.item.id}{places}")
        rows += [(names[own.ranked] if side == "query" else "", side, *_cells(found)) for side, found in own.sides]
    notes = [note for one in explained.neighbours for note in one.explanation.notes]
    below = tuple(dict.fromkeys((*_KEY, *explained.notes, *notes)))
    return TextTable(_COLUMNS, tuple(rows), frozenset(range(2, len(_COLUMNS))), tuple(heading), below)


def _cells(found: Attribution) -> tuple[str, ...]:
    error = f"{100 * found.error:.2f}" if math.isfinite(found.error) else "-"
    numbers = f"{found.difference:+.3f}", error, str(found.steps)
    return *numbers, *_pair(found.random_pixels), *_pair(found.random_places)


def _pair(agreement: RankCorrelation | None) -> tuple[str, str]:
    values = (None, None) if agreement is None else (agreement.signed, agreement.absolute)
    signed, absolute = ("-" if value is None else f"{value:.2f}" for value in values)
    return signed, absolute


def explanation_values(explained: ExplainedQuery) -> dict[str, Any]:
    """What --json has, without the maps."""
    layers = [
        {
            "layer": str(one.explanation.ranked),
            "item": one.found.item.id,
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
