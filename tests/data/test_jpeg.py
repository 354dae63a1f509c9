from __future__ import annotations

import io
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from torch import Tensor

from layerprobe.data import jpeg
from layerprobe.data.jpeg import decode_jpeg
from layerprobe.data.splits import Image

with_decoder = pytest.mark.skipif(
    jpeg._decoder(progressive=False) is None, reason="torchvision has no decoder with PIL's pixels"
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
        assert jpeg._decoder(progressive="progressive" in options) is None
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
    jpeg._decoder.cache_clear()
    try:
        assert found(file_of(photo(8, 8))) is None
    finally:
        jpeg._decoder.cache_clear()


@with_decoder
@pytest.mark.parametrize("progressive", [False, True])
def test_a_decoder_with_other_pixels_is_found_out(progressive: bool) -> None:
    decode = jpeg._decoder(progressive=False)
    assert decode is not None

    def otherwise(file: Tensor, mode: int) -> Tensor:
        pixels = decode(file, mode)
        pixels[0, 0, 0] += int(bytes(file.tolist()).count(jpeg._SCAN) < 10)  # a whole progressive file of PIL has ten
        return pixels

    assert jpeg._agrees(decode, subsampling=2, progressive=False)
    assert not jpeg._agrees(otherwise, subsampling=2, progressive=progressive)


@with_decoder
def test_torchvision_can_be_imported_afterwards() -> None:
    from torchvision.transforms.functional import pil_to_tensor

    assert torch.equal(pil_to_tensor(photo(3, 4)), torch.from_numpy(np.array(photo(3, 4))).permute(2, 0, 1))
