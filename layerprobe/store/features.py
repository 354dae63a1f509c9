"""Feature files: the features of the layers of one run, epoch and split, what they are made from, and their rows."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.ranking.items import Table
from layerprobe.store.hdf5 import (
    HDF5_ERRORS,
    SCHEMA,
    attribute,
    create_file,
    damage_error,
    fixed_text,
    open_file,
    probe_command,
    read_dataset,
    reading,
    require_format,
    set_attributes,
    stale_passed,
    stored_dataset,
)
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, written_whole
from layerprobe.system.memory import memory_faults_told
from layerprobe.values.layers import LayerKey

FeatureArray = NDArray[np.float32]  # (N, D)
CHUNK_ROWS = 512
_OPTIONAL = ("network", "dtype", "precision")  # of a key
_PLAIN = {"dtype": "", "precision": ""}  # of a file without these attributes
_DTYPES: dict[str, np.dtype[Any]] = {"": np.dtype(np.float32), "float16": np.dtype(np.float16)}
_DIGEST = "rows_sha256"
# Labels (N,) and ids, which are decoded where they are asked for: a million take 80 MB then, and a third of a second.
Index = tuple[NDArray[np.int32], NDArray[np.bytes_] | tuple[str, ...]]


@dataclass(frozen=True)
class FeatureKey:
    """What features are made from. Stored features are used only if all of it is the same.

    Args:
        epoch: 0 = before any step.
        transform: every step from an image file to the network's input, as text.
        manifest_sha256: hash of the split's ids, classes and pixels.
        network: the package that the model comes from, with its version; empty for layerprobe's own networks.
        dtype: the type that features are rounded to where they are stored; empty for float32.
        precision: of the network's products; empty for float32.
    """

    run: str
    epoch: int
    split: str
    weights_sha256: str
    transform: str
    manifest_sha256: str
    network: str = ""
    dtype: str = field(default="", repr=False)
    precision: str = field(default="", repr=False)

    def __str__(self) -> str:
        return " ".join(filter(None, (repr(self), self.dtype, self.precision)))

    @property
    def compute(self) -> str:
        """The precision as a layer's attribute has it."""
        return self.precision or "float32"


def key_attributes(key: FeatureKey) -> dict[str, str | int]:
    """The attributes that a usable file has: the key, and the versions that may change a feature's last bits."""
    # Files of layerprobe's own networks, and those of float32, have no such attribute.
    made_from = {name: value for name, value in asdict(key).items() if value or name not in _OPTIONAL}
    return {**made_from, **_versions()}


@functools.cache
def _versions() -> dict[str, str]:
    # Looking them up takes a millisecond, and every stored layer asks.
    return {name: metadata.version(name) for name in ("torch", "torchvision")}


@dataclass(frozen=True, eq=False)
class Rows:
    """The images of a feature file, in the split's order.

    Args:
        labels: (N,) class indices.
        class_names: name of class 0, 1 ...; if empty, no names are stored.
        class_ids: the data set's own ids of these classes; if empty, none are stored.
        first: the row of the split that the file begins with.
        total: the rows of the split, where the file has a range of them; None where it has all.
    """

    labels: NDArray[np.integer]
    ids: Sequence[str]
    class_names: Sequence[str] = ()
    class_ids: Sequence[str] = ()
    first: int = 0
    total: int | None = None

    def part(self, rows: range) -> Rows:
        """The images of a range of the split's rows."""
        if len(rows) == len(self.ids):
            return self
        labels, ids = self.labels[rows.start : rows.stop], self.ids[rows.start : rows.stop]
        return replace(self, labels=labels, ids=ids, first=rows.start, total=len(self.ids))


def write_rows(file: h5py.File, rows: Rows) -> None:
    """Write labels, ids and classes, if there are any, into a new file, and a hash of them all."""
    write_values(file, "labels", rows.labels.astype(np.int32))
    write_values(file, "ids", fixed_text(rows.ids))
    for name, texts in (("class_names", rows.class_names), ("class_ids", rows.class_ids)):
        if texts:
            write_values(file, name, fixed_text(texts))
    set_attributes(file, {_DIGEST: _digest(file)})


