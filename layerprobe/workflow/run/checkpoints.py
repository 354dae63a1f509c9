"""Weights and resume state on disk: written atomically, hashed, and never executed."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from layerprobe.nets.weight_files import sha256_of_weights
from layerprobe.system.errors import DataError
from layerprobe.system.files import SteadyFile, sha256, written_whole
from layerprobe.system.memory import memory_faults_told, require_memory

if TYPE_CHECKING:
    from torch import Tensor, nn


def save_weights(path: Path, modules: Mapping[str, nn.Module]) -> str:
    """Write the modules' tensors as `<key>.<name>` to a safetensors file, and return its SHA-256."""
    from safetensors.torch import save

    tensors = {
        f"{key}.{name}": tensor.detach().to("cpu").contiguous()
        for key, module in modules.items()
        for name, tensor in module.state_dict().items()
    }
    # safetensors needs twice the bytes, and aborts the process if memory does not suffice.
    require_memory(2 * sum(tensor.nbytes for tensor in tensors.values()), path)
    # Not to a path: a kill would leave safetensors' own temporary file, and it hides the system's error.
    content = save(tensors)
    with written_whole(path, needed=len(content)) as aside:
        aside.write_bytes(content)
        return sha256(aside)


def load_weights(path: Path, modules: Mapping[str, nn.Module], *, expected: Collection[str]) -> None:
    """Load a file of `save_weights` into modules, each of which needs all its tensors.

    Args:
        expected: SHA-256s that the file may have; empty: any.
    """
    tensors = _read(path, expected)
    for key, module in modules.items():
        module_tensors = {
            name.removeprefix(f"{key}."): tensor for name, tensor in tensors.items() if name.startswith(f"{key}.")
        }
        kinds = {name: tensor.is_complex() for name, tensor in module.state_dict().items()}
        for name, tensor in module_tensors.items():
            if tensor.is_complex() and not kinds.get(name, True):  # torch would load the real part
                raise DataError(f"{name} holds complex numbers", file=path, fix="Train it again with --fresh")
        try:
            module.load_state_dict(module_tensors)
        except RuntimeError as error:
            reason = str(error).splitlines()[1].strip() if "\n" in str(error) else str(error)
            message = f"weights of another network or loss: {reason}"
            raise DataError(message, file=path, fix="Train it again with --fresh") from error


def read_tensors(path: Path, key: str, names: Collection[str], *, expected: Collection[str]) -> dict[str, Tensor]:
    """Some tensors of a module in a file of `save_weights`, by their names in the module."""
    tensors = _read(path, expected)
    if gone := [name for name in names if f"{key}.{name}" not in tensors]:
        raise DataError(f"it has no {key}.{gone[0]}", file=path, fix="Train it again with --fresh")
    return {name: tensors[f"{key}.{name}"] for name in names}


def _read(path: Path, expected: Collection[str]) -> dict[str, Tensor]:
    from safetensors.torch import load, load_file

    require_unchanged(path, expected)
    try:
        # safetensors opens no path that is not UTF-8.
        with memory_faults_told(path):
            return load_file(path) if _is_utf8(path) else load(path.read_bytes())
    except (safetensors.SafetensorError, OSError) as error:
        raise DataError(f"not a readable checkpoint ({error})", file=path, fix="Train it again with --fresh") from error


def save_state(path: Path, previous: Path, state: dict[str, Any], *, recorded: Collection[str]) -> str:
    """Write the resume state, rename the one before it to `previous`, and return the new file's SHA-256.

    Args:
        recorded: SHA-256s in the run's record. Any other file at `path`, left by a kill before the record was written,
            is overwritten: as `previous` it would replace the last known one.
    """
    import torch

    with written_whole(path) as aside:
        with SteadyFile(aside, "w") as sink:
            torch.save(state, sink)
            sink.require_written()
        digest = sha256(aside)
        if path.exists() and sha256(path) in recorded:
            path.replace(previous)
    return digest


def load_state(path: Path, *, expected: Collection[str]) -> dict[str, Any]:
    """Read a resume state; code in the file is never executed."""
    import torch

    require_unchanged(path, expected)
    try:
        with memory_faults_told(path):
            state = dict(torch.load(path, weights_only=True, map_location="cpu"))
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, TypeError) as error:
        raise DataError("not a readable resume state", file=path, fix="Train it again with --fresh") from error
    for name, kind in (("epoch", int), ("iteration", int), ("optimizer", dict)):
        if not isinstance(state.get(name), kind):
            raise DataError(f"a resume state without {name}", file=path, fix="Train it again with --fresh")
    return state


def require_unchanged(path: Path, expected: Collection[str]) -> str:
    """Return the SHA-256 of a file or folder of weights after checking that it is one of those expected, if any."""
    try:
        digest = sha256_of_weights(path)
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", file=path, fix="Train it again with --fresh") from error
    if expected and digest not in expected:
        fix = "Restore it from a copy, or train the run again with --fresh"
        raise DataError("is not the file that the run wrote", file=path, fix=fix)
    return digest


def _is_utf8(path: Path) -> bool:
    return str(path).encode(errors="replace").decode() == str(path)
