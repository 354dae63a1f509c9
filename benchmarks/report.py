"""Time and size of `layerprobe report`: 14 layers at 31 epochs on 2 splits, with a gallery of 1,360 test images.

A network of 13 small blocks, as wide as VGG-16's layers, gets 31 files of random weights. They are probed as the epochs
of one run on 136 classes of 20 glyphs, the blocks and the output. Then the report is made in a process of its own, on
two threads. The goals are 20 seconds on 2 cores, the start of Python included, and 10 MB, without images at most 5 MB.

    python benchmarks/report.py [--folder DIR] [--keep]

The run takes ten minutes to make and 1.2 GB. With --keep it stays in the folder, and the next call measures again.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning waiters would count as CPU time

import torch
from torch import nn

WIDTHS = (64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512)
EPOCHS = 31
SECONDS, BYTES, BYTES_OF_NUMBERS = 20, 10_000_000, 5_000_000
RUN = "thirty"
DATA = (
    "data.train_classes=68", "data.test_classes=68", "data.images_per_class=20", "data.image_size=32",
    "data.transform=square",
)  # fmt: skip


def network() -> nn.Module:
    """The blocks, each a convolution of what a first one leaves of the image at 8 pixels."""
    widths = zip((WIDTHS[0], *WIDTHS[:-1]), WIDTHS, strict=True)
    blocks = nn.Sequential(*(nn.Sequential(nn.Conv2d(before, after, 1), nn.ReLU()) for before, after in widths))
    return nn.Sequential(nn.Conv2d(3, WIDTHS[0], 4, 4), blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description="Time and size of a report.")
    parser.add_argument("--folder", type=Path, help="where the run is made (default: a temporary folder)")
    parser.add_argument("--keep", action="store_true", help="keep the run there")
    arguments = parser.parse_args()
    if arguments.keep and arguments.folder:
        measure(arguments.folder)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        measure(Path(folder))


def measure(folder: Path) -> None:
    """Make the run where it is not there, then its report; print what that takes."""
    if not (folder / "cache" / RUN / "scores.csv").exists():
        make(folder)
    page = folder / "report.html"
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    layerprobe(folder, "report", RUN, "--out", str(page), threads=2)
    wall, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    size = page.stat().st_size
    images = sum(map(len, re.findall(r'data:image/[^"]+|"(?:found|right)":"[^"]+"', page.read_text(encoding="utf-8"))))
    print(f"{wall:.1f} s, {cpu:.1f} CPU seconds (goal: {SECONDS} s on 2 cores)")
    print(f"{size / 1e6:.2f} MB (goal: {BYTES / 1e6:g}), of which images and neighbours {images / 1e6:.2f} MB")
    if size > BYTES or size - images > BYTES_OF_NUMBERS:
        sys.exit("the page is too large")


def make(folder: Path) -> None:
    """Probe the files of weights as the epochs of a run."""
    weights = folder / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    for epoch in range(EPOCHS):
        torch.manual_seed(epoch)
        torch.save(network().state_dict(), weights / f"{epoch:02d}.pt")
    model = f"python:{Path(__file__).resolve()}:network"
    settings = [word for setting in DATA for word in ("--set", setting)]
    layerprobe(
        folder, "probe", "--model", model, "--weights", str(weights / "*.pt"), "--data", "glyphs", *settings,
        "--run", RUN, "--layers", "1.*,output", "--device", "cpu", threads=os.cpu_count() or 1,
    )  # fmt: skip


def layerprobe(folder: Path, *words: str, threads: int) -> None:
    """Run a command on the cache in a folder."""
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "layerprobe", *words, "--cache", str(folder / "cache"), "--quiet"]
    subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
