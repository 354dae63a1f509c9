from __future__ import annotations

import re

import numpy as np
import pytest
from matplotlib.figure import Figure

from layerprobe.plots.saving import FORMATS, csv_text, encode_figure

SIGNATURES = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.mark.parametrize("form", FORMATS)
def test_a_figure_is_encoded_in_the_format_asked_for(form: str) -> None:
    assert encode_figure(Figure(), form).startswith(SIGNATURES[form])


@pytest.mark.parametrize(("form", "image"), [("pdf", rb"/Subtype /Image\b"), ("svg", rb"<image\b")])
def test_images_are_not_laid_into_one(form: str, image: bytes) -> None:
    # Into one, each of 400 pictures of `plot panels` takes the time of the whole figure.
    figure = Figure()
    axes = figure.add_subplot()
    for left in range(3):
        axes.imshow(np.full((4, 4, 3), 80 * left, np.uint8), extent=(left, left + 0.9, 0, 1))
    axes.set(xlim=(0, 3), ylim=(0, 1))
    assert len(re.findall(image, encode_figure(figure, form))) == 3


def test_no_name_in_a_table_is_a_formula() -> None:
    assert (
        csv_text([["run", "value"], ["=1+1", -0.5], ["a,b", None], ["@x", 2]])
        == "run,value\n'=1+1,-0.5\n\"a,b\",\n'@x,2\n"
    )
