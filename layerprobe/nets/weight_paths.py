"""Text -> the weights files that it means, in the order of training, and their epochs."""

from __future__ import annotations

import glob
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from layerprobe.nets.checkpoint_layouts import checkpoint_folders, holds_weights, parts_of
from layerprobe.system.errors import DataError

# `epoch_05`, `epoch=12`, `ep7`; a number of more digits counts something else, such as seconds.
_EPOCH = re.compile(r"(?<![a-z])ep(?:och)?[^a-z0-9]{0,2}([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_VERSION = re.compile(r"-v[0-9]+$")  # of a file that Lightning would have overwritten
_DIGITS = 9


def split_part(text: str) -> tuple[Path, str | None]:
    """`FILE#PART` -> the file and the part; a file or folder of the whole name is taken literally."""
    file, mark, part_name = text.rpartition("#")
    if not mark or Path(text).exists():
        return Path(text), None
    return Path(file), part_name


def natural_order(paths: Iterable[Path]) -> list[Path]:
    """Sort by name with numbers by their size: epoch2 before epoch10; of equal numbers the shorter text first."""
    return sorted(paths, key=lambda path: (_natural(str(path)), len(str(path)), str(path)))


def _natural(text: str) -> list[tuple[int, str]]:
    """Text and numbers by turns, so that a number is only compared with a number."""
    texts = re.split(r"([0-9]+)", text)
    return [(int(piece), "") if index % 2 else (0, piece) for index, piece in enumerate(texts)]


def expand(pattern: str) -> list[tuple[Path, str | None]]:
    """`ckpt/*.pt` or `ckpt/*.pt#teacher` -> the files in natural order, each with the part.

    A file or folder that exists under the name is taken literally, whatever characters it has. Without `*`, `?` and `[`
    the result is that one, also where it does not exist; a folder of `checkpoint-*/` stands for these. Of the shards of
    one model, the first stands for all.
    """
    path, part_name = split_part(pattern)
    if path.is_dir():
        folders = [] if holds_weights(path) else natural_order(checkpoint_folders(path))
        return [(folder, part_name) for folder in folders or [path]]
    if path.is_file() or not glob.has_magic(str(path)):
        return [(path, part_name)]
    matches = list(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 - Path.glob takes no absolute pattern
    files = [match for match in matches if match.is_file()] or list(filter(holds_weights, matches))
    if not files:
        fix = "Name at least one weights file"
        if "[" in str(path):
            fix += f"; in a pattern [ begins a set of characters: write {str(path).replace('[', '[[]')} for itself"
        raise DataError("no file has such a name", file=path, fix=fix)
    networks: dict[tuple[Path, ...], Path] = {}
    for match in natural_order(files):
        networks.setdefault(parts_of(match), match)
    return [(match, part_name) for match in networks.values()]


def expand_epochs(pattern: str) -> dict[int, tuple[Path, str | None]]:
    """Epoch -> file and part, in the order of `expand`.

    The epoch of a file that a pattern matches is the number in its name. Beside files that have one, such as
    `epoch=9.ckpt`, those without, such as `last.ckpt`, and later versions of an epoch, `epoch=9-v1.ckpt`, are left out.
    Where the numbers are not clear, the epoch is the file's place.
    """
    files = expand(pattern)
    if files == [split_part(pattern)]:
        return {0: files[0]}
    epochs = _epoch_numbers([path for path, _ in files])
    return {epoch: file for epoch, file in zip(epochs, files, strict=True) if epoch is not None}


def renumber_epoch(file: Path, epoch: int, other: int) -> str:
    """The name of a file of an epoch with the number of another: `epoch=9.ckpt` -> `epoch=10.ckpt`."""
    return re.sub(rf"(?<![0-9])0*{epoch}(?![0-9])", str(other), file.name, count=1)


def _epoch_numbers(paths: Sequence[Path]) -> Sequence[int | None]:
    """The number after `epoch` in each name, else the only number in which the paths differ, else their places."""
    for epochs in (_after_epoch(paths), _differing_numbers(paths)):
        numbered = [epoch for epoch in epochs if epoch is not None]
        if numbered and len(set(numbered)) == len(numbered):
            return epochs
    return range(len(paths))


def _after_epoch(paths: Sequence[Path]) -> list[int | None]:
    """The number after `epoch` in each name; None where there is none, and for later versions of a file of the same."""
    numbers = [_epoch(_EPOCH.findall(path.stem)) for path in paths]
    plain = {number for number, path in zip(numbers, paths, strict=True) if not _VERSION.search(path.stem)}
    return [
        None if number in plain and _VERSION.search(path.stem) else number
        for number, path in zip(numbers, paths, strict=True)
    ]


def _differing_numbers(paths: Sequence[Path]) -> list[int | None]:
    """The only number in which most paths differ; None for paths of another form. Of a single path its only number."""
    if len(paths) == 1:
        return [_epoch(_NUMBER.findall(paths[0].stem))]
    forms = [_NUMBER.sub("0", str(path.with_suffix(""))) for path in paths]
    form, count = Counter(forms).most_common(1)[0]
    numbers = [_NUMBER.findall(str(path.with_suffix(""))) for path in paths]
    rows = [row for row, path_form in zip(numbers, forms, strict=True) if path_form == form]
    columns = [column_index for column_index, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
    if len(columns) != 1 or 2 * count < len(paths):
        return [None] * len(paths)
    return [
        _epoch([row[columns[0]]]) if path_form == form else None for row, path_form in zip(numbers, forms, strict=True)
    ]


def _epoch(numbers: Sequence[str]) -> int | None:
    return int(numbers[0]) if len(numbers) == 1 and len(numbers[0]) <= _DIGITS else None