def require_rows(file: h5py.File) -> None:
    """Check that labels, ids and classes are as written.

    HDF5's own checksums are right again whenever a program changes them.
    """
    if attribute(file, _DIGEST) != _digest(file):
        raise damage_error(file.filename, "its labels, ids or classes are not those that layerprobe wrote")


def _digest(file: h5py.File) -> str:
    hashed = hashlib.sha256()
    for name in ("labels", "ids", "class_names", "class_ids"):
        if name in file:
            values = read_dataset(stored_dataset(file, name))
            hashed.update(f"{name} {values.dtype.str} {values.shape} ".encode() + values.tobytes())
    return hashed.hexdigest()


def write_values(group: h5py.Group, name: str, values: NDArray[Any]) -> None:
    """Write one value for each row, in chunks with a checksum each."""
    group.create_dataset(name, data=values, chunks=(min(CHUNK_ROWS, len(values)),), fletcher32=True)


def index_of(file: h5py.File) -> Index:
    """The labels (N,) and ids of an open file's rows."""
    labels, ids = stored_dataset(file, "labels"), stored_dataset(file, "ids")
    if labels.shape != ids.shape or labels.ndim != 1 or labels.dtype != np.int32 or ids.dtype.kind != "S":
        raise damage_error(file.filename, "labels and ids are not two lists of one length")
    require_rows(file)
    return read_dataset(labels), read_dataset(ids)


def index_or_error(file: h5py.File, path: Path) -> Index | DataError:
    """As `index_of`; the error if the rows are damaged, for what can be used without them."""
    try:
        with reading(path):
            return index_of(file)
    except DataError as error:
        return error


def decoded_rows(index: Index | DataError) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """The labels (N,) and ids; the error is raised."""
    if isinstance(index, DataError):
        raise index
    labels, ids = index
    if isinstance(ids, tuple):
        return labels, ids
    return labels, tuple(name.decode(errors="surrogateescape") for name in ids.tolist())


def index_nbytes(index: Index | DataError) -> int:
    """About how much memory labels and ids take."""
    if isinstance(index, DataError):
        return 0
    labels, ids = index
    return labels.nbytes + (sum(map(sys.getsizeof, ids)) if isinstance(ids, tuple) else ids.nbytes)


def made_from_facts(facts: Mapping[str, str]) -> dict[str, str]:
    """Those of a file's attributes, as text, that say what its features are made from."""
    return {name: facts.get(name, "") for name in (*(field.name for field in fields(FeatureKey)), *_versions())}


def has_facts(facts: Mapping[str, str], expected: Mapping[str, object]) -> bool:
    """Whether a file's attributes, as text, are all those wanted."""
    return all(facts.get(name, "") == str(value) for name, value in {**_PLAIN, **expected}.items())


def layers_in(file: h5py.File) -> tuple[LayerKey, ...]:
    """The layers of an open feature file."""
    layers = []
    for name in file["features"]:
        with contextlib.suppress(ValueError):  # not written by layerprobe
            layers.append(LayerKey.parse(name))
    return tuple(layers)


def texts_of(file: h5py.File, name: str) -> tuple[str, ...]:
    """The texts of an open file, such as the names of its classes; empty if it has none."""
    if name not in file:
        return ()
    dataset = stored_dataset(file, name)
    if dataset.ndim != 1 or dataset.dtype.kind != "S":
        raise damage_error(file.filename, f"{name} is not a list of texts")
    return tuple(text.decode(errors="surrogateescape") for text in read_dataset(dataset))


@dataclass(frozen=True)
class Columns:
    """The layers to write into a feature file, and how their features are computed.

    Args:
        dims: layer -> D, for the layers computed now.
    """

    dims: Mapping[LayerKey, int]
    device: str
    batch_size: int


