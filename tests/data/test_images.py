from __future__ import annotations

import io
import os
import struct
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import PIL.features
import PIL.Image
import PIL.ImageOps
import pytest
import torch
from torch import Tensor

from layerprobe.data import images
from layerprobe.data.images import EXTENSIONS, HEIF_EXTENSIONS, crop, decode_jpeg, is_image_name, read_image, reads_heif
from layerprobe.data.splits import Image
from layerprobe.system.errors import DataError
from tests.data.spoiled import colours


def saved(image: PIL.Image.Image, path: Path, format: str | None = None, **options: object) -> Path:
    image.save(path, format, **options)
    return path


def png_that_claims(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


@pytest.mark.parametrize("ending", ["png", "bmp", "tif", "ppm"])
def test_rgb_comes_back_as_it_was_saved(tmp_path: Path, ending: str) -> None:
    path = saved(PIL.Image.fromarray(colours()), tmp_path / f"x.{ending}")
    pixels = read_image(path)
    assert pixels.dtype == np.uint8
    np.testing.assert_array_equal(pixels, colours())


def test_webp_is_read(tmp_path: Path) -> None:
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "x.webp", lossless=True)
    np.testing.assert_array_equal(read_image(path), colours())


def test_grey_fills_all_channels(tmp_path: Path) -> None:
    grey = colours()[:, :, 0]
    pixels = read_image(saved(PIL.Image.fromarray(grey), tmp_path / "x.png"))
    np.testing.assert_array_equal(pixels, np.stack([grey] * 3, axis=2))


def test_one_bit_becomes_black_and_white(tmp_path: Path) -> None:
    bits = colours()[:, :, 0] > 127
    pixels = read_image(saved(PIL.Image.fromarray(bits), tmp_path / "x.png"))
    np.testing.assert_array_equal(pixels, np.stack([bits * np.uint8(255)] * 3, axis=2))


def test_a_palette_becomes_its_colours(tmp_path: Path) -> None:
    image = PIL.Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([1, 0])
    assert read_image(saved(image, tmp_path / "x.png")).tolist() == [[[40, 50, 60], [10, 20, 30]]]


def test_a_palettes_transparent_colour_becomes_white(tmp_path: Path) -> None:
    image = PIL.Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putdata([1, 0])
    path = saved(image, tmp_path / "x.png", transparency=bytes([0, 255]))
    assert read_image(path).tolist() == [[[40, 50, 60], [255, 255, 255]]]


def test_cmyk_becomes_rgb(tmp_path: Path) -> None:
    # No ink is white; full cyan leaves green and blue; full black leaves nothing.
    image = PIL.Image.new("CMYK", (3, 1))
    image.putdata([(0, 0, 0, 0), (255, 0, 0, 0), (0, 0, 0, 255)])
    pixels = read_image(saved(image, tmp_path / "x.tif"))
    assert pixels.tolist() == [[[255, 255, 255], [0, 255, 255], [0, 0, 0]]]


def test_alpha_is_laid_on_white(tmp_path: Path) -> None:
    # Red at alpha 0, 51 = a fifth, 255: white, 1/5 red + 4/5 white, red. What lies under alpha 0 does not show.
    image = PIL.Image.new("RGBA", (3, 1))
    image.putdata([(255, 0, 0, 0), (255, 0, 0, 51), (255, 0, 0, 255)])
    pixels = read_image(saved(image, tmp_path / "x.png"))
    assert pixels.tolist() == [[[255, 255, 255], [255, 204, 204], [255, 0, 0]]]


@pytest.mark.parametrize("byte_order", ["<u2", ">u2"])
def test_a_chosen_white_scales_sixteen_bit_tiffs(tmp_path: Path, byte_order: str) -> None:
    # of ten bits: 255 / 1023 * 511 = 127.4, and 4.01 a level; what lies above white is white
    deep = np.array([[0, 2, 3, 511, 1023, 40_000]], byte_order)
    path = saved(PIL.Image.fromarray(deep), tmp_path / "x.tif")
    assert read_image(path, white=1023)[0, :, 0].tolist() == [0, 0, 1, 127, 255, 255]


