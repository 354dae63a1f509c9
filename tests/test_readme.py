"""The Python of README and docs/python.md runs as it stands there, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision.models import resnet18

from layerprobe import __version__

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "python.md"
LINK = re.compile(r"""(?:\]\(|<img src=")([^)"#:]+)(?:#[^)]*)?[)"]""")  # to a file of the repository


def python_blocks(page: Path = PAGE) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A folder with the photos and weights that the page names: 2 classes of 5 images in each split."""
    rng = np.random.default_rng(0)
    for split in ("train", "test"):
        for label in range(2):
            folder = tmp_path / "photos" / split / f"{split}{label}"
            folder.mkdir(parents=True)
            for i in range(5):
                pixels = rng.integers(0, 128, (40, 40, 3), np.uint8)
                pixels[..., label] += 127  # a colour for each class
                Image.fromarray(pixels).save(folder / f"{i}.png")
    torch.manual_seed(0)
    torch.save(resnet18().state_dict(), tmp_path / "resnet18.pt")
    return tmp_path


def test_the_six_lines_of_the_readme_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    labels = torch.arange(40) // 4
    images = torch.rand(10, 3, 1, 1)[labels] + torch.rand(40, 3, 8, 8) / 10  # a colour for each class
    train, test = TensorDataset(images[:20], labels[:20]), TensorDataset(images[20:], labels[20:])
    names = {"model": torch.nn.Conv2d(3, 4, 3), "train": train, "test": test}
    (lines,) = python_blocks(README)
    exec(compile(lines, str(README), "exec"), names)
    assert sum(map(bool, lines.splitlines())) == 6
    assert Path("report.html").stat().st_size > 1000


def test_the_python_of_the_page_runs(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(photos)
    names: dict[str, object] = {"train_an_epoch": lambda _: None}
    own_model, *_ = blocks = python_blocks()
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert Path("layers.png").stat().st_size > 1000
    lines = [line for line in own_model.splitlines() if line and not re.match("import|from|print", line)]
    assert len(lines) <= 10


def test_the_numbers_of_the_page_are_true() -> None:
    names: dict[str, object] = {}
    block = python_blocks()[-1]
    exec(compile(block, str(PAGE), "exec"), names)
    stated = re.findall(r"^(layerprobe\.recall_at_k\(.*\))  # (\{.*?\})", block, re.MULTILINE)
    assert len(stated) == 2
    for code, shown in stated:
        assert eval(code, names) == pytest.approx(eval(shown), abs=5e-4)


PAGES = [README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    linked = LINK.findall(page.read_text(encoding="utf-8"))
    assert [path for path in linked if not (page.parent / path).exists()] == []


def test_the_citation_has_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", text, re.MULTILINE) == [__version__]