def write_features(
    path: Path, key: FeatureKey, rows: Rows, columns: Columns, batches: Iterable[Mapping[LayerKey, FeatureArray]]
) -> None:
    """Write a feature file; the old one is replaced only when the new one is complete.

    Args:
        batches: {layer: (B, D)} in the order of the rows.
    """
    _require_layer_names(columns.dims)
    dtype = _DTYPES[key.dtype]
    with (
        written_whole(path, needed=dtype.itemsize * len(rows.ids) * sum(columns.dims.values())) as aside,
        create_file(aside) as (file, sink),
    ):
        set_attributes(file, {"schema": SCHEMA, **key_attributes(key), "layerprobe": metadata.version("layerprobe")})
        if rows.total is not None:
            set_attributes(file, {"first_row": rows.first, "images": rows.total})
        write_rows(file, rows)
        _write_columns(file.create_group("features"), len(rows.ids), columns, key, sink.watched(batches))


def stored_layers(path: Path, key: FeatureKey, *, layers: Collection[LayerKey] | None = None) -> set[LayerKey]:
    """The layers of a file whose stored features were made from this key and are intact.

    Features are read and checked against their checksums.

    Args:
        layers: that are asked for; None for all.

    Returns:
        Empty if the file is absent, unreadable or made from something else; `stale_note` says which.
    """
    intact = set()
    with stale_passed(), open_file(path) as file:
        for layer in () if _difference(file, key) else layers_in(file):
            with contextlib.suppress(DataError, *HDF5_ERRORS), memory_faults_told(path):
                if layers is not None and layer not in layers:
                    continue
                dataset = _features(file, layer)
                for chunk in dataset.iter_chunks():
                    dataset[chunk]  # a wrong checksum raises
                if attribute(dataset, "compute") == key.compute:
                    intact.add(layer)
    return intact


def stale_note(path: Path, key: FeatureKey) -> str:
    """The reason why an existing file is not used, such as `transform is not what it was`; empty if there is none."""
    if not path.exists():
        return ""
    try:
        with open_file(path) as file:
            return _difference(file, key)
    except DataError as error:
        return error.message


