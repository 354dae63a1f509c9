"""demo: train and probe a small network on generated images, choose its layer, and write the report."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice
from layerprobe.workflow.choose.choose_once import choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.report.report import write_report
from layerprobe.workflow.report.request import ReportRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train

RECIPE = "quick"
# 60 classes each to train on, to choose on and to test on, for as many epochs as take a few minutes.
OVERRIDES = Overrides(settings=("data.train_classes=120", "data.validation_classes=0.5", "train.epochs=6"))


@dataclass(frozen=True)
class Demo:
    """The run, what is chosen of it, and its report."""

    run: Run
    choice: Choice
    report: Path


def demo(cache: Path, listener: Listener) -> Demo:
    """Train the quick recipe, probe all layers and epochs, choose on validation classes, and write the report."""
    listener.say(
        "training a VGG16-BN on 60 classes of generated characters; 60 others are to choose on, and 60 to test on"
    )
    request = TrainRequest(recipe=load_recipe(RECIPE, OVERRIDES), overridden=True, cache=cache)
    run = train(request, listener)
    probe(run, ProbeRequest(), listener)
    choice = choose_once([run], ChooseRequest(), listener)
    report = run.folder / "report.html"
    write_report(ReportRequest([run], report))
    return Demo(run, choice, report)
