"""The Python of the README runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torchvision.models import resnet18

README = Path(__file__).parents[1] / "README.md"


def python_blocks() -> list[str]:
    """The blocks of the section "In Python"."""
    section = README.read_text(encoding="utf-8").partition("\n## In Python\n")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with the photos and weights that the README names: 2 classes of 5 images in each split."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(2):
            folder = tmp_path / "photos" / split / f"{split}{label}"
            folder.mkdir(parents=True)
            for i in range(5):
                Image.fromarray(rng.integers(0, 256, (40, 40, 3), np.uint8)).save(folder / f"{i}.png")
    torch.save(resnet18().state_dict(), tmp_path / "resnet18.pt")
    return tmp_path


def test_the_python_of_the_readme_runs(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    names: dict[str, object] = {}
    own_model, _, _ = blocks = python_blocks()
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)
    assert Path("layers.png").stat().st_size > 1000
    lines = [line for line in own_model.splitlines() if line and not re.match("import|from|print", line)]
    assert len(lines) <= 10


def test_the_numbers_of_the_readme_are_true() -> None:
    names: dict[str, object] = {}
    block = python_blocks()[-1]
    exec(compile(block, str(README), "exec"), names)
    stated = re.findall(r"^(layerprobe\.recall_at_k\(.*\))  # (\{.*?\})", block, re.MULTILINE)
    assert len(stated) == 2
    for code, shown in stated:
        assert eval(code, names) == pytest.approx(eval(shown), abs=5e-4)
