"""Sizes of splits, and differences of a copy of a data set from the published one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass


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
