"""CPU seconds and memory of a probe that has nothing to do, by the number of images: what listing and looking up costs.

Tiny images are written to a folder, ten of each class, and probed once with a linear network; the same command is then
timed. The goal at a million images is 5 CPU seconds and 500 MB.

    python benchmarks/many_images.py FOLDER --images 100000
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
from pathlib import Path

PER_CLASS = 10
MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8))
"""


def write_images(folder: Path, count: int) -> None:
    """Different images of 4 x 4 pixels."""
    for number in range(count):
        file = folder / f"class{number // PER_CLASS:07}" / f"{number % PER_CLASS}.ppm"
        if number % PER_CLASS == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"P6\n4 4\n255\n" + number.to_bytes(8, "little") * 6)


def probe(folder: Path) -> tuple[float, float]:
    """CPU seconds of a probe, and the most MB that any probe so far has taken."""
    words = ["--model", "python:net.py:net", "--data", "folder:images", "--run", "many", "--layers", "output"]
    settings = ("data.image_size=4", "data.transform=square", "data.train_classes=2", "data.queries=1000")
    words += ["--splits", "test", "--workers", "0", *(word for setting in settings for word in ("--set", setting))]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "layerprobe", "probe", *words], cwd=folder, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, after.ru_maxrss / 1024


def main() -> None:
    """Print the first probe and the one with nothing to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--images", type=int, default=100_000)
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder: Path = arguments.folder
    if not (folder / "net.py").exists():
        write_images(folder / "images", arguments.images)
        (folder / "net.py").write_text(MODEL)
        print(f"{arguments.images:,} images, the first probe: {probe(folder)[0]:.1f} CPU s")
    # In another process, whose children are these probes alone.
    else:
        seconds, most = min(probe(folder) for _ in range(3))
        print(f"{arguments.images:,} images, a probe with nothing to do: {seconds:.1f} CPU s, {most:.0f} MB")
        return
    subprocess.run([sys.executable, *sys.argv], check=True)


if __name__ == "__main__":
    main()