def test_a_chosen_white_leaves_other_images_alone(tmp_path: Path) -> None:
    pgm = tmp_path / "x.pgm"
    pgm.write_bytes(b"P5 2 1 4095\n" + np.array([2048, 4095], ">u2").tobytes())
    assert read_image(pgm, white=1023)[0, :, 0].tolist() == [128, 255]
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "x.png")
    np.testing.assert_array_equal(read_image(path, white=1023), colours())


def test_grey_with_alpha_is_laid_on_white(tmp_path: Path) -> None:
    image = PIL.Image.new("LA", (2, 1))
    image.putdata([(0, 0), (7, 255)])
    assert read_image(saved(image, tmp_path / "x.png")).tolist() == [[[255] * 3, [7] * 3]]


@pytest.mark.parametrize("ending", ["png", "tif", "pgm"])
def test_sixteen_bit_grey_is_divided_by_257(tmp_path: Path, ending: str) -> None:
    # 257 = 65535 / 255; halves round to the nearest: 128 is below half of 257, 129 above.
    deep = np.array([[0, 128, 129, 257, 12850, 65535]], np.uint16)
    pixels = read_image(saved(PIL.Image.fromarray(deep), tmp_path / f"x.{ending}"))
    assert pixels.tolist() == [[[level] * 3 for level in (0, 0, 1, 1, 50, 255)]]


def test_pixels_without_an_agreed_range_are_refused(tmp_path: Path) -> None:
    path = saved(PIL.Image.fromarray(np.ones((4, 4), np.float32)), tmp_path / "x.tif")
    with pytest.raises(DataError, match="x.tif: 32-bit pixels have no agreed range. Save it with 8 or 16 bits"):
        read_image(path)


def test_the_content_decides_not_the_ending(tmp_path: Path) -> None:
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "x.jpg", "PNG")
    np.testing.assert_array_equal(read_image(path), colours())


def test_an_animation_is_its_first_frame(tmp_path: Path) -> None:
    frames = [PIL.Image.new("L", (4, 4), level) for level in (10, 200)]
    path = saved(frames[0], tmp_path / "x.gif", save_all=True, append_images=frames[1:])
    assert np.unique(read_image(path)).tolist() == [10]


def test_an_exif_orientation_is_not_applied(tmp_path: Path) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "x.jpg", exif=exif)
    assert read_image(path).shape == (24, 32, 3)


def test_a_path_with_spaces_umlauts_and_a_newline_is_read(tmp_path: Path) -> None:
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "ein Bäume\nbild.png")
    np.testing.assert_array_equal(read_image(path), colours())


def test_an_absent_image_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="x.png: no such image. Restore it"):
        read_image(tmp_path / "x.png")


