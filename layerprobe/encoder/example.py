"""Print the features of image files: python example.py FILE ...

Copied beside an exported encoder by `layerprobe export`. It needs no layerprobe: numpy and Pillow, and torch for
model.pt2 or onnxruntime for model.onnx. Where there is only map.npz, FILE is a .npy of features (B, D).
"""

import importlib.util
import json
import struct
import sys
import warnings
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import PIL.Image
import PIL.ImageOps
from PIL.Image import Resampling, Transpose

Array = np.ndarray[Any, np.dtype[Any]]
MAP, GRAPH, ONNX = "map.npz", "model.pt2", "model.onnx"
# What the probe reads. Among other formats is EPS, for which Pillow would start Ghostscript.
_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF", "HEIF")
_PIXEL_LIMIT, _THINNEST = 89_000_000, 1000  # the probe's
# What Pillow raises on a file that is no whole image.
_BROKEN = (
    PIL.Image.DecompressionBombError, OSError, SyntaxError, ValueError, RuntimeError, EOFError, LookupError, TypeError,
    AssertionError, OverflowError, struct.error, zlib.error,
)  # fmt: skip
# EXIF orientation -> what undoes it.
_BACK = {
    2: Transpose.FLIP_LEFT_RIGHT, 3: Transpose.ROTATE_180, 4: Transpose.FLIP_TOP_BOTTOM, 5: Transpose.TRANSPOSE,
    6: Transpose.ROTATE_90, 7: Transpose.TRANSVERSE, 8: Transpose.ROTATE_270,
}  # fmt: skip


def main(folder: Path, files: Sequence[str]) -> None:
    """Print a JSON list of the features of each file."""
    if not files:
        sys.exit("usage: python example.py FILE ...")
    if importlib.util.find_spec("pillow_heif"):
        importlib.import_module("pillow_heif").register_heif_opener()
    export = json.loads((folder / "export.json").read_text(encoding="utf-8"))
    encode = encoder(folder, export)
    for file in files:
        try:
            inputs = np.load(file) if export["input"] is None else read_image(Path(file), export["input"])[None]
        except (OSError, ValueError) as error:
            sys.exit(f"{file}: {error}")
        for features in encode(inputs):
            print(json.dumps(features.tolist()))


def encoder(folder: Path, export: Mapping[str, Any]) -> Callable[[Array], Array]:
    """The function of an export: uint8 (B, H, W, C), or features (B, D) of map.npz alone, -> (B, D').

    It raises ValueError for a feature beyond the range of float16 where that is the type of the features.
    """
    file = encoder_file(export)
    if file == MAP:
        encode = load_map(folder / MAP, export["map"]["steps"])
    else:
        encode = load_graph(folder / GRAPH) if file == GRAPH else load_onnx(folder / ONNX)
    return lambda inputs: _within_range(encode(inputs))


def _within_range(features: Array) -> Array:
    if features.dtype == np.float16 and np.isinf(features).any():
        raise ValueError("a feature is beyond the range of float16, which ends at 65,504")
    return features


def searchable(features: Array, similarity: str) -> Array:
    """Features as index.faiss takes them: float32, of length 1 for the cosine; bits as they are."""
    if features.dtype in (np.float32, np.uint8):
        return features
    values = features.astype(np.float64)
    return (_normalise(values) if similarity == "cosine" else values).astype(np.float32)


def encoder_file(export: Mapping[str, Any]) -> str:
    """The file of an export that is computed with."""
    if GRAPH in export["files"] and (ONNX not in export["files"] or importlib.util.find_spec("torch")):
        return GRAPH
    return ONNX if ONNX in export["files"] else MAP


def load_map(path: Path, steps: Sequence[str]) -> Callable[[Array], Array]:
    """The function of map.npz."""
    with path.open("rb") as stream, np.load(stream, allow_pickle=False) as stored:  # numpy leaves a damaged file open
        arrays = dict(stored)
    return lambda features: mapped(features, steps, arrays)


def mapped(features: Array, steps: Sequence[str], arrays: Mapping[str, Array]) -> Array:
    """The fitted map: (B, D) features -> (B, D') float32, float16 or int8, or uint8 of packed bits.

    Args:
        steps: what is computed, in this order, in float64.
        arrays: of map.npz: those of the step i are named `NAME.i`.
    """
    values = np.asarray(features, np.float64)
    for i, step in enumerate(steps):
        if step == "l2":
            values = _normalise(values)
        elif step == "l2 of parts":  # concatenated layers: the numbers of each have length 1
            ends = np.cumsum(arrays[f"sizes.{i}"])[:-1]
            values = np.concatenate([_normalise(block) for block in np.split(values, ends, axis=1)], axis=1)
        elif step == "projection":
            values = (values - arrays[f"mean.{i}"]) @ arrays[f"matrix.{i}"]
        elif step == "layernorm":
            values = values - values.mean(1, keepdims=True)
            values = values / np.sqrt(values.var(1, keepdims=True) + 1e-5)
        elif step == "relu":
            values = np.maximum(values, 0)
        elif step == "first":
            values = values[:, : int(arrays[f"dim.{i}"])]
        elif step == "binary":
            return np.packbits(values > 0, axis=1)
        elif step == "float16":
            with np.errstate(over="ignore"):
                return values.astype(np.float16)
        elif step == "int8":
            largest = np.abs(values).max(1, keepdims=True)
            return np.rint(values / np.where(largest == 0, 1, largest) * 127).astype(np.int8)
        else:
            raise ValueError(f"unknown step {step!r}")
    return values.astype(np.float32)


