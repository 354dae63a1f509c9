from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from layerprobe.workflow.choose.choose_text import next_step
from layerprobe.workflow.run.runs import Run
from tests.values.test_choice import CHOICE, CHOSEN, SELECTED

RUN = Run(Path("cache", "b"))


def test_the_next_step_can_be_pasted() -> None:
    choice = replace(CHOICE, selected=replace(SELECTED, layer="relu#1", post_processing="l2+binary"))
    command = "layerprobe export b --epoch 2 --layer 'relu#1@max/l2+binary' --out b-export"
    assert next_step(choice, RUN) == f"next: {command}"


def test_the_next_step_of_post_processing_fitted_in_folds_chooses_again() -> None:
    crossed = replace(
        CHOICE, selected=replace(SELECTED, post_processing="l2+pca:8"), chosen=replace(CHOSEN, split="test")
    )
    assert next_step(crossed, RUN) == "next: layerprobe export b --epoch 2 --out b-export"
    assert "--layer c1@max/l2+pca:8 --out" in next_step(replace(crossed, chosen=CHOSEN), RUN)
