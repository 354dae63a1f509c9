"""Text -> the weights files that it means, in the order of training, and their epochs."""

from __future__ import annotations

import glob
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from layerprobe.nets.checkpoint_layouts import checkpoint_folders, holds_weights, parts_of
from layerprobe.system.errors import DataError

# `epoch_05`, `epoch=12`, `ep7`; a number of more digits counts something else, such as seconds.
_EPOCH = re.compile(r"(?<![a-z])ep(?:och)?[^a-z0-9]{0,2}([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_DIGITS = 9


def split_part(text: str) -> tuple[Path, str | None]:
    """`FILE#PART` -> the file and the part; a file or folder of the whole name is taken literally."""
    file, mark, part = text.rpartition("#")
    if not mark or Path(text).exists():
        return Path(text), None
    return Path(file), part


def natural_order(paths: Iterable[Path]) -> list[Path]:
    """Sort by name with numbers by their size: epoch2 before epoch10; of equal numbers the shorter text first."""
    return sorted(paths, key=lambda path: (_natural(str(path)), len(str(path)), str(path)))


def _natural(text: str) -> list[tuple[int, str]]:
    """Text and numbers by turns, so that a number is only compared with a number."""
    texts = re.split(r"([0-9]+)", text)
    return [(int(piece), "") if place % 2 else (0, piece) for place, piece in enumerate(texts)]


def expand(pattern: str) -> list[tuple[Path, str | None]]:
    """`ckpt/*.pt` or `ckpt/*.pt#teacher` -> the files in natural order, each with the part.

    A file or folder that exists under the name is taken literally, whatever characters it has. Without `*`, `?` and `[`
    the result is that one, also where it does not exist; a folder of `checkpoint-*/` stands for these. Of the shards of
    one model, the first stands for all.
    """
    path, part = split_part(pattern)
    if path.is_dir():
        folders = [] if holds_weights(path) else natural_order(checkpoint_folders(path))
        return [(folder, part) for folder in folders or [path]]
    if path.is_file() or not glob.has_magic(str(path)):
        return [(path, part)]
    matches = list(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 - Path.glob takes no absolute pattern
    found = [match for match in matches if match.is_file()] or list(filter(holds_weights, matches))
    if not found:
        raise DataError("no file has such a name", file=path, fix="Name at least one weights file")
    networks: dict[tuple[Path, ...], Path] = {}
    for match in natural_order(found):
        networks.setdefault(parts_of(match), match)
    return [(match, part) for match in networks.values()]


def expand_epochs(pattern: str) -> dict[int, tuple[Path, str | None]]:
    """Epoch -> file and part, in the order of `expand`.

    The epoch of a file that a pattern matches is the number in its name, where each has one of its own; else its place.
    """
    found = expand(pattern)
    named = found != [split_part(pattern)]
    epochs = _named_epochs([path for path, _ in found]) if named else [0]
    return dict(zip(epochs, found, strict=True))


def _named_epochs(paths: Sequence[Path]) -> Sequence[int]:
    """The number after `epoch` in each name, else the only number in which the paths differ, else their places."""
    texts = [str(path.with_suffix("")) for path in paths]
    after = [_EPOCH.findall(path.stem) for path in paths]
    if len(paths) == 1:
        numbers = [_NUMBER.findall(paths[0].stem)]
    elif len({_NUMBER.sub("0", text) for text in texts}) == 1:
        columns = [column for column in zip(*map(_NUMBER.findall, texts), strict=True) if len(set(column)) > 1]
        numbers = list(map(list, zip(*columns, strict=True)))
    else:
        numbers = []
    for found in (after, numbers):
        if found and all(len(own) == 1 and len(own[0]) <= _DIGITS for own in found):
            epochs = [int(own[0]) for own in found]
            if len(set(epochs)) == len(paths):
                return epochs
    return range(len(paths))
