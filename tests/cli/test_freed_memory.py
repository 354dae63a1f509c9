"""Keeping freed memory changes no feature: the command line with it and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from tests.freed_memory import untuned

# Each map of 64 images has 64 * 64 * 48 * 48 * 4 bytes = 38 MB, above the 32 MiB that glibc maps afresh.
MODEL = """
import torch
from torch import nn
def build():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )
"""
LEFT_ALONE = {"GLIBC_TUNABLES": "glibc.malloc.arena_test=8"}  # the default


def features(folder: Path, name: str, environment: dict[str, str]) -> dict[str, bytes]:
    """Name of each stored array -> its bytes, after a probe in a process of its own."""
    words = "probe --model python:model.py:build --data folder:images --set data.image_size=48 --device cpu"
    command = [
        sys.executable,
        "-m",
        "layerprobe",
        *words.split(),
        "--set",
        "data.transform=square",
        "--workers",
        "0",
        "--run",
        name,
    ]
    path = os.pathsep.join([str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    subprocess.run(
        command, capture_output=True, check=True, cwd=folder, env=untuned() | {"PYTHONPATH": path} | environment
    )
    found: dict[str, bytes] = {}
    for file in sorted((folder / "cache" / name).rglob("*.h5")):
        with h5py.File(file) as stored:
            stored.visititems(
                lambda key, item, file=file: (
                    found.update({f"{file.name} {key}": item[()].tobytes()}) if isinstance(item, h5py.Dataset) else None
                )
            )
    return found


def test_features_and_ranks_are_the_same_bits(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for label in range(16):
        (tmp_path / "images" / f"c{label:02}").mkdir(parents=True)
        for i in range(8):  # 64 in each split
            pixels = rng.integers(0, 256, (48, 48, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "images" / f"c{label:02}" / f"{i}.png")
    (tmp_path / "model.py").write_text(MODEL)
    kept = features(tmp_path, "kept", {})
    assert len(kept) > 10
    assert features(tmp_path, "returned", LEFT_ALONE) == kept
