"""What stored features are made from, and their rows: images, labels and classes."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.store.hdf5 import (
    attribute,
    damage_error,
    fixed_text,
    read_dataset,
    reading,
    set_attributes,
    stored_dataset,
)
from layerprobe.system.errors import DataError
from layerprobe.values.layers import LayerKey


@dataclass(frozen=True)
class FeatureKey:
    """What features are made from. Stored features are used only if all of it is the same.

    Args:
        epoch: 0 = before any step.
        transform: every step from an image file to the network's input, as text.
        manifest_sha256: hash of the split's ids, classes and pixels.
        network: the package that the model comes from, with its version; empty for layerprobe's own networks.
    """

    run: str
    epoch: int
    split: str
    weights_sha256: str
    transform: str
    manifest_sha256: str
    network: str = ""


def key_attributes(key: FeatureKey) -> dict[str, str | int]:
    """The attributes that a usable file has: the key, and the versions that may change a feature's last bits."""
    made_from = asdict(key)
    if not key.network:
        del made_from["network"]  # files of layerprobe's own networks have no such attribute
    return {**made_from, **_versions()}


@cache
def _versions() -> dict[str, str]:
    # Looking them up takes a millisecond, and every stored layer asks.
    return {name: metadata.version(name) for name in ("torch", "torchvision")}


CHUNK_ROWS = 512
_DIGEST = "rows_sha256"


@dataclass(frozen=True, eq=False)
class Rows:
    """The images of a feature file, in the split's order.

    Args:
        labels: (N,) class indices.
        class_names: name of class 0, 1 ...; if empty, no names are stored.
        class_ids: the data set's own ids of these classes; if empty, none are stored.
    """

    labels: NDArray[np.integer]
    ids: Sequence[str]
    class_names: Sequence[str] = ()
    class_ids: Sequence[str] = ()


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


def index_of(file: h5py.File) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """The labels (N,) and ids of an open file's rows."""
    labels, ids = stored_dataset(file, "labels"), stored_dataset(file, "ids")
    if labels.shape != ids.shape or labels.ndim != 1 or labels.dtype != np.int32 or ids.dtype.kind != "S":
        raise damage_error(file.filename, "labels and ids are not two lists of one length")
    require_rows(file)
    return read_dataset(labels), tuple(name.decode(errors="surrogateescape") for name in read_dataset(ids))


def index_or_error(file: h5py.File, path: Path) -> tuple[NDArray[np.int32], tuple[str, ...]] | DataError:
    """As `index_of`; the error if the rows are damaged, for what can be used without them."""
    try:
        with reading(path):
            return index_of(file)
    except DataError as error:
        return error


def rows_nbytes(rows: tuple[NDArray[np.int32], tuple[str, ...]]) -> int:
    """About how much memory labels and ids take."""
    return rows[0].nbytes + sum(map(sys.getsizeof, rows[1]))


def has_facts(facts: Mapping[str, str], expected: Mapping[str, object]) -> bool:
    """Whether a file's attributes, as text, are all those wanted."""
    return all(facts.get(name, "") == str(value) for name, value in expected.items())


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
