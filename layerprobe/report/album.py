"""The galleries of some runs, truncated to the size of a page, with small pictures."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import PIL.Image
from numpy.typing import NDArray
from PIL.Image import Resampling

from layerprobe.report.values import Gallery, GalleryQuery

SIDE = 64  # pixels of the longer side, at most
_QUALITY = 80  # of JPEG


def small_picture(image: NDArray[np.uint8]) -> bytes:
    """An image at no more than 64 pixels a side, as PNG or JPEG, whichever is shorter.

    Drawings are shorter as PNG, which loses nothing, and photographs as JPEG.

    Args:
        image: (H, W, 3) RGB.
    """
    # A grey image has three equal channels.
    grey = bool((image == image[:, :, :1]).all())
    picture = PIL.Image.fromarray(np.ascontiguousarray(image[:, :, 0] if grey else image))
    scale = SIDE / max(picture.size)
    if scale < 1:
        width, height = (max(1, round(side * scale)) for side in picture.size)
        picture = picture.resize((width, height), Resampling.LANCZOS)
    return min(_encode(picture, "PNG"), _encode(picture, "JPEG", quality=_QUALITY), key=len)


def _encode(picture: PIL.Image.Image, kind: str, **options: int) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


LIMIT = 5_000_000  # characters of the page for all pictures and neighbours
_MOST_ITEMS = 32_767  # places of items are written with 16 bits
_OVERHEAD = 60  # characters about an item's names and a picture


@dataclass(eq=False)
class _GalleryCut:
    """The part of a gallery that is on the page: its first queries, and the items that these need."""

    gallery: Gallery
    picture: Callable[[int], bytes | None]
    queries: int = 0
    pictures: dict[int, bytes | None] = field(default_factory=dict)  # item -> its picture

    def next(self) -> dict[int, bytes | None]:
        """The items that the next query adds."""
        neighbours = np.unique(self.gallery.found[:, :, self.queries]).tolist()
        items = dict.fromkeys([self.gallery.queries[self.queries].item, *(item for item in neighbours if item >= 0)])
        return {item: self.picture(item) for item in items if item not in self.pictures}

    def cost(self, items: dict[int, bytes | None]) -> int:
        """Characters of some more items' names and of one more query's neighbours."""
        names = sum(len(self.gallery.items[item].id) + len(self.gallery.items[item].name) + _OVERHEAD for item in items)
        # 2 bytes for an item, 1 whether it is right; 2 for a coordinate
        epochs, layers, _, k = self.gallery.found.shape
        return names + _base64_length(epochs * layers * (3 * k + 4 * (self.gallery.map is not None)))


def fit_galleries(
    galleries: Sequence[tuple[Gallery, Callable[[int], bytes | None]]], limit: int = LIMIT
) -> tuple[tuple[Gallery, ...], tuple[bytes, ...]]:
    """Galleries with as many of their first queries as a page may hold, and the pictures that they need, each once.

    The galleries take turns, one query each, until the next one would be too much.

    Args:
        galleries: each of all its queries, those that matter most first, without pictures; and what gives the small
            picture of an item, None where its image cannot be read.

    Returns:
        A gallery for each, with a note where queries are omitted, and the pictures.
    """
    cuts = [_GalleryCut(gallery, picture) for gallery, picture in galleries]
    places: dict[bytes, int] = {}
    most = max((len(gallery.queries) for gallery, _ in galleries), default=0)
    cost = 0
    for cut in (cut for turn in range(most) for cut in cuts if turn < len(cut.gallery.queries)):
        items = cut.next()
        new = dict.fromkeys(picture for picture in items.values() if picture is not None and picture not in places)
        cost += cut.cost(items) + sum(_base64_length(len(picture)) + _OVERHEAD for picture in new)
        if cost > limit or len(cut.pictures) + len(items) > _MOST_ITEMS:
            break
        cut.pictures |= items
        cut.queries += 1
        places |= {picture: index for index, picture in enumerate(new, start=len(places))}
    return tuple(_cut_gallery(cut, places, limit) for cut in cuts), tuple(places)


def _cut_gallery(cut: _GalleryCut, places: Mapping[bytes, int], limit: int) -> Gallery:
    gallery, notes = cut.gallery, list(cut.gallery.notes)
    if cut.queries < len(gallery.queries):
        size = f"{limit / 1e6:g} MB"
        notes.append(
            f"{cut.queries} of {len(gallery.queries)} queries are here: pictures and neighbours may take {size}"
        )
    unread = sum(picture is None for picture in cut.pictures.values())
    if unread:
        notes.append(f"{unread:,} of {len(cut.pictures):,} images cannot be read")
    items = list(cut.pictures)
    indices = np.full(len(gallery.items) + 1, -1, np.int32)  # the last one is for -1, where nothing was found
    indices[items] = np.arange(len(items))
    gallery_map = gallery.map and replace(gallery.map, points=gallery.map.points[:, :, : cut.queries])
    return replace(
        gallery,
        map=gallery_map,
        items=tuple(gallery.items[item] for item in items),
        pictures=tuple(-1 if picture is None else places[picture] for picture in cut.pictures.values()),
        queries=tuple(GalleryQuery(int(indices[query.item]), query.rules) for query in gallery.queries[: cut.queries]),
        found=indices[gallery.found[:, :, : cut.queries]],
        right=gallery.right[:, :, : cut.queries],
        notes=tuple(notes),
    )


def _base64_length(size: int) -> int:
    """Number of characters of `size` bytes in base64."""
    return (size + 2) // 3 * 4
