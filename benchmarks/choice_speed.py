"""Seconds from an .npz of features to a decision: 5,924 images of 100 classes, 12 layers of 512 dimensions.

    python benchmarks/choice_speed.py                          # as many threads as torch takes
    OMP_NUM_THREADS=1 python benchmarks/choice_speed.py --images 2000 --layers 6

The features are drawn: a class and an image vector, mixed anew for each layer, with an uneven spectrum and zeros as
after a ReLU. The time is that of the whole command, imports included; CPU seconds are told beside it, as other programs
that use the cores make it longer.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def drawn(images: int, layers: int, dim: int, classes: int = 100) -> dict[str, NDArray[Any]]:
    """Labels, and features of layers of which the middle ones tell classes apart best."""
    rng = np.random.default_rng(0)
    labels = np.arange(images) % classes
    of_class, of_image = rng.normal(size=(classes, 64))[labels], rng.normal(size=(images, 64))
    spectrum = np.exp(-np.arange(dim) / 60)
    found: dict[str, NDArray[Any]] = {"labels": labels}
    for layer, place in enumerate(np.linspace(0, 0.8, layers)):
        share = 0.3 + 0.5 * np.sin(np.pi * place)
        mixed = np.concatenate([of_class * share, of_image], 1) @ (rng.normal(size=(128, dim)) * spectrum)
        found[f"blocks.{layer}"] = np.maximum(mixed + 0.5 * rng.normal(size=mixed.shape), 0).astype(np.float32)
    return found


def main() -> None:
    """Write the file, run the command on it, and print the seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, value in (("images", 5924), ("layers", 12), ("dim", 512)):
        parser.add_argument(f"--{name}", type=int, default=value)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npz"
        np.savez(path, **drawn(asked.images, asked.layers, asked.dim))  # type: ignore[arg-type] # numpy's stub
        start = time.perf_counter()
        subprocess.run([sys.executable, "-m", "layerprobe", "choose", str(path)], check=True)
        wall = time.perf_counter() - start
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{wall:.1f} s, {used.ru_utime + used.ru_stime:.1f} s of CPU, {used.ru_maxrss / 2**20:.2f} GB of memory")


if __name__ == "__main__":
    main()
