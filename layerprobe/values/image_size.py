"""The size of the images that a network takes."""

from __future__ import annotations

ImageSize = int | tuple[int, int]  # side of a square, or (height, width), in pixels


def height_width(size: ImageSize) -> tuple[int, int]:
    """Height and width."""
    return (size, size) if isinstance(size, int) else size


def as_size(height: int, width: int) -> ImageSize:
    """A size: of a square its side."""
    return height if height == width else (height, width)


def size_text(size: ImageSize) -> str:
    """`224`, or `256x128`: height before width."""
    return str(size) if isinstance(size, int) else f"{size[0]}x{size[1]}"


def images_text(size: ImageSize, channels: int = 3) -> str:
    """`images of 224 px`, `images of 256x128 px and 1 channel`."""
    channels_text = "" if channels == 3 else f" and {channels} channel{'s' * (channels != 1)}"
    return f"images of {size_text(size)} px{channels_text}"
