"""The data set `folder`: images in a folder for each class, and files there that are not read."""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from layerprobe.data.annotation_files import Annotations, every_image
from layerprobe.data.image_files import Files, fingerprint, require_utf8, stamps_of
from layerprobe.data.images import HEIF_EXTENSIONS, HEIF_FIX, ending_of, is_image_name
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import IN_GALLERY, Dataset, Split
from layerprobe.data.subsets import divide_classes, numeric_order_note
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.wording import first_named, one_line

# What is passed over in silence, as hidden files are: text beside images, and what systems leave in folders.
_TEXT = frozenset(
    (".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".html", ".htm", ".ini")
)
_TEXT_NAMES = frozenset(("thumbs.db", "readme", "license"))
# What download managers leave behind an image's ending: `.jpg?1528`, `.JPG~`.
_LONGER = re.compile(r"(\.[a-z0-9]+)[^a-z0-9].*", re.DOTALL)


@dataclass(frozen=True)
class UnreadFiles:
    """Files that are not read.

    Args:
        by_folder: a path below the root -> names; `.` is the root.
        without_images: folders of these that hold neither an image nor a folder, and may be meant as classes.
    """

    by_folder: Mapping[str, Sequence[str]] = field(default_factory=dict)
    without_images: frozenset[str] = frozenset()

    def notes(self) -> tuple[str, ...]:
        """One line on all files, and one on the folders that are no classes; none where every file is read."""
        if not self.by_folder:
            return ()
        lines = [f"files that are not read: {self._counted()}"]
        if folders := sorted(self.without_images):
            only = "1 folder has" if len(folders) == 1 else f"{len(folders):,} folders have"
            lines.append(f"{only} no image that is read, and so no class: {first_named(list(map(one_line, folders)))}")
        return tuple(lines)

    def _counted(self) -> str:
        """`8 .heic (c00/r.heic; pip install pillow-heif), 4 without an ending (c00/x)`."""
        files: dict[tuple[str, str], list[str]] = {}
        for folder, names in sorted(self.by_folder.items()):
            for name in sorted(names):
                ending, fix = ending_of(name), ""
                longer = _LONGER.fullmatch(ending)
                if ending in HEIF_EXTENSIONS:
                    fix = HEIF_FIX
                elif longer and is_image_name(f"x{longer[1]}"):
                    ending, fix = ending[: len(longer[1]) + 1], f"rename to end in {longer[1]}"
                files.setdefault((ending, fix), []).append(name if folder == "." else f"{folder}/{name}")
        counts = []
        for (kind, fix), paths in sorted(files.items(), key=lambda item: -len(item[1])):
            endings = {ending_of(path.rpartition("/")[2]) for path in paths}
            ending = f"{kind}..." if len(endings) > 1 else endings.pop() or "without an ending"
            counts.append(f"{len(paths):,} {one_line(ending)} ({one_line(paths[0])}{fix and f'; {fix}'})")
        return first_named(counts)


def unread_among(names: Iterable[str]) -> list[str]:
    """Those of some files that are neither images, nor hidden, nor text."""
    return [
        name
        for name in names
        if not (name.startswith(".") or is_image_name(name))
        and ending_of(name) not in _TEXT
        and name.lower() not in _TEXT_NAMES
    ]


_LAYOUT = (
    "DIR/CLASS/IMAGE, classes at any depth; or DIR/query/CLASS/IMAGE and DIR/gallery/CLASS/IMAGE, with or without"
    " DIR/train/CLASS/IMAGE"
)
# Folder -> split, where queries are searched in a gallery.
_PARTS = {"train": "train", "query": "test", "gallery": "gallery"}
_SPLITS = ("train", "val", "valid", "validation", "test")  # what other tools call them; here nothing is read from them
_DIVIDED = 4  # classes that are needed for two of them to train and two to test


def load(root: Path, *, train_classes: int | None = None, class_seed: int | None = None) -> Dataset:
    """The images below a folder, their classes divided into training and test classes, or into queries and a gallery.

    A class is a folder that directly holds images. Its name is its path below the root, so that each of the nested
    folders `<Alphabet>/<character>` is a class. Classes and images are sorted by name. Hidden files, hidden folders and
    files whose names do not end like an image's are ignored; links are followed. Nothing is written.

    Where the root has the folders `query` and `gallery` with class folders in them, the queries are the split `test`,
    which is searched in the split `gallery`, and the folder `train`, if there is one, is the split of that name. A
    class's name is then its path below these folders.

    Args:
        train_classes: how many of the sorted classes are for training, the rest being for testing; 0: all are for
            testing, and there is no split `train`; None: the first half, C // 2.
        class_seed: shuffles the classes before the first are taken for training; None: they are sorted.
    """
    classes, unread = _classes(root)
    for names in classes.values():
        require_utf8(root, names)
    if _is_divided(root, classes, unread):
        for key, value in (("train_classes", train_classes), ("class_seed", class_seed)):
            if value is not None:
                raise RecipeError(
                    f"data.{key} = {value}: the folder train says which classes are for training",
                    file=root,
                    fix="Leave it out",
                )
        return replace(_load_divided(root, classes), input_notes=unread.notes())
    if "." in classes:
        raise DataError(
            f"{len(classes['.'])} images lie outside every class folder", file=root, fix=f"Expected {_LAYOUT}"
        )
    # The same classes may lie in folders such as `train` and `test`.
    within = {folder.partition("/")[0] for folder in classes}
    if len(within) > 1 and within <= set(_SPLITS) and all("/" in folder for folder in classes):
        raise DataError(
            f"{' and '.join(f'{name}/' for name in sorted(within))} look like splits; folder would take each of their"
            " folders for a class of its own",
            file=root,
            fix=f"Name one of them, such as folder:{root / min(within)}, or a csv table with the columns path,label,"
            "split",
        )
    count = _train_classes(root, len(classes), train_classes, unread)
    sorted_classes = sorted(classes)
    splits = {
        name: _split(name, root, [(label, classes[sorted_classes[label]]) for label in labels])
        for name, labels in zip(("train", "test"), divide_classes(len(classes), count, class_seed), strict=True)
        if labels
    }
    order = numeric_order_note(sorted_classes, count) if class_seed is None else None
    return Dataset(splits, tuple(sorted_classes), input_notes=(*unread.notes(), *filter(None, [order])))


def _train_classes(root: Path, classes: int, requested: int | None, unread: UnreadFiles) -> int:
    least, needed = (2, "2 to test") if requested == 0 else (_DIVIDED, "2 to train and 2 to test")
    if classes < least:
        instead = "; or put all into test by --set data.train_classes=0" if classes >= 2 else ""
        raise DataError(
            f"{classes} classes with images; {needed} are needed{_unread_text(unread)}",
            file=root,
            fix=f"Expected {_LAYOUT}{instead}",
        )
    count = classes // 2 if requested is None else requested
    if count and not 2 <= count <= classes - 2:
        raise RecipeError(
            f"data.train_classes = {count}: of {classes} classes, at least 2 must train and 2 test",
            file=root,
            fix=f"Give a number from 2 to {classes - 2}, or 0 to put all into test",
        )
    return count


def _unread_text(unread: UnreadFiles) -> str:
    return "".join(f"; {note}" for note in unread.notes())


def _is_divided(root: Path, classes: Mapping[str, list[str]], unread: UnreadFiles) -> bool:
    """Whether queries are searched in a gallery."""
    sides = _gallery_sides(classes)
    if not sides:
        return False
    if len(sides) == 1:
        (other,) = {"query", "gallery"} - set(sides)
        raise DataError(
            f"{sides[0]}/ has class folders, {other}/ has none{_unread_text(unread)}",
            file=root,
            fix=f"Expected {_LAYOUT}; else rename it",
        )
    outside = [
        image
        for folder, images in sorted(classes.items())
        if "/" not in folder or folder.partition("/")[0] not in _PARTS
        for image in images
    ]
    if outside:
        raise DataError(
            f"{len(outside):,} images outside the class folders of query/ and gallery/: {first_named(outside)}",
            file=root,
            fix=f"Expected {_LAYOUT}",
        )
    return True


def _gallery_sides(classes: Iterable[str]) -> list[str]:
    """Which of `query` and `gallery` have class folders in them."""
    within = {folder.partition("/")[0] for folder in classes if "/" in folder}
    return [side for side in ("query", "gallery") if side in within]


def _load_divided(root: Path, classes: Mapping[str, list[str]]) -> Dataset:
    parts: dict[str, dict[str, list[str]]] = {side: {} for side in _PARTS}
    for folder, images in classes.items():
        side, _, name = folder.partition("/")
        parts[side][name] = images
    class_names = tuple(sorted({name for members in parts.values() for name in members}))
    numbers = {name: number for number, name in enumerate(class_names)}
    splits = {
        _PARTS[side]: _split(_PARTS[side], root, [(numbers[name], images) for name, images in sorted(members.items())])
        for side, members in parts.items()
        if members
    }
    return Dataset(splits, class_names, IN_GALLERY)


def _split(name: str, root: Path, images: Iterable[tuple[int, list[str]]]) -> Split:
    members = [(label, sorted(files)) for label, files in images]
    names = tuple(itertools.chain.from_iterable(files for _, files in members))
    stamps = stamps_of(root, names)
    return Split(
        name=name,
        labels=np.repeat([label for label, _ in members], [len(files) for _, files in members]).astype(np.int64),
        ids=names,
        image=Files(root, names, stamps=stamps),
        fingerprint=fingerprint(stamps[:, 0].tolist()),
    )


def _classes(root: Path) -> tuple[dict[str, list[str]], UnreadFiles]:
    """Class folder -> its images, both as paths below the root; `.` holds the images outside every class folder.

    Files beside class folders in the root are left out.
    """
    if not root.is_dir():
        raise DataError("not a folder" if root.exists() else "no such folder", file=root, fix=f"Expected {_LAYOUT}")
    classes: dict[str, list[str]] = {}
    unread: dict[str, list[str]] = {}
    without_images = set()

    base = os.fspath(root)
    folders = [base]
    while folders:
        path = folders.pop()
        below, files = _entries(path)
        folders += reversed(below)
        images = [file for file in files if is_image_name(file)]
        folder = path[len(base) :].lstrip("/") or "."
        if images:
            prefix = "" if folder == "." else f"{folder}/"
            classes[folder] = [prefix + image for image in images]
        if len(images) == len(files) or (below and folder == "."):
            continue
        if unread_names := unread_among(files):
            unread[folder] = unread_names
            if not images and not below:
                without_images.add(folder)
    return classes, UnreadFiles(unread, frozenset(without_images))


def _entries(path: str) -> tuple[list[str], list[str]]:
    """The folders in a folder that are not hidden, and the names of its files.

    `os.walk` takes twice as long, which counts where there are 100,000 folders.
    """
    below: list[str] = []
    files: list[str] = []
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                try:
                    is_folder = entry.is_dir()
                except OSError:  # of a link to itself
                    is_folder = False
                if not is_folder:
                    files.append(entry.name)
                elif not entry.name.startswith("."):
                    below.append(entry.path)
                    if entry.is_symlink() and Path(path).resolve().is_relative_to(Path(entry.path).resolve()):
                        refusal = "this link leads to a folder that it lies in"
                        raise DataError(refusal, file=Path(entry.path), fix="Remove it")
    except OSError as error:
        raise DataError.unreadable(error) from error
    return below, files


def _unchecked(root: Path) -> Dataset:
    """Every image, also of fewer than 4 classes and outside every class folder.

    Too few classes to be divided are one split. So are images that are badly divided into queries and gallery: nothing
    says then which may be alike.
    """
    classes, unread = _classes(root)
    names = sorted(classes)
    half = len(names) // 2
    undivided = len(names) < _DIVIDED or _gallery_sides(classes)
    parts = {"test": names} if undivided else {"train": names[:half], "test": names[half:]}
    splits = {
        split: [(file, name) for name in members for file in sorted(classes[name])] for split, members in parts.items()
    }
    return replace(every_image(Annotations(root, splits)), input_notes=unread.notes())


SPEC = DatasetSpec(
    load=load,
    unchecked=_unchecked,
    argument="DIR",
    holds="images in a folder for each class",
    layout=f"{_LAYOUT}; without query/ and gallery/ the first half of the classes by name trains, the rest tests",
)
