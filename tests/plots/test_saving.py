from __future__ import annotations

import pytest
from matplotlib.figure import Figure

from layerprobe.plots.saving import FORMATS, csv_text, encoded

SIGNATURES = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.mark.parametrize("form", FORMATS)
def test_a_figure_is_encoded_in_the_format_asked_for(form: str) -> None:
    assert encoded(Figure(), form).startswith(SIGNATURES[form])


def test_no_name_in_a_table_is_a_formula() -> None:
    assert (
        csv_text([["run", "value"], ["=1+1", -0.5], ["a,b", None], ["@x", 2]])
        == "run,value\n'=1+1,-0.5\n\"a,b\",\n'@x,2\n"
    )
