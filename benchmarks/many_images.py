"""CPU seconds and memory of a probe that has nothing to do, by the number of images: what listing and looking up costs.

Tiny images, ten of each class, are written to folders or to tar shards, and probed once with a linear network; the same
command is then timed. The goal at a million images is 5 CPU seconds and 500 MB.

    python benchmarks/many_images.py FOLDER --images 100000
    python benchmarks/many_images.py FOLDER --images 100000 --shards
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import resource
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

PER_CLASS = 10
PER_SHARD = 10_000
MODEL = """
import torch
from torch import nn

def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(48, 8))
"""


def images(count: int) -> Iterator[tuple[str, bytes]]:
    """Class and content of different images of 4 x 4 pixels."""
    for number in range(count):
        yield f"class{number // PER_CLASS:07}", b"P6\n4 4\n255\n" + number.to_bytes(8, "little") * 6


def write_files(folder: Path, count: int) -> None:
    """A folder for each class."""
    for number, (name, content) in enumerate(images(count)):
        file = folder / name / f"{number % PER_CLASS}.ppm"
        if number % PER_CLASS == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def write_shards(folder: Path, count: int) -> None:
    """Tar files as of WebDataset."""
    folder.mkdir()
    rows = enumerate(images(count))
    for shard in range(-(-count // PER_SHARD)):
        with tarfile.open(folder / f"{shard:04}.tar", "w", format=tarfile.USTAR_FORMAT) as tar:
            for number, (name, content) in itertools.islice(rows, PER_SHARD):
                for ending, member_content in (("ppm", content), ("cls", name.encode())):
                    member = tarfile.TarInfo(f"{number:09}.{ending}")
                    member.size = len(member_content)
                    tar.addfile(member, io.BytesIO(member_content))


def probe(folder: Path, data: str) -> tuple[float, float]:
    """CPU seconds of a probe, and the most MB that any probe so far has taken."""
    words = ["--model", "python:net.py:net", "--data", data, "--run", "many", "--layers", "output"]
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
    parser.add_argument("--shards", action="store_true")
    arguments = parser.parse_args()
    data, write = ("wds:images", write_shards) if arguments.shards else ("folder:images", write_files)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    folder: Path = arguments.folder
    if not (folder / "net.py").exists():
        folder.mkdir(parents=True, exist_ok=True)
        write(folder / "images", arguments.images)
        (folder / "net.py").write_text(MODEL)
        print(f"{arguments.images:,} images, the first probe: {probe(folder, data)[0]:.1f} CPU s")
    # In another process, whose children are these probes alone.
    else:
        seconds, most = min(probe(folder, data) for _ in range(3))
        print(f"{arguments.images:,} images, a probe with nothing to do: {seconds:.1f} CPU s, {most:.0f} MB")
        return
    subprocess.run([sys.executable, *sys.argv], check=True)


if __name__ == "__main__":
    main()
