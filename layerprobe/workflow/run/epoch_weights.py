"""The weights of a run's epochs: checkpoints that the run wrote, or files of somebody else's training."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from layerprobe.nets.checkpoint_files import read_checkpoint
from layerprobe.nets.fitting import fitted, with_versions
from layerprobe.nets.net import Net
from layerprobe.system.errors import DataError
from layerprobe.values.records import FOREIGN
from layerprobe.workflow.run.checkpoints import load_weights, require_unchanged
from layerprobe.workflow.run.kept import kept_epochs, require_kept
from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True)
class ForeignFile:
    """A file of weights that a run measures where it lies.

    Args:
        part: path of the dict inside it that is meant, with dots between, empty for the whole file; None: the only one
            that fits the network.
        size: its bytes then, compared before it is read; None of a run that an earlier version began.
    """

    path: str
    part: str | None
    sha256: str
    size: int | None = None

    def as_json(self) -> dict[str, str | int | None]:
        """As run.json has it."""
        return asdict(self)

    @property
    def weights_sha256(self) -> str:
        """Hash of the weights: two parts of one file are two networks."""
        if self.part is None:
            return self.sha256
        return hashlib.sha256(f"{self.sha256}#{self.part}".encode()).hexdigest()


def foreign_files(record: Mapping[str, Any]) -> list[ForeignFile]:
    """The files whose weights are a run's epochs; none where the run wrote checkpoints of its own."""
    return [ForeignFile(**file) for file in record.get(FOREIGN, ())]


def last_weights(run: Run) -> tuple[Path, str | None]:
    """The file that holds the weights of a run's last epoch, and the part of it that is meant."""
    record = run.read()
    if files := foreign_files(record):
        _require_same_file(run, record["epochs_done"], files[-1])
        return Path(files[-1].path), files[-1].part
    path = run.checkpoint_file(record["epochs_done"])
    require_unchanged(path, [record["hashes"].get(path.name, "")])
    return path, None


def weights_sha256(run: Run, epoch: int) -> str:
    """Hash of an epoch's weights."""
    record = run.read()
    if files := foreign_files(record):
        return files[epoch].weights_sha256
    path = run.checkpoint_file(epoch)
    if epoch not in kept_epochs(run, record) and path.name in record["hashes"]:
        return str(record["hashes"][path.name])
    if not path.exists():
        raise DataError("no such checkpoint", file=path, fix="Train the run again with --fresh")
    return require_unchanged(path, [record["hashes"].get(path.name, "")])


def load_net(run: Run, epoch: int, net: Net) -> None:
    """Load an epoch's weights into the network, once they are known to be those that the run began with or wrote."""
    record = run.read()
    files = foreign_files(record)
    if not files:
        load_checkpoint(run, epoch, {"net": net.module})
        return
    file = files[epoch]
    _require_same_file(run, epoch, file)
    load_file(net, record["recipe"]["net"]["name"], Path(file.path), file.part)


def _require_same_file(run: Run, epoch: int, file: ForeignFile) -> None:
    """Check that a file is the one that a run began with: first its size, then its hash."""
    path = Path(file.path)
    try:
        with contextlib.suppress(OSError):  # what is not there, or cannot be read, is told by reading it
            size = path.stat().st_size
            if file.size not in (None, size):
                raise DataError(f"has {size:,} bytes, and had {file.size:,}", file=path)
        require_unchanged(path, [file.sha256])
    except DataError as error:
        fix = f"Restore it, or measure what is there now with --run NAME; {run.name} keeps what it has measured"
        raise DataError(f"{error.message}, which epoch {epoch} of {run.name} is", file=error.file, fix=fix) from error


def load_file(net: Net, name: str, path: Path, part: str | None) -> tuple[str, ...]:
    """Load a file of weights into the model, called `name`, that a network wraps; returns the notes about it."""
    model = net.module.get_submodule(net.root)
    fit = fitted(read_checkpoint(path, part), model, name=name)
    # Not strict: some buffers the model makes itself.
    model.load_state_dict(with_versions(fit.tensors, model), strict=False)
    return fit.notes


def load_checkpoint(run: Run, epoch: int, modules: Mapping[str, Any]) -> None:
    """Load an epoch's checkpoint into modules, once it is known to be what the run wrote."""
    path, record = run.checkpoint_file(epoch), run.read()
    require_kept(run, record, epoch)
    load_weights(path, modules, expected=[record["hashes"].get(path.name, "")])
