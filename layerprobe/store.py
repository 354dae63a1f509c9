"""Feature files: the pooled layers of one run, epoch and split in HDF5, whole or absent."""

from __future__ import annotations

import contextlib
import errno
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError, EnvironmentFault
from layerprobe.files import written_whole

FeatureArray = NDArray[np.float32]  # (N, D)

SCHEMA = 1
CHUNK_ROWS = 512
_COMPARED_LIBRARIES = ("torch", "torchvision")
_FULL_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclass(frozen=True)
class FeatureKey:
    """What features are made from; if anything differs they are computed again.

    Args:
        run: the run's name.
        epoch: 0 = before any step.
        split: train, validation, test or gallery.
        weights_sha256: of the checkpoint.
        transform: the whole way from a file to the network's input, as text.
        manifest_sha256: of the split's ids, classes and pixels.
    """

    run: str
    epoch: int
    split: str
    weights_sha256: str
    transform: str
    manifest_sha256: str


@dataclass(frozen=True, eq=False)
class Rows:
    """The images of a feature file: labels (N,) and N ids, in the split's order."""

    labels: NDArray[np.integer]
    ids: Sequence[str]


@dataclass(frozen=True)
class Columns:
    """The layers of a feature file and how they are computed.

    Args:
        dims: `layer@pool` -> D of what is written now.
        device: as recorded.
        batch_size: images at once, as recorded: it may change the last bits.
        compute: float32 or bf16; part of what must match.
        keep: `layer@pool` of the old file to take along; none of them may be stale (see `stored_layers`).
    """

    dims: Mapping[str, int]
    device: str
    batch_size: int
    compute: str = "float32"
    keep: frozenset[str] = field(default_factory=frozenset)


def write_features(
    path: Path, key: FeatureKey, rows: Rows, columns: Columns, batches: Iterable[Mapping[str, FeatureArray]]
) -> None:
    """Write a feature file whole; until it is, the old one stands.

    Args:
        path: the final name.
        key: what the features are made from.
        rows: the images.
        columns: the layers; those kept are copied from the file that has the name now.
        batches: {`layer@pool`: (B, D)} in the order of the rows.

    Raises:
        EnvironmentFault: the disk is full.
        DataError: the old file cannot be read.
        ValueError: a `/` in a layer's name, or batches that are not N rows of the layers and dimensions given.
    """
    _require_layer_names({*columns.dims, *columns.keep})
    kept = columns.keep - columns.dims.keys()
    try:
        with written_whole(path) as aside, h5py.File(aside, "w", locking=False) as file:
            _write_head(file, key, rows)
            if kept:
                with _opened(path) as old:
                    for layer in sorted(kept):
                        old.copy(_features(old, layer), file["features"], name=layer)
            _write_columns(file, len(rows.ids), columns, batches)
    except (OSError, RuntimeError) as error:
        if _disk_is_full(error):
            free = shutil.disk_usage(path.parent).free / 1e6
            needed = 4 * len(rows.ids) * sum(columns.dims.values()) / 1e6
            raise EnvironmentFault(
                f"disk full: {path.parent} has {free:.0f} MB, epoch {key.epoch} needs {needed:.0f} MB",
                fix="Free space, then run the same command again",
            ) from error
        raise


def stored_layers(path: Path, key: FeatureKey, *, compute: str = "float32") -> set[str]:
    """The `layer@pool` whose features are stored, made from just this key, and intact.

    Every byte is read against its checksum, so that a damaged layer is computed again instead of failing for ever.

    Returns:
        Empty where the file is absent, unreadable, of a newer format or made from something else: see `stale_note`.
    """
    found = set()
    with contextlib.suppress(DataError), _opened(path) as file:
        if not _difference(file, key):
            for layer in file["features"]:
                dataset = _features(file, layer)
                if _text(dataset.attrs.get("compute")) == compute and _is_intact(dataset):
                    found.add(layer)
    return found


def stale_note(path: Path, key: FeatureKey) -> str:
    """Why nothing of an existing file is used, as `transform is not what it was`; empty where there is no reason."""
    if not path.exists():
        return ""
    try:
        with _opened(path) as file:
            return _difference(file, key)
    except DataError as error:
        return error.message


