"""The result of `layerprobe threshold`: thresholds at false accept rates, and what they accept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from layerprobe.values.layers import RankedLayer

FALSE_ACCEPT_RATES = (1e-3, 1e-2)


@dataclass(frozen=True)
class Rate:
    """A share of pairs that are accepted.

    Args:
        low: lower end of its 95 % interval for other classes; None with fewer than 10 classes, or clusters of them, and
            where a true accept rate is 0, 1 or that of each.
        high: upper end; None likewise.
    """

    value: float
    accepted: int
    pairs: int
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Threshold:
    """A threshold: two images are accepted as of one class if their similarity is at least this.

    Args:
        asked: the false accept rate at which it was set.
        similarity: the cosine, the dot product, minus the Euclidean distance, or minus the number of bits that differ.
        set_far: false accept rate on the classes it was set on, at most `asked`.
        set_tar: true accept rate there.
        far: on the unseen test classes.
        tar: likewise.
    """

    asked: float
    similarity: float
    set_far: Rate
    set_tar: Rate
    far: Rate
    tar: Rate


@dataclass(frozen=True)
class PairedSplit:
    """A split and its pairs of images.

    Args:
        gallery: number of searched images; None where the split's images are paired with each other.
        equal_error_rate: where as many genuine pairs are rejected as impostor pairs are accepted.
    """

    split: str
    images: int
    classes: int
    gallery: int | None
    genuine: int
    impostor: int
    equal_error_rate: float


@dataclass(frozen=True)
class MeasuredThresholds:
    """The thresholds of a layer.

    Args:
        run: its name, or that of a file of features.
        epoch: 0 = before any step; None: unknown.
        set_on: whose pairs the thresholds were set on: validation, or training classes that the network has not seen.
        test: the unseen classes.
        thresholds: by `asked`, ascending.
        cluster: the column whose texts are the units of intervals; None: units are classes.
    """

    run: str
    epoch: int | None
    ranked: RankedLayer
    set_on: PairedSplit
    test: PairedSplit
    thresholds: tuple[Threshold, ...]
    notes: tuple[str, ...] = field(default=())
    cluster: str | None = None

    @property
    def name(self) -> str:
        """`netA#20:fc6`, or `features.npz:fc6`."""
        epoch = "" if self.epoch is None else f"#{self.epoch}"
        return f"{self.run}{epoch}:{self.ranked}"

    def as_json(self) -> Mapping[str, Any]:
        """The fields, with the parts of the layer."""
        cells = {column.name: getattr(self, column.name) for column in fields(self)}
        ranked = cells.pop("ranked")
        parts = {
            "layer": ranked.layer.layer,
            "pool": ranked.layer.pool,
            "post_processing": ranked.post_processing,
            "similarity": ranked.similarity,
        }
        return {"run": cells.pop("run"), "epoch": cells.pop("epoch"), **parts, **cells}
