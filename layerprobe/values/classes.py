"""The result of `layerprobe classes`: two layers within each class, and the classes that are found for one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from layerprobe.values.intervals import Interval
from layerprobe.values.layers import RankedLayer

Order = Literal["loss", "gain", "size", "name"]
ORDERS: tuple[Order, ...] = get_args(Order)


@dataclass(frozen=True)
class ComparedClass:
    """A class by two layers; shares of its images.

    Args:
        images: that are searched for.
        a: Recall@1 by layer a.
        b: by layer b.
        difference: a - b.
        interval: of the difference, over other images of the class; None with fewer than 10, and where ties leave the
            hit of one undecided.
        p: two-sided, that the layers are alike for the class, corrected for all classes that are tested; None where
            ties leave an image undecided.
        shrunk: the difference, shrunk towards that of all classes; None where that cannot be estimated. All three are
            None for a class of whose images none has a right item to find.
    """

    name: str
    images: int
    a: float
    b: float
    difference: float
    interval: Interval | None = None
    p: float | None = None
    shrunk: float | None = None


@dataclass(frozen=True)
class MistakenImage:
    """An image whose nearest item is wrong, by their names."""

    image: str
    nearest: str


@dataclass(frozen=True)
class Confusion:
    """Images of a class whose nearest item is of another class, the same one.

    Args:
        images: of the class, that have a right item to find.
        a: how many of them by layer a.
        b: by layer b.
        examples: at most two, those that both layers confuse before others.
    """

    name: str
    nearest: str
    images: int
    a: int
    b: int
    examples: tuple[MistakenImage, ...] = ()

    @property
    def count(self) -> int:
        """How many images, by the layer that confuses more."""
        return max(self.a, self.b)


@dataclass(frozen=True)
class TwoNames:
    """Two classes that may be one under two names.

    Args:
        names: of the two classes.
        layers: by which they cannot be told apart: `A`, `B` or both.
    """

    names: tuple[str, str]
    layers: tuple[str, ...]


@dataclass(frozen=True)
class ComparedClasses:
    """Two layers within each test class.

    Args:
        run: its name.
        epochs: of either layer.
        queries: that are searched for.
        classes: in the order of the request.
        confusions: the largest first.
        two_names: candidates for one class under two names.
        verdict: which classes lose by switching from b to a, and whether so many would by chance.
        within_folds: whether the images are searched within fifths of the classes.
    """

    run: str
    epochs: tuple[int, int]
    a: RankedLayer
    b: RankedLayer
    queries: int
    classes: tuple[ComparedClass, ...]
    confusions: tuple[Confusion, ...]
    two_names: tuple[TwoNames, ...]
    verdict: str
    within_folds: bool = False
    notes: tuple[str, ...] = field(default=())

    def as_json(self) -> Mapping[str, Any]:
        """The fields, with the layers as text."""
        values = {x.name: getattr(self, x.name) for x in fields(self)}
        return values | {"a": self.a.full_name, "b": self.b.full_name}


def sort_classes(classes: tuple[ComparedClass, ...], order: Order) -> tuple[ComparedClass, ...]:
    """The classes by loss or gain (shrunk, then as it is), then by number of images, then by name; or by name alone."""

    def key(compared: ComparedClass) -> tuple[float, ...]:
        if order == "name":
            return ()
        sign = {"loss": 1, "gain": -1, "size": 0}[order]
        shrunk = compared.difference if compared.shrunk is None else compared.shrunk
        return sign * shrunk, sign * compared.difference, -compared.images

    return tuple(sorted(classes, key=lambda x: (*key(x), x.name)))
