"""Files as they lie in data folders and should not, each under the kind that a check is to call it."""

from __future__ import annotations

import io
import os
import socket
import struct
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import PIL.Image
from numpy.typing import NDArray


def colours(seed: int = 0, size: tuple[int, int] = (24, 32)) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def encoded(image: PIL.Image.Image, format: str, **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def photo(seed: int, format: str = "JPEG", **options: object) -> bytes:
    return encoded(PIL.Image.fromarray(colours(seed)), format, **options)


def mode(name: str, seed: int, format: str = "PNG") -> bytes:
    return encoded(PIL.Image.fromarray(colours(seed)).convert(name), format)


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_that_claims(width: int, height: int) -> bytes:
    header = png_chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + png_chunk(b"IDAT", zlib.compress(b"")) + png_chunk(b"IEND", b"")


def text_bomb() -> bytes:
    """A PNG with a note that is small when compressed, and 80 MB when not."""
    whole = photo(31, "PNG")
    note = png_chunk(b"zTXt", b"note\0\0" + zlib.compress(bytes(80_000_000)))
    return whole[:33] + note + whole[33:]


def changed(content: bytes, place: int) -> bytes:
    return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]


def transparent(seed: int) -> bytes:
    image = PIL.Image.fromarray(colours(seed)).convert("RGBA")
    image.putpixel((0, 0), (1, 2, 3, 0))
    return encoded(image, "PNG")


def turned(seed: int) -> bytes:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6
    return photo(seed, exif=exif)


def moving(format: str, seed: int) -> bytes:
    frames = [PIL.Image.fromarray(colours(seed + i)) for i in range(2)]
    return encoded(frames[0], format, save_all=True, append_images=frames[1:])


def lasting(value: float, kind: type) -> bytes:
    return encoded(PIL.Image.fromarray(np.full((4, 4), value, kind)), "TIFF")


# Name -> content, and what it is called: an error...
ERRORS: Mapping[str, tuple[bytes, str]] = {
    "empty.jpg": (b"", "empty"),
    "page.jpg": (b"<!DOCTYPE html><html><body>404</body></html>", "HTML page"),
    "pointer.png": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "git-lfs pointer"),
    "text.jpg": (b"plain text", "not an image"),
    "zeros.jpg": (bytes(2000), "not an image"),
    "apple.jpg": (b"\0\5\x16\7", "not an image"),
    "postscript.png": (photo(1, "EPS"), "not an image"),
    "cut.jpg": (photo(2)[:-400], "truncated"),
    "cut.png": (photo(3, "PNG")[:-300], "truncated"),
    "cut.bmp": (photo(4, "BMP")[:-300], "truncated"),
    "cut.gif": (photo(5, "GIF")[:-300], "truncated"),
    "cut.webp": (photo(6, "WEBP", lossless=True)[:-300], "broken"),
    "cut.tif": (photo(7, "TIFF")[:-300], "truncated"),
    "head.jpg": (photo(8)[:20], "not an image"),
    "changed.png": (changed(photo(9, "PNG"), 60), "broken"),
    "large.png": (png_that_claims(10_000, 8_901), "oversized"),
    "huge.png": (png_that_claims(11_000, 11_000), "oversized"),
    "bomb.png": (png_that_claims(60_000, 60_000), "oversized"),
    "note.png": (text_bomb(), "broken"),
    "float.tif": (lasting(0.5, np.float32), "pixel range"),
    "int.tif": (lasting(70_000, np.int32), "pixel range"),
}
# ... or a remark.
REMARKS: Mapping[str, tuple[bytes, str]] = {
    "deep.png": (encoded(PIL.Image.fromarray(colours(10)[:, :, 0].astype(np.uint16) * 257), "PNG"), "16-bit grey"),
    "grey.jpg": (mode("L", 11, "JPEG"), "grey"),
    "bits.png": (mode("1", 12), "1-bit"),
    "palette.png": (mode("P", 13), "palette"),
    "ink.jpg": (mode("CMYK", 14, "JPEG"), "CMYK"),
    "alpha.png": (transparent(15), "transparency"),
    "turned.jpg": (turned(16), "EXIF rotation"),
    "moving.gif": (moving("GIF", 17), "animated"),
    "pages.tif": (moving("TIFF", 19), "animated"),
    "png.jpg": (photo(21, "PNG"), "wrong ending"),
    "grey.png": (encoded(PIL.Image.new("RGB", (8, 8), "grey"), "PNG"), "one colour"),
}


def _absent(path: Path) -> None:
    path.symlink_to(path.with_name("nowhere"))


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # A socket's path may have a hundred characters: it is made in the folder itself.
    before = Path.cwd()
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(before)


SPECIAL: Mapping[str, tuple[Callable[[Path], None], str]] = {
    "absent.jpg": (_absent, "missing"),
    "loop.jpg": (_loop, "unreadable"),
    "pipe.jpg": (_pipe, "not a file"),
    "socket.jpg": (_socket, "not a file"),
}


def spoil(folder: Path) -> dict[str, str]:
    """Put one of each into a folder; name -> kind."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (content, _) in {**ERRORS, **REMARKS}.items():
        (folder / name).write_bytes(content)
    for name, (make, _) in SPECIAL.items():
        make(folder / name)
    return {name: kind for name, (_, kind) in {**ERRORS, **REMARKS, **SPECIAL}.items()}
