"""Explanations as a table, as JSON, and as the figure that a run keeps."""

from __future__ import annotations

import math
from typing import Any

from layerprobe.system.errors import DataError
from layerprobe.tables.tables import TextTable
from layerprobe.values.explanations import Attribution, ExplainedQuery, RankCorrelation
from layerprobe.values.layers import names_by_layer
from layerprobe.workflow.run.runs import Run

KIND = "explain"  # of the figure among the run's plots


def stored_figure(run: Run) -> bytes | None:
    """The PNG that `explain` wrote last without --out; None if there is none."""
    path = run.plot_file(KIND)
    if not path.is_file():
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error


_COLUMNS = ("layer", "image", "s - s0", "error %", "steps", "IG\nr", "IG\n|r|", "CAM\nr", "CAM\n|r|")
_KEY = (
    "s - s0: similarity less that of the baseline; error: by how much the sum of integrated gradients (IG) misses it",
    "r: Spearman's correlation of a map with that of random weights, |r|: of absolute values (Adebayo et al. 2018);"
    " near 1, the map does not show what training has changed",
)


def explanation_table(explained: ExplainedQuery) -> TextTable:
    """A row for each layer and each of the two images."""
    names = names_by_layer(neighbour.explanation.ranked for neighbour in explained.neighbours)
    heading = [f"{explained.run}, {explained.when}: {explained.split} image {explained.query.id}"]
    rows = []
    for neighbour in explained.neighbours:
        explanation = neighbour.explanation
        places = f"; Grad-CAM of {explanation.places_of}" if explanation.places_of else ""
        layer, item = names[explanation.ranked], neighbour.found.item.id
        heading.append(f"{layer}: similarity {explanation.similarity:.3f} with {item}{places}")
        for side, attribution in explanation.sides:
            error = f"{100 * attribution.error:.2f}" if math.isfinite(attribution.error) else "-"
            numbers = f"{attribution.difference:+.3f}", error, str(attribution.steps)
            maps = *_pair(attribution.random_pixels), *_pair(attribution.random_places)
            rows.append((layer if side == "query" else "", side, *numbers, *maps))
    notes = [note for neighbour in explained.neighbours for note in neighbour.explanation.notes]
    below = tuple(dict.fromkeys((*_KEY, *explained.notes, *notes)))
    return TextTable(_COLUMNS, tuple(rows), frozenset(range(2, len(_COLUMNS))), tuple(heading), below)


def _pair(agreement: RankCorrelation | None) -> tuple[str, str]:
    values = (None, None) if agreement is None else (agreement.signed, agreement.absolute)
    signed, absolute = ("-" if value is None else f"{value:.2f}" for value in values)
    return signed, absolute


def explanation_values(explained: ExplainedQuery) -> dict[str, Any]:
    """What --json has, without the maps."""
    layers = [
        {
            "layer": str(neighbour.explanation.ranked),
            "item": neighbour.found.item.id,
            "right": neighbour.found.right,
            "similarity": neighbour.explanation.similarity,
            "grad_cam": neighbour.explanation.places_of,
            **{side: _attribution_values(attribution) for side, attribution in neighbour.explanation.sides},
            "notes": list(neighbour.explanation.notes),
        }
        for neighbour in explained.neighbours
    ]
    about = {"run": explained.run, "epoch": explained.epoch, "query": explained.query.id}
    return {**about, "layers": layers, "notes": list(explained.notes)}


def _attribution_values(attribution: Attribution) -> dict[str, Any]:
    return {
        "difference": attribution.difference,
        "error": attribution.error if math.isfinite(attribution.error) else None,
        "steps": attribution.steps,
        "random": attribution.random_pixels,
        "random_grad_cam": attribution.random_places,
    }
