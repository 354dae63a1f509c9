"""The whole path as users walk it, in CPU seconds and peak memory, and its probe against a bare script.

Each command is a fresh process: `probe` of a frozen EfficientNet-Lite0, all layers; `summary`, `choose`, `report`; and
the `probe` again, which has nothing to do, by the run's name (`repeat`) and by the same words (`again`). `bare` is
`path_bare.py`: the same images, network, layers and recalls. All use one thread and no data workers, and the
environment sets nothing about memory. CPU seconds are user and system time, medians over the repeats, each in a folder
of its own. Linux only.

    python -m benchmarks.path --images emoji1 --weights lite0.pth --repeats 3
    python -m benchmarks.path --images emoji1 --weights lite0.pth --times 0.25 1 2 --every 1 3

Weights and images are those that `emoji.py build` makes; other images in a folder for each class do, too, and several
such folders are taken together. --times takes every fourth class (0.25), or further classes, which are the given ones
turned by 90, 180 and 270 degrees (2 to 4). --every 3 probes every third layer. PYTHONPATH says which tree of layerprobe
is measured, so that two can be compared; the scripts are those of the present folder.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import PIL.Image
from PIL.Image import Transpose

from benchmarks.recall import machine

TURNS = (None, Transpose.ROTATE_90, Transpose.ROTATE_180, Transpose.ROTATE_270)
BLOCKS = (1, 2, 2, 3, 3, 4, 1)  # of each stage
LAYERS = [f"blocks.{stage}.{block}" for stage, count in enumerate(BLOCKS) for block in range(count)] + ["output"]
GOALS = {1.0: 0.90, 2.0: 0.85}  # probe / bare at most, on emoji1 and on twice as many images
RUN = "path"


class Cost(NamedTuple):
    """What a command took: CPU seconds of it and its children, and the largest resident memory in MB."""

    seconds: float
    mb: float


def cost_of(command: Sequence[str], folder: Path) -> Cost:
    """Run a Python command in a fresh process to its end."""
    settings = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}  # spinning waiters would count as CPU time
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("GLIBC_", "MALLOC_"))}
    with (folder / "log").open("a+b") as log:
        started = subprocess.Popen(
            [sys.executable, *command], cwd=folder, env=environment | settings, stdout=log, stderr=log
        )
        _, status, used = os.wait4(started.pid, 0)
        started.returncode = os.waitstatus_to_exitcode(status)
        if started.returncode:
            log.seek(0)
            raise SystemExit(f"{' '.join(command)}:\n{log.read().decode()}")
    return Cost(used.ru_utime + used.ru_stime, used.ru_maxrss / 1000)


def steps(images: Path, weights: Path, layers: Sequence[str]) -> dict[str, list[str]]:
    """The commands, by what the table calls them, in order."""
    given = ["--model", "timm:tf_efficientnet_lite0", "--weights", str(weights), "--data", f"folder:{images}"]
    given += ["--not-trained-on-these", "--set", "data.image_size=96", "--workers", "0", "--device", "cpu"]
    asked = ["--pool", "max", "--layers", ",".join(layers)]
    chosen = [] if len(layers) == len(LAYERS) else layers
    ours = {
        "probe": ["probe", *given, *asked, "--run", RUN],
        "summary": ["summary", RUN],
        "choose": ["choose", RUN, "--device", "cpu"],
        "report": ["report", RUN],
        "repeat": ["probe", RUN, *asked],
        "again": ["probe", *given, *asked, "--run", RUN],
    }
    bare = Path(__file__).with_name("path_bare.py")
    return {
        "bare": [str(bare), str(images), str(weights), "bare.h5", "bare.json", *chosen],
        **{name: ["-m", "layerprobe", *words] for name, words in ours.items()},
    }


def folder_of(given: Sequence[Path], times: float, folder: Path) -> int:
    """Make a folder of all images, so many times as many classes, each in a folder of its own; their number."""
    classes = sorted(path for images in given for path in images.resolve().iterdir() if path.is_dir())
    if times < 1:
        classes = classes[:: round(1 / times)]
    count = 0
    for turn in TURNS[: max(1, round(times))]:
        for path in classes:
            # Class names begin with a hash, so that both halves of the sorted classes have all turns.
            turned = folder / (path.name if turn is None else f"{path.name}-{turn.name.lower()}")
            turned.mkdir(parents=True)
            for image in sorted(path.iterdir()):
                if turn is None:
                    (turned / image.name).symlink_to(image)
                else:
                    with PIL.Image.open(image) as opened:
                        opened.transpose(turn).save(turned / image.name, quality=90)
                count += 1
    return count


def differences(folder: Path, layers: Sequence[str]) -> float:
    """The largest difference of any Recall@1 of the probe from the bare script's."""
    bare = json.loads((folder / "bare.json").read_text())
    found: list[float] = []
    with (folder / "cache" / RUN / "scores.csv").open() as stream:
        for row in csv.DictReader(stream):
            if row["metric"] == "R@1" and row["layer"] in layers:
                found.append(abs(float(row["value"]) - bare[row["split"]][row["layer"]][0]))
    if len(found) != 2 * len(layers):
        raise SystemExit(f"{len(found)} scores of {len(layers)} layers and 2 splits")
    return max(found)


def compare(arguments: argparse.Namespace, times: float, every: int) -> None:
    """Print the table of one number of images and of layers."""
    layers = LAYERS[::-1][::every][::-1]
    costs: dict[str, list[Cost]] = {}
    with tempfile.TemporaryDirectory() as root:
        images = Path(root) / "images"
        count = folder_of(arguments.images, times, images)
        for repeat in range(arguments.repeats):
            folder = Path(root) / str(repeat)
            folder.mkdir()
            for name, command in steps(images, arguments.weights.resolve(), layers).items():
                costs.setdefault(name, []).append(cost_of(command, folder))
                print(f"  {name} {costs[name][-1].seconds:.1f} s", file=sys.stderr)
        apart = differences(folder, layers)
    print(f"{count:,} images, {len(layers)} layers; R@1 at most {apart:.1e} from the bare script's")
    print(f"  {'':<8}{'CPU s':>8}{'/ bare':>8}{'MB':>7}")
    bare = statistics.median(cost.seconds for cost in costs["bare"])
    for name, some in costs.items():
        seconds, mb = (statistics.median(values) for values in zip(*some, strict=True))
        goal = f"  goal {GOALS[times]}" if name == "probe" and times in GOALS and every == 1 else ""
        print(f"  {name:<8}{seconds:8.1f}{seconds / bare:8.2f}{mb:7.0f}{goal}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, nargs="+", required=True, metavar="FOLDER")
    parser.add_argument("--weights", type=Path, required=True, metavar="FILE")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--times", type=float, nargs="+", default=[1.0], choices=(0.25, 0.5, 1.0, 2.0, 3.0, 4.0))
    parser.add_argument("--every", type=int, nargs="+", default=[1])
    arguments = parser.parse_args()
    here = machine()
    print(f"{here['cpu']}, {', '.join(flag if has else f'no {flag}' for flag, has in here['flags'].items())}")
    print(", ".join(f"{package} {version}" for package, version in here["versions"].items()))
    where = "import layerprobe; print(layerprobe.__path__[0])"
    measured = subprocess.run([sys.executable, "-c", where], cwd="/", capture_output=True, text=True, check=True)
    print(f"{measured.stdout.strip()}; medians of {arguments.repeats} repeats", flush=True)
    for times in arguments.times:
        for every in arguments.every:
            compare(arguments, times, every)


if __name__ == "__main__":
    main()
