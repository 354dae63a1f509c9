"""The weights of a run's epochs: its checkpoints, hashed and never executed, or other trainings' files."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import safetensors

from layerprobe.nets.net import Net
from layerprobe.nets.weight_files import sha256_of_weights, size_of_weights
from layerprobe.system.errors import DataError
from layerprobe.system.files import SteadyFile, sha256, written_whole
from layerprobe.system.memory import memory_faults_told, require_memory
from layerprobe.values.records import WeightsFile
from layerprobe.workflow.run.runs import Run, kept_epochs, require_kept

if TYPE_CHECKING:
    from torch import Tensor, nn

    from layerprobe.nets.checkpoint_files import FileWeights
    from layerprobe.nets.fitting import Fit


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
        is_utf8 = str(path).encode(errors="replace").decode() == str(path)
        with memory_faults_told(path):
            return load_file(path) if is_utf8 else load(path.read_bytes())
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


def last_weights(run: Run) -> tuple[Path, str | None]:
    """The file with the weights of a run's last epoch, and their part of it."""
    record = run.read()
    if files := record.weights_files:
        _require_same_file(run, files[-1])
        return Path(files[-1].path), files[-1].part
    path = run.checkpoint_file(record.epochs_done)
    require_unchanged(path, [record.hashes.get(path.name, "")])
    return path, None


def weights_sha256(run: Run, epoch: int) -> str:
    """Hash of an epoch's weights, as recorded; no file is read."""
    record = run.read()
    if record.weights_files:
        return record.weights_file(epoch).weights_sha256
    return record.hashes.get(run.checkpoint_file(epoch).name, "")


def require_weights(run: Run, epoch: int) -> None:
    """Check that an epoch's checkpoint is what the run wrote; one that was removed on purpose passes."""
    record, path = run.read(), run.checkpoint_file(epoch)
    recorded = record.hashes.get(path.name, "")
    if not record.weights_files and not (recorded and epoch not in kept_epochs(run, record)):
        require_unchanged(path, [recorded])


def load_net(run: Run, epoch: int, net: Net) -> None:
    """Load an epoch's weights into the network, after checking their hash."""
    record = run.read()
    if not record.weights_files:
        load_checkpoint(run, epoch, {"net": net.module})
        return
    file = record.weights_file(epoch)
    _require_same_file(run, file)
    load_file(net, record.net["name"], Path(file.path), file.part, optional=record.new_parameters)


def _require_same_file(run: Run, file: WeightsFile) -> None:
    """Check the size, then the hash, of a file of weights."""
    path = Path(file.path)
    try:
        with contextlib.suppress(OSError):  # reading it raises the error
            size = size_of_weights(path)
            if file.size != size:
                raise DataError(f"has {size:,} bytes, expected {file.size:,}", file=path)
        require_unchanged(path, [file.sha256])
    except DataError as error:
        fix = "Restore it, or measure the new file as another run with --run NAME"
        raise DataError(f"{error.message}; it is epoch {file.epoch} of {run.name}", file=error.file, fix=fix) from error


@dataclass(frozen=True)
class LoadedFile:
    """What a file of weights had for a network.

    Args:
        lacking: names of the network's tensors, in its `state_dict`, that are not in the file.
    """

    notes: tuple[str, ...]
    lacking: tuple[str, ...] = ()


def load_file(net: Net, name: str, path: Path, dict_path: str | None, *, optional: Collection[str] = ()) -> LoadedFile:
    """Load a file of weights into a network's model.

    Args:
        optional: names of the network's tensors that the file need not have. Empty: the file may lack those of the last
            layers.
    """
    from layerprobe.nets.checkpoint_files import read_checkpoint
    from layerprobe.nets.conversion import fit_module, merge_adapter
    from layerprobe.nets.fitting import missing_names, with_versions

    model, root = net.module.get_submodule(net.root), f"{net.root}." if net.root else ""
    weights = read_checkpoint(path, dict_path)
    if weights.adapter is not None and net.own_weights is not None:
        tensors, notes = merge_adapter(weights, net.own_weights(), name=name, convert=net.convert)
        model.load_state_dict(with_versions(tensors, model), strict=False)
        return LoadedFile(notes)
    absent = {key.removeprefix(root) for key in optional}
    try:
        fit = fit_module(weights, model, name=name, optional=absent, convert=net.convert)
    except DataError:
        backbone_fit = _fit_of_first_layers(net, weights, name)
        if backbone_fit is None:
            raise
        fit = backbone_fit
    # Not strict: the model makes some buffers itself.
    model.load_state_dict(with_versions(fit.tensors, model), strict=False)
    return LoadedFile(fit.notes, tuple(f"{root}{key}" for key in missing_names(fit, model)))


def _fit_of_first_layers(net: Net, weights: FileWeights, name: str) -> Fit | None:
    """The tensors of a file that lacks those of the last layers, as a backbone alone does; None for any other."""
    from layerprobe.hooks import first_use, measure_layers
    from layerprobe.hooks.hooks import plain_path
    from layerprobe.nets.conversion import fit_module
    from layerprobe.nets.fitting import missing_names, shapes

    model, root = net.module.get_submodule(net.root), f"{net.root}." if net.root else ""
    if net.image_size is None:
        return None
    measured = measure_layers(net, net.image_size)
    use = {key: first_use(measured, f"{root}{key}") for key in shapes(model)}
    ends = [call.order for path in net.layers.values() for call in measured.calls.get(plain_path(path), ())]
    try:
        late = {key for key in use if use[key] > min(ends)}
        fit = fit_module(weights, model, name=name, optional=late, convert=net.convert)
    except DataError:
        return None
    absent = missing_names(fit, model)
    first_absent = min(use[key] for key in absent)
    # Another network may share first layers: a tensor has another shape or belongs to a later layer, or few are there.
    other = any(key in fit.left for key in absent)
    later = any(use[key] > first_absent for key in fit.tensors)
    return None if other or later or 2 * len(fit.tensors) < len(use) else fit


def load_checkpoint(run: Run, epoch: int, modules: Mapping[str, Any]) -> None:
    """Load an epoch's checkpoint into modules, after checking its hash."""
    path, record = run.checkpoint_file(epoch), run.read()
    require_kept(run, record, epoch)
    load_weights(path, modules, expected=[record.hashes.get(path.name, "")])