@dataclass(frozen=True, eq=False)
class StoredFeatures:
    """The features of one layer, read from disk in slices: float32 (N, D) in the order of the file's rows.

    Args:
        rows: the layer's HDF5 data set.
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

    def __getitem__(self, rows: slice) -> FeatureArray:
        with reading(self.path):  # a wrong checksum raises
            return np.asarray(self.rows[rows], np.float32)


@dataclass(frozen=True, eq=False)
class FeatureFile:
    """A feature file that is open."""

    path: Path
    file: h5py.File

    @functools.cached_property
    def made_from(self) -> dict[str, str]:
        """Its key, as text."""
        return made_from_facts({name: attribute(self.file, name) for name in self.file.attrs})

    @functools.cached_property
    def rows(self) -> tuple[range, str]:
        """The rows of the split that it has, and how many these are of; empty where it has all."""
        with reading(self.path):
            first = int(attribute(self.file, "first_row") or 0)
            return range(first, first + len(stored_dataset(self.file, "labels"))), attribute(self.file, "images")

    @functools.cached_property
    def layers(self) -> tuple[LayerKey, ...]:
        """The layers whose features are in it, by name."""
        with reading(self.path):
            return layers_in(self.file)

    def table(self, layer: LayerKey) -> StoredFeatures:
        """The features of one layer, to be read in slices."""
        _require_layer_names([layer])
        with reading(self.path):
            return StoredFeatures(self.path, _features(self.file, layer))

    def read(self, layer: LayerKey) -> FeatureArray:
        """The features of one layer.

        Returns:
            float32 (N, D) in the order of the file's rows.
        """
        table = self.table(layer)
        with reading(self.path):
            try:
                with memory_faults_told(self.path):
                    values = np.asarray(read_dataset(table.rows), np.float32)
            except OSError as error:
                command = probe_command(self.path, "--epochs", attribute(self.file, "epoch"))
                fix = f"Delete it; {command} computes it again"
                raise DataError(f"checksum of layer {layer} fails", file=self.path, fix=fix) from error
        return values


class LayerTables(Protocol):
    """The features of layers by image: those of open feature files, or in memory."""

    @property
    def layers(self) -> tuple[LayerKey, ...]:
        """The layers that have features."""

    def table(self, layer: LayerKey) -> Table:
        """The features of one layer, (N, D), to be read in slices."""

    def read(self, layer: LayerKey) -> FeatureArray:
        """The features of one layer, (N, D)."""


@contextlib.contextmanager
def open_one_file(path: Path) -> Iterator[FeatureFile]:
    """Open a feature file, for several layers or questions."""
    with contextlib.ExitStack() as stack:
        # Only opening is guarded here: an error in the caller's block is not the file's.
        with reading(path):
            require_file(path)
            file = stack.enter_context(h5py.File(path, "r", locking=False))
            require_format(file, "features")
        yield FeatureFile(path, file)


@dataclass(frozen=True, eq=False)
class FeatureHead:
    """What a feature file says of itself, read once.

    Args:
        index: (N,) labels and ids of its rows; the error if these are damaged.
        facts: its attributes as text.
        columns: layer -> length of its features and the type that they were computed in, of those that are as
            layerprobe stores them.
        class_names: empty if it has none.
    """

    index: Index | DataError
    facts: Mapping[str, str]
    columns: Mapping[LayerKey, tuple[int, str]]
    class_names: tuple[str, ...] = ()

    @property
    def labels(self) -> NDArray[np.int32]:
        """(N,) classes."""
        if isinstance(self.index, DataError):
            raise self.index
        return self.index[0]

    @property
    def ids(self) -> tuple[str, ...]:
        """The names of the N images, decoded at each call."""
        return decoded_rows(self.index)[1]

    @property
    def rows(self) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """(N,) labels and ids."""
        return decoded_rows(self.index)

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return index_nbytes(self.index)

    @property
    def part(self) -> tuple[range, str]:
        """As `FeatureFile.rows`."""
        if isinstance(self.index, DataError):
            raise self.index
        first = int(self.facts.get("first_row") or 0)
        return range(first, first + len(self.index[0])), self.facts.get("images", "")

    @property
    def dims(self) -> dict[LayerKey, int]:
        """Layer -> length of its features."""
        return {layer: dim for layer, (dim, _) in self.columns.items()}

    def made_from(self, key: FeatureKey) -> set[LayerKey]:
        """The layers that were made from this key; their features are not read."""
        if isinstance(self.index, DataError) or not has_facts(self.facts, key_attributes(key)):
            return set()
        return {layer for layer, (_, computed) in self.columns.items() if computed == key.compute}


def read_one_head(path: Path) -> FeatureHead:
    """What a feature file says of itself."""
    columns: dict[LayerKey, tuple[int, str]] = {}
    with open_file(path) as file:
        index = index_or_error(file, path)
        for layer in layers_in(file):
            with contextlib.suppress(DataError, *HDF5_ERRORS):
                dataset = _features(file, layer)
                columns[layer] = int(dataset.shape[1]), attribute(dataset, "compute")
        names = () if isinstance(index, DataError) else texts_of(file, "class_names")
        return FeatureHead(index, {name: attribute(file, name) for name in file.attrs}, columns, names)


def _write_columns(
    group: h5py.Group,
    count: int,
    columns: Columns,
    key: FeatureKey,
    batches: Iterable[Mapping[LayerKey, FeatureArray]],
) -> None:
    """Create the layers' data sets and fill them chunk by chunk."""
    attributes: dict[str, str | int] = {
        "compute": key.compute,
        "device": columns.device,
        "batch_size": columns.batch_size,
    }
    size, dtype = min(CHUNK_ROWS, count), _DTYPES[key.dtype]
    datasets, buffers = {}, {}
    for layer, dim in columns.dims.items():
        datasets[layer] = group.create_dataset(layer.stored, (count, dim), dtype, chunks=(size, dim), fletcher32=True)
        set_attributes(datasets[layer], attributes)
        buffers[layer] = np.empty((size, dim), dtype)
    done = 0
    for batch in batches:
        length = _batch_length(batch, columns.dims)
        if done + length > count:
            raise ValueError(f"more than the {count} rows that the labels have")
        for layer, values in batch.items():
            if dtype != np.float32:
                _require_within(values, layer, dtype)
            _append(datasets[layer], buffers[layer], values, done)
        done += length
    if done != count:
        raise ValueError(f"{done} rows, not the {count} that the labels have")


