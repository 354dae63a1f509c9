"""Weights files of any trainer -> all tensors in them by name; no code of a file runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from layerprobe.nets.stand_ins import load_inert
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.system.memory import memory_faults_told, require_memory

_ALTERNATIVES = "--set net.weights=none, or --set net.weights=PATH"
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
    """

    tensors: Mapping[str, Tensor]
    source: Path | None = None
    part: str | None = None


def read_checkpoint(path: Path, part: str | None = None) -> FileWeights:
    """Read a safetensors file, or a torch file of either format; code in it is never run."""
    _require_weights_file(path)
    require_memory(path.stat().st_size, path)
    content = _read_safetensors(path) if path.suffix == ".safetensors" else load_inert(path)
    tensors: dict[str, Tensor] = {}
    for name, tensor in _tensors(content, "", set(), _DEPTH):
        if name in tensors:
            raise DataError(f"holds two tensors called {name}", file=path, fix="Save the network's state_dict() alone")
        tensors[name] = tensor
    if not tensors:
        raise DataError("does not hold tensors by their names", file=path, fix="Save the network's state_dict() alone")
    return FileWeights(tensors, path, part)


def _tensors(node: object, prefix: str, seen: set[int], depth: int) -> Iterator[tuple[str, Tensor]]:
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
        else:
            yield from _tensors(value, f"{prefix}{key}.", seen, depth - 1)


def _require_weights_file(path: Path) -> None:
    """Refuse an empty file and files that are often mistaken for weights."""
    try:
        require_file(path)
        with path.open("rb") as stream:
            start = stream.read(512).lstrip().lower()
    except OSError as error:
        raise DataError(f"no readable weights file: {error.strerror}", file=path, fix=f"Use {_ALTERNATIVES}") from error
    found = ""
    if path.stat().st_size == 0:
        found = "the file is empty"
    elif start.startswith((b"<!doctype", b"<html")):
        found = "this is an HTML page, not weights"
    elif start.startswith(b"version https://git-lfs"):
        found = "this is a git-lfs pointer, not weights"
    if found:
        raise DataError(found, file=path, fix="Download it again")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with memory_faults_told(path):
            return dict(safetensors.torch.load_file(path))
    except safetensors.SafetensorError as error:
        raise DataError(f"truncated, or no safetensors file ({error})", file=path, fix="Download it again") from error
