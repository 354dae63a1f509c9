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
class ValueAxis:
    """Where values lie.

    Args:
        values: ascending numbers, or texts.
    """

    values: Sequence[float | str]

    @property
    def numbers(self) -> list[float]:
        """The values, if there are several and none is a text; else empty."""
        numbers = [value for value in self.values if not isinstance(value, str)]
        return numbers if len(numbers) == len(self.values) > 1 else []

    @property
    def is_log(self) -> bool:
        """Whether the axis has logarithms."""
        numbers = self.numbers
        return bool(numbers) and numbers[0] > 0 and numbers[-1] >= _LOG_FROM * numbers[0]

    def position(self, value: float | str, line: int = 0, lines: int = 1) -> float:
        """The position of a value; in a category the points of several lines stand side by side."""
        if not self.numbers:
            return list(self.values).index(value) + (line - (lines - 1) / 2) * min(_DODGE, _SPREAD / lines)
        return math.log2(float(value)) if self.is_log else float(value)

    @property
    def _texts(self) -> list[str]:
        return [visible(value) if isinstance(value, str) else f"{value:,g}" for value in self.values]

    def is_upright(self, inches: float) -> bool:
        """Whether the names of categories are too long to lie side by side."""
        return not self.numbers and (fig.width_of(self._texts) + _BETWEEN) * len(self.values) > inches

    def height_below(self, inches: float) -> float:
        """Inches that the texts and the axis's name take under the axes."""
        return 0.6 + (fig.width_of(self._texts) - 0.1 if self.is_upright(inches) else 0)

    def set(self, axes: Axes, name: str) -> None:
        """Set limits, ticks and the name of the axis; a tick whose text would touch another has none."""
        positions, inches = [self.position(value) for value in self.values], fig.size_of(axes)[0]
        margin = 0.04 * (positions[-1] - positions[0]) if self.numbers else 0.5
        x_min, x_max = positions[0] - margin, positions[-1] + margin
        axes.set_xlim(x_min, x_max)
        ticks: list[tuple[float, str]] = []
        end = -math.inf
        for position, text in zip(positions, self._texts, strict=True):
            middle = (position - x_min) / (x_max - x_min) * inches
            half = 0.0 if self.is_upright(inches) else fig.width_of([text]) / 2
            if middle - half >= end:
                ticks.append((position, text))
                end = middle + half + _BETWEEN
        axes.set_xticks([position for position, _ in ticks], [text for _, text in ticks])
        axes.xaxis.set_minor_locator(NullLocator())
        for label in axes.get_xticklabels():
            label.set(rotation=90 if self.is_upright(inches) else 0, parse_math=False)
        if not self.numbers:
            axes.grid(visible=False, axis="x")
        axes.set_xlabel(name, fontsize=fig.FONT + 1, parse_math=False)
