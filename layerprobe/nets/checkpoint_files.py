"""Weights files of any trainer -> all tensors in them by name; no code of a file runs.

A checkpoint of somebody's training holds their options as well: an `argparse.Namespace`, a configuration, numpy's
numbers, a loss. `torch.load(weights_only=True)` refuses the whole file for one such name. Here it gets a class of ours
for the name, a stand-in, which takes any arguments and keeps none, so that the tensors beside it can be read. Nothing
is imported by a name in a file, and the restricted unpickler calls only its own list of functions and these stand-ins.
"""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import re
import struct
import sys
import warnings
import zipfile
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from layerprobe.nets.weight_files import (
    ADAPTER_CONFIG,
    AGAIN,
    GIVE_WEIGHTS,
    METADATA,
    PIECES,
    STATE_OF_OBJECT,
    is_safetensors,
    of_fsdp,
    parts_of,
    require_weights_format,
)
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.system.memory import memory_faults_told, require_memory

# Exceptions that torch may raise on bytes that are no checkpoint.
_UNREADABLE = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
    OverflowError, MemoryError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
_STATE_ALONE = "Save the network's state_dict() alone"
# Words in torch's errors -> the content of the file, and what to do.
_OTHERS = {
    "persistent_load of storage": ("a module as an object, in torch's old format", STATE_OF_OBJECT),
    "Tensor subclass": ("tensors of a class of its own", _STATE_ALONE),
}
# Of Python's own modules, those whose names in a file are data. A name of any other is code: os.system, eval, partial.
_DATA = ("argparse", "collections", "datetime", "decimal", "enum", "fractions", "pathlib", "uuid")
_DATA_NAMES = {"types.SimpleNamespace"} | {
    f"builtins.{kind.__name__}" for kind in (bool, bytes, dict, float, frozenset, int, list, object, range, slice, str)
}


class _StandIn:
    """An object of a class that a file names: nothing is known of it, and nothing is kept."""

    __slots__ = ()

    def __new__(cls, *_: object, **__: object) -> Self:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __setstate__(self, state: object) -> None:
        """Drop the object's state."""


class _PlainDict:
    """Stands for a subclass of dict: its objects are plain ones, which torch fills with their items."""

    def __new__(cls, *_: object, **__: object) -> OrderedDict[object, object]:  # type: ignore[misc]
        return OrderedDict()


class _PlainList:
    """Stands for a subclass of list, likewise."""

    def __new__(cls, *_: object, **__: object) -> list[object]:  # type: ignore[misc]
        return []


def load_inert(path: Path) -> object:
    """What a torch file holds, with tensors on the CPU and stand-ins for objects of foreign classes.

    Objects of subclasses of dict and list become an OrderedDict and a list of their items.
    """
    try:
        _require_plain_archive(path)
        with warnings.catch_warnings(action="ignore"):  # on the pickle's version, before it is refused
            names = _foreign_names(path)
            if any(name.startswith(PIECES) for name in names):
                raise of_fsdp("it holds pieces of tensors", path)
            for name in names:
                if _is_code(name):
                    raise _holds_code(path, name)
            return _load(path, names)
    except _UNREADABLE as error:
        # torch's own message recommends disabling the protection.
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        if code is not None:
            raise _holds_code(path, code[1]) from error
        other = next((refusal for words, refusal in _OTHERS.items() if words in str(error)), None)
        if other is not None:
            raise DataError(f"holds {other[0]}", file=path, fix=other[1]) from error
        if not _begins_as_torchs(path):
            raise DataError("no weights file of torch or safetensors", file=path, fix=GIVE_WEIGHTS) from error
        raise DataError("truncated, or no weights file", file=path, fix=AGAIN) from error


def _holds_code(path: Path, name: str) -> DataError:
    problem = f"holds Python code ({name}); layerprobe does not run it"
    return DataError(problem, file=path, fix="Convert it to safetensors")


def _is_code(name: str) -> bool:
    """Whether a name is a function, as far as is known without importing it."""
    module, attribute = name.partition(".")[0], name.rpartition(".")[2]
    if module == "torch":
        return not attribute.lstrip("_")[:1].isupper()
    standard = module in sys.stdlib_module_names or module == "commands"  # as a file calls subprocess
    return standard and not _is_data(name)


def _is_data(name: str) -> bool:
    """Whether a name is of a class of Python's own that holds values alone."""
    return name.partition(".")[0] in _DATA or name in _DATA_NAMES


def _require_plain_archive(path: Path) -> None:
    """Refuse what could unfold to any size: by compression, or by entries that share their bytes."""
    if _is_archive(path):
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise DataError("compressed, which torch.save never does", file=path, fix="Save the weights again")
        if sum(entry.file_size for entry in entries) > path.stat().st_size:
            raise DataError("claims more bytes than the file has", file=path, fix=AGAIN)


def _is_archive(path: Path) -> bool:
    """Whether torch takes a file for an archive: by its first bytes, while zipfile looks for the table at the end."""
    with path.open("rb") as stream:
        return stream.read(4) == b"PK\x03\x04"