def read_features(path: Path, layer: str) -> FeatureArray:
    """The features of one layer.

    Args:
        path: a feature file.
        layer: `layer@pool`.

    Returns:
        float32 (N, D) in the order of `read_index`.

    Raises:
        DataError: absent, damaged, of a newer format, or with links out of the file; the layer is not in it.
    """
    _require_layer_names([layer])
    with _opened(path) as file:
        dataset = _features(file, layer)
        try:
            values: FeatureArray = dataset[()]
        except OSError as error:
            run, epoch = _text(file.attrs.get("run")), file.attrs.get("epoch")
            raise DataError(
                f"checksum of layer {layer} fails",
                file=path,
                fix=f"layerprobe probe {run} --epochs {epoch} rewrites it",
            ) from error
        return values


def read_index(path: Path) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """The labels (N,) and ids of a feature file's rows.

    Raises:
        DataError: as for `read_features`.
    """
    with _opened(path) as file:
        labels, ids = _dataset(file, "labels"), _dataset(file, "ids")
        if labels.shape != ids.shape or labels.ndim != 1 or labels.dtype != np.int32 or ids.dtype.kind != "S":
            raise DataError("labels and ids are not two lists of one length", file=path)
        try:
            return labels[()], tuple(name.decode() for name in ids[()])
        except (OSError, UnicodeDecodeError) as error:
            raise DataError("checksum of the labels or ids fails", file=path, fix=_FIX) from error


_FIX = "Delete it; layerprobe probe computes it again"


def _write_head(file: h5py.File, key: FeatureKey, rows: Rows) -> None:
    file.attrs.update({"schema": SCHEMA, **asdict(key), **_libraries(), "layerprobe": metadata.version("layerprobe")})
    ids = np.array([name.encode() for name in rows.ids])
    chunks = (min(CHUNK_ROWS, len(ids)),)
    # Of one length: a checksum covers the text itself, and not only pointers to it.
    text = h5py.string_dtype("utf-8", max(1, ids.dtype.itemsize))
    file.create_dataset("labels", data=rows.labels.astype(np.int32), chunks=chunks, fletcher32=True)
    file.create_dataset("ids", data=ids.astype(text), dtype=text, chunks=chunks, fletcher32=True)
    file.create_group("features")


def _write_columns(
    file: h5py.File, count: int, columns: Columns, batches: Iterable[Mapping[str, FeatureArray]]
) -> None:
    """Preallocate the layers and fill them chunk by chunk."""
    attributes = {"compute": columns.compute, "device": columns.device, "batch_size": columns.batch_size}
    size = min(CHUNK_ROWS, count)
    datasets, buffers = {}, {}
    for layer, dim in columns.dims.items():
        datasets[layer] = file["features"].create_dataset(
            layer, (count, dim), np.float32, chunks=(size, dim), fletcher32=True
        )
        datasets[layer].attrs.update(attributes)
        buffers[layer] = np.empty((size, dim), np.float32)
    done = 0
    for batch in batches:
        length = _batch_length(batch, columns.dims)
        if done + length > count:
            raise ValueError(f"more than the {count} rows that the labels have")
        for layer, values in batch.items():
            _append(datasets[layer], buffers[layer], values, done)
        done += length
    if done != count:
        raise ValueError(f"{done} rows, not the {count} that the labels have")


def _append(dataset: h5py.Dataset, buffer: FeatureArray, values: FeatureArray, done: int) -> None:
    """Rows `done` ... into the buffer; whenever a chunk is full, and at the last row, into the file."""
    while len(values):
        start = done % len(buffer)
        taken = values[: len(buffer) - start]
        buffer[start : start + len(taken)] = taken
        done, values = done + len(taken), values[len(taken) :]
        filled = start + len(taken)
        if filled == len(buffer) or done == len(dataset):
            dataset[done - filled : done] = buffer[:filled]


