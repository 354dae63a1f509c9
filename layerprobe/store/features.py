"""Feature files: the pooled layers of one run, epoch and split in HDF5, whole or absent."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.errors import DataError
from layerprobe.files import written_whole
from layerprobe.keys import LayerKey
from layerprobe.store.hdf5 import (
    HDF5_ERRORS,
    SCHEMA,
    attribute,
    created,
    damaged,
    full_disk_told,
    opened,
    reading,
    require_format,
    set_attributes,
    stored_dataset,
)
from layerprobe.store.rows import CHUNK_ROWS, Rows, write_rows

FeatureArray = NDArray[np.float32]  # (N, D)


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


@dataclass(frozen=True)
class Columns:
    """The layers of a feature file and how they are computed.

    Args:
        dims: layer -> D of what is written now.
        device: as recorded.
        batch_size: images at once, as recorded: it may change the last bits.
        compute: float32 or bf16; part of what must match.
        keep: layers of the old file to take along; none of them may be stale (see `stored_layers`).
    """

    dims: Mapping[LayerKey, int]
    device: str
    batch_size: int
    compute: str = "float32"
    keep: frozenset[LayerKey] = field(default_factory=frozenset)


def write_features(
    path: Path, key: FeatureKey, rows: Rows, columns: Columns, batches: Iterable[Mapping[LayerKey, FeatureArray]]
) -> None:
    """Write a feature file whole; until it is, the old one stands.

    Args:
        path: the final name.
        key: what the features are made from.
        rows: the images.
        columns: the layers; those kept are copied from the file that has the name now.
        batches: {layer: (B, D)} in the order of the rows.

    Raises:
        EnvironmentFault: the disk is full.
        DataError: the old file cannot be read.
        ValueError: a `/` in a layer's name, layers to keep of an old file with another key, or batches that are not N
            rows of the layers and dimensions given.
    """
    _require_layer_names({*columns.dims, *columns.keep})
    kept = columns.keep - columns.dims.keys()
    needed = 4 * len(rows.ids) * sum(columns.dims.values())
    with (
        full_disk_told(path, f"epoch {key.epoch}", needed),
        written_whole(path) as aside,
        created(aside) as (file, sink),
    ):
        _write_head(file, key, rows)
        _copy_columns(path, key, kept, file["features"])
        _write_columns(file, len(rows.ids), columns, sink.watched(batches))


def stored_layers(path: Path, key: FeatureKey, *, compute: str = "float32") -> set[LayerKey]:
    """The layers whose features are stored, made from just this key, and intact.

    Every byte is read against its checksum, so that a damaged layer is computed again instead of failing for ever.

    Returns:
        Empty where the file is absent, unreadable, of a newer format or made from something else: see `stale_note`.
    """
    found = set()
    with contextlib.suppress(DataError), opened(path) as file:
        for name in [] if _difference(file, key) else file["features"]:
            with contextlib.suppress(DataError, *HDF5_ERRORS):
                layer = LayerKey.parse(name)
                dataset = _features(file, layer)
                for chunk in dataset.iter_chunks():
                    dataset[chunk]  # a wrong checksum raises
                if attribute(dataset, "compute") == compute:
                    found.add(layer)
    return found


def stale_note(path: Path, key: FeatureKey) -> str:
    """Why nothing of an existing file is used, as `transform is not what it was`; empty where there is no reason."""
    if not path.exists():
        return ""
    try:
        with opened(path) as file:
            return _difference(file, key)
    except DataError as error:
        return error.message


def read_features(path: Path, layer: LayerKey) -> FeatureArray:
    """The features of one layer.

    Args:
        path: a feature file.
        layer: its key.

    Returns:
        float32 (N, D) in the order of `read_index`.

    Raises:
        DataError: absent, damaged, of a newer format, or with links out of the file; the layer is not in it.
    """
    _require_layer_names([layer])
    with opened(path) as file:
        dataset = _features(file, layer)
        try:
            values: FeatureArray = dataset[()]
        except OSError as error:
            fix = f"layerprobe probe {attribute(file, 'run')} --epochs {attribute(file, 'epoch')} rewrites it"
            raise DataError(f"checksum of layer {layer} fails", file=path, fix=fix) from error
        return values


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """The features of one layer, left on disk: float32 (N, D) in the order of `read_index`.

    Args:
        path: of the file.
        rows: the data set in it.
    """

    path: Path
    rows: h5py.Dataset

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, D)."""
        return tuple(self.rows.shape)

    @property
    def dtype(self) -> np.dtype[np.float32]:
        """float32."""
        return np.dtype(np.float32)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> FeatureArray:
        with reading(self.path):  # a wrong checksum raises
            values: FeatureArray = self.rows[part]
            return values