def _begins_as_torchs(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(4).startswith((b"PK\x03\x04", b"\x80"))


def _foreign_names(path: Path) -> list[str]:
    """The classes and functions that a file names and torch does not know as safe; found without unpickling."""
    if _is_archive(path):
        return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    with path.open("rb") as stream:
        _require_magic_number(path, stream)
        for _ in range(2):  # the format's version, sizes of integers
            _skip_pickle(stream)
        start = stream.tell()
        _skip_pickle(stream)
        size = stream.tell() - start
        stream.seek(start)
        content = stream.read(size)
    # torch lists the names of its present format alone, a zip archive; the pickle inside is the same in both.
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as entries:
        entries.writestr("archive/version", "3\n")
        entries.writestr("archive/data.pkl", content)
    archive.seek(0)
    return sorted(torch.serialization.get_unsafe_globals_in_checkpoint(archive))


def _require_magic_number(path: Path, stream: io.BufferedReader) -> None:
    """Read past the pickle at the start of torch's old format; raise if another pickle is in its place."""
    has_magic_number = False
    texts: deque[str] = deque(["", ""], maxlen=2)  # the last two that are put on the stack: a module and a name in it
    memo: dict[object, str] = {}
    for opcode, value, _ in pickletools.genops(stream):
        has_magic_number |= value == torch.serialization.MAGIC_NUMBER
        match opcode.name:
            case "GLOBAL" | "INST" | "STACK_GLOBAL":
                name = ".".join(texts) if value is None else str(value).replace(" ", ".")
                if not _is_data(name):
                    raise _holds_code(path, name)
            case "MEMOIZE" | "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[len(memo) if value is None else value] = texts[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                texts.append(memo.get(value, ""))
            case _:
                texts.append(value if isinstance(value, str) else "")
    if not has_magic_number:
        raise DataError(
            "a plain pickle, which torch.save never writes", file=path, fix=f"{_STATE_ALONE}, by torch.save"
        )


def _skip_pickle(stream: io.BufferedReader) -> None:
    for _ in pickletools.genops(stream):
        pass


def _load(path: Path, names: list[str]) -> object:
    """Load with a stand-in for each name; only when items are put into one is it known to be a dict or a list."""
    kinds: list[type] = [type(f"_StandIn{index}", (_StandIn,), {"__slots__": ()}) for index in range(len(names))]
    while True:
        try:
            with torch.serialization.safe_globals(list(zip(kinds, names, strict=True))):
                return torch.load(path, map_location="cpu", weights_only=True)
        except pickle.UnpicklingError as error:
            container = re.search(r"Can only (\w+) .*but got <class '[\w.]+\._StandIn(\d+)'>", str(error))
            if container is None:
                raise
            kinds[int(container[2])] = _PlainDict if container[1].startswith("SETITEM") else _PlainList


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
    files = list(parts_of(path))
    adapter = None
    if files[0].name == ADAPTER_CONFIG and len(files) > 1:
        settings, *files = files
        try:
            adapter = dict(json.loads(settings.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, RecursionError) as error:
            problem = f"not the settings of an adapter ({error})"
            raise DataError(problem, file=settings, fix="Save the adapter again") from error
    if files[0].name == METADATA:
        from layerprobe.nets.distributed_checkpoint import read_distributed  # slow to import

        for file in files:
            require_file(file)
        tensors = read_distributed(files[0].parent)
    else:
        tensors = _read_files(files, path)
    if not tensors:
        fix = "Save the network's state_dict() alone"
        raise DataError("does not hold tensors by their names", file=path, fix=fix)
    if flat := next((name for name in tensors if name.rpartition(".")[2] in _FLAT), None):
        raise of_fsdp(f"{flat} is all parameters of a module in one", path)
    return FileWeights(tensors, path, part_name, adapter)


def _read_files(files: Sequence[Path], path: Path) -> dict[str, Tensor]:
    for file in files:
        require_weights_format(file)
    require_memory(sum(file.stat().st_size for file in files), path)
    tensors: dict[str, Tensor] = {}
    for file in files:
        content = _read_safetensors(file) if is_safetensors(file) else load_inert(file)
        of_file = list(_tensors(content, file, "", set(), _DEPTH))
        values = type(content).values(content) if isinstance(content, dict) else [content]
        if not of_file and any(isinstance(value, _StandIn) for value in values):
            problem = "holds a Python object, such as a whole module, and no tensors by their names"
            raise DataError(problem, file=file, fix=STATE_OF_OBJECT)
        for name, tensor in of_file:
            if name in tensors:
                fix = "Save the network's state_dict() alone"
                raise DataError(f"holds two tensors called {name}", file=file, fix=fix)
            tensors[name] = tensor
    return tensors


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
                is_dense = tensor.layout is torch.strided and not (tensor.is_nested or tensor.is_quantized)
                if is_dense and tensor.device.type == "cpu":
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
