"""TensorBoard: event files in DIR/RUN, and files beside them; DIR is `runs` by default."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from layerprobe.sources.hub import import_package
from layerprobe.system.files import require_writable


class TensorBoard:
    """A run in TensorBoard; a `layerprobe.trackers.tracker.Tracker`."""

    def __init__(self, where: str, run: str, config: Mapping[str, object]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = _folder(where) / run
        # An earlier command has logged the same epochs there: TensorBoard shows what is logged from here on.
        self._writer = SummaryWriter(self._folder, purge_step=0)
        rows = "".join(f"| {key} | `{json.dumps(value, default=str)}` |\n" for key, value in config.items())
        self._writer.add_text("recipe", f"| key | value |\n|---|---|\n{rows}")

    @staticmethod
    def require(where: str) -> None:
        """Check the package and the folder."""
        import_package("tensorboard", "tensorboard")
        require_writable(_folder(where), fix="Name another folder: --log tensorboard:DIR")

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        """Log numbers of an epoch."""
        for name, number in numbers.items():
            self._writer.add_scalar(name, number, epoch)
        self._writer.flush()

    def log_figure(self, name: str, file: Path, epoch: int) -> None:
        """Log a .png file."""
        import numpy as np
        from PIL import Image

        with Image.open(file) as image:
            self._writer.add_image(name, np.asarray(image.convert("RGB")), epoch, dataformats="HWC")

    def log_file(self, file: Path) -> None:
        """Copy a file beside the event files."""
        shutil.copy(file, self._folder)

    def close(self, *, failed: bool) -> None:  # noqa: ARG002 - it has no state of a run
        """Write what is left."""
        self._writer.close()


def _folder(where: str) -> Path:
    return Path(where or "runs")
