"""The feature files of an epoch and split, read as one: each holds some layers, of all images or of a range of rows.

`epoch-0000.test.h5` has the layers that were written first, `epoch-0000.test.1.h5` those written next. Of many images
each is a folder, `epoch-0000.test/`, with a file for each range of rows, `00000-of-00020.h5`. A layer that several have
is that of the highest number. All are made from one key: a file beside of another is passed over.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from layerprobe.ranking.items import Table
from layerprobe.store.features import (
    FeatureArray,
    FeatureFile,
    FeatureHead,
    FeatureKey,
    StoredFeatures,
    made_from_facts,
    open_one_file,
    read_one_head,
)
from layerprobe.store.hdf5 import stale_passed
from layerprobe.system.errors import DataError
from layerprobe.system.memory import require_memory
from layerprobe.values.layers import LayerKey

_SHARD = re.compile(r"(\d{5,})-of-(\d{5,})\.h5")
ReadHead = Callable[[Path], FeatureHead]


@dataclass(frozen=True)
class LayerGroup:
    """The files of layers that are written together.

    Args:
        files: number of the range of rows -> its file, of those that exist.
        count: the number of ranges.
        is_one_file: whether the layers lie in one file of all rows, and not in a folder.
    """

    number: int
    files: Mapping[int, Path]
    count: int
    is_one_file: bool = True

    @property
    def is_whole(self) -> bool:
        """Whether every range has its file."""
        return len(self.files) == self.count


@dataclass(frozen=True)
class Part:
    """A file to write: some layers of a range of rows. It depends on no other part."""

    path: Path
    rows: range
    layers: frozenset[LayerKey]


@dataclass(frozen=True)
class Plan:
    """What is to be written so that some layers are stored.

    Args:
        stale: files to remove before the first part is written.
        lost: layers that are removed with them for their type or precision alone, and not written again.
    """

    parts: tuple[Part, ...] = ()
    stale: tuple[Path, ...] = ()
    lost: frozenset[LayerKey] = frozenset()

    def remove_stale(self) -> None:
        """Remove them; what another process has removed is passed over."""
        _remove(self.stale)


def row_ranges(images: int, shard_rows: int) -> tuple[range, ...]:
    """The ranges of rows that files have: one of all rows, or several of `shard_rows`, the last of the rest."""
    return tuple(range(first, min(first + shard_rows, images)) for first in range(0, images, shard_rows))


def layer_groups(path: Path) -> list[LayerGroup]:
    """The feature files at a path and beside it, in the order in which they were written.

    Args:
        path: the first file of an epoch and split, which need not exist.
    """
    name = re.compile(rf"{re.escape(path.stem)}(?:\.(\d+))?({re.escape(path.suffix)})?")
    groups = []
    for match in map(name.fullmatch, _names(path.parent)):
        if match is None:
            continue
        number, place = int(match[1] or 0), path.with_name(match[0])
        groups += [LayerGroup(number, {0: place}, 1)] if match[2] else _shards(number, place)
    return sorted(groups, key=lambda group: (group.number, group.count))


def _shards(number: int, folder: Path) -> list[LayerGroup]:
    files: dict[int, dict[int, Path]] = {}
    for match in map(_SHARD.fullmatch, _names(folder)):
        if match and int(match[1]) < int(match[2]):
            files.setdefault(int(match[2]), {})[int(match[1])] = folder / match[0]
    return [
        LayerGroup(number, dict(sorted(shards.items())), count, is_one_file=False) for count, shards in files.items()
    ]


def _names(folder: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return [entry.name for entry in folder.iterdir()]
    return []


def _whole_groups(path: Path) -> list[list[Path]]:
    """The files of each whole group, in the order of their rows; the path itself where there is none."""
    return [[*group.files.values()] for group in layer_groups(path) if group.is_whole] or [[path]]


def has_feature_files(path: Path) -> bool:
    """Whether the features of some layer are stored at a path or beside it."""
    return any(group.is_whole for group in layer_groups(path))


def remove_feature_files(path: Path) -> None:
    """Remove the feature files at a path and beside it."""
    _remove(file for group in layer_groups(path) for file in group.files.values())


def _remove(files: Iterable[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)
        if _SHARD.fullmatch(file.name):
            with contextlib.suppress(OSError):  # others are in it
                file.parent.rmdir()


@dataclass(frozen=True)
class _State:
    """What of a group can be used.

    Args:
        layers: that were made from the key, in any of its files.
        usable: number of a range -> the wanted layers that are intact there.
        rows: number of a range -> its rows, of files that were made from the key.
        complete: whether every range of the split has all the layers.
        of_other_types: the layers that were made from the key but for its type and precision.
    """

    group: LayerGroup
    layers: frozenset[LayerKey]
    usable: Mapping[int, frozenset[LayerKey]]
    rows: Mapping[int, range]
    complete: bool
    of_other_types: frozenset[LayerKey]

    @property
    def stored(self) -> frozenset[LayerKey]:
        """The wanted layers that are intact in every file."""
        return self.layers.intersection(*self.usable.values()) if self.complete else frozenset()

    def has_ranges(self, ranges: Sequence[range]) -> bool:
        """Whether its files are those of these ranges of rows, as far as there are any."""
        return self.group.count == len(ranges) and all(ranges[number] == rows for number, rows in self.rows.items())


def plan_parts(  # noqa: PLR0913 - what is wanted, and what is known of the files
    path: Path,
    key: FeatureKey,
    layers: Iterable[LayerKey],
    ranges: Sequence[range],
    *,
    intact: Callable[[Path, frozenset[LayerKey]], Iterable[LayerKey]],
    head_of: ReadHead = read_one_head,
) -> Plan:
    """The files to write so that the features of some layers are stored; nothing is written or removed.

    Files that were begun for the same layers and ranges are completed, and damaged ones are replaced one by one.

    Args:
        intact: a file, and those of its layers that are wanted and made from the key -> those that can be used.
    """
    wanted, groups = frozenset(layers), layer_groups(path)
    stored: set[LayerKey] = set()
    parts: list[Part] = []
    stale: list[LayerGroup] = []
    kept, lost = set(wanted), set[LayerKey]()
    for group in groups:
        state = _state(group, key, wanted, intact, head_of)
        replaceable = state.layers <= wanted and state.has_ranges(ranges)
        if state.complete and (state.stored >= state.layers & wanted or not replaceable):
            stored |= state.stored
        elif state.layers and replaceable:
            lacking = [number for number in range(len(ranges)) if state.usable.get(number) != state.layers]
            parts += [Part(_file_of(group, number), ranges[number], state.layers) for number in lacking]
            stored |= state.layers
        else:
            stale.append(group)
            lost |= state.of_other_types
        kept |= state.layers
    replaced: set[Path] = set()
    if absent := wanted - stored:
        files = _new_files(path, groups, len(ranges))
        if len(ranges) == 1 and len(stale) == len(groups):
            # What is stale stays until the new file is whole.
            files = [group.files[0] for group in stale if group.is_one_file][:1] or files
        parts += [Part(file, rows, absent) for file, rows in zip(files, ranges, strict=True)]
        replaced = {*files}
    removed = [file for group in stale for file in group.files.values() if file not in replaced]
    return Plan(tuple(parts), tuple(removed), frozenset(lost - kept))


def _state(
    group: LayerGroup,
    key: FeatureKey,
    wanted: frozenset[LayerKey],
    intact: Callable[[Path, frozenset[LayerKey]], Iterable[LayerKey]],
    head_of: ReadHead,
) -> _State:
    heads: dict[int, FeatureHead] = {}
    for number, file in group.files.items():
        with stale_passed():
            heads[number] = head_of(file)
    layers = {number: frozenset(head.made_from(key)) for number, head in heads.items()}
    usable = {number: frozenset(intact(group.files[number], has & wanted)) for number, has in layers.items() if has}
    rows = {number: heads[number].part for number in usable}
    any_layers = frozenset[LayerKey]().union(*layers.values())
    complete = len(usable) == group.count and {*layers.values()} == {any_layers} and _has_all_rows([*rows.values()])
    of_other_types = frozenset(layer for head in heads.values() for layer in _made_in_other_types(head, key))
    row_parts = {number: part for number, (part, _) in rows.items()}
    return _State(group, any_layers, usable, row_parts, complete, of_other_types - any_layers)


def _made_in_other_types(head: FeatureHead, key: FeatureKey) -> set[LayerKey]:
    types = replace(key, dtype=head.facts.get("dtype", ""), precision=head.facts.get("precision", ""))
    return head.made_from(types)


def _file_of(group: LayerGroup, number: int) -> Path:
    if group.is_one_file:
        return group.files[0]
    folder = next(iter(group.files.values())).parent
    return folder / _shard_name(number, group.count)


def _new_files(path: Path, groups: Sequence[LayerGroup], count: int) -> list[Path]:
    """The files of a group that comes after the others."""
    number = 1 + max((group.number for group in groups), default=-1)
    stem = f"{path.stem}.{number}" if number else path.stem
    if count == 1:
        return [path.with_name(f"{stem}{path.suffix}")]
    return [path.with_name(stem) / _shard_name(place, count) for place in range(count)]


def _shard_name(number: int, count: int) -> str:
    return f"{number:05d}-of-{count:05d}.h5"


def read_feature_head(path: Path, head_of: ReadHead = read_one_head) -> FeatureHead:
    """What the feature files at a path and beside it say of themselves."""
    first, *others = (_stacked_head([head_of(file) for file in files], files[0]) for files in _whole_groups(path))
    heads = [first, *(head for head in others if made_from_facts(head.facts) == made_from_facts(first.facts))]
    if len(heads) == 1:
        return first
    columns = {layer: column for head in heads for layer, column in head.columns.items()}
    # The rows are those of each file: a damaged one is not needed for them.
    whole = next((head for head in heads if isinstance(head.index, tuple)), first)
    return replace(whole, columns=dict(sorted(columns.items(), key=lambda item: item[0].stored)))


def _stacked_head(heads: Sequence[FeatureHead], path: Path) -> FeatureHead:
    """The head of files of ranges of rows, in their order."""
    first = heads[0]
    if len(heads) == 1 and not first.facts.get("images"):
        return first
    indexes = [head.index for head in heads]
    if damaged := [index for index in indexes if not isinstance(index, tuple)]:
        return replace(first, index=damaged[0])
    _require_all_rows([head.part for head in heads], path)
    columns = {layer: first.columns[layer] for layer in first.columns if all(layer in head.columns for head in heads)}
    labels = np.concatenate([index[0] for index in indexes if isinstance(index, tuple)])
    ids = np.concatenate([index[1] for index in indexes if isinstance(index, tuple)])
    return replace(first, index=(labels, ids), columns=columns)


def _has_all_rows(parts: Sequence[tuple[range, str]]) -> bool:
    """Whether files have all rows of a split, in their order."""
    ends = [0, *(rows.stop for rows, _ in parts)]
    return [rows.start for rows, _ in parts] == ends[:-1] and {total for _, total in parts} <= {"", str(ends[-1])}


def _require_all_rows(parts: Sequence[tuple[range, str]], path: Path) -> None:
    if not _has_all_rows(parts):
        (first, total), (last, _) = parts[0], parts[-1]
        problem = f"has the images {first.start} to {last.stop} of {total}, which are not all in their order"
        raise DataError(problem, file=path, fix="Name the run, or delete the file to have it computed again")


@dataclass(frozen=True, eq=False)
class StackedFeatures:
    """The features of a layer in files of ranges of rows, read in slices as those of one file: float32 (N, D)."""

    tables: Sequence[StoredFeatures]

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, D)."""
        return len(self), self.tables[0].shape[1]

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """float32."""
        return np.dtype(np.float32)

    def __len__(self) -> int:
        return sum(map(len, self.tables))

    def __getitem__(self, rows: slice) -> FeatureArray:
        start, stop, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("rows are read one after the other")
        values = np.empty((max(0, stop - start), self.shape[1]), np.float32)
        first = 0
        for table in self.tables:
            low, high = max(start, first), min(stop, first + len(table))
            if low < high:
                values[low - start : high - start] = table[low - first : high - first]
            first += len(table)
        return values


