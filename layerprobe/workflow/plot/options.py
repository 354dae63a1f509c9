"""What is asked of a plot beside runs and files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PlotOptions:
    """What is asked of a plot; a plot says by its `options` which of these mean something for it.

    Args:
        layers: LAYER[@pool][/reduction], or a glob; None leaves the choice to the plot.
        epoch: 0 = before any step; None for the last.
    """

    layers: tuple[str, ...] | None = None
    epoch: int | None = None
    query: str | None = None
    where: str | None = None
    queries: int | None = None