def test_a_folder_is_no_image(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be read \(Is a directory\)"):
        read_image(tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_forbidden_image_is_named(tmp_path: Path) -> None:
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "x.png")
    path.chmod(0)
    with pytest.raises(DataError, match="x.png: permission denied"):
        read_image(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty. Get it again or remove it"),
        (b"\n <!DOCTYPE html><html><body>404</body></html>", "this is an HTML page, not an image"),
        (b"<html lang='en'>", "this is an HTML page, not an image"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "this is a git-lfs pointer, not an image"),
        (b"plain text", "not an image that can be read"),
    ],
)
def test_what_is_no_image_is_said(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(content)
    with pytest.raises(DataError, match=f"x.jpg: {message}"):
        read_image(path)


def test_postscript_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    PIL.Image.fromarray(colours()).save(path, "EPS")
    with pytest.raises(DataError, match="not an image that can be read"):
        read_image(path)


@pytest.mark.parametrize("format", ["JPEG", "PNG"])
def test_a_truncated_image_is_named(tmp_path: Path, format: str) -> None:
    path = saved(PIL.Image.fromarray(colours(size=(100, 100))), tmp_path / "x.bin", format)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(DataError, match="x.bin: the image is truncated. Get it again or remove it"):
        read_image(path)


@pytest.mark.parametrize("format", ["JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM"])
def test_an_image_cut_or_changed_anywhere_gives_pixels_or_a_data_error(tmp_path: Path, format: str) -> None:
    stream = io.BytesIO()
    PIL.Image.fromarray(colours(size=(9, 11))).save(stream, format)
    whole, path, rng = stream.getvalue(), tmp_path / "x.bin", np.random.default_rng(0)
    messages = []
    for round_ in range(150):
        broken = bytearray(whole[: rng.integers(len(whole))] if round_ % 2 else whole)
        for place in rng.integers(0, max(1, min(len(broken), 80)), 2):
            broken[place : place + 1] = bytes([rng.integers(256)])
        path.write_bytes(broken)
        try:
            assert read_image(path).dtype == np.uint8
        except DataError as error:
            messages.append(str(error))
    assert len(messages) > 50
    assert all("x.bin: " in message and "\n" not in message for message in messages)


@pytest.mark.parametrize(
    ("width", "height", "size"),
    [
        (10_000, 8_901, "10000x8901 pixels"),
        (11_000, 11_000, "11000x11000 pixels"),
        (60_000, 60_000, "3600000000 pixels"),
    ],
)
def test_a_bomb_is_refused_without_decoding(tmp_path: Path, width: int, height: int, size: str) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(png_that_claims(width, height))
    with pytest.raises(DataError, match=f"x.png: .*{size}.*, limit 89 million. Make it smaller or remove it"):
        read_image(path)


def test_what_is_just_below_the_limit_is_decoded(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(png_that_claims(10_000, 8_900))
    with pytest.raises(DataError, match="truncated|broken"):
        read_image(path)


def test_the_warning_filters_are_left_as_they_were(tmp_path: Path) -> None:
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "x.png")
    before = list(warnings.filters)
    read_image(path)
    assert list(warnings.filters) == before


def test_an_exif_orientation_is_applied_where_asked_for(tmp_path: Path) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    image = PIL.Image.fromarray(np.repeat(np.arange(24, dtype=np.uint8).reshape(4, 6, 1), 3, axis=2))
    path = saved(image, tmp_path / "x.png", exif=exif)
    np.testing.assert_array_equal(read_image(path, exif_rotation=True), np.rot90(read_image(path), -1))


def test_an_image_without_exif_is_not_turned(tmp_path: Path) -> None:
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "x.png")
    np.testing.assert_array_equal(read_image(path, exif_rotation=True), read_image(path))


@pytest.mark.parametrize("mode", ["RGB", "L", "P", "CMYK", "RGBA", "LA", "1", "I;16"])
def test_fast_changes_no_pixel_of_other_formats(tmp_path: Path, mode: str) -> None:
    grey = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 80
    image = PIL.Image.fromarray(grey) if mode == "I;16" else PIL.Image.fromarray(colours()).convert(mode)
    path = saved(image, tmp_path / ("x.tif" if mode == "CMYK" else "x.png"))
    np.testing.assert_array_equal(read_image(path, fast=True), read_image(path))


@pytest.mark.parametrize("exif_rotation", [False, True])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_fast_turns_as_asked_for(tmp_path: Path, orientation: int, exif_rotation: bool) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    path = saved(PIL.Image.fromarray(colours()), tmp_path / "x.jpg", exif=exif)
    found, wanted = (read_image(path, exif_rotation=exif_rotation, fast=fast) for fast in (True, False))
    np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize("progressive", [False, True])
