"""Galleries cut to what a page may hold."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import PIL.Image
import pytest
from numpy.typing import NDArray

from layerprobe.report.album import fit_galleries, small_picture
from layerprobe.report.values import Gallery, GalleryQuery
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.views import Item

FC6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
# Six images; the queries 4, 0 and 2 each find two at the epochs 0 and 3.
FOUND = np.array([[[[5, 0], [4, 1], [3, -1]]], [[[0, 5], [4, 5], [3, 1]]]], np.int32)  # (E, L, Q, K)


Picture = Callable[[int], bytes | None]


def wanted(run: str = "a", picture: Picture = lambda item: bytes([item]) * 30) -> tuple[Gallery, Picture]:
    items = tuple(Item(f"{i}.png", f"class {i}") for i in range(6))
    queries = tuple(GalleryQuery(item, ("random",)) for item in (4, 0, 2))
    return Gallery(run, "test", (0, 3), (FC6,), items, (), queries, FOUND, FOUND % 2 == 1, ("a note",)), picture


def test_all_queries_find_what_they_found_where_there_is_room() -> None:
    (gallery,), _ = fit_galleries([wanted()])
    names = np.array([item.id for item in gallery.items] + ["none"])
    assert [names[query.item] for query in gallery.queries] == ["4.png", "0.png", "2.png"]
    expected = np.array([f"{i}.png" for i in range(6)] + ["none"])[FOUND]
    np.testing.assert_array_equal(names[gallery.found], expected)
    np.testing.assert_array_equal(gallery.right, FOUND % 2 == 1)
    assert gallery.notes == ("a note",)


def test_every_item_has_its_own_picture() -> None:
    (gallery,), pictures = fit_galleries([wanted()])
    shown = {item.id: pictures[place] for item, place in zip(gallery.items, gallery.pictures, strict=True)}
    assert shown == {f"{i}.png": bytes([i]) * 30 for i in range(6)}


def test_the_galleries_of_two_runs_share_their_pictures() -> None:
    galleries, pictures = fit_galleries([wanted("a"), wanted("b")])
    assert [gallery.run for gallery in galleries] == ["a", "b"]
    assert len(pictures) == 6


def test_queries_that_are_too_much_are_left_out_of_all_runs_alike() -> None:
    # each of the first queries needs images 4, 5, 0; the second ones 1 more: 40 characters of base64 and 60 about each
    # picture, 12 of the names and 60 about each item, 16 of its neighbours (2 epochs x 1 layer x 2 x 3 bytes)
    first = 3 * (40 + 60) + 2 * (3 * 72 + 16)
    second = (40 + 60) + 2 * (72 + 16)
    galleries, pictures = fit_galleries([wanted("a"), wanted("b")], first + second)
    assert [len(gallery.queries) for gallery in galleries] == [2, 2]
    assert [gallery.found.shape for gallery in galleries] == [(2, 1, 2, 2)] * 2
    assert len(pictures) == 4
    assert [len(gallery.queries) for gallery in fit_galleries([wanted("a"), wanted("b")], first + second - 1)[0]] == [
        2,
        1,
    ]


def test_left_out_queries_are_told() -> None:
    (gallery,), _ = fit_galleries([wanted()], 600)
    assert gallery.notes == ("a note", "1 of 3 queries are here: pictures and neighbours may take 0.0006 MB")


def test_images_after_the_limit_are_not_read() -> None:
    read = []

    def picture(item: int) -> bytes:
        read.append(item)
        return bytes([item]) * 30

    fit_galleries([wanted(picture=picture)], 1)
    assert sorted(read) == [0, 4, 5]


def test_an_image_that_cannot_be_read_has_no_picture() -> None:
    (gallery,), pictures = fit_galleries([wanted(picture=lambda item: None if item == 5 else bytes([item]))])
    shown = dict(zip((item.id for item in gallery.items), gallery.pictures, strict=True))
    assert shown["5.png"] == -1
    assert bytes([5]) not in pictures
    assert gallery.notes[-1] == "1 of 6 images cannot be read"


@pytest.mark.parametrize("limit", [0, 10_000])
def test_no_gallery_needs_no_picture(limit: int) -> None:
    assert fit_galleries([], limit) == ((), ())


def opened(image: NDArray[np.uint8]) -> PIL.Image.Image:
    return PIL.Image.open(io.BytesIO(small_picture(image)))


def test_the_longer_side_has_64_pixels_and_the_shorter_one_its_share() -> None:
    assert opened(np.zeros((300, 100, 3), np.uint8)).size == (21, 64)  # 100 * 64 / 300 = 21.3


def test_a_line_of_pixels_stays_a_pixel_wide() -> None:
    assert opened(np.zeros((1, 900, 3), np.uint8)).size == (64, 1)


def test_a_small_image_keeps_its_pixels() -> None:
    image = np.zeros((8, 8, 3), np.uint8)
    image[2, 3] = 200, 10, 30
    found = opened(image)
    assert found.format == "PNG"
    np.testing.assert_array_equal(np.asarray(found.convert("RGB")), image)


def test_a_photograph_becomes_jpeg_with_its_colours() -> None:
    noise = np.random.default_rng(0).normal(0, 12, (64, 64, 3))
    image = (np.array([180, 90, 40]) + noise).clip(0, 255).astype(np.uint8)
    found = opened(image)
    assert found.format == "JPEG"
    np.testing.assert_allclose(np.asarray(found).mean((0, 1)), [180, 90, 40], atol=2)


def test_a_grey_image_has_one_channel() -> None:
    image = np.random.default_rng(0).integers(0, 256, (64, 64, 1), np.uint8).repeat(3, axis=2)
    assert opened(image).mode == "L"
