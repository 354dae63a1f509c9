"""The selected candidate of a stored choice in the figures, of runs that were chosen in different ways."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text
from torch.utils.data import DataLoader

from layerprobe.plots.plot import Drawing, PlotOptions
from layerprobe.plots.selected import IN_CSV
from layerprobe.values.choice import Choice, SelectedLayer
from layerprobe.values.layers import LayerKey, RankedLayer, spoken_name
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.choose_once import choose_model, choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.plot.plot import StoredRuns, draw_plot
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import RULE, StoredChoice, run_state, store_choice
from layerprobe.workflow.train.frozen_request import FrozenRequest
from tests.workflow.conftest import Silent
from tests.workflow.plot.test_neighbours import made
from tests.workflow.python.test_result_verbs import TEST, TRAIN, images_of, probed
from tests.workflow.watch.trainings import Augmented, loaders, network, watching

KINDS = ("layers", "dims", "panels", "det", "histograms")
WHITE = "l2+whiten:3:0.5+l2"
C3 = RankedLayer(LayerKey("c3", "max"), WHITE, "cosine")
CODE = """
from torch import nn

def build():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    return model, {"size": 16, "filter": "bilinear", "crop": 1.0, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
"""


def keep(run: Run, choice: Choice, ranked: RankedLayer) -> Choice:
    """Let a run keep a choice of another layer."""
    layer = ranked.layer
    named = {"layer": layer.layer, "pool": layer.pool, "post_processing": ranked.post_processing}
    chosen = replace(choice.chosen, ranked=ranked)
    test = choice.test and replace(choice.test, ranked=ranked)
    selected = replace(choice, chosen=chosen, test=test, selected=replace(choice.selected, dim=3, **named))  # type: ignore[arg-type] # texts
    stored = StoredChoice(RULE, {"metric": "R@1"}, False, {run.name: run_state(run, "R@1")}, selected)
    store_choice(stored, [run], Silent().say)
    return selected


@pytest.fixture(scope="module")
def chosen(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with validation classes that keeps the choice of a partially whitened layer."""
    data, cache = f"folder:{tiny / 'images'}", tmp_path_factory.mktemp("chosen")
    settings = ("data.train_classes=6", "data.validation_classes=0.5")
    run = made(data, cache, layers=("c1", "c3", "fc6"), post=("none", WHITE), settings=settings)
    keep(run, choose_runs([run], ChooseRequest(device="cpu"), Silent()), C3)
    return run


@pytest.fixture
def held(chosen: Run, copy_of: Callable[[Run], Run]) -> Run:
    return copy_of(chosen)


@pytest.fixture
def folded(images: Path, tmp_path: Path) -> tuple[Run, Choice]:
    """A frozen model on one folder, chosen on test: partially whitened within folds, as no probe has ranked it."""
    (tmp_path / "mine.py").write_text(CODE)
    model, settings = f"python:{tmp_path / 'mine.py'}:build", ("data.train_classes=0",)
    request = FrozenRequest(model, f"folder:{images}", tmp_path / "cache", "none", settings, device="cpu", workers=0)
    run, choice = choose_model(request, ChooseRequest(device="cpu"), Silent())
    layers = {score.ranked for score in run.scores()}
    first = next(x for x in layers if x.layer.layer == "1")
    return run, keep(run, choice, replace(first, post_processing=WHITE))


def marked(drawing: Drawing) -> set[tuple[str, ...]]:
    """Layer, pool, post-processing and epoch of what CSV says was selected."""
    rows = csv.DictReader(drawing.csv.splitlines())
    names = ("layer", "pool", "post_processing", "epoch")
    return {tuple(row[name] for name in names) for row in rows if any(IN_CSV in str(cell) for cell in row.values())}


def place(choice: Choice) -> set[tuple[str, ...]]:
    return place_of(choice.selected)


def place_of(selected: SelectedLayer) -> set[tuple[str, ...]]:
    return {(selected.layer, selected.pool, selected.post_processing, str(selected.epoch))}


def texts(drawing: Drawing) -> str:
    found = drawing.figure.findobj(Text)
    # A title may be divided at the hyphen of partially whitened.
    return " ".join("".join(text.get_text().split()) for text in found if isinstance(text, Text))


def squeezed(text: str) -> str:
    return "".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
def test_each_figure_shows_the_selected_candidate_of_a_run(kind: str, held: Run) -> None:
    drawing = draw_plot(kind, [held])
    assert marked(drawing) == {("c3", "max", WHITE, "0")}
    assert squeezed("selected: c3, partially whitened to 3") in texts(drawing)


@pytest.mark.parametrize("kind", KINDS)
def test_each_figure_shows_a_candidate_that_was_searched_in_fifths(kind: str, folded: tuple[Run, Choice]) -> None:
    run, choice = folded
    drawing = draw_plot(kind, [run])
    assert marked(drawing) == place(choice)
    assert squeezed("selected: 1, partially whitened to 3 (in fifths)") in texts(drawing)
    # Rates of pairs do not depend on the size of the gallery.
    of_pairs = "pairs within each fifth of the classes, with post-processing fitted on the other four"
    search = "each fifth of the classes is searched in itself"
    assert squeezed(of_pairs if kind in ("det", "histograms") else search) in texts(drawing)


@pytest.mark.parametrize("kind", ["layers", "det", "histograms"])
def test_figures_of_a_watched_training_show_what_choose_selects(kind: str, tmp_path: Path) -> None:
    splits = {"validation": DataLoader(Augmented(200, 0), 8), **loaders()}
    watching(tmp_path, splits=splits, share=None)(network(), 0)
    run = Run(tmp_path / "watched")
    choice = choose_once([run], ChooseRequest(device="cpu"), Silent())
    assert marked(draw_plot(kind, [run])) == place(choice)


def test_figures_of_a_result_in_python_show_what_its_run_keeps(tmp_path: Path) -> None:
    splits = {"train": TRAIN, "validation": images_of(26, 40), "test": TEST}
    result = probed(splits=splits, cache=tmp_path)
    selected = result.choose().selected
    for kind in ("layers", "det", "histograms"):
        assert squeezed(f"selected: {spoken_name(selected.ranked)}") in texts(Drawing(result.plot(kind), ""))
        assert marked(draw_plot(kind, [Run(tmp_path / result.name)])) == place_of(replace(selected, epoch=0))


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_choice_figures_are_as_before(kind: str, held: Run) -> None:
    held.choice_file.unlink()
    drawing = draw_plot(kind, [held])
    assert marked(drawing) == set()
    assert "selected" not in texts(drawing)


@pytest.mark.parametrize("kind", ["panels", "det", "histograms"])
def test_nothing_is_added_to_layers_that_are_named(kind: str, held: Run) -> None:
    assert marked(draw_plot(kind, [held], PlotOptions(layers=("fc6",)))) == set()


def test_the_star_is_at_the_layer_and_its_value_on_test(held: Run) -> None:
    (score,) = (x for x in held.scores() if (x.ranked, x.split, x.metric) == (C3, "test", "R@1"))
    panels = draw_plot("layers", [held]).figure.axes
    stars = [line for axes in panels for line in axes.lines if line.get_marker() == "*"]
    heights = [np.asarray(line.get_ydata(), float).tolist() for line in stars]
    assert heights == [[pytest.approx(100 * (score.value or 0))]]


def test_of_trainings_that_keep_different_choices_the_mean_has_none(held: Run) -> None:
    scores = held.scores()
    assert set(StoredRuns([held], scores).selected()) == {held.name}
    other = Run(held.folder.with_name("other"))
    other.folder.mkdir()
    twin = [replace(score, run="other", seed=1) for score in scores]
    assert set(StoredRuns([held, other], [*scores, *twin]).selected()) == {held.name}


def test_a_candidate_that_cannot_be_drawn_is_told(held: Run) -> None:
    keep(held, choose_runs([held], ChooseRequest(device="cpu"), Silent()), replace(C3, layer=LayerKey("gone", "max")))
    drawing = draw_plot("histograms", [held])
    assert marked(drawing) == set()
    assert squeezed(
        "selected: gone, partially whitened to 3 is not drawn: no scores of gone@max at epoch 0 are stored"
    ) in texts(drawing)


def test_plots_of_scores_import_no_torch() -> None:
    code = "import layerprobe.workflow.plot.plot, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
