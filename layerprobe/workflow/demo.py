"""demo: the whole way on the embedded data, and the finding in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layerprobe.keys import NO_REDUCTION, RankedLayer
from layerprobe.progress import Listener
from layerprobe.recipe import load_recipe
from layerprobe.registry import PLOTS
from layerprobe.runs import Run
from layerprobe.scores import Score
from layerprobe.workflow.building import TrainRequest
from layerprobe.workflow.compare import compare_pairs
from layerprobe.workflow.comparison import Comparison
from layerprobe.workflow.comparison_text import sentence
from layerprobe.workflow.evidence import Measure
from layerprobe.workflow.plot import PlotRequest, plot
from layerprobe.workflow.probe import probe
from layerprobe.workflow.probed_run import open_for_probing
from layerprobe.workflow.references import open_place
from layerprobe.workflow.selection import ProbeRequest, select_taps
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


def _finding(run: Run) -> str:
    """The embedding against the layer before it, a pair fixed beforehand: the best of many is also the luckiest."""
    request = ProbeRequest()
    opened = open_for_probing(run, request)
    similarity = opened.recipe.probe.similarity
    taps = select_taps(request, opened.recipe, opened.measured)[-2:]
    before, embedding = (RankedLayer(tap.key, NO_REDUCTION, similarity) for tap in taps)
    test, train = (_compared(run, split, (before, embedding)) for split in ("test", "train"))
    return finding(test, train)


def _compared(run: Run, split: str, layers: tuple[RankedLayer, RankedLayer]) -> Comparison:
    place = open_place(run, None, split)
    (found,) = compare_pairs(place, place, [layers], Measure())
    return found


def finding(test: Comparison, train: Comparison) -> str:
    """What the demo found.

    Args:
        test: the layer before the embedding against the embedding, on unseen classes.
        train: the same on the training classes; no claim is made of these.
    """
    names = f"{test.a.name}, the layer before the embedding,", test.b.name
    levels = [f"{100 * value:.1f} %" for value in train.values or ()]
    return f"{sentence(test, names)} On the training classes they reach {' against '.join(levels)}."
