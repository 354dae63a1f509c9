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


@dataclass(frozen=True)
class _Record:
    """An image of a shard and what its other members say of it: the text of `cls` and `txt`, the values of `json`."""

    key: str
    images: Mapping[str, _Member]
    cells: Mapping[str, Any]


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


def _every_row(  # noqa: PLR0913 - as `load`
    root: Path,
    *,
    image_column: str = "",
    label_column: str = "",
    id_column: str = "",
    split_column: str = "",
    use_split: str = "",
) -> Dataset:
    selection = Selection(image_column, label_column, id_column, split_column, use_split)
    return load_every_row(root, _format(None), selection)


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
    by_file = [_records(file.path, _members(file.path, index_folder)) for file in files]
    records = list(itertools.chain.from_iterable(by_file))
    where = [file.path for file, of_file in zip(files, by_file, strict=True) for _ in of_file]
    if not records:
        raise DataError("no image lies in the shards", file=root, fix="Expected KEY.jpg beside KEY.cls, .txt or .json")
    images = [_image_of(record, path, image) for record, path in zip(records, where, strict=True)]
    of_labels = {label} if label else {"cls", "txt"}
    names = dict.fromkeys(name for record in records for name in record.cells if name not in of_labels)
    labels = [_label_of(record, path, label) for record, path in zip(records, where, strict=True)]
    cells: dict[str, list[Any]] = {name: [record.cells.get(name) for record in records] for name in names}
    image_name, label_name = "image", "label"
    return ImageTable(
        files,
        counts=[len(of_file) for of_file in by_file],
        image=image_name,
        label=label_name,
        class_names=(),
        cells={**cells, label_name: labels, image_name: [member.name for member in images]},
        of_structs=False,
        embedded=True,
        addresses=[f"{member.offset:013}+{member.size}" for member in images],
    )


def _image_of(record: _Record, shard: Path, ending: str) -> _Member:
    images = record.images if not ending else {x: y for x, y in record.images.items() if x == ending.lower()}
    if len(images) == 1:
        return next(iter(images.values()))
    if images:
        problem = f"{record.key} has several images: {' and '.join(sorted(images))}"
        raise DataError(problem, file=shard, fix="Name their ending by --set data.image_column=ENDING")
    problem = f"{record.key} has no image{ending and f' that ends in .{ending}'}"
    raise DataError(problem, file=shard, fix="Remove its members from the shard, or write it again")


def _label_of(record: _Record, shard: Path, column: str) -> str:
    names = [column] if column else [name for name in ("cls", "txt", "label") if name in record.cells]
    if len(names) > 1:
        problem = f"{record.key} has several labels: {' and '.join(names)}"
        raise DataError(problem, file=shard, fix="Name one by --set data.label_column=NAME")
    value = record.cells.get(names[0]) if names else None
    if value is None or value == "":
        known = f"; it has {', '.join(record.cells)}" if record.cells else ""
        problem = f"{record.key} has no label{column and f' {column}'}{known}"
        fix = "Expected a text KEY.cls or KEY.txt, or `label` in KEY.json, or another by --set data.label_column=NAME"
        raise DataError(problem, file=shard, fix=fix)
    if not isinstance(value, str | int):
        problem = f"the label of {record.key} is {value!r}"
        raise DataError(problem, file=shard, fix="Expected one text or whole number")
    return str(value)


def _records(shard: Path, members: Sequence[_Member]) -> list[_Record]:
    """The images of a shard, in its order."""
    records: list[_Record] = []
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
                images[member.ending] = member
            elif member.ending == "json":
                cells |= _values(shard, member)
            else:
                cells[member.ending] = member.text.strip()
        if is_apart:
            fix = "Write the shard again: the members of one image must lie side by side"
            raise DataError(f"the members of {key} lie apart", file=shard, fix=fix)
        records.append(_Record(key, images, cells))
    return records


def _values(shard: Path, member: _Member) -> dict[str, Any]:
    """The values in a JSON object; lists and objects are left out, but for one that is called `label`."""
    try:
        values = json.loads(member.text or "")
    except ValueError as error:
        raise DataError(f"{member.name} is not JSON ({error})", file=shard, fix="Write it again") from error
    if not isinstance(values, dict):
        raise DataError(f"{member.name} is no JSON object", file=shard, fix='Expected {"label": ...}')
    return {name: value for name, value in values.items() if name == "label" or not isinstance(value, list | dict)}


def _members(shard: Path, index_folder: Path | None) -> list[_Member]:
    """The images and labels in a shard, as they were read from its headers; kept for the next time."""
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
                return [_Member(str(x), int(y), int(z), text) for x, y, z, text in content["members"]]
        except (OSError, ValueError, KeyError, TypeError):
            pass
    members = _read_headers(shard)
    if index is not None:
        index.parent.mkdir(parents=True, exist_ok=True)
        rows = [[member.name, member.offset, member.size, member.text] for member in members]
        write_text(index, json.dumps({"schema": _SCHEMA, "shard": str(shard), "stamp": stamp, "members": rows}))
    return members


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
    unchecked=_every_row,
    argument="FILE",
    holds="tar files of WebDataset",
    layout="FILE, DIR or 'DIR/{000..999}.tar' with KEY.jpg beside KEY.cls, .txt or .json; perhaps named like splits",
    where="https://github.com/webdataset/webdataset",
)
