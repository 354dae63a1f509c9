"""The examples in the docstrings of what `layerprobe` offers run, and give what they show."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import layerprobe

FUNCTIONS = [name for name in layerprobe.__all__ if name not in ("__version__", "registry")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_example_of_a_public_function_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    function = getattr(layerprobe, name)
    module = inspect.getmodule(function)
    (example,) = doctest.DocTestFinder(recurse=False).find(function, name, module)
    assert example.examples
    runner = doctest.DocTestRunner(verbose=False)
    lines: list[str] = []
    runner.run(example, out=lines.append)
    assert runner.failures == 0, "".join(lines)
