from __future__ import annotations

import layerprobe
from docs._ext import classes


def test_everything_offered_is_on_the_page() -> None:
    text = classes.page()
    offered = [name for name in layerprobe.__all__ if name not in ("__version__", "registry")]
    assert [name for name in offered if f"\n### {name}\n" not in text] == []


def test_classes_that_functions_return_are_on_the_page() -> None:
    found = {one.__name__ for one in classes.returned_classes()}
    assert {"Probed", "Choice", "Gain", "RankedLayer", "Comparison", "Ranks", "Explanation", "OpenedRun"} <= found
    assert not found & {"Run", "MemoryProbe"}


def test_what_restructured_text_would_read_as_markup_is_text() -> None:
    assert classes.as_rst("|q| max|g| and `a|b`, *x") == ["\\|q\\| max\\|g\\| and `a|b`, \\*x"]
    assert classes.as_rst("A * B\n\n>>> 2 * 3\n6") == ["A \\* B", "", ">>> 2 * 3", "6"]
