"""The x axis of a figure over a key or K: numbers, their logarithms to base 2, or categories."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from layerprobe.plots import figure as fig
from layerprobe.system.wording import visible

_LOG_FROM = 8  # largest / least number
_BETWEEN = 0.08  # inches between the texts at two ticks
_DODGE = 0.14  # between the points of two lines in a category, at most
_SPREAD = 0.6  # of a category, that its points take


@dataclass(frozen=True)
class PlaceAxis:
    """Where places lie.

    Args:
        places: ascending numbers, or texts.
    """

    places: Sequence[float | str]

    @property
    def numbers(self) -> list[float]:
        """The places, if there are several and none is a text; else empty."""
        found = [place for place in self.places if not isinstance(place, str)]
        return found if len(found) == len(self.places) > 1 else []

    @property
    def is_log(self) -> bool:
        """Whether the axis has logarithms."""
        numbers = self.numbers
        return bool(numbers) and numbers[0] > 0 and numbers[-1] >= _LOG_FROM * numbers[0]

    def at(self, place: float | str, line: int = 0, lines: int = 1) -> float:
        """The position of a place; in a category the points of several lines stand side by side."""
        if not self.numbers:
            return list(self.places).index(place) + (line - (lines - 1) / 2) * min(_DODGE, _SPREAD / lines)
        return math.log2(float(place)) if self.is_log else float(place)

    @property
    def _texts(self) -> list[str]:
        return [visible(place) if isinstance(place, str) else f"{place:,g}" for place in self.places]

    def upright(self, inches: float) -> bool:
        """Whether the names of categories are too long to lie side by side."""
        return not self.numbers and (fig.width_of(self._texts) + _BETWEEN) * len(self.places) > inches

    def below(self, inches: float) -> float:
        """Inches that the texts and the axis's name take under the axes."""
        return 0.6 + (fig.width_of(self._texts) - 0.1 if self.upright(inches) else 0)

    def set(self, axes: Axes, name: str) -> None:
        """Set limits, ticks and the name of the axis; a tick whose text would touch another has none."""
        positions, inches = [self.at(place) for place in self.places], fig.size_of(axes)[0]
        margin = 0.04 * (positions[-1] - positions[0]) if self.numbers else 0.5
        left, right = positions[0] - margin, positions[-1] + margin
        axes.set_xlim(left, right)
        shown: list[tuple[float, str]] = []
        end = -math.inf
        for position, text in zip(positions, self._texts, strict=True):
            middle = (position - left) / (right - left) * inches
            half = 0.0 if self.upright(inches) else fig.width_of([text]) / 2
            if middle - half >= end:
                shown.append((position, text))
                end = middle + half + _BETWEEN
        axes.set_xticks([position for position, _ in shown], [text for _, text in shown])
        axes.xaxis.set_minor_locator(NullLocator())
        for label in axes.get_xticklabels():
            label.set(rotation=90 if self.upright(inches) else 0, parse_math=False)
        if not self.numbers:
            axes.grid(visible=False, axis="x")
        axes.set_xlabel(name, fontsize=fig.FONT + 1, parse_math=False)
