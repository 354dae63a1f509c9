"""demo: train, probe and plot on the embedded data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layerprobe.recipe.recipe import load_recipe
from layerprobe.registry import PLOTS
from layerprobe.store import read_dims
from layerprobe.system.progress import Listener
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.finding import finding, inputs_of
from layerprobe.workflow.plot.plot import PlotRequest, plot
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.reduced import usual_dimension
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train

RECIPE = "quick"


@dataclass(frozen=True)
class Demo:
    """The run, its last epoch's scores, plots and finding."""

    run: Run
    scores: list[Score]
    plots: list[Path]
    finding: str


def demo(cache: Path, listener: Listener) -> Demo:
    """Train the quick recipe, probe all layers and epochs, the last also at equal dimension, and draw every plot."""
    request = TrainRequest(recipe=load_recipe(RECIPE), overridden=False, cache=cache)
    run = train(request, listener)
    scores = probe(run, ProbeRequest(), listener)
    last = max(score.epoch for score in scores)
    dim = usual_dimension(read_dims(run.feature_file(last, "test")).values())
    probe(run, ProbeRequest(epochs=str(last), splits=("test",), equal_dim=dim), listener)
    plots = [plot(PlotRequest(kind, [run])) for kind in PLOTS]
    return Demo(run, [score for score in scores if score.epoch == last], plots, finding(inputs_of(run)))
