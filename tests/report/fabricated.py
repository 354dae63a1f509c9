"""Reports of made-up runs, for tests of their page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from layerprobe.report.values import Report, RunPage, ShownClasses
from layerprobe.values.classes import ComparedClass
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score

HOSTILE = "<script>alert(1)</script>"
LAYERS = tuple(
    RankedLayer(LayerKey(*key), "none", "cosine")
    for key in [("pool1", "max"), ("pool2", "max"), ("pool3", "max"), ("pool4", "max"), ("fc6", "none")]
)
POST_PROCESSED = RankedLayer(LayerKey("fc6", "none"), "l2+pca:64+l2", "cosine")


def scores_of(run: str, layers: Sequence[RankedLayer], epochs: Sequence[int], seed: int) -> tuple[Score, ...]:
    """R@1 with intervals and an effective rank of every layer, epoch and split; post-processed at the last epoch."""
    rng = np.random.default_rng(seed)
    scores = []
    for epoch in epochs:
        for ranked in layers:
            if ranked == POST_PROCESSED and epoch != epochs[-1]:
                continue
            for split in ("train", "test"):
                value = float(rng.random())
                one = Score(
                    run=run, experiment="e", seed=seed, epoch=epoch, split=split, ranked=ranked, metric="R@1",
                    value=value, interval=Interval(max(0.0, value - 0.05), min(1.0, value + 0.04)), n=20,
                )  # fmt: skip
                rank = float(rng.random() * 200)
                scores += [
                    one,
                    replace(one, metric="effective-rank", value=rank, interval=None),
                ]
    return tuple(scores)


def run_page(name: str, epochs: Sequence[int] = (0, 1, 2, 4), seed: int = 0, **fields: object) -> RunPage:
    """A run of five layers, of which `fc6`, the embedding, was also post-processed; four of them are shown first."""
    layers = (*LAYERS, POST_PROCESSED)
    splits = {"train": SplitFacts(20, 4, None, 0.1), "test": SplitFacts(20, 4, None, 0.1)}
    usual = {
        "name": name, "data": DataFacts("glyphs", splits, held_out=True), "layers": layers, "few": (0, 2, 3, 4),
        "embedding": 4, "scores": scores_of(name, layers, epochs, seed),
        "made": (("command", f"layerprobe train --run {name}"),),
    }  # fmt: skip
    return RunPage(**(usual | fields))  # type: ignore[arg-type]


def shown_classes(**fields: object) -> ShownClasses:
    """Three classes by two layers, without a confusion."""
    rows = (
        ComparedClass("bird", 12, 0.25, 0.75, -0.5, Interval(-0.75, -0.125), 0.01, -0.25),
        ComparedClass(HOSTILE, 1000, 0.5, 0.5, 0.0, None, 1.0, 0.0),
        ComparedClass("boat", 4, 1.0, 0.75, 0.25),
    )
    usual = {
        "verdict": "1 of 3 classes lose.", "lead": "R@1 in %. A: pool4@max, B: fc6.", "classes": rows,
        "notes": ("a note",), "confusions": (), "confusion_notes": ("No image is confused with one of another class.",),
    }  # fmt: skip
    return ShownClasses(**(usual | fields))  # type: ignore[arg-type]


def report_of(*runs: RunPage, **fields: object) -> Report:
    """A report of some runs, or of one where none is given."""
    usual = {"title": "layerprobe report", "findings": ("fc6 finds less.",), "runs": runs or (run_page("one"),)}
    return Report(**(usual | fields))  # type: ignore[arg-type]