def _batch_length(batch: Mapping[str, FeatureArray], dims: Mapping[str, int]) -> int:
    lengths = {len(values) for values in batch.values()}
    shapes = {layer: values.shape[1:] for layer, values in batch.items()}
    if shapes != {layer: (dim,) for layer, dim in dims.items()} or len(lengths) != 1:
        raise ValueError(f"a batch of {shapes} where {dict(dims)} was announced")
    return lengths.pop()


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[h5py.File]:
    """A feature file to read; its format is known."""
    try:
        # No lock: a file with its final name is never written to, and network disks refuse locks.
        file = h5py.File(path, "r", locking=False)
    except FileNotFoundError as error:
        raise DataError("no such feature file", file=path, fix="Run layerprobe probe first") from error
    except OSError as error:
        raise DataError("not a readable feature file: truncated or damaged", file=path, fix=_FIX) from error
    with file:
        schema = file.attrs.get("schema")
        if not isinstance(schema, np.integer) or "features" not in file:
            raise DataError("not a feature file", file=path, fix=_FIX)
        if schema > SCHEMA:
            theirs, ours = _text(file.attrs.get("layerprobe")), metadata.version("layerprobe")
            raise DataError(
                f"written by layerprobe {theirs} (format {schema}); this is {ours} (format {SCHEMA})",
                file=path,
                fix=f"Install layerprobe {theirs}",
            )
        if not isinstance(file.get("features", getlink=True), h5py.HardLink):
            raise DataError("refused: links out of the file", file=path)
        yield file


def _features(file: h5py.File, layer: str) -> h5py.Dataset:
    """A layer's dataset: float32, as many rows as labels."""
    if layer not in file["features"]:
        raise DataError(f"no features of {layer}", file=file.filename, fix="Run layerprobe probe with --layers")
    dataset, labels = _dataset(file, f"features/{layer}"), _dataset(file, "labels")
    if dataset.ndim != 2 or dataset.dtype != np.float32:
        raise DataError(f"{layer} is not a float32 table", file=file.filename, fix=_FIX)
    if dataset.shape[0] != labels.shape[0]:
        rows = f"{layer} has {dataset.shape[0]} rows, the labels {labels.shape[0]}"
        raise DataError(rows, file=file.filename, fix=_FIX)
    return dataset


def _dataset(file: h5py.File, name: str) -> h5py.Dataset:
    """A dataset whose bytes lie in this file: no link, external or virtual storage, nothing claimed but not there."""
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise DataError("refused: links out of the file", file=file.filename)
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset) or dataset.external is not None or dataset.is_virtual:
        raise DataError("refused: links out of the file", file=file.filename)
    filters = dataset.id.get_create_plist()
    checksum_only = filters.get_nfilters() == 1 and filters.get_filter(0)[0] == h5py.h5z.FILTER_FLETCHER32
    if not checksum_only or dataset.id.get_storage_size() < dataset.nbytes:
        raise DataError(f"{name} is not stored as layerprobe stores it", file=file.filename, fix=_FIX)
    return dataset


def _is_intact(dataset: h5py.Dataset) -> bool:
    """Whether every chunk has its checksum."""
    try:
        for start in range(0, len(dataset), dataset.chunks[0]):
            dataset[start : start + dataset.chunks[0]]
    except OSError:
        return False
    return True


def _difference(file: h5py.File, key: FeatureKey) -> str:
    """What a file is made from that the key is not, for people; empty where nothing."""
    for name, wanted in {**asdict(key), **_libraries()}.items():
        if _text(file.attrs.get(name)) != str(wanted):
            return f"{name} is not what it was"
    return ""


def _text(value: object) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _libraries() -> dict[str, str]:
    return {name: metadata.version(name) for name in _COMPARED_LIBRARIES}


def _require_layer_names(names: Iterable[str]) -> None:
    for name in names:
        if "/" in name or name in ("", "."):
            raise ValueError(f"layer name {name!r}: no '/' and not empty")


def _disk_is_full(error: BaseException | None) -> bool:
    """Whether an error or one that it hides says so: HDF5's failure to close comes after the failed write."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in _FULL_DISK:
            return True
        error = error.__cause__ or error.__context__
    return False
