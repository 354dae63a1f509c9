"""demo: the whole way on the embedded data, and the finding in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layerprobe.analysis import rank
from layerprobe.progress import Listener
from layerprobe.recipe import load_recipe
from layerprobe.registry import PLOTS
from layerprobe.runs import Run
from layerprobe.scores import Score
from layerprobe.statistics.paired import paired_difference
from layerprobe.workflow.building import TrainRequest
from layerprobe.workflow.plot import PlotRequest, plot
from layerprobe.workflow.probe import Probing, prepare, probe
from layerprobe.workflow.selection import ProbeRequest
from layerprobe.workflow.train import train

RECIPE = "quick"


@dataclass(frozen=True)
class Demo:
    """What the demo came to: its run, last epoch's scores, plots and one sentence."""

    run: Run
    scores: list[Score]
    plots: list[Path]
    finding: str


def demo(cache: Path, listener: Listener) -> Demo:
    """Train the quick recipe, probe every layer at every epoch, draw every plot.

    Raises:
        LayerprobeError: what a user can mend.
    """
    request = TrainRequest(recipe=load_recipe(RECIPE), overridden=False, cache=cache)
    run = train(request, listener)
    scores = probe(run, ProbeRequest(), listener)
    plots = [plot(PlotRequest(kind, [run])) for kind in PLOTS]
    last = max(score.epoch for score in scores)
    return Demo(run, [score for score in scores if score.epoch == last], plots, _finding(run))


@dataclass(frozen=True)
class Pair:
    """Two layers' R@1 on a split and the interval of their difference, as fractions."""

    before: float
    embedding: float
    low: float
    high: float


def _finding(run: Run) -> str:
    probing, epoch = prepare(run, ProbeRequest()), run.read()["epochs_done"]
    before, embedding = (tap.layer for tap in probing.selection.taps[-2:])
    return sentence(before, embedding, _compare(probing, epoch, "test"), _compare(probing, epoch, "train"))


def _compare(probing: Probing, epoch: int, split: str) -> Pair:
    layers = [probing.features.read(epoch, split, tap.key) for tap in probing.selection.taps[-2:]]
    before, embedding = (rank(features, None).hits(1) for features in layers)
    difference = paired_difference(before, embedding, layers[0].labels)
    return Pair(float(before.mean()), float(embedding.mean()), difference.low, difference.high)


def sentence(before: str, embedding: str, test: Pair, train: Pair) -> str:
    """The embedding against the layer before it, a pair fixed beforehand: the best of many is also the luckiest.

    Args:
        before: the name of the layer before the embedding.
        embedding: the name of the embedding layer.
        test: both on unseen classes; a claim is made where the interval leaves out 0.
        train: both on the training classes.
    """
    if test.low > 0:
        claim = f"{before}, the layer before the embedding, retrieves unseen classes better than {embedding}"
    elif test.high < 0:
        claim = f"The embedding {embedding} retrieves unseen classes better than {before} before it"
    else:
        claim = f"{before} and the embedding {embedding} are not distinguishable here on unseen classes"
    return (
        f"{claim}: R@1 {_percent(test.before)} against {_percent(test.embedding)}, a difference of"
        f" {100 * (test.before - test.embedding):+.1f} points (95 % interval over classes"
        f" {100 * test.low:+.1f} to {100 * test.high:+.1f}); on the training classes"
        f" {_percent(train.before)} against {_percent(train.embedding)}."
    )


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"