@dataclass(frozen=True, eq=False)
class FeatureFiles:
    """The feature files of an epoch and split that are open.

    Args:
        groups: of files, each with the first one open, in the order in which they were written.
        stack: closes the files that are opened later.
    """

    groups: Sequence[tuple[FeatureFile, Sequence[Path]]]
    stack: contextlib.ExitStack

    @functools.cached_property
    def _groups(self) -> dict[LayerKey, tuple[FeatureFile, Sequence[Path]]]:
        return {layer: group for group in self.groups for layer in group[0].layers}

    @property
    def layers(self) -> tuple[LayerKey, ...]:
        """The layers whose features are in them, by name."""
        return tuple(sorted(self._groups, key=lambda layer: layer.stored))

    def _files(self, layer: LayerKey) -> list[FeatureFile]:
        """The files of a layer, open; that of an absent layer says so when it is read."""
        first, further = self._groups.get(layer, (self.groups[0][0], ()))
        files = [first, *map(self._open, further)]
        _require_all_rows([file.rows for file in files], first.path)
        return files

    @functools.cached_property
    def _open(self) -> Callable[[Path], FeatureFile]:
        return functools.cache(lambda path: self.stack.enter_context(open_one_file(path)))

    def table(self, layer: LayerKey) -> Table:
        """The features of one layer, to be read in slices."""
        tables = [file.table(layer) for file in self._files(layer)]
        return tables[0] if len(tables) == 1 else StackedFeatures(tables)

    def read(self, layer: LayerKey) -> FeatureArray:
        """The features of one layer, float32 (N, D) in the order of the split."""
        files = self._files(layer)
        if len(files) == 1:
            return files[0].read(layer)
        shapes = [file.table(layer).shape for file in files]
        count, dim = sum(shape[0] for shape in shapes), shapes[0][1]
        require_memory(4 * count * dim, files[0].path)
        values, done = np.empty((count, dim), np.float32), 0
        for file, shape in zip(files, shapes, strict=True):
            values[done : done + shape[0]] = file.read(layer)
            done += shape[0]
        return values


@contextlib.contextmanager
def open_feature_file(path: Path) -> Iterator[FeatureFiles]:
    """Open the feature files at a path and beside it, for several layers or questions."""
    with contextlib.ExitStack() as stack:
        groups = [(stack.enter_context(open_one_file(first)), further) for first, *further in _whole_groups(path)]
        made_from = groups[0][0].made_from
        yield FeatureFiles([group for group in groups if group[0].made_from == made_from], stack)


def read_features(path: Path, layer: LayerKey) -> FeatureArray:
    """As `FeatureFiles.read`."""
    with open_feature_file(path) as files:
        return files.read(layer)
