"""What a page of the report is made from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from layerprobe.values.classes import ComparedClass, MistakenImage
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import Score
from layerprobe.values.views import ImageSample, Item


@dataclass(frozen=True)
class RunPage:
    """A run in the report.

    Args:
        few: places in `layers` of those that are shown first: the embedding layer, the one before it, the best on
            validation, the first and the middle of the network.
        embedding: place of the embedding layer; None if unknown or not measured.
        selected: place of the layer that is selected by the choice of the page; None without one, or if not measured.
        explanation: the PNG of `layerprobe explain`; None where the run keeps none.
    """

    name: str
    data: DataFacts
    layers: tuple[RankedLayer, ...]
    few: tuple[int, ...]
    embedding: int | None
    scores: tuple[Score, ...]
    made: tuple[tuple[str, str], ...]
    training: bool = False
    explanation: bytes | None = None
    selected: int | None = None


@dataclass(frozen=True)
class ShownChoice:
    """A card: what was chosen among the layers of some runs, or of several models; or the answer of a probe.

    Args:
        names: of the runs; empty where the advice names them.
        advice: whether to switch; of models, which is best.
        head: the heading of each column of the table.
        rows: the cells of each row: its name, then of the current embedding, of what is selected, and their difference;
            of models, and of a probe, a row for each.
        sure: how sure that is, a text each.
        figures: name and value of the numbers that stand out.
        command: the next one; empty for none.
        notes: a line each.
    """

    advice: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: str = ""
    sure: tuple[str, ...] = ()
    figures: tuple[tuple[str, str], ...] = ()
    command: str = ""
    notes: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The advice and how sure it is, as a paragraph."""
        head = f"{self.names}: " if self.names else ""
        return head + " ".join([self.advice, *self.sure])


@dataclass(frozen=True)
class GalleryQuery:
    """A query of the gallery.

    Args:
        rules: why it is shown, such as `pool5.3 right, fc6 wrong`; at least one.
    """

    item: int
    rules: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class GalleryMap:
    """The queries of a gallery in two dimensions, for each of its epochs and layers.

    Args:
        points: (E, L, Q, 2) coordinates; NaN where a query is not on the map, or a layer cannot be projected.
        kept: (E, L) share of the nearest neighbours among the images on the map that are nearest there; NaN likewise.
        chance: that share in a random picture.
        drawn: images on the map, of `total` that are searched for.
        sample: how they were drawn.
    """

    points: NDArray[np.float64]
    kept: NDArray[np.float64]
    chance: float
    drawn: int
    total: int
    sample: ImageSample


@dataclass(frozen=True, eq=False)
class Gallery:
    """The images nearest to some queries of a run, for each of some epochs and layers.

    Args:
        epochs: E of them, ascending.
        layers: L of them, in network order.
        pictures: for each item, the place of its picture in `Report.pictures`; -1 where it has none.
        found: (E, L, Q, K) int32 places of items, nearest first; -1 where there is none.
        right: (E, L, Q, K) bool, whether it is a right answer.
    """

    run: str
    split: str
    epochs: tuple[int, ...]
    layers: tuple[RankedLayer, ...]
    items: tuple[Item, ...]
    pictures: tuple[int, ...]
    queries: tuple[GalleryQuery, ...]
    found: NDArray[np.int32]
    right: NDArray[np.bool_]
    notes: tuple[str, ...] = ()
    map: GalleryMap | None = None


@dataclass(frozen=True)
class ShownConfusion:
    """Images of a class whose nearest item is of another class.

    Args:
        text: how many images by either layer.
        examples: image and nearest item.
        pictures: for either of each example, the place of its picture in `Report.pictures`; -1 where it has none.
    """

    name: str
    nearest: str
    text: str
    examples: tuple[MistakenImage, ...]
    pictures: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class ShownClasses:
    """Two layers of a run by test class, and the classes that are confused.

    Args:
        verdict: which classes lose, in a sentence.
        lead: what the numbers are, and which layers are A and B.
        classes: those for which the page has room.
        notes: on the classes, a line each.
        confusions: likewise, the largest first.
        confusion_notes: on these.
    """

    verdict: str
    lead: str
    classes: tuple[ComparedClass, ...]
    notes: tuple[str, ...]
    confusions: tuple[ShownConfusion, ...]
    confusion_notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Report:
    """Everything on the page.

    Args:
        findings: what was found, a sentence each, with its interval; none where nothing can be said.
        choices: what was chosen, which leads the page.
        answers: of runs of which nothing is chosen, in its place.
        models: several models in one table, before these; None without them. Its text is the first finding.
        runs: at least one.
        pictures: small JPEG or PNG files, each once, that galleries and confusions point at.
        metric: of the findings, and first shown.
        classes: of a single run; None where they are not compared.
        refresh: seconds after which a browser reads the file again; None where it is not being written again.
    """

    title: str
    findings: tuple[str, ...]
    runs: tuple[RunPage, ...]
    galleries: tuple[Gallery, ...] = ()
    pictures: tuple[bytes, ...] = ()
    made: tuple[tuple[str, str], ...] = ()
    notes: tuple[str, ...] = ()
    refresh: int | None = None
    metric: str = "R@1"
    choices: tuple[ShownChoice, ...] = ()
    answers: tuple[ShownChoice, ...] = ()
    classes: ShownClasses | None = None
    models: ShownChoice | None = None

    @property
    def data(self) -> Mapping[str, DataFacts]:
        """Run -> what its scores were measured on."""
        return {run.name: run.data for run in self.runs}
