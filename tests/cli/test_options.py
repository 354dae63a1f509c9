from __future__ import annotations

import pytest

from layerprobe.cli.options import Output
from layerprobe.system.errors import RecipeError, UnknownNameError


def test_a_format_that_is_none_has_the_near_miss() -> None:
    with pytest.raises(UnknownNameError, match="unknown format 'cvs'. Did you mean 'csv'"):
        Output().terminal("cvs")


def test_json_goes_with_no_format() -> None:
    assert Output(as_json=True).terminal(None).form == "table"
    with pytest.raises(RecipeError, match="two forms of one result. Leave one of them out"):
        Output(as_json=True).terminal("table")
