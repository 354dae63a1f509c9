"""The data set `wds`: tar files with the layout of WebDataset, `KEY.jpg` beside `KEY.cls`, `KEY.txt` or `KEY.json`.

https://github.com/webdataset/webdataset. What lies where in a shard is read once from its headers, and kept.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import json
import os
import re
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.image_files import missing_message, stamps_of
from layerprobe.data.images import is_image_name
from layerprobe.data.spec import DatasetSpec
from layerprobe.data.splits import Dataset
from layerprobe.data.table_files import ImageTable, TableFile, TableFiles, split_by_name
from layerprobe.data.tables import Selection, TableFormat, load_every_row, load_table
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, write_text

_SCHEMA = 2
_LABELS = ("cls", "txt", "json")  # the endings of members that say what an image is
_EXPECTED = "Expected a tar file, a folder of such files, or 'DIR/*.tar' or 'DIR/{000..999}.tar' in quotes"
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")
_LIST = re.compile(r"\{([^{}]*,[^{}]*)\}")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True)
class _Member:
    """A file in a shard: its name, its first byte, its size and, where it is a label, its text."""

    name: str
    offset: int
    size: int
    text: str | None

    @property
    def key(self) -> str:
        """What the members of one image share: the name up to the first dot behind its folder."""
        return self.name[: len(self.name) - len(self.ending) - 1]

    @property
    def ending(self) -> str:
        """The name behind that dot, in lower case."""
        return _ending_of(self.name)


@dataclass(frozen=True, eq=False)
class _Images:
    """The images of a shard, in its order, and what its other members say of them.

    Args:
        keys: N of them.
        kinds: the endings of the image files, and the names of the values, that some images have.
        kind: (N,) of each image.
        places: ending -> the first byte and the size of each image file that ends so, one after the other.
        values: name -> the value of each image that has it: the text of `cls` and `txt`, those of `json`.
    """

    keys: Sequence[str]
    kinds: Sequence[tuple[Sequence[str], Sequence[str]]]
    kind: NDArray[np.intp]
    places: Mapping[str, Sequence[int]]
    values: Mapping[str, Sequence[Any]]

    @staticmethod
    def of(content: Mapping[str, Any]) -> _Images:
        """The images as they were written."""
        names = ("keys", "kinds", "kind", "places", "values")
        keys, kinds, kind, places, values = (content[name] for name in names)
        return _Images(keys, kinds, np.array(kind, np.intp), places, values)

    def first(self, kind: int) -> str:
        """The key of the first image of a kind."""
        return self.keys[int(np.argmax(self.kind == kind))]

    def rows(self, is_of: Sequence[bool]) -> NDArray[np.intp]:
        """The rows of the images of some kinds."""
        return np.flatnonzero(np.array(is_of, bool)[self.kind])

    def cells(self, name: str) -> NDArray[np.object_]:
        """(N,) a value of each image; None where it has none."""
        cells = np.full(len(self.keys), None, object)
        if name in self.values:
            rows = self.rows([name in names for _, names in self.kinds])
            cells[rows] = np.fromiter(self.values[name], object, len(self.values[name]))
        return cells


def load(  # noqa: PLR0913 - its keys of [data]
    root: Path,
    *,
    image_column: str = "",
    label_column: str = "",
    id_column: str = "",
    split_column: str = "",
    use_split: str = "",
    train_classes: int | None = None,
    class_seed: int | None = None,
    index_folder: Path | None = None,
) -> Dataset:
    """The images in tar files, which are neither unpacked nor copied: each is read at its place.

    The members of an image share their name up to the first dot. A label is the text of `KEY.cls` or `KEY.txt`, or the
    value of `label` in `KEY.json`, whose other texts and numbers are columns as of a table. Splits, classes, ids and
    columns are those of `tables.load`.

    Args:
        root: a tar file, a folder, a glob, or a pattern such as `DIR/{000..999}.tar`, of which each file must be there.
        image_column: the ending of the images, such as `left.jpg`; empty: the only one.
        label_column: `cls`, `txt`, or a key of `json`; empty: the only one of `cls`, `txt` and `label`.
        id_column: see `tables.load`, as the other keys.
        index_folder: where is kept what lies where in each shard; None: nowhere.
    """
    selection = Selection(image_column, label_column, id_column, split_column, use_split)
    return load_table(root, _format(index_folder), selection, train_classes=train_classes, class_seed=class_seed)


def _format(index_folder: Path | None) -> TableFormat:
    return TableFormat(shard_files, partial(_read_shards, index_folder=index_folder))


def shard_files(root: Path) -> TableFiles:
    """The shards of a file, a folder, a glob or a pattern with braces, and their splits by name."""
    text = str(root)
    if root.is_dir():
        paths = sorted(path for path in root.rglob("*.tar") if not path.name.startswith("."))
    elif root.exists():
        return TableFiles(root.parent, [TableFile(root, "")])
    elif "{" in text:
        paths = [Path(name) for name in _expanded(text)]
        if absent := [path.name for path in paths if not path.exists()]:
            raise DataError(missing_message(absent, len(paths)).replace("listed images", "shards"), file=root,
                            fix="Get them again, or name those that are there")  # fmt: skip
    else:
        paths = [Path(path) for path in sorted(glob.glob(text, recursive=True))]  # noqa: PTH207 - it is absolute
    if not paths:
        raise DataError("no tar file lies there", file=root, fix=_EXPECTED)
    folder = root if root.is_dir() else Path(os.path.commonpath([path.parent for path in paths]))
    return TableFiles(folder, split_by_name(folder, paths))


def _expanded(text: str) -> Iterator[str]:
    """The names that a pattern with braces means, as a shell expands it."""
    if found := _RANGE.search(text):
        first, last = found.groups()
        width = len(first) if first.startswith("0") else 0
        parts = [f"{number:0{width}}" for number in range(int(first), int(last) + 1)]
    elif found := _LIST.search(text):
        parts = found[1].split(",")
    else:
        yield text
        return
    for part in parts:
        yield from _expanded(text[: found.start()] + part + text[found.end() :])


def _read_shards(
    root: Path, files: Sequence[TableFile], *, image: str, label: str, index_folder: Path | None
) -> ImageTable:
    """The table of the images in some shards; no image is read."""
    counts: list[int] = []
    names: list[str] = []
    labels: list[str] = []
    places: list[NDArray[np.int64]] = []
    cells: dict[str, list[Any]] = {}
    texts: dict[str, str] = {}  # each label once
    of_labels = {label} if label else {"cls", "txt"}
    # One shard after the other, so that memory holds the index of one.
    for path in (file.path for file in files):
        images = _images_in(path, index_folder)
        endings = _endings(images, path, image)
        in_shard = _labels(images, path, label)
        for name in dict.fromkeys(name for _, of_kind in images.kinds for name in of_kind if name not in of_labels):
            cells.setdefault(name, [None] * len(names)).extend(images.cells(name).tolist())
        suffixes = [f".{ending}" for ending in endings]
        names += [key + suffixes[kind] for key, kind in zip(images.keys, images.kind.tolist(), strict=True)]
        labels += map(texts.setdefault, in_shard, in_shard)
        for column in cells.values():
            column += [None] * (len(names) - len(column))
        places.append(_places(images, endings))
        counts.append(len(images.keys))
    if not names:
        raise DataError("no image lies in the shards", file=root, fix="Expected KEY.jpg beside KEY.cls, .txt or .json")
    image_name, label_name = "image", "label"
    return ImageTable(
        files,
        counts=counts,
        image=image_name,
        label=label_name,
        class_names=(),
        cells={**cells, label_name: labels, image_name: names},
        of_structs=False,
        embedded=True,
        places=np.concatenate(places),
    )


def _endings(images: _Images, shard: Path, ending: str) -> list[str]:
    """The ending of the image of each kind."""
    chosen = []
    for kind, (of_kind, _) in enumerate(images.kinds):
        candidates = [name for name in of_kind if ending.lower() in ("", name.lower())]
        if len(candidates) > 1:
            problem = f"{images.first(kind)} has several images: {' and '.join(sorted(candidates))}"
            raise DataError(problem, file=shard, fix="Name their ending by --set data.image_column=ENDING")
        if not candidates:
            problem = f"{images.first(kind)} has no image{ending and f' that ends in .{ending}'}"
            raise DataError(problem, file=shard, fix="Remove its members from the shard, or write it again")
        chosen += candidates
    return chosen


def _places(images: _Images, endings: Sequence[str]) -> NDArray[np.int64]:
    """(N, 2) the first byte and the size of each image, by the ending of those of each kind."""
    places = np.empty((len(images.keys), 2), np.int64)
    for ending in dict.fromkeys(endings):
        rows = images.rows([ending in of_kind for of_kind, _ in images.kinds])
        is_chosen = np.array([name == ending for name in endings])[images.kind[rows]]
        places[rows[is_chosen]] = np.array(images.places[ending], np.int64).reshape(-1, 2)[is_chosen]
    return places


def _labels(images: _Images, shard: Path, column: str) -> list[str]:
    """The label of each image."""
    names = ["cls", "txt", "label"] if not column else [column]
    of_kind = [[name for name in names if name in of_values] for _, of_values in images.kinds]
    labels: NDArray[np.object_] = np.full(len(images.keys), None, object)
    for name in names:
        rows = images.rows([chosen == [name] for chosen in of_kind])
        labels[rows] = images.cells(name)[rows]
    values = labels.tolist()
    if "" in values or not {*map(type, values)} <= {str, int, bool}:
        row = next(row for row, value in enumerate(values) if value == "" or not isinstance(value, str | int))
        raise _label_error(images, row, values[row], of_kind[images.kind[row]], shard, column)
    return list(map(str, values))


def _label_error(  # noqa: PLR0913 - the image, its label and where it was looked for
    images: _Images, row: int, value: object, names: Sequence[str], shard: Path, column: str
) -> DataError:
    key, value_names = images.keys[row], images.kinds[images.kind[row]][1]
    if len(names) > 1:
        problem = f"{key} has several labels: {' and '.join(names)}"
        return DataError(problem, file=shard, fix="Name one by --set data.label_column=NAME")
    if value is None or value == "":
        listed = f"; it has {', '.join(value_names)}" if value_names else ""
        problem = f"{key} has no label{column and f' {column}'}{listed}"
        fix = "Expected a text KEY.cls or KEY.txt, or `label` in KEY.json, or another by --set data.label_column=NAME"
        return DataError(problem, file=shard, fix=fix)
    problem = f"the label of {key} is {value!r}"
    return DataError(problem, file=shard, fix="Expected one text or whole number")


def _described(shard: Path, members: Sequence[_Member]) -> dict[str, Any]:
    """What `_Images.of` takes of the members of a shard."""
    keys: list[str] = []
    kinds: dict[tuple[tuple[str, ...], tuple[str, ...]], int] = {}
    kind: list[int] = []
    places: dict[str, list[int]] = {}
    values: dict[str, list[Any]] = {}
    endings: dict[str, set[str]] = {}
    for key, of_key in itertools.groupby(members, key=lambda member: member.key):
        images: dict[str, _Member] = {}
        cells: dict[str, Any] = {}
        is_apart = key in endings
        present = endings.setdefault(key, set())
        for member in of_key:
            if member.ending in present:
                raise DataError(f"{member.name} lies twice", file=shard, fix="Write the shard again with it once")
            present.add(member.ending)
            if member.text is None:
                images[member.name.removeprefix(f"{key}.")] = member  # as it is written: it ends the image's name
            elif member.ending == "json":
                cells |= _values(shard, member)
            else:
                cells[member.ending] = member.text.strip()
        if is_apart:
            fix = "Write the shard again: the members of one image must lie side by side"
            raise DataError(f"the members of {key} lie apart", file=shard, fix=fix)
        keys.append(key)
        kind.append(kinds.setdefault((tuple(images), tuple(cells)), len(kinds)))
        for ending, member in images.items():
            places.setdefault(ending, []).extend((member.offset, member.size))
        for name, cell in cells.items():
            values.setdefault(name, []).append(cell)
    return {"keys": keys, "kinds": list(kinds), "kind": kind, "places": places, "values": values}


def _values(shard: Path, member: _Member) -> dict[str, Any]:
    """The values in a JSON object; lists and objects are left out, but for one that is called `label`."""
    try:
        values = json.loads(member.text or "")
    except ValueError as error:
        raise DataError(f"{member.name} is not JSON ({error})", file=shard, fix="Write it again") from error
    if not isinstance(values, dict):
        raise DataError(f"{member.name} is no JSON object", file=shard, fix='Expected {"label": ...}')
    return {name: value for name, value in values.items() if name == "label" or not isinstance(value, list | dict)}


def _images_in(shard: Path, index_folder: Path | None) -> _Images:
    """The images in a shard, as its headers tell of them; kept for the next time."""
    try:
        require_file(shard)
        stamp = stamps_of(shard.parent, [shard.name])[0].tolist()
    except OSError as error:
        raise DataError.unreadable(error, file=shard) from error
    index = None
    if index_folder is not None:
        name = hashlib.sha256(str(shard.resolve()).encode(errors="surrogateescape")).hexdigest()[:16]
        index = index_folder / f"{name}.json"
        try:
            content = json.loads(index.read_bytes())
            if (content["schema"], content["stamp"]) == (_SCHEMA, stamp):
                return _Images.of(content)
        except (OSError, ValueError, KeyError, TypeError):
            pass
    images = _described(shard, _read_headers(shard))
    if index is not None:
        index.parent.mkdir(parents=True, exist_ok=True)
        write_text(index, json.dumps({"schema": _SCHEMA, "shard": str(shard), "stamp": stamp, **images}))
    return _Images.of(images)


def _ending_of(name: str) -> str:
    """The name behind the first dot behind its folder, in lower case, as `.CLS` and `.cls` say the same."""
    return name.rpartition("/")[2].partition(".")[2].lower()


def _is_hidden(name: str) -> bool:
    """Whether it is such as `._000.png`, which tar on macOS writes beside `000.png`."""
    return name.rpartition("/")[2].startswith(".")


def _require_bytes(member: tarfile.TarInfo, file: tarfile.TarInfo | None, shard: Path) -> tarfile.TarInfo:
    """The file that has the bytes of a member, which of a hard link is one in front of it.

    Raises:
        DataError: there is none, or they do not lie in one piece.
    """
    if file is None:
        problem = f"{member.name} is a link to {member.linkname}, which is no file of the shard in front of it"
        fix = "Write the shard again with --dereference and --hard-dereference"
        raise DataError(problem, file=shard, fix=fix)
    if file.issparse():
        problem = f"{member.name} is stored sparse, and cannot be read at its place"
        raise DataError(problem, file=shard, fix="Write the shard again without --sparse")
    return file


def _read_headers(shard: Path) -> list[_Member]:
    members: list[_Member] = []
    again = "Get the shard again"
    try:
        with shard.open("rb") as stream:
            head = stream.read(6)
            for magic, name in _COMPRESSED.items():
                if head.startswith(magic):
                    problem = f"compressed by {name}, in which no image can be read at its place"
                    raise DataError(problem, file=shard, fix="Decompress it: images are compressed already")
            stream.seek(0)
            with tarfile.open(fileobj=stream, mode="r:") as tar:
                files: dict[str, tarfile.TarInfo | None] = {}
                for member in tar:
                    if member.isreg():
                        files[member.name] = member
                    elif member.islnk() or member.issym():
                        files[member.name] = files.get(member.linkname) if member.islnk() else None
                    else:
                        continue
                    is_label = _ending_of(member.name) in _LABELS
                    if (is_label or is_image_name(f"x.{_ending_of(member.name)}")) and not _is_hidden(member.name):
                        file = _require_bytes(member, files[member.name], shard)
                        text = os.pread(stream.fileno(), file.size, file.offset_data).decode() if is_label else None
                        members.append(_Member(member.name, file.offset_data, file.size, text))
                end = tar.offset
            stream.seek(end)
            if len(stream.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
                raise DataError("truncated: the tar file has no end", file=shard, fix=again)
    except OSError as error:
        raise DataError.unreadable(error, file=shard) from error
    except UnicodeDecodeError as error:
        raise DataError("a label is not UTF-8", file=shard, fix="Write it again") from error
    except tarfile.TarError as error:
        text = str(error)
        problem = f"truncated ({text})" if "end of data" in text else f"cannot be read as tar ({text})"
        raise DataError(problem, file=shard, fix=again) from error
    return members


SPEC = DatasetSpec(
    load=load,
    unchecked=partial(load_every_row, _format(None)),
    argument="FILE",
    holds="tar files of WebDataset",
    layout="FILE, DIR or 'DIR/{000..999}.tar' with KEY.jpg beside KEY.cls, .txt or .json; perhaps named like splits",
    where="https://github.com/webdataset/webdataset",
)
