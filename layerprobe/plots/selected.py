"""How figures name and mark the selected candidate of a stored choice."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from matplotlib.axes import Axes

from layerprobe.plots.figure import Colour
from layerprobe.values.layers import RankedLayer, names_by_layer
from layerprobe.values.scores import Score
from layerprobe.values.views import Selected

IN_CSV = "selected by layerprobe choose"  # the note of its rows
_GOLD = "#e69f00"  # of Okabe and Ito
_SIZE = 12.0  # points
_FOLDED = (
    "In fifths: each fifth of the classes is searched in itself, which is easier than all at once. The hollow star is"
    " to be compared with the other end of its dotted line alone: the embedding in the same fifths."
)

P = TypeVar("P", bound=Hashable)
T = TypeVar("T", bound="LayerEntry")


@dataclass(frozen=True)
class Star:
    """The mark of a selected candidate.

    Where its score is not of the whole gallery, it is hollow, and a dotted line leads to it from the score of the
    embedding by the same search: the two are not to be compared with other values of the figure.

    Args:
        position: on the axis of the layers, or of the dimensions.
        text: its entry in the legend.
        edge: colour of its edge.
    """

    position: float
    selected: Selected
    text: str
    edge: Colour | str = "black"

    @property
    def height(self) -> float:
        """The score in percent."""
        return 100 * (self.selected.score.value or 0.0)

    @property
    def embedding(self) -> float | None:
        """The score of the embedding by the same search, in percent, where that is not of the whole gallery."""
        other = self.selected.embedding if self.selected.within_folds else None
        return None if other is None or other.value is None else 100 * other.value

    @property
    def heights(self) -> list[float]:
        """All that is drawn, in percent."""
        return [self.height, *([] if self.embedding is None else [self.embedding])]

    @property
    def kind(self) -> dict[str, object]:
        """Its entry in the legend."""
        return {"label": self.text, **self._look, "markersize": _SIZE - 2}

    @property
    def _look(self) -> dict[str, object]:
        return star_look(self.selected) | {"markeredgecolor": self.edge}

    def draw(self, axes: Axes, position: float | None = None) -> None:
        """Draw it at its position, or at another one."""
        x = self.position if position is None else position
        (star,) = axes.plot(x, self.height, linestyle="none")
        star.set(**self._look, markersize=_SIZE, zorder=6, clip_on=False, label=f"_{self.text}")
        if self.embedding is not None:
            (line,) = axes.plot([x, x], [self.embedding, self.height], color=self.edge, linestyle=":")
            line.set(linewidth=1.2, zorder=5, clip_on=False, label="_from the embedding in the same fifths")
            line.set(marker="_", markersize=_SIZE, markevery=[0], markeredgewidth=1.6)


def star_look(selected: Selected) -> dict[str, object]:
    """Its marker, hollow where the values are not of the whole gallery."""
    face = "white" if selected.within_folds else _GOLD
    return {"marker": "*", "markerfacecolor": face, "markeredgecolor": "black", "markeredgewidth": 0.8}


def selected_text(selected: Selected, epoch: int | None) -> str:
    """`selected: pool5.2, partially whitened to 128`, and its epoch where the figure shows another one.

    Args:
        epoch: that the figure shows.
    """
    when = "" if selected.score.epoch == epoch else f", epoch {selected.score.epoch}"
    return f"selected: {selected.name}{when}{' (in fifths)' * selected.within_folds}"


def star_of(selected: Selected, position: float, epoch: int) -> Star:
    """The mark of a candidate, which is named with its score, in a figure of an epoch."""
    text = selected_text(selected, epoch)
    star = Star(position, selected, text)
    before = "" if star.embedding is None else f"{star.embedding:.1f} → "
    return replace(star, text=f"{text}, {before}{star.height:.1f} %")


def stars_on(
    panels: Mapping[P, tuple[str, int]],
    selected: Mapping[str, Selected],
    position: Callable[[P, Selected, bool], float | None],
) -> dict[P, Star]:
    """Panel -> the star on it: for each run the first panel of exactly its candidate, else the first with a place.

    Args:
        panels: panel -> the run and the epoch that it shows.
        selected: run -> its selected candidate.
        position: of a candidate on the axis of a panel, which shows exactly it (True) or anything like it (False); None
            if the panel does not.
    """
    stars: dict[str, tuple[P, Star]] = {}
    for exact in (True, False):
        for panel, (run, epoch) in panels.items():
            if run in selected and run not in stars:
                x = position(panel, selected[run], exact)
                if x is not None:
                    stars[run] = panel, star_of(selected[run], x, epoch)
    return dict(stars.values())


class LayerEntry(Protocol):
    """Anything of a layer of a run at an epoch that a figure shows."""

    @property
    def run(self) -> str: ...  # noqa: D102

    @property
    def epoch(self) -> int: ...  # noqa: D102

    @property
    def ranked(self) -> RankedLayer: ...  # noqa: D102


@dataclass(frozen=True)
class LayerLabel:
    """A layer of a run as a figure names it.

    Args:
        name: the layer's, or `selected: pool5.2, partially whitened to 128`.
        selected: None for a layer that is not the selected candidate.
    """

    name: str
    selected: Selected | None = None

    @property
    def csv_notes(self) -> list[str]:
        """What its rows in CSV say beside their notes."""
        return [] if self.selected is None else [IN_CSV]


def label_layers(entries: Sequence[T], selected: Mapping[str, Selected]) -> list[LayerLabel]:
    """The label of the layer of each entry; the first entry of a run has the epoch that the figure says."""
    names = names_by_layer(entry.ranked for entry in entries)
    epochs = {entry.run: entry.epoch for entry in reversed(entries)}
    labels = []
    for entry in entries:
        candidate = selected.get(entry.run)
        if candidate is not None and (candidate.score.epoch, candidate.score.ranked) == (entry.epoch, entry.ranked):
            labels.append(LayerLabel(selected_text(candidate, epochs[entry.run]), candidate))
        else:
            labels.append(LayerLabel(names[entry.ranked]))
    return labels


def fold_lines(candidates: Iterable[Selected]) -> list[str]:
    """A note where a score is not of the whole gallery."""
    return [_FOLDED] if any(candidate.within_folds for candidate in candidates) else []


def add_selected(scores: Sequence[Score], selected: Iterable[Selected]) -> list[Score]:
    """The scores with those of selected candidates, which have a note that says so."""
    marked = {
        _key(candidate.score): replace(candidate.score, notes=(*candidate.score.notes, IN_CSV))
        for candidate in selected
    }
    return [*(marked.pop(_key(score), score) for score in scores), *marked.values()]


def selected_at(selected: Mapping[str, Selected], epoch: int | None) -> dict[str, Selected]:
    """Those of a requested epoch; all without one."""
    return {run: candidate for run, candidate in selected.items() if epoch in (None, candidate.score.epoch)}


def _key(score: Score) -> tuple[object, ...]:
    return score.run, score.epoch, score.split, score.ranked, score.metric
