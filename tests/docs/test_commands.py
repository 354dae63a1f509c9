from __future__ import annotations

import pytest

from docs._ext import commands

TEXT = commands.page()


@pytest.mark.parametrize("name", ["probe", "choose", "runs", "runs remove", "data list", "data check", "cache clean"])
def test_every_command_has_a_section_with_its_usage(name: str) -> None:
    section = TEXT.partition(f"\n### layerprobe {name}\n")[2].partition("\n### ")[0]
    assert f"```text\nlayerprobe {name} " in section


def test_every_option_has_help_type_and_default() -> None:
    section = TEXT.partition("### layerprobe probe\n")[2].partition("\n### ")[0]
    option = "(layerprobe-probe---epochs)=\n\n`--epochs EPOCH,...` (default `all`)\n: Epochs to probe: all, last"
    assert option in section
    assert ": &nbsp;" not in TEXT


def test_options_of_every_command_are_described_once() -> None:
    assert TEXT.count("`--quiet`,") > 10
    assert "\n`--quiet`\n" not in TEXT
    assert "`--quiet`\n: Show no progress" in commands.shared()
