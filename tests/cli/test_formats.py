from __future__ import annotations

import pytest

from layerprobe.cli.formats import chosen_format
from layerprobe.system.errors import RecipeError, UnknownNameError


def test_a_format_that_is_none_has_the_near_miss() -> None:
    with pytest.raises(UnknownNameError, match="unknown format 'cvs'. Did you mean 'csv'"):
        chosen_format("cvs", as_json=False)


def test_json_goes_with_no_format() -> None:
    assert chosen_format(None, as_json=True) == "table"
    with pytest.raises(RecipeError, match="two forms of one result. Leave one of them out"):
        chosen_format("table", as_json=True)
