"""The plane of training and test values: its window, the line test = train, and the chance levels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

from layerprobe.plots import figure as fig
from layerprobe.plots.placing import Samples
from layerprobe.plots.values import Point
from layerprobe.values.facts import level_text

WIDTH = 3.3  # of a panel in inches
_HEIGHT = 3.1  # of axes with different scales
# Both axes have one scale if test range / train range is within these; else the paths would be pressed flat.
_EQUAL = (0.4, 2.5)
_FLATTEST, _TALLEST = 0.68, 1.0  # least and largest height / width of a panel whose axes share a scale
_NAMED = 0.3  # share of the width that the line test = train needs to be labelled
_DIAGONAL = "test = train"

Limits = tuple[float, float]


@dataclass(frozen=True)
class Window:
    """The part of the plane that is shown, in percent."""

    x: Limits
    y: Limits
    height: float
    equal: bool = False

    @property
    def names_the_diagonal(self) -> bool:
        """Whether the visible part of the line test = train is long enough for a label."""
        return min(self.x[1], self.y[1]) - max(self.x[0], self.y[0]) >= _NAMED * (self.x[1] - self.x[0])

    def notes(self) -> list[str]:
        """Notes on the axes."""
        lines = [] if self.equal else ["The axes differ in scale."]
        if max(self.x[0], self.y[0]) >= min(self.x[1], self.y[1]):
            lines.append("The line test = train lies outside the axes.")
        elif not self.names_the_diagonal:
            lines.append("The line in the corner is test = train.")
        return lines


def window_of(points: Sequence[Point], floors: Mapping[str, float]) -> Window:
    """The window that shows every point with its interval, and both chance levels if there is room.

    Args:
        points: points, with the intervals that are drawn.
        floors: split -> chance level in percent.
    """
    x, y = _limits(points, "train", floors), _limits(points, "test", floors)
    # A chance level on one axis only is not worth the room.
    if x and y and any(not low < floors.get(split, high) < high for split, (low, high) in (("train", x), ("test", y))):
        x, y = _limits(points, "train", {}), _limits(points, "test", {})
    if x is None or y is None:
        both = x or y or (0.0, 100.0)
        return Window(both, both, _HEIGHT)
    (x_min, x_max), (y_min, y_max) = x, y
    if not _EQUAL[0] <= (y_max - y_min) / (x_max - x_min) <= _EQUAL[1]:
        return Window(x, y, _HEIGHT)
    # The window grows upwards and to the right, where the line test = train comes into view.
    y_max = max(y_max, y_min + _FLATTEST * (x_max - x_min))
    x_max = max(x_max, x_min + (y_max - y_min) / _TALLEST)
    return Window((x_min, x_max), (y_min, y_max), WIDTH * (y_max - y_min) / (x_max - x_min), equal=True)


def _limits(points: Sequence[Point], split: str, floors: Mapping[str, float]) -> Limits | None:
    values = [value for point in points if (value := point.percent(split)) is not None]
    values += [end for point in points for end in point.ends(split) or ()]
    return fig.limits(values, floors.get(split)) if values else None


def set_axes(axes: Axes, window: Window, scored: Collection[str], metric: str, train: str) -> None:
    """Set the limits and names of the axes; the axis of a split without scores has no ticks.

    Args:
        train: the name of the training classes.
    """
    axes.set_xlim(window.x)
    axes.set_ylim(window.y)
    axes.set_xlabel(f"{train} {metric}", fontsize=fig.FONT + 1)
    axes.set_ylabel(f"test {metric}", fontsize=fig.FONT + 1)
    for split, which, axis in (("train", "x", axes.xaxis), ("test", "y", axes.yaxis)):
        if split in scored:
            fig.show_percent(axes, which)
        else:
            axis.set_ticks([])


def draw_chance(axes: Axes, floors: Mapping[str, float], scored: Collection[str]) -> None:
    """Draw the chance levels that are in view."""
    (x_min, x_max), (y_min, y_max) = axes.get_xlim(), axes.get_ylim()
    lines = {"color": "0.55", "linewidth": 1.0, "linestyle": ":", "zorder": 1.0}
    train, test = floors.get("train", x_min), floors.get("test", y_min)
    if x_min < train < x_max and "train" in scored:
        axes.axvline(train, label="_chance train").set(**lines)
        text = axes.annotate(f"chance {level_text(train)}", (train, y_max), xytext=(3, -3), textcoords="offset points")
        text.set(rotation=90, va="top", fontsize=fig.FONT - 1, color=fig.GREY)
    if y_min < test < y_max and "test" in scored:
        axes.axhline(test, label="_chance test").set(**lines)
        text = axes.annotate(f"chance {level_text(test)}", (x_max, test), xytext=(-3, 3), textcoords="offset points")
        text.set(ha="right", fontsize=fig.FONT - 1, color=fig.GREY)


def draw_diagonal(axes: Axes, window: Window, paths: Sequence[Sequence[fig.Place]]) -> None:
    """Draw the line test = train as far as it is in view, with its name where the paths are sparsest.

    Args:
        paths: at least one, in data coordinates.
    """
    low, high = max(window.x[0], window.y[0]), min(window.x[1], window.y[1])
    if low >= high:
        return
    axes.plot([low, high], [low, high], color="0.6", linewidth=1, zorder=1, label="_diagonal")
    if not window.names_the_diagonal:
        return
    scale = 72 / axes.figure.dpi
    start, end = (axes.transData.transform((coordinate, coordinate)) * scale for coordinate in (low, high))
    along = (end - start) / np.hypot(*(end - start))
    across = np.array([-along[1], along[0]])
    path_samples = Samples.from_paths([axes.transData.transform(path) * scale for path in paths]).places
    reach = np.array([36 * fig.width_of([_DIAGONAL]) + 4, fig.FONT])  # half a length and height, with room around
    shares = np.linspace(0.15, 0.85, 29)
    off = path_samples - (start + shares[:, None] * (end - start))[:, None] - across * fig.FONT
    covered = (np.abs(np.stack([off @ along, off @ across], -1)) < reach).all(-1).sum(1)
    fewest = [i for i in range(len(shares)) if covered[i] == covered.min()]
    share = shares[min(fewest, key=lambda i: abs(shares[i] - 0.5))]
    middle = low + float(share) * (high - low)
    text = axes.annotate(_DIAGONAL, (middle, middle), xytext=(0, 3), textcoords="offset points", ha="center")
    text.set(rotation=45, transform_rotates_text=True, rotation_mode="anchor", fontsize=fig.FONT - 1, color=fig.GREY)
