"""The Python of README runs as it stands there, and links of pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

from layerprobe import __version__

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
LINK = re.compile(r"""(?:\]\(|<img src=")([^)"#:]+)(?:#[^)]*)?[)"]""")  # to a file of the repository


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


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


PAGES = [README, ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("*/README.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_and_pictures_are_there(page: Path) -> None:
    linked = LINK.findall(page.read_text(encoding="utf-8"))
    assert [path for path in linked if not (page.parent / path).exists()] == []


def test_the_citation_has_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", text, re.MULTILINE) == [__version__]
