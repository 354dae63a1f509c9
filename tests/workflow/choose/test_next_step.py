from __future__ import annotations

from dataclasses import replace

from layerprobe.workflow.choose.next_step import next_step
from tests.values.test_choice import CHOICE, CHOSEN, SHIP


def test_the_next_step_can_be_pasted() -> None:
    choice = replace(CHOICE, ship=replace(SHIP, layer="relu#1", reduction="l2+binary"))
    command = "layerprobe probe b --epochs 2 --layers 'relu#1@max' --reduce l2+binary --export-index"
    assert next_step(choice, "b") == f"next: {command}"


def test_the_next_step_of_a_cross_fitted_choice_fits_on_what_is_searched() -> None:
    crossed = replace(CHOICE, ship=replace(SHIP, reduction="l2+pca:8"), chosen=replace(CHOSEN, split="test"))
    assert "--reduce l2+pca:8 --fit gallery --export-index" in next_step(crossed, "b")
    assert "gallery" not in next_step(replace(crossed, chosen=CHOSEN), "b")
