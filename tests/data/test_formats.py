from __future__ import annotations

import io
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL.features
import PIL.Image
import pytest

from layerprobe.data import formats
from layerprobe.data.formats import EXTENSIONS, HEIF_EXTENSIONS, is_image_name, reads_heif
from layerprobe.data.images import read_image
from layerprobe.system.errors import DataError
from tests.data.spoiled import colours

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
    formats._reads_avif.cache_clear()
    assert not is_image_name("x.avif")
    monkeypatch.undo()
    formats._reads_avif.cache_clear()
    assert is_image_name("x.avif") == PIL.features.check("avif")
