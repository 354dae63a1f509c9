"""What every tracker is given in its test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from PIL import Image

from layerprobe.trackers.tracker import Trackers


def log_all(name: str, folder: Path, say: Callable[[str], None] = print, *, failed: bool = False) -> None:
    """Log two epochs, a figure of 4 x 2 red pixels and a page to a tracker of a run that ends well or has failed."""
    figure, page = folder / "layers.png", folder / "report.html"
    Image.new("RGB", (4, 2), (255, 0, 0)).save(figure)
    page.write_text("<html>")
    trackers = Trackers([name], "mine", {"train": {"epochs": 1}, "net": {"name": "lenet"}}, say)
    trackers.log({"test_R@1/fc6@max": 0.25}, 0)
    trackers.log({"test_R@1/fc6@max": 0.5, "loss": 2.0}, 1)
    trackers.log_figure("layers", figure, 1)
    trackers.log_file(page)
    trackers.close(failed=failed)
