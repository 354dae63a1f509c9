"""The weights of a run's epochs: its own checkpoints, or the files of another training."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerprobe.nets.checkpoint_layouts import size_of_weights
from layerprobe.nets.net import Net
from layerprobe.system.errors import DataError
from layerprobe.values.records import WeightsFile
from layerprobe.workflow.run.checkpoints import load_weights, require_unchanged
from layerprobe.workflow.run.kept import kept_epochs, require_kept
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    from torch import Tensor


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
    load_file(net, record.net["name"], Path(file.path), file.part)


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


def load_file(net: Net, name: str, path: Path, part: str | None) -> tuple[str, ...]:
    """Load a file of weights into a network's model, and return the notes."""
    from layerprobe.nets.adapters import merged
    from layerprobe.nets.checkpoint_files import read_checkpoint
    from layerprobe.nets.conversion import fitted
    from layerprobe.nets.fitting import with_versions

    model = net.module.get_submodule(net.root)
    weights = read_checkpoint(path, part)
    tensors: Mapping[str, Tensor]
    if weights.adapter is not None and net.own_weights is not None:
        tensors, notes = merged(weights, net.own_weights(), name=name, convert=net.convert)
    else:
        fit = fitted(weights, model, name=name, convert=net.convert)
        tensors, notes = fit.tensors, fit.notes
    # Not strict: the model makes some buffers itself.
    model.load_state_dict(with_versions(tensors, model), strict=False)
    return notes


def load_checkpoint(run: Run, epoch: int, modules: Mapping[str, Any]) -> None:
    """Load an epoch's checkpoint into modules, after checking its hash."""
    path, record = run.checkpoint_file(epoch), run.read()
    require_kept(run, record, epoch)
    load_weights(path, modules, expected=[record.hashes.get(path.name, "")])
