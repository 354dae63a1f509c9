from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from layerprobe.system.requirements import install_line

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
SOURCE = Path(__file__).parents[2] / "layerprobe"


@pytest.mark.parametrize("extra", [name for name in PROJECT["optional-dependencies"] if name not in ("dev", "docs")])
def test_the_line_names_the_packages_of_the_extra(extra: str) -> None:
    command, verb, *packages = shlex.split(install_line(extra))
    assert (command, verb) == ("pip", "install")
    # A build writes names in its own way: open-clip-torch, in alphabetical order.
    assert set(packages) == {package.replace("_", "-") for package in PROJECT["optional-dependencies"][extra]}


def test_no_hint_names_an_extra_of_layerprobe_itself() -> None:
    # There is no such package in an index for whoever has a clone, and no `.` for whoever has the release.
    for path in SOURCE.rglob("*.py"):
        assert not re.search(r"pip install '?(layerprobe|\.)\[", path.read_text()), path
