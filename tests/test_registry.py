from __future__ import annotations

import pytest

from layerprobe.registry import load
from layerprobe.system.errors import UnknownNameError

# Real functions as parts: what is printed shows what they were given.
PARTS = {"plain": "builtins:dict", "timm:": "builtins:print"}


def test_a_name_stands_for_the_part_itself() -> None:
    assert load("network", PARTS, "plain") is dict


def test_a_name_with_an_argument_gives_it_to_the_part_first(capsys: pytest.CaptureFixture[str]) -> None:
    load("network", PARTS, "timm:vit_small:x")("seed 0")
    assert capsys.readouterr().out == "vit_small:x seed 0\n"


@pytest.mark.parametrize("name", ["timm", "timm:", "tim:vit", "plain:x"])
def test_an_argument_that_lacks_or_is_not_taken_is_an_unknown_name(name: str) -> None:
    with pytest.raises(UnknownNameError, match="unknown network"):
        load("network", PARTS, name)