def _require_within(values: FeatureArray, layer: LayerKey, dtype: np.dtype[Any]) -> None:
    """Check that finite features stay finite in a type; those that are not finite are told where they are ranked."""
    largest = float(np.finfo(dtype).max)
    if (np.abs(values[np.isfinite(values)]) > largest).any():
        problem = f"{layer} has features beyond {largest:,.0f}, the largest number of {dtype}"
        raise DataError(problem, fix="Probe it with --store float32")


def _append(dataset: h5py.Dataset, buffer: FeatureArray, values: FeatureArray, done: int) -> None:
    """Add rows to the buffer; each full chunk, and the last one, goes from there into the file.

    Args:
        dataset: (N, D) in the file.
    """
    while len(values):
        start = done % len(buffer)
        chunk = values[: len(buffer) - start]
        buffer[start : start + len(chunk)] = chunk
        done, values = done + len(chunk), values[len(chunk) :]
        filled = start + len(chunk)
        if filled == len(buffer) or done == len(dataset):
            dataset[done - filled : done] = buffer[:filled]


def _batch_length(batch: Mapping[LayerKey, FeatureArray], dims: Mapping[LayerKey, int]) -> int:
    lengths = {len(values) for values in batch.values()}
    shapes = {layer.stored: values.shape[1:] for layer, values in batch.items()}
    announced = {layer.stored: (dim,) for layer, dim in dims.items()}
    if shapes != announced or len(lengths) != 1:
        raise ValueError(f"a batch of {shapes} where {announced} was announced")
    return lengths.pop()


def _difference(file: h5py.File, key: FeatureKey) -> str:
    """In which part of the key a file differs, as a sentence; empty if in none."""
    require_rows(file)
    expected_attributes = {**_PLAIN, **key_attributes(key)}
    changed = (name for name, expected in expected_attributes.items() if attribute(file, name) != str(expected))
    return next((f"{name} is not what it was" for name in changed), "")


def _require_layer_names(layers: Iterable[LayerKey]) -> None:
    for layer in layers:
        if "/" in str(layer) or not layer.layer:
            raise ValueError(f"layer name {layer.layer!r}: it must not be empty or have a '/'")


def _features(file: h5py.File, layer: LayerKey) -> h5py.Dataset:
    """A layer's data set, checked: of the file's type, as many rows as labels."""
    if layer.stored not in file["features"]:
        command = probe_command(Path(file.filename), "--layers", str(layer))
        raise DataError(f"no features of {layer}", file=file.filename, fix=f"Run {command}")
    dataset, labels = stored_dataset(file, f"features/{layer.stored}"), stored_dataset(file, "labels")
    dtype = _DTYPES.get(attribute(file, "dtype"))
    if dataset.ndim != 2 or dataset.dtype != dtype:
        raise damage_error(file.filename, f"{layer} is not a {dtype or 'known'} matrix")
    if dataset.shape[0] != labels.shape[0]:
        raise damage_error(file.filename, f"{layer} has {dataset.shape[0]} rows, the labels {labels.shape[0]}")
    return dataset
