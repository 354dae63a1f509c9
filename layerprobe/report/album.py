"""The galleries of some runs, truncated to the size of a page, with their pictures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from layerprobe.report.values import Gallery, GalleryQuery
from layerprobe.values.keys import RankedLayer
from layerprobe.values.views import Item

LIMIT = 5_000_000  # characters of the page for all pictures and neighbours
_MOST_ITEMS = 32_767  # places of items are written with 16 bits
_AROUND = 60  # characters about an item's names and a picture


@dataclass(frozen=True, eq=False)
class UncutGallery:
    """A gallery before truncation.

    Args:
        epochs: E of them, ascending.
        layers: L of them, in network order.
        queries: Q of them, those that matter most first; `GalleryQuery.item` is a place among the items.
        found: (E, L, Q, K) places among the items, nearest first; -1 where there is none.
        right: (E, L, Q, K) bool, whether it is a right answer.
        picture: gives the small picture of an item; None where its image cannot be read.
    """

    run: str
    split: str
    epochs: tuple[int, ...]
    layers: tuple[RankedLayer, ...]
    items: Sequence[Item]
    queries: tuple[GalleryQuery, ...]
    found: NDArray[np.int32]
    right: NDArray[np.bool_]
    picture: Callable[[int], bytes | None]
    notes: tuple[str, ...] = ()


@dataclass(eq=False)
class _Pictures:
    """Pictures on a page, each once, and what they cost."""

    places: dict[bytes, int] = field(default_factory=dict)

    def cost(self, found: Sequence[bytes]) -> int:
        """Characters that some more pictures would take."""
        return sum(_encoded(len(each)) + _AROUND for each in dict.fromkeys(found) if each not in self.places)

    def add(self, found: Sequence[bytes]) -> None:
        for each in found:
            self.places.setdefault(each, len(self.places))


@dataclass(eq=False)
class _Cut:
    """How much of a gallery is taken: its first queries, and the items that these need."""

    wanted: UncutGallery
    queries: int = 0
    pictures: dict[int, bytes | None] = field(default_factory=dict)  # item -> its picture

    def next(self) -> dict[int, bytes | None]:
        """The items that the next query adds."""
        wanted = self.wanted
        found = np.unique(wanted.found[:, :, self.queries]).tolist()
        items = dict.fromkeys([wanted.queries[self.queries].item, *(item for item in found if item >= 0)])
        return {item: wanted.picture(item) for item in items if item not in self.pictures}

    def cost(self, items: dict[int, bytes | None]) -> int:
        """Characters of some more items' names and of one more query's neighbours."""
        names = sum(len(self.wanted.items[item].id) + len(self.wanted.items[item].name) + _AROUND for item in items)
        return names + _encoded(3 * self.wanted.found[:, :, 0].size)  # 2 bytes for an item, 1 whether it is right


def within(wanted: Sequence[UncutGallery], limit: int = LIMIT) -> tuple[tuple[Gallery, ...], tuple[bytes, ...]]:
    """Galleries with as many of their first queries as a page may hold, and the pictures that they need, each once.

    The galleries take turns, one query each, until the next one would be too much.

    Returns:
        A gallery for each, with a note where queries are omitted, and the pictures.
    """
    cuts, pictures, cost = [_Cut(each) for each in wanted], _Pictures(), 0
    for turn in range(max((len(each.queries) for each in wanted), default=0)):
        for cut in (cut for cut in cuts if turn < len(cut.wanted.queries)):
            more = cut.next()
            new = [picture for picture in more.values() if picture is not None]
            cost += cut.cost(more) + pictures.cost(new)
            if cost > limit or len(cut.pictures) + len(more) > _MOST_ITEMS:
                return tuple(_gallery(each, pictures, limit) for each in cuts), tuple(pictures.places)
            cut.pictures |= more
            cut.queries += 1
            pictures.add(new)
    return tuple(_gallery(each, pictures, limit) for each in cuts), tuple(pictures.places)


def _gallery(cut: _Cut, pictures: _Pictures, limit: int) -> Gallery:
    wanted, notes = cut.wanted, list(cut.wanted.notes)
    if cut.queries < len(wanted.queries):
        size = f"{limit / 1e6:g} MB"
        notes.append(
            f"{cut.queries} of {len(wanted.queries)} queries are here: pictures and neighbours may take {size}"
        )
    unread = sum(picture is None for picture in cut.pictures.values())
    if unread:
        notes.append(f"{unread:,} of {len(cut.pictures):,} images cannot be read")
    kept = list(cut.pictures)
    places = np.full(len(wanted.items) + 1, -1, np.int32)  # the last one is for -1, where nothing was found
    places[kept] = np.arange(len(kept))
    return Gallery(
        run=wanted.run,
        split=wanted.split,
        epochs=wanted.epochs,
        layers=wanted.layers,
        items=tuple(wanted.items[item] for item in kept),
        pictures=tuple(-1 if each is None else pictures.places[each] for each in cut.pictures.values()),
        queries=tuple(GalleryQuery(int(places[query.item]), query.rules) for query in wanted.queries[: cut.queries]),
        found=places[wanted.found[:, :, : cut.queries]],
        right=wanted.right[:, :, : cut.queries],
        notes=tuple(notes),
    )


def _encoded(size: int) -> int:
    """Characters of base64."""
    return (size + 2) // 3 * 4
