"""How many wrong labels does `layerprobe labels` list? Labels are changed on purpose, and every step is a command.

    python benchmarks/flipped_labels.py IMAGES --model timm:tf_efficientnet_lite0 --weights lite0.pth --size 96

IMAGES is a folder for each class. For each share and seed, that share of the images is moved to another class, any with
the same chance. Printed: precision and recall of the list of suspects, how often the suggested label is the true one,
and the estimate of wrong labels beside their number. Share 0 is the folder as it is: the list should be short. Then 20
pairs of classes become one, and apart from that 20 images get a copy in another class, compressed anew as JPEG: how
many of them are listed, and how many others.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from layerprobe.data.images import is_image_name

PLANTED = 20  # merged pairs of classes, and copies


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--weights", required=True)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--shares", type=float, nargs="+", default=[0.0, 0.03, 0.1])
    arguments = parser.parse_args()
    files = sorted(
        path.relative_to(arguments.images) for path in arguments.images.rglob("*") if is_image_name(path.name)
    )
    print(f"{len(files):,} images of {len({path.parent for path in files}):,} classes, {arguments.model}")
    columns = (
        "share",
        "seed",
        "changed",
        "listed",
        "wrong",
        "estimate",
        "precision",
        "recall",
        "suggestion",
        "seconds",
    )
    print("".join(f"{column:>12}" for column in columns))
    for share in arguments.shares:
        for seed in range(arguments.seeds if share else 1):
            flips = flip(files, share, np.random.default_rng(seed))
            reviewed, seconds = review(arguments, files, flips)
            row(f"{share:.0%}", seed, flips, reviewed, seconds)
    for seed in range(arguments.seeds):
        rng = np.random.default_rng(seed)
        print_merged(arguments, files, seed, rng)
        print_copies(arguments, files, seed, rng)


def flip(files: list[Path], share: float, rng: np.random.Generator) -> dict[Path, Path]:
    """Image -> its new class."""
    classes = sorted({path.parent for path in files})
    rows = rng.choice(len(files), round(share * len(files)), replace=False)
    return {
        files[row]: [name for name in classes if name != files[row].parent][rng.integers(len(classes) - 1)]
        for row in rows.tolist()
    }


def review(
    arguments: argparse.Namespace, files: list[Path], moved: dict[Path, Path], copies: dict[Path, Path] | None = None
) -> tuple[dict[str, Any], float]:
    """What `layerprobe labels` lists of a folder with changed classes, and the seconds that it takes."""
    with tempfile.TemporaryDirectory() as folder:
        root, cache = Path(folder, "images"), Path(folder, "cache")
        for path in files:
            place(root, path, moved.get(path, path.parent), (arguments.images / path).read_bytes())
        for path, name in (copies or {}).items():
            content = io.BytesIO()
            Image.open(arguments.images / path).convert("RGB").save(content, "JPEG", quality=75)
            place(root, path.with_suffix(".jpg"), name, content.getvalue())
        model = ("--model", arguments.model, "--weights", arguments.weights)
        data = ("--data", f"folder:{root}", "--set", f"data.image_size={arguments.size}", "--splits", "train,test")
        call("probe", *model, *data, "--run", "r", cache=cache)
        start = time.perf_counter()
        reviewed = json.loads(call("labels", "r", "--json", cache=cache))
        return reviewed, time.perf_counter() - start


def place(root: Path, path: Path, name: Path, content: bytes) -> None:
    """Write an image into the folder of a class, by a name that says where it was."""
    target = root / name / f"{path.parent.as_posix().replace('/', '!')}#{path.name}"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)


def call(*words: str, cache: Path) -> str:
    command = [sys.executable, "-m", "layerprobe", *words, "--cache", str(cache)]
    return subprocess.run(
        command, check=True, capture_output=True, text=True, env=os.environ | {"COLUMNS": "200"}
    ).stdout


def original(image: str) -> tuple[Path, Path]:
    """The class and the path that an image had."""
    name, _, file = Path(image).name.partition("#")
    return Path(name.replace("!", "/")), Path(name.replace("!", "/"), file)


def row(share: str, seed: int, flips: dict[Path, Path], reviewed: dict[str, Any], seconds: float) -> None:
    listed = [(*original(x["image"]["image"]), x["suggested"]) for x in reviewed["suspects"]]
    wrong = [(name, suggested) for name, path, suggested in listed if path in flips]
    estimate = "-" if reviewed["wrong"] is None else f"{reviewed['wrong']:.0f}"
    cells = (
        share, seed, len(flips), len(listed), len(wrong), estimate, ratio(len(wrong), len(listed)),
        ratio(len(wrong), len(flips)), ratio(sum(str(name) == suggested for name, suggested in wrong), len(wrong)),
        f"{seconds:.0f}",
    )  # fmt: skip
    print("".join(f"{cell!s:>12}" for cell in cells), flush=True)


def ratio(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def print_merged(arguments: argparse.Namespace, files: list[Path], seed: int, rng: np.random.Generator) -> None:
    classes = sorted({path.parent for path in files})
    chosen = [classes[i] for i in rng.permutation(len(classes))[: 2 * PLANTED].tolist()]
    merged = dict(zip(chosen[PLANTED:], chosen[:PLANTED], strict=True))
    reviewed, _ = review(arguments, files, {path: merged[path.parent] for path in files if path.parent in merged})
    names = {x["label"] for x in reviewed["divided"]}
    targets = {str(name) for name in merged.values()}
    print(
        f"merged, seed {seed}: {len(names & targets)} of {PLANTED} listed, and {len(names - targets)} others",
        flush=True,
    )


def print_copies(arguments: argparse.Namespace, files: list[Path], seed: int, rng: np.random.Generator) -> None:
    copies = flip(files, PLANTED / len(files), rng)
    reviewed, _ = review(arguments, files, {}, copies)
    pairs = [
        frozenset(original(x["image"])[1].with_suffix("") for x in pair["images"]) for pair in reviewed["duplicates"]
    ]
    listed = sum(frozenset([path.with_suffix("")]) in pairs for path in copies)
    others = sum(len(pair) == 2 for pair in pairs)
    print(f"copies, seed {seed}: {listed} of {PLANTED} listed, and {others} other pairs", flush=True)


if __name__ == "__main__":
    main()
