"""From 60 thousand to 2 million gallery images: CPU time and peak memory of `gallery_on_disk.py`, as a figure.

    python benchmarks/gallery_growth.py docs/img/growth.png [--sizes 60000,200000,600000,2000000] [--csv FILE]

10,000 queries, 256 numbers a vector, one thread, each size and measure in a process of its own.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

MEASURES = {
    "recall": "R@K alone",
    "precision": "R@K, MAP@R, R-precision, mAP",
    "threshold": "thresholds and equal error rate",
}
_LINE = re.compile(r"^(\w+): ([\d.]+) s CPU, .* peak (\d+) MB", re.MULTILINE)


def measure(items: int, name: str) -> tuple[float, float]:
    """CPU seconds and peak memory in MB of one measure."""
    script = Path(__file__).with_name("gallery_on_disk.py")
    command = [sys.executable, str(script), "--items", str(items), "--only", name]
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(text, end="", flush=True)
    _, seconds, megabytes = next(match for match in _LINE.findall(text) if match[0] == name)
    return float(seconds), float(megabytes)


def draw(path: Path, sizes: Sequence[int], rows: dict[str, list[tuple[float, float]]]) -> None:
    """Two panels, logarithmic in the number of images: CPU seconds, and MB."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, column, label in zip(figure.subplots(1, 2), (0, 1), ("CPU seconds", "peak memory, MB"), strict=True):
        for name, text in MEASURES.items():
            axes.plot(sizes, [row[column] for row in rows[name]], marker="o", label=text)
        axes.set(xscale="log", xlabel="gallery images", ylabel=label, yscale="log" if column == 0 else "linear")
        axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
        axes.minorticks_off()
    axes.plot(sizes, [4 * 256 * size / 1e6 for size in sizes], "--", color="gray", label="the gallery itself")
    figure.legend(*axes.get_legend_handles_labels(), fontsize=8, loc="outside upper center", ncols=4)
    axes.set_ylim(bottom=0)
    figure.savefig(path, dpi=120)


def main() -> None:
    """Measure all sizes, print a table and draw it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("figure", type=Path)
    parser.add_argument("--sizes", default="60000,200000,600000,2000000")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    sizes = [int(size) for size in options.sizes.split(",")]
    rows = {name: [measure(size, name) for size in sizes] for name in MEASURES}
    for name in MEASURES:
        for size, (seconds, megabytes) in zip(sizes, rows[name], strict=True):
            print(f"{size:>9,} {name:10} {seconds:8.1f} s {megabytes:6.0f} MB")
    if options.csv:
        with options.csv.open("w", newline="") as stream:
            csv.writer(stream).writerows(
                [size, name, *values] for name in MEASURES for size, values in zip(sizes, rows[name], strict=True)
            )
    draw(options.figure, sizes, rows)


if __name__ == "__main__":
    main()
