"""Weights files of any trainer -> all tensors in them by name; no code of a file runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from layerprobe.nets.stand_ins import is_stand_in, load_inert
from layerprobe.nets.weight_files import (
    ADAPTER_CONFIG,
    AGAIN,
    METADATA,
    PIECES,
    STATE_OF_OBJECT,
    is_safetensors,
    of_fsdp,
    parts_of,
    require_weights_format,
)
from layerprobe.system.errors import DataError
from layerprobe.system.memory import memory_faults_told, require_memory

# All that the metadata of tensors name; torch's own reader would import and call any name in them.


_FLAT = ("flat_param", "_flat_param")
# No trainer nests deeper; a file that does could make names of any length.
_DEPTH = 16


@dataclass(frozen=True, eq=False)
class FileWeights:
    """All tensors of a weights file, of which a network's are a part.

    Args:
        tensors: names -> tensors on the CPU, in the file's order. In front of a tensor's own name stand the keys of the
            dicts that it lies in: `state_dict.model.conv1.weight`.
        source: the file, for errors and notes; None where the tensors come from elsewhere.
        part: the name of the dict, or the prefix, of the network; None: search for it.
        adapter: PEFT's settings of an adapter, whose tensors these are; None for those of a network.
    """

    tensors: Mapping[str, Tensor]
    source: Path | None = None
    part: str | None = None
    adapter: Mapping[str, Any] | None = None


def read_checkpoint(path: Path, part_name: str | None = None) -> FileWeights:
    """Read a file of safetensors or torch, shards, or a folder of weights; code in a file is never run.

    Raises:
        DataError: a file that is absent, damaged, or no weights by their names in either format.
    """
    files = parts_of(path)
    adapter = None
    if files[0].name == ADAPTER_CONFIG and len(files) > 1:
        adapter, files = _read_settings(files[0]), files[1:]
    tensors = _read_distributed(files[0]) if files[0].name == METADATA else _read_files(files, path)
    if not tensors:
        fix = "Save the network's state_dict() alone"
        raise DataError("does not hold tensors by their names", file=path, fix=fix)
    if flat := next((name for name in tensors if name.rpartition(".")[2] in _FLAT), None):
        raise of_fsdp(f"{flat} is all parameters of a module in one", path)
    return FileWeights(tensors, path, part_name, adapter)


def _read_settings(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise DataError(f"not the settings of an adapter ({error})", file=path, fix="Save the adapter again") from error


def _read_distributed(metadata: Path) -> dict[str, Tensor]:
    from layerprobe.nets.distributed_checkpoint import read_distributed  # slow to import

    return read_distributed(metadata.parent)


def _read_files(files: Sequence[Path], path: Path) -> dict[str, Tensor]:
    for file in files:
        require_weights_format(file)
    require_memory(sum(file.stat().st_size for file in files), path)
    tensors: dict[str, Tensor] = {}
    for file in files:
        content = _read_safetensors(file) if is_safetensors(file) else load_inert(file)
        of_file = list(_tensors(content, file, "", set(), _DEPTH))
        if not of_file and _holds_object(content):
            problem = "holds a Python object, such as a whole module, and no tensors by their names"
            raise DataError(problem, file=file, fix=STATE_OF_OBJECT)
        for name, tensor in of_file:
            if name in tensors:
                fix = "Save the network's state_dict() alone"
                raise DataError(f"holds two tensors called {name}", file=file, fix=fix)
            tensors[name] = tensor
    return tensors


def _holds_object(content: object) -> bool:
    """Whether the content of a file is an object of some class, or a dict that holds one."""
    values = type(content).values(content) if isinstance(content, dict) else [content]
    return any(map(is_stand_in, values))


def _tensors(node: object, file: Path, prefix: str, seen: set[int], depth: int) -> Iterator[tuple[str, Tensor]]:
    """The dense tensors of nested dicts, each dict once, though it may lie in several or in itself."""
    if not isinstance(node, Mapping) or id(node) in seen or not depth:
        return
    seen.add(id(node))
    # Called on the class: a file can give an OrderedDict and a tensor attributes, which would hide their methods.
    for key, value in type(node).items(node):
        if not isinstance(key, str):
            continue
        if isinstance(value, Tensor):
            if type(value) in (Tensor, nn.Parameter):
                tensor = Tensor.detach(value)
                if tensor.layout is torch.strided and tensor.device.type == "cpu" and not tensor.is_quantized:
                    yield f"{prefix}{key}", tensor
            elif type(value).__module__.startswith(PIECES):
                raise of_fsdp(f"{prefix}{key} is a piece of a tensor", file)
        else:
            yield from _tensors(value, file, f"{prefix}{key}.", seen, depth - 1)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with memory_faults_told(path):
            return dict(safetensors.torch.load_file(path))
    except safetensors.SafetensorError as error:
        raise DataError(f"truncated, or no safetensors file ({error})", file=path, fix=AGAIN) from error
