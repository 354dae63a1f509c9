"""The weights of a run's epochs: its own checkpoints, or the files of another training."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerprobe.nets.net import Net
from layerprobe.nets.weight_files import size_of_weights
from layerprobe.system.errors import DataError
from layerprobe.values.records import WeightsFile
from layerprobe.workflow.run.checkpoints import load_weights, require_unchanged
from layerprobe.workflow.run.kept import kept_epochs, require_kept
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    from layerprobe.nets.checkpoint_files import FileWeights
    from layerprobe.nets.fitting import Fit


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
    from layerprobe.nets.conversion import fit_module
    from layerprobe.nets.fitting import missing_names, shapes
    from layerprobe.taps import first_use, measure_layers
    from layerprobe.taps.hooks import plain_path

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