def _normalise(values: Array) -> Array:
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.where(lengths == 0, 1, lengths)


def load_graph(path: Path) -> Callable[[Array], Array]:
    """The function of model.pt2."""
    import torch

    # torch takes no path that is not UTF-8, and torch 2.11 warns of its own buffers.
    with path.open("rb") as stream, warnings.catch_warnings(action="ignore"):
        graph = torch.export.load(stream).module()

    def encode(images: Array) -> Array:
        with torch.no_grad():
            features: Array = graph(torch.from_numpy(np.array(images))).numpy()  # a copy, as torch wants to write
        return features

    return encode


def load_onnx(path: Path) -> Callable[[Array], Array]:
    """The function of model.onnx, on the CPU."""
    import onnxruntime

    is_text = str(path).encode(errors="replace").decode() == str(path)
    model = str(path) if is_text else path.read_bytes()  # nor does ONNX Runtime
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    (session_input,) = session.get_inputs()

    def encode(images: Array) -> Array:
        (features,) = session.run(None, {session_input.name: np.ascontiguousarray(images)})
        return np.asarray(features)

    return encode


def read_image(file: Path | BinaryIO, how: Mapping[str, Any]) -> Array:
    """An image as the exported encoder takes it, uint8 (H, W, C).

    Args:
        file: its path, or a stream of its bytes.
        how: `input` of export.json.

    Raises:
        ValueError: it cannot be read, has more than 89 million pixels, or is thinner than 1 to 1,000.
    """
    PIL.Image.init()
    try:
        with PIL.Image.open(file, formats=[name for name in _FORMATS if name in PIL.Image.OPEN]) as image:
            if image.width * image.height > _PIXEL_LIMIT or max(image.size) > _THINNEST * min(image.size):
                raise ValueError(f"{image.width}x{image.height} pixels: above 89 million, or thinner than 1 to 1,000")
            pixels = _rgb(_rotate(image, how["exif_rotation"]), how.get("white", 65535))
    except PIL.UnidentifiedImageError as error:
        raise ValueError("not an image that can be read") from error
    except _BROKEN as error:
        raise ValueError(f"the image cannot be read: {str(error) or type(error).__name__}") from error
    for step in how["steps"]:
        height, width = pixels.shape[:2]
        if "shorter_side" in step:
            to_whole = round if step["longer_side"] == "rounded" else int
            sides = [to_whole(step["shorter_side"] * side / min(height, width)) for side in (height, width)]
            pixels = _resize(pixels, sides, how)
        elif "cover" in step:
            ratio = min(side / covered for side, covered in zip((height, width), step["cover"], strict=True))
            pixels = _resize(pixels, [round(height / ratio), round(width / ratio)], how)
        elif "resize" in step:
            pixels = _resize(pixels, step["resize"], how)
        else:
            rows, columns = step["crop"]
            is_down = step["start"] == "down"  # else half to even, as Python rounds
            row, column = (excess // 2 if is_down else round(excess / 2) for excess in (height - rows, width - columns))
            pixels = pixels[row : row + rows, column : column + columns]
    return pixels if how["channels"] == 3 else np.asarray(PIL.Image.fromarray(pixels).convert("L"))[:, :, None]


def _rotate(image: PIL.Image.Image, exif_rotation: bool) -> PIL.Image.Image:
    """The image in its EXIF orientation, or as stored; PIL itself turns TIFFs when it loads them."""
    if image.format != "TIFF":
        return PIL.ImageOps.exif_transpose(image) if exif_rotation else image
    orientation = image.getexif().get(0x0112, 1)
    image.load()
    return image if exif_rotation or orientation not in _BACK else image.transpose(_BACK[orientation])


def _rgb(image: PIL.Image.Image, white: int) -> Array:
    """8-bit RGB: of 16-bit grey, `white` becomes 255; transparent pixels are laid on white."""
    is_scaled = image.mode == "I" and image.format == "PPM"  # by PIL, to 65535
    if image.mode.startswith("I;16") or is_scaled:
        level = 65535 if is_scaled else white
        grey = (510 * np.minimum(np.asarray(image).astype(np.uint32), level) + level) // (2 * level)
        return np.repeat(grey.astype(np.uint8)[:, :, None], 3, axis=2)
    if image.mode in ("I", "F"):
        raise ValueError("32-bit pixels have no agreed range")
    if image.has_transparency_data:
        below = PIL.Image.new("RGBA", image.size, "white")
        image = PIL.Image.alpha_composite(below, image.convert("RGBA"))
    return np.asarray(image.convert("RGB"))


def _resize(pixels: Array, size: Sequence[int], how: Mapping[str, Any]) -> Array:
    """Resized by the library that the probe used: Pillow, or torch, whose results differ by a grey level."""
    height, width = size
    if pixels.shape[:2] == (height, width):
        return pixels
    if how["resized_by"] == "torch" and importlib.util.find_spec("torch"):
        return _resize_by_torch(pixels, height, width)
    filter_ = Resampling[how["filter"].upper()]
    return np.asarray(PIL.Image.fromarray(pixels).resize((width, height), filter_))


def _resize_by_torch(pixels: Array, height: int, width: int) -> Array:
    import torch

    images = torch.from_numpy(np.array(pixels))[None].permute(0, 3, 1, 2)
    resized_batch = torch.nn.functional.interpolate(
        images, (height, width), mode="bilinear", align_corners=False, antialias=True
    )
    resized: Array = resized_batch[0].permute(1, 2, 0).contiguous().numpy()
    return resized


if __name__ == "__main__":
    main(Path(__file__).resolve().parent, sys.argv[1:])
