"""Folders of torch.distributed.checkpoint, as FSDP saves them, read in one process; no code of a file runs."""

from __future__ import annotations

import io
import pickle
import warnings
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load

from layerprobe.nets.weight_files import METADATA
from layerprobe.system.errors import DataError
from layerprobe.system.memory import memory_faults_told, require_memory

# All that the metadata of tensors name; torch's own reader would import and call any name in them.
_DATACLASSES = {
    f"{kind.__module__}.{kind.__name__}": kind
    for kind in (
        metadata.BytesStorageMetadata, metadata.ChunkStorageMetadata, metadata.Metadata, metadata.MetadataIndex,
        metadata.StorageMeta, metadata.TensorStorageMetadata, filesystem._StorageInfo, filesystem._StoragePrefix,
    )
}  # fmt: skip
_VALUES = {
    **{f"torch.{name}": kind for name, kind in vars(torch).items() if isinstance(kind, torch.dtype)},
    "torch.Size": torch.Size,
    "collections.OrderedDict": dict,
    "builtins.set": set,
}
_NOT_NEEDED = ("torch.serialization._get_layout", f"{metadata.__name__}._MEM_FORMAT_ENCODING")
_DAMAGED = (
    pickle.UnpicklingError, CheckpointException, RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError,
    AttributeError, AssertionError, OverflowError,
)  # fmt: skip


class _OpaqueObject:
    """An object of no importance: a path, a layout."""

    def __new__(cls, *_: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *_: object) -> None:
        pass


class _Properties:
    """The properties of a tensor, of which only its type is needed."""

    dtype: torch.dtype

    def __setstate__(self, state: tuple[torch.dtype, ...]) -> None:
        self.dtype = state[0]


class _Unpickler(pickle.Unpickler):
    """Makes objects of classes of its own, which a file may change: never torch's."""

    def __init__(self, path: Path) -> None:
        super().__init__(io.BytesIO(path.read_bytes()))
        self.path = path
        self.classes: dict[str, Any] = {
            **{name: type(kind.__name__, (kind,), {}) for name, kind in _DATACLASSES.items()},
            f"{metadata.__name__}.TensorProperties": type("Properties", (_Properties,), {}),
            **dict.fromkeys(_NOT_NEEDED, type("StandIn", (_OpaqueObject,), {})),
        }

    def find_class(self, module: str, name: str) -> Any:
        """The class of a name."""
        full = f"{module}.{name}"
        if full in _VALUES:
            return _VALUES[full]
        if module.partition(".")[0] == "pathlib":
            return type("StandIn", (_OpaqueObject,), {})
        if full not in self.classes:
            problem = f"holds Python code ({full}); layerprobe does not run it"
            raise DataError(problem, file=self.path, fix="Save it again by torch.distributed.checkpoint.save")
        return self.classes[full]


class _TensorReader(FileSystemReader):
    """torch's reader of a folder, with its metadata read by `_metadata`."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        """What the folder holds, of tensors alone: torch would unpickle the other objects."""
        return _metadata(Path(self.path))


def read_distributed(folder: Path) -> dict[str, Tensor]:
    """All dense tensors of a folder, with the keys of the dicts that they lie in before their names."""
    try:
        sizes = {}
        for name, entry in _metadata(folder).state_dict_metadata.items():
            if isinstance(entry, TensorStorageMetadata):
                _require_all_chunks(name, entry, folder)
                sizes[name] = entry.size, entry.properties.dtype
        require_memory(2 * sum(size.numel() * dtype.itemsize for size, dtype in sizes.values()), folder)
        with memory_faults_told(folder), warnings.catch_warnings(action="ignore"):  # that there is one process
            tensors = {name: torch.empty(size, dtype=dtype) for name, (size, dtype) in sizes.items()}
            load(tensors, storage_reader=_TensorReader(folder), no_dist=True)
    except _DAMAGED as error:
        problem = "a damaged folder of torch.distributed.checkpoint"
        raise DataError(problem, file=folder, fix="Copy or download it again") from error
    return tensors


def _require_all_chunks(name: str, entry: TensorStorageMetadata, folder: Path) -> None:
    """Check that the parts of a tensor have as many numbers as it: the others would be what the memory holds."""
    parts = sum(chunk.sizes.numel() for chunk in entry.chunks)
    if parts != entry.size.numel():
        problem = f"its parts of {name} have {parts:,} of {entry.size.numel():,} numbers"
        raise DataError(problem, file=folder, fix="Copy or download it again")


def _metadata(folder: Path) -> Metadata:
    """The tensors of a folder, and where in its files they lie, in objects made anew."""
    path = folder / METADATA
    content = _Unpickler(path).load()
    tensors: dict[str, TensorStorageMetadata | BytesStorageMetadata] = {
        name: TensorStorageMetadata(
            TensorProperties(dtype=entry.properties.dtype),
            torch.Size(entry.size),
            [ChunkStorageMetadata(torch.Size(chunk.offsets), torch.Size(chunk.sizes)) for chunk in entry.chunks],
        )
        for name, entry in content.state_dict_metadata.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    storage = {
        MetadataIndex(index.fqn, index.offset): _info(info, path)
        for index, info in content.storage_data.items()
        if index.fqn in tensors
    }
    return Metadata(tensors, storage_data=storage, storage_meta=StorageMeta())


def _info(info: Any, path: Path) -> object:
    """Where a tensor lies."""
    if Path(info.relative_path).name != info.relative_path or not info.relative_path.endswith(".distcp"):
        raise DataError(
            f"names {info.relative_path}, not a .distcp file beside it", file=path, fix="Give another folder"
        )
    transforms = getattr(info, "transform_descriptors", None)  # of older folders, none
    return filesystem._StorageInfo(info.relative_path, info.offset, info.length, transforms)