@contextlib.contextmanager
def open_features(path: Path, layer: LayerKey) -> Iterator[StoredFeatures]:
    """The features of one layer, to be read in slices.

    Args:
        path: a feature file.
        layer: its key.

    Raises:
        DataError: as for `read_features`; also while slices are read.
    """
    _require_layer_names([layer])
    with contextlib.ExitStack() as stack:
        # What goes wrong while the caller uses the table is the caller's, not the file's.
        with reading(path):
            file = stack.enter_context(h5py.File(path, "r", locking=False))
            require_format(file, "features")
            table = StoredFeatures(path, _features(file, layer))
        yield table


def _write_head(file: h5py.File, key: FeatureKey, rows: Rows) -> None:
    set_attributes(file, {"schema": SCHEMA, **compared(key), "layerprobe": metadata.version("layerprobe")})
    write_rows(file, rows)
    file.create_group("features")


def _copy_columns(path: Path, key: FeatureKey, layers: frozenset[LayerKey], group: h5py.Group) -> None:
    """Take layers of the old file along, bytes and checksums as they are."""
    if not layers:
        return
    with opened(path) as old:
        stale = _difference(old, key)
        for layer in sorted(layers):
            old.copy(_features(old, layer), group, name=str(layer))
    if stale:
        raise ValueError(f"{path}: {stale}; nothing of it may be kept")


def _write_columns(
    file: h5py.File, count: int, columns: Columns, batches: Iterable[Mapping[LayerKey, FeatureArray]]
) -> None:
    """Preallocate the layers and fill them chunk by chunk."""
    attributes: dict[str, str | int] = {
        "compute": columns.compute,
        "device": columns.device,
        "batch_size": columns.batch_size,
    }
    size = min(CHUNK_ROWS, count)
    datasets, buffers = {}, {}
    for layer, dim in columns.dims.items():
        datasets[layer] = file["features"].create_dataset(
            str(layer), (count, dim), np.float32, chunks=(size, dim), fletcher32=True
        )
        set_attributes(datasets[layer], attributes)
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


def _batch_length(batch: Mapping[LayerKey, FeatureArray], dims: Mapping[LayerKey, int]) -> int:
    lengths = {len(values) for values in batch.values()}
    shapes = {str(layer): values.shape[1:] for layer, values in batch.items()}
    announced = {str(layer): (dim,) for layer, dim in dims.items()}
    if shapes != announced or len(lengths) != 1:
        raise ValueError(f"a batch of {shapes} where {announced} was announced")
    return lengths.pop()


def _difference(file: h5py.File, key: FeatureKey) -> str:
    """What a file is made from that the key is not, for people; empty where nothing."""
    changed = (name for name, wanted in compared(key).items() if attribute(file, name) != str(wanted))
    return next((f"{name} is not what it was" for name in changed), "")


def compared(key: FeatureKey) -> dict[str, str | int]:
    """What a file's attributes must be to be of use; versions may change a feature's last bits."""
    facts: dict[str, str | int] = asdict(key)
    return {**facts, **{name: metadata.version(name) for name in ("torch", "torchvision")}}


def _require_layer_names(layers: Iterable[LayerKey]) -> None:
    for layer in layers:
        if "/" in str(layer) or not layer.layer:
            raise ValueError(f"layer name {layer.layer!r}: no '/' and not empty")


def _features(file: h5py.File, layer: LayerKey) -> h5py.Dataset:
    """A layer's dataset: float32, as many rows as labels."""
    if str(layer) not in file["features"]:
        raise DataError(f"no features of {layer}", file=file.filename, fix="Run layerprobe probe with --layers")
    dataset, labels = stored_dataset(file, f"features/{layer}"), stored_dataset(file, "labels")
    if dataset.ndim != 2 or dataset.dtype != np.float32:
        raise damaged(file.filename, f"{layer} is not a float32 table")
    if dataset.shape[0] != labels.shape[0]:
        raise damaged(file.filename, f"{layer} has {dataset.shape[0]} rows, the labels {labels.shape[0]}")
    return dataset
