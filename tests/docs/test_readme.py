"""README is short, has the example in its first screen, and has the papers' commands as they are typed."""

from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe import __version__, registry
from layerprobe.cli import output
from tests.docs.pages import README, ROOT, blocks_of, commands_of
from tests.docs.world import typed
from tests.workflow.conftest import NARROW_VGG

BLOCKS = blocks_of(README)
# The recipe netA with a narrow network, few images and two epochs.
RECIPE = """# netA: as the packaged one, but small
[data]
name = "glyphs"
train_classes = 4
test_classes = 4
images_per_class = 4
[net]
name = "narrow_vgg"
fc = [8]
[loss]
name = "smooth_triplet"
[train]
epochs = 2
batch_size = 8
images_per_class = 2
learning_rate = 0.01
[probe]
layers = ["pool5.3", "fc6"]
"""


def test_it_has_at_most_700_words() -> None:
    assert len(README.read_text(encoding="utf-8").split()) <= 700


def test_the_example_has_at_most_eight_lines_of_output() -> None:
    example = next(block for block in BLOCKS if block.language == "console")
    (command,) = commands_of(example)
    assert 0 < len(command.shown or ()) <= 8


def test_the_example_stands_in_the_first_screen() -> None:
    example = next(block for block in BLOCKS if block.language == "console")
    assert example.line < 25


def test_python_takes_six_lines_and_a_training_loop_five() -> None:
    probe, watch = (block.text for block in BLOCKS if block.language == "python")
    assert [sum(map(bool, text.splitlines())) for text in (probe, watch)] <= [6, 5]


def test_the_papers_commands_run_as_they_stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.NETS, "narrow_vgg", NARROW_VGG)
    monkeypatch.setattr(output, "_PLAIN_INTERVAL", 1e9)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "netA.toml").write_text(RECIPE)
    (paper,) = (block for block in BLOCKS if "layerprobe train netA" in block.text)
    for command in commands_of(paper):
        code, printed = typed(command.words[1:], monkeypatch)
        assert code == 0, printed
    assert (tmp_path / "cache" / "netA" / "plots").is_dir()


def test_the_citation_has_the_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {__version__}\n" in text
