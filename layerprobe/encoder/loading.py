"""load_encoder: a folder that `layerprobe export` wrote -> a function from images to features."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from layerprobe.encoder import example
from layerprobe.encoder.manifest import read_manifest
from layerprobe.system.errors import EnvironmentFault


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
            float32 (B, D), of length 1 where the similarity is the cosine; of `binary` bits, packed in uint8 as by
            numpy.packbits.

        Raises:
            ValueError: another type or shape.
        """
        given = np.asarray(images)
        how = self.export["input"]
        if how is None:
            if given.ndim != 2 or given.shape[1] != self.export["map"]["dim"]:
                raise ValueError(f"expected features (B, {self.export['map']['dim']}), got {given.shape}")
        elif given.dtype != np.uint8 or given.shape[1:] != (*how["size"], how["channels"]):
            expected = f"uint8 (B, {', '.join(map(str, (*how['size'], how['channels'])))})"
            raise ValueError(f"expected images {expected}, got {given.dtype} {given.shape}")
        return self.encode(given)

    def __repr__(self) -> str:
        return f"LoadedEncoder({self.export['name']!r}, {self.export['dim']} dimensions)"


def load_encoder(folder: str | Path) -> LoadedEncoder:
    """Load what `layerprobe export` wrote: model.pt2, else model.onnx, else the map of features alone.

    Load only exports that you trust: torch.export.load reads pickles, so that a forged model.pt2 can run code. The
    hashes of export.json find damage, not forgery.

    >>> import subprocess, sys, numpy as np, layerprobe
    >>> labels = np.repeat(np.arange(12), 5)
    >>> deep = np.random.default_rng(0).normal(size=(12, 6))[labels] + 0.01 * np.arange(360).reshape(60, 6)
    >>> np.savez("features.npz", labels=labels, deep=deep)
    >>> command = "-m layerprobe choose features.npz --export encoder --quiet"
    >>> done = subprocess.run([sys.executable, *command.split()], stdout=subprocess.DEVNULL, check=True)
    >>> encoder = layerprobe.load_encoder("encoder")
    >>> encoder.export["name"], encoder(deep).shape
    ('features.npz:deep', (60, 6))

    Args:
        folder: with export.json.

    Raises:
        DataError: it is no export, or any of its files is missing or has changed.
        EnvironmentFault: there is only model.onnx, and ONNX Runtime is not installed.
    """
    path = Path(folder)
    export = read_manifest(path)
    try:
        return LoadedEncoder(export, example.encoder(path, export))
    except ModuleNotFoundError as error:
        fix = "pip install 'layerprobe[export]'"
        raise EnvironmentFault(f"{error.name} is not installed", file=path / example.ONNX, fix=fix) from error