def test_fast_gives_the_pixels_and_errors_of_jpegs_cut_or_changed_anywhere(
    tmp_path: Path, mode: str, progressive: bool
) -> None:
    def outcome(path: Path, *, fast: bool) -> object:
        try:
            image = read_image(path, fast=fast)
            return image.shape, image.tobytes()
        except DataError as error:
            return str(error)

    stream = io.BytesIO()
    PIL.Image.fromarray(colours(size=(19, 21))).convert(mode).save(stream, "JPEG", progressive=progressive)
    whole, path, rng = stream.getvalue(), tmp_path / "x.jpg", np.random.default_rng(0)
    outcomes = []
    for round_ in range(150):
        broken = bytearray(whole[: rng.integers(len(whole))] if round_ % 3 == 0 else whole)
        for place in rng.integers(0, max(1, len(broken)), round_ % 4):
            broken[place : place + 1] = bytes([rng.integers(256)])
        path.write_bytes(broken)
        outcomes.append(outcome(path, fast=False))
        assert outcome(path, fast=True) == outcomes[-1]
    errors = sum(isinstance(found, str) for found in outcomes)
    assert 30 < errors < 120


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("ending", ["jpg", "png", "tif", "webp"])
def test_an_orientation_turns_only_where_asked_for_in_every_format(
    tmp_path: Path, orientation: int, ending: str
) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    y, x = np.mgrid[:40, :60]
    image = PIL.Image.fromarray(np.stack([4 * x, 6 * y, 0 * x], axis=2).astype(np.uint8))
    options: dict[str, Any] = {"lossless": True} if ending == "webp" else {}
    plain = read_image(saved(image, tmp_path / f"plain.{ending}", **options))
    path = saved(image, tmp_path / f"turned.{ending}", exif=exif, **options)
    np.testing.assert_array_equal(read_image(path), plain)
    turned = PIL.ImageOps.exif_transpose(PIL.Image.open(saved(image, tmp_path / "x.png", exif=exif)))
    found = read_image(path, exif_rotation=True)
    assert np.abs(found.astype(int) - np.asarray(turned.convert("RGB"))).max() <= (12 if ending == "jpg" else 0)


def test_an_image_that_is_a_thread_is_refused(tmp_path: Path) -> None:
    path = saved(PIL.Image.new("L", (4000, 1)), tmp_path / "thin.png")
    with pytest.raises(
        DataError, match=r"thin.png: 4000x1 pixels, thinner than 1 to 1,000. Crop it or remove it"
    ) as caught:
        read_image(path)
    assert caught.value.kind == "too thin"


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "CMYK", "P", "1", "LA", "I;16"])
@pytest.mark.parametrize("compression", ["raw", "tiff_lzw"])
def test_tiffs_are_turned_only_where_asked_for_however_they_are_stored(
    tmp_path: Path, mode: str, compression: str
) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    grey = np.arange(24 * 32, dtype=np.uint16).reshape(24, 32) * 80
    image = PIL.Image.fromarray(grey) if mode == "I;16" else PIL.Image.fromarray(colours()).convert(mode)
    plain = read_image(saved(image, tmp_path / "plain.tif", compression=compression))
    path = saved(image, tmp_path / "turned.tif", exif=exif, compression=compression)
    np.testing.assert_array_equal(read_image(path), plain)
    np.testing.assert_array_equal(read_image(path, exif_rotation=True), np.rot90(plain, -1))


def test_a_box_is_what_pil_crops() -> None:
    box = (3, 5, 20, 24)
    expected = np.asarray(PIL.Image.fromarray(colours()).crop(box))
    np.testing.assert_array_equal(crop(colours(), box, Path("x.png")), expected)


def test_a_crop_does_not_hold_the_whole_image_in_memory() -> None:
    assert crop(colours(), (0, 0, 32, 2), Path("x.png")).base is None


@pytest.mark.parametrize("box", [(0, 0, 33, 24), (0, 0, 32, 25)])
def test_a_box_that_leaves_its_image_is_named(box: tuple[int, int, int, int]) -> None:
    problem = f"a/x.png: the box from 0,0 to {box[2]},{box[3]} leaves the image of 32x24 pixels"
    with pytest.raises(DataError, match=problem) as caught:
        crop(colours(), box, Path("a/x.png"))
    assert caught.value.kind == "box"


