"""DatasetSpec: all that layerprobe knows of a data set, with the published sizes of its splits."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from layerprobe.data.splits import Dataset


@dataclass(frozen=True)
class Count:
    """How large a split is.

    Args:
        each: fewest and most images of a class; None where no source states them.
    """

    images: int
    classes: int
    each: tuple[int, int] | None = None

    def __str__(self) -> str:
        class_sizes = "" if self.each is None else f" ({self.each[0]}-{self.each[1]} each)"
        return f"{self.images:,} images of {self.classes:,} classes{class_sizes}"

    def differs(self, published: Count) -> bool:
        """Whether it is another size than the published one; `each` counts only where it is published."""
        class_sizes_differ = published.each is not None and self.each != published.each
        return class_sizes_differ or (self.images, self.classes) != (published.images, published.classes)


def count(classes: Iterable[object]) -> Count:
    """The size of a split, given the class of each of its images."""
    sizes = Counter(classes).values()
    return Count(sum(sizes), len(sizes), (min(sizes), max(sizes)) if sizes else None)


def differences(counts: Mapping[str, Count], published: Mapping[str, Count]) -> list[str]:
    """Both sizes of every split, if any split's differ; else nothing."""
    if not any(counts[name].differs(published[name]) for name in published):
        return []
    return [f"{name} has {counts[name]}, expected {published[name]}" for name in published]


def partial_notes(counts: Mapping[str, Count], published: Mapping[str, Count]) -> tuple[str, ...]:
    """A note for each split that differs from the published one: `partial: 11 of 12 test images`."""
    notes = []
    for name, full_count in published.items():
        if counts[name].differs(full_count):
            classes = (counts[name].classes, full_count.classes)
            also = "" if classes[0] == classes[1] else f" of {classes[0]:,} of {classes[1]:,} classes"
            notes.append(f"partial: {counts[name].images:,} of {full_count.images:,} {name} images{also}")
    return tuple(notes)


@dataclass(frozen=True, eq=False)
class DatasetSpec:
    """How a data set is loaded, and its description for users.

    Only `load` is needed.

    Args:
        load: (root, *, its own options) -> Dataset, images at their original sizes. Every parameter with a default is a
            key of a recipe's [data]; `root` and `image_size` are passed only to a loader that takes them.
        unchecked: the same options -> every image that the data set names, whether or not it is there; nothing else is
            required, so that `data check` can report all faults at once where `load` refuses at the first. It raises a
            DataError where no image can be named. None: the error of `load` is all that can be said.
        defaults: keys of [data] with other defaults than the common ones.
        argument: what follows the name in `--data NAME:ARGUMENT`, where `load` takes a root.
        layout: what its folder or file looks like, in one line.
        where: its official page, as text; empty where there is none.
        counts: split -> published size of a whole copy; empty where there is none.
    """

    load: Callable[..., Dataset]
    unchecked: Callable[..., Dataset] | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    argument: str = "ROOT"
    holds: str = ""
    layout: str = ""
    where: str = ""
    counts: Mapping[str, Count] = field(default_factory=dict)

    @property
    def takes_root(self) -> bool:
        """Whether it lies in a folder or file; else it is made by code."""
        return bool(self.taken({"root": None}))

    def taken(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some options that `load` takes."""
        parameters = inspect.signature(self.load).parameters
        return {name: value for name, value in options.items() if name in parameters}

    def usage(self, name: str) -> str:
        """What to give to --data for the data set that is registered under a name: `cub200:ROOT`."""
        return f"{name}:{self.argument}" if self.takes_root else name
