"""load_encoder: a folder that `layerprobe export` wrote -> a function from images to features."""

from __future__ import annotations

import pickle
import struct
import sys
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.encoder import example
from layerprobe.encoder.manifest import AGAIN, EXPORT, read_manifest
from layerprobe.system.computing import require_default_device
from layerprobe.system.errors import DataError, EnvironmentFault
from layerprobe.system.requirements import install_line

# What numpy, torch and their pickles raise on a file of another content; OSError includes those of a disk.
_OTHER_CONTENT: tuple[type[Exception], ...] = (
    AssertionError, AttributeError, EOFError, LookupError, OSError, RuntimeError, TypeError, ValueError,
    pickle.UnpicklingError, struct.error, zipfile.BadZipFile, zlib.error,
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class LoadedEncoder:
    """A layer of a network with its post-processing, as a function.

    Args:
        export: the content of export.json: layer, dimensions, similarity, how images are read ...
    """

    export: Mapping[str, Any]
    encode: Callable[[NDArray[Any]], NDArray[Any]]

    def __call__(self, images: ArrayLike) -> NDArray[Any]:
        """The features of images.

        Args:
            images: uint8 (B, H, W, C), in the size that `export["input"]` says. Of map.npz alone: the layer's features
                (B, D).

        Returns:
            float32 (B, D), of length 1 where the similarity is the cosine; float16 or int8 where the post-processing
            ends in that, of any length; of `binary` bits, packed in uint8 as by numpy.packbits.

        Raises:
            ValueError: another type or shape, or no image; or a feature is beyond the range of float16.
        """
        array = np.asarray(images)
        shape = _input_shape(self.export)
        is_right = array.dtype.kind in "biuf" if len(shape) == 1 else array.dtype == np.uint8
        if not is_right or array.shape[1:] != shape or 0 in array.shape:
            kind = "features" if len(shape) == 1 else "images uint8"
            expected = f"{kind} (B, {', '.join(map(str, shape))}), B at least 1"
            raise ValueError(f"expected {expected}, got {array.dtype} {array.shape}")
        return self.encode(array)

    def __repr__(self) -> str:
        return f"LoadedEncoder({self.export['name']!r}, {self.export['dim']} dimensions)"


def load_encoder(folder: str | Path) -> LoadedEncoder:
    """Load what `layerprobe export` wrote: model.pt2, else model.onnx, else the map of features alone.

    Load only exports that you trust: torch.export.load reads pickles, so that a forged model.pt2 can run code. The
    hashes of export.json find damage, not forgery.

    >>> import subprocess, sys, numpy as np, layerprobe
    >>> labels = np.repeat(np.arange(12), 5)
    >>> deep = np.random.default_rng(0).normal(size=(12, 6))[labels]
    >>> deep = deep + 0.01 * np.arange(360).reshape(60, 6)
    >>> np.savez("features.npz", labels=labels, deep=deep)
    >>> command = "-m layerprobe choose features.npz --export encoder --quiet"
    >>> words = [sys.executable, *command.split()]
    >>> done = subprocess.run(words, stdout=subprocess.DEVNULL, check=True)
    >>> encoder = layerprobe.load_encoder("encoder")
    >>> encoder.export["name"], encoder(deep).shape
    ('features.npz:deep', (60, 6))

    Args:
        folder: with export.json.

    Raises:
        DataError: it is no export, any of its files is missing or has changed, or its encoder is not the one that
            export.json describes.
        EnvironmentFault: there is only model.onnx, and ONNX Runtime is not installed.
    """
    path = Path(folder)
    export = read_manifest(path)
    require_default_device()
    file = path / example.encoder_file(export)
    try:
        encode = example.encoder(path, export)
        features = encode(np.zeros((1, *_input_shape(export)), np.uint8))
    except ModuleNotFoundError as error:
        fix = install_line("export")
        raise EnvironmentFault(f"{error.name} is not installed", file=file, fix=fix) from error
    except (*_OTHER_CONTENT, *_errors_of_onnx_runtime()) as error:
        problem = f"not the encoder that {EXPORT} describes ({type(error).__name__})"
        raise DataError(problem, file=file, fix=AGAIN) from error
    expected = -(-export["dim"] // 8) if features.dtype == np.uint8 else export["dim"]
    if features.shape != (1, expected):
        problem = f"gives features {features.shape} of one image, dim of {EXPORT} is {export['dim']:,}"
        raise DataError(problem, file=file, fix=AGAIN)
    return LoadedEncoder(export, encode)


def _input_shape(export: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape that an encoder takes, without the batch: (H, W, C) of images, (D,) of features."""
    how = export["input"]
    return (export["map"]["dim"],) if how is None else (*how["size"], how["channels"])


def _errors_of_onnx_runtime() -> tuple[type[Exception], ...]:
    """All exceptions of ONNX Runtime, which share no base class; none where it was not imported."""
    state = sys.modules.get("onnxruntime.capi.onnxruntime_pybind11_state")
    values = vars(state).values() if state else ()
    return tuple(value for value in values if isinstance(value, type) and issubclass(value, Exception))