def test_a_box_may_be_as_thin_as_an_image() -> None:
    wide = np.zeros((2, 1001, 3), np.uint8)
    assert crop(wide, (1, 0, 1001, 1), Path("x.png")).shape == (1, 1000, 3)
    with pytest.raises(DataError, match="x.png: 1001x1 pixels, thinner than 1 to 1,000"):
        crop(wide, (0, 0, 1001, 1), Path("x.png"))


with_decoder = pytest.mark.skipif(
    images._decoder(progressive=False) is None, reason="torchvision has no decoder with PIL's pixels"
)


def photo(height: int, width: int) -> PIL.Image.Image:
    """Soft shapes with noise."""
    rng = np.random.default_rng(height)
    soft = PIL.Image.fromarray(rng.integers(0, 256, (5, 5, 3), np.uint8)).resize((width, height))
    return PIL.Image.fromarray((np.asarray(soft) // 2 + rng.integers(0, 128, (height, width, 3))).astype(np.uint8))


def file_of(image: PIL.Image.Image, format: str = "JPEG", **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def found(file: bytes) -> Image | None:
    stream = io.BytesIO(file)
    with PIL.Image.open(stream) as image:
        return decode_jpeg(stream, image)


@with_decoder
@pytest.mark.parametrize("size", [(1, 1), (1, 17), (16, 16), (37, 53), (120, 201)])
@pytest.mark.parametrize(
    "options",
    [
        {"subsampling": "4:4:4"},
        {"subsampling": "4:2:2"},
        {"subsampling": "4:2:0"},
        {"subsampling": "4:1:1"},
        {"progressive": True},
        {"quality": 1},
        {"quality": 100},
        {"keep_rgb": True},
        {"restart_marker_blocks": 2},
        {"comment": b"x" * 300},
    ],
    ids=str,
)
@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_pixels_are_those_of_pil(mode: str, options: dict[str, Any], size: tuple[int, int]) -> None:
    file = file_of(photo(*size).convert(mode), **options)
    pixels = found(file)
    if pixels is None:  # a progressive file, with torchvision 0.26
        assert images._decoder(progressive="progressive" in options) is None
    else:
        np.testing.assert_array_equal(pixels, np.asarray(PIL.Image.open(io.BytesIO(file)).convert("RGB")))


@pytest.mark.parametrize(
    ("format", "mode"), [("JPEG", "CMYK"), ("MPO", "RGB"), ("PNG", "RGB"), ("WEBP", "RGB"), ("TIFF", "RGB")]
)
def test_what_is_no_plain_jpeg_is_left_to_pil(format: str, mode: str) -> None:
    options = {"save_all": True, "append_images": [photo(8, 8)]} if format == "MPO" else {}
    assert found(file_of(photo(8, 8).convert(mode), format, **options)) is None


@pytest.mark.parametrize("progressive", [False, True])
def test_a_truncated_file_is_left_to_pil(progressive: bool) -> None:
    file = file_of(photo(40, 40), progressive=progressive)
    assert all(found(file[:end]) is None for end in range(len(file) - 60, len(file)))


def test_pil_can_decode_what_is_left_to_it() -> None:
    stream = io.BytesIO(file_of(photo(8, 8).convert("CMYK")))
    with PIL.Image.open(stream) as image:
        assert decode_jpeg(stream, image) is None
        assert np.asarray(image.convert("RGB")).shape == (8, 8, 3)


def test_without_torchvision_everything_is_left_to_pil(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    images._decoder.cache_clear()
    try:
        assert found(file_of(photo(8, 8))) is None
    finally:
        images._decoder.cache_clear()


@with_decoder
@pytest.mark.parametrize("progressive", [False, True])
def test_a_decoder_with_other_pixels_is_found_out(progressive: bool) -> None:
    decode = images._decoder(progressive=False)
    assert decode is not None

    def otherwise(file: Tensor, mode: int) -> Tensor:
        pixels = decode(file, mode)
        pixels[0, 0, 0] += int(bytes(file.tolist()).count(images._SCAN) < 10)  # a whole progressive file of PIL has ten
        return pixels

    assert images._agrees(decode, subsampling=2, progressive=False)
    assert not images._agrees(otherwise, subsampling=2, progressive=progressive)


@with_decoder
def test_torchvision_can_be_imported_afterwards() -> None:
    from torchvision.transforms.functional import pil_to_tensor

    assert torch.equal(pil_to_tensor(photo(3, 4)), torch.from_numpy(np.array(photo(3, 4))).permute(2, 0, 1))


pillow_heif = pytest.importorskip("pillow_heif")


@pytest.fixture
def without_heif(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No package that reads HEIF can be imported."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    reads_heif.cache_clear()
    yield
    reads_heif.cache_clear()


def heic(seed: int = 0) -> bytes:
    stream = io.BytesIO()
    pillow_heif.from_pillow(PIL.Image.fromarray(colours(seed))).save(stream)
    return stream.getvalue()


def test_every_ending_looked_for_is_one_that_pil_can_read() -> None:
    assert reads_heif()
    assert set(PIL.Image.registered_extensions()) >= EXTENSIONS | HEIF_EXTENSIONS | {".avif"}


@pytest.mark.parametrize("name", [".x.jpg", ".x.heic", "x.jpg?1528", "x.JPG~", "x.tga", "jpg", "x.", "x", "x.jpg/y"])
def test_other_names_are_no_images(name: str) -> None:
    assert not is_image_name(name)


@pytest.mark.parametrize("name", ["x.jfif", "x.JFIF", "a.b.HEIC", "x.hif", "x..Png"])
def test_a_name_is_an_images_by_its_ending_whatever_the_case(name: str) -> None:
    assert is_image_name(name)


@pytest.mark.parametrize("name", ["x.heic", "x.heif", "x.HIF", "photo.jpg"])
def test_heic_has_the_pixels_of_its_own_library_whatever_the_ending(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(heic())
    expected = np.asarray(pillow_heif.open_heif(io.BytesIO(heic()), convert_hdr_to_8bit=True))
    assert expected.shape == (24, 32, 3)
    np.testing.assert_array_equal(read_image(tmp_path / name), expected)


def test_heic_with_transparency_is_laid_on_white(tmp_path: Path) -> None:
    stream = io.BytesIO()
    pillow_heif.from_pillow(PIL.Image.new("RGBA", (16, 16), (200, 0, 0, 0))).save(stream, quality=-1)
    (tmp_path / "x.heic").write_bytes(stream.getvalue())
    assert read_image(tmp_path / "x.heic").min() == 255


@pytest.mark.parametrize("length", [20, 300, -200])
def test_heic_that_is_cut_is_an_error_that_names_it(tmp_path: Path, length: int) -> None:
    (tmp_path / "x.heic").write_bytes(heic()[:length])
    with pytest.raises(DataError, match=r"x\.heic: .*(not an image that can be read|broken|truncated)"):
        read_image(tmp_path / "x.heic")


@pytest.mark.usefixtures("without_heif")
def test_without_its_package_heic_is_no_image_and_the_error_says_how_to_read_it(tmp_path: Path) -> None:
    assert not is_image_name("x.heic")
    (tmp_path / "x.jpg").write_bytes(heic())
    with pytest.raises(DataError, match=r"x\.jpg: HEIC, which PIL does not read by itself\. pip install pillow-heif"):
        read_image(tmp_path / "x.jpg")


def test_avif_is_an_image_where_pil_was_built_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PIL.features, "check", lambda name: False)
    images._reads_avif.cache_clear()
    assert not is_image_name("x.avif")
    monkeypatch.undo()
    images._reads_avif.cache_clear()
    assert is_image_name("x.avif") == PIL.features.check("avif")
