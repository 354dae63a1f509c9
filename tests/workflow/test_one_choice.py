"""The candidate of choose, export, threshold and explain is one and the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image
from torch.utils.data import DataLoader

from layerprobe.values.choice import Choice
from layerprobe.values.layers import RankedLayer
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.choose_once import choose_model, choose_once
from layerprobe.workflow.choose.feature_files import read_user_features
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.explain.explain import ExplainRequest, explain
from layerprobe.workflow.export.export_features import ranked_to_export
from layerprobe.workflow.export.export_run import export_run, layer_to_export
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.threshold.request import ThresholdRequest
from layerprobe.workflow.threshold.threshold import threshold, threshold_of_features
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.frozen_request import FrozenRequest
from layerprobe.workflow.train.train import train
from tests.records import rewrite
from tests.workflow.choose.test_choose import run_with_two_halves
from tests.workflow.choose.test_choose_once import WHITE
from tests.workflow.choose.test_choose_once import asked as asked
from tests.workflow.choose.test_choose_once import folded as folded
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, C2, hits, write_run
from tests.workflow.threshold.test_threshold import run_of
from tests.workflow.watch.trainings import Augmented, loaders, network, watching

Place = tuple[int | None, RankedLayer]
RATES = (0.1,)


def place_of(choice: Choice) -> Place:
    return choice.selected.epoch, choice.chosen.ranked


def exported(run: Run, listener: Silent, *, epoch: int | None = None) -> Place:
    layer = layer_to_export(run, ExportRequest(run.folder / "out", ("npz",), epoch=epoch), listener)
    return layer.epoch, layer.ranked


def thresholded(run: Run, listener: Silent) -> Place:
    found = threshold(run, ThresholdRequest(rates=RATES), listener)
    return found.epoch, found.ranked


def explained(run: Run, listener: Silent) -> list[Place]:
    found, _ = explain(ExplainRequest(run), listener)
    return [(found.epoch, one.explanation.ranked) for one in found.neighbours]


def write_features(path: Path, *splits: str) -> Path:
    """A file of two layers of noisy classes, of which the first is better."""
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(48), 4)
    classes = rng.normal(size=(48, 12))[labels]
    arrays: dict[str, NDArray[np.generic]] = {
        name: classes + scale * rng.normal(size=classes.shape) for name, scale in (("early", 0.7), ("late", 1.2))
    }
    np.savez(path, labels=labels, split=np.repeat(splits, len(labels) // len(splits)), **arrays)  # type: ignore[arg-type] # names -> arrays
    return path


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """24 classes of four 16 x 16 images, told apart by their colour."""
    rng = np.random.default_rng(0)
    for label in range(24):
        folder, colour = tmp_path / "images" / f"class{label:02d}", rng.integers(40, 216, 3)
        folder.mkdir(parents=True)
        for i in range(4):
            pixels = colour + rng.integers(-40, 40, (16, 16, 3))
            Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return tmp_path / "images"


@pytest.fixture
def trained(request_for: Callable[..., TrainRequest]) -> Run:
    """A trained run with validation classes, measured after both epochs."""
    run = train(request_for("data.validation_classes=0.5"), Silent())
    probe(run, ProbeRequest(epochs="1,2", device="cpu", workers=0, ks=(1,)), Silent())
    return run


@pytest.mark.usefixtures("switches")
def test_of_a_trained_run_the_four_commands_take_one_candidate(trained: Run) -> None:
    worst = "pool4.1@max"  # neither of the last epoch nor the last layers, nor the best by any rule
    choice = choose_once([trained], ChooseRequest("1", device="cpu", layers=(worst,)), Silent())
    place, listener = place_of(choice), Silent()
    assert (place[0], str(place[1])) == (1, worst)
    assert exported(trained, listener) == place
    assert thresholded(trained, listener) == place
    found = explained(trained, listener)
    assert [found[0], str(found[1][1])] == [place, "fc6"]
    told = [line for line in listener.heard if line.startswith("tiny: layer ")]
    assert told == [f"tiny: layer {worst} of epoch 1, the stored choice"] * 3


def test_of_a_model_the_run_gives_the_choice_of_the_first_call(asked: FrozenRequest) -> None:
    undivided = replace(asked, settings=("data.train_classes=0",))
    run, choice = choose_model(undivided, ChooseRequest(device="cpu"), Silent())
    assert choose_once([run], ChooseRequest(device="cpu"), Silent()) == choice
    assert exported(run, Silent()) == place_of(choice)
    layer = place_of(choice)[1].layer
    assert layer in [ranked.layer for _, ranked in explained(run, Silent())]
    assert choice != choose_runs([run], ChooseRequest(device="cpu"), Silent())  # without partially whitened layers


def test_what_was_fitted_within_folds_of_test_is_exported_fitted_on_all_of_it(folded: Run, tmp_path: Path) -> None:
    choice = choose_once([folded], ChooseRequest(device="cpu"), Silent(), [WHITE])
    request = ExportRequest(tmp_path / "out", ("npz",))
    layer = layer_to_export(folded, request, Silent())
    assert (layer.epoch, layer.ranked) == place_of(choice) == (0, WHITE)
    assert export_run(layer, request, Silent()).fitted_on == "test"


@pytest.mark.parametrize("of_test", [False, True])
def test_of_arrays_the_three_commands_take_one_candidate(of_test: bool, tmp_path: Path) -> None:
    given = read_user_features(
        write_features(tmp_path / "f.npz", *(["test"] if of_test else ["train", "validation", "test"]))
    )
    choice = choose_file(given)
    assert ranked_to_export(given, ExportRequest(tmp_path / "out"), Silent()) == choice.chosen.ranked
    if not of_test:  # else there are no classes to set a threshold on
        assert threshold_of_features(given, ThresholdRequest(rates=RATES), Silent()).ranked == choice.chosen.ranked


def test_arrays_of_one_split_are_told_that_the_layer_is_chosen_on_half_of_the_classes(tmp_path: Path) -> None:
    listener = Silent()
    given = replace(read_user_features(write_features(tmp_path / "f.npz", "test")), splits=None)
    found = threshold_of_features(given, ThresholdRequest(rates=RATES), listener)
    line = f"layer {found.ranked}, as layerprobe choose selects on that half; on all classes it may select another"
    assert line in listener.heard


def test_a_concatenation_that_was_chosen_is_exported_and_thresholded(tmp_path: Path) -> None:
    run = run_with_two_halves(tmp_path)
    choice = choose_once([run], ChooseRequest(device="cpu", layers=("c1+c2@max",)), Silent())
    assert choice.selected.name == "c1+c2@max"
    assert exported(run, Silent()) == thresholded(run, Silent()) == place_of(choice)


def test_without_a_stored_choice_export_stores_that_of_choose(tmp_path: Path) -> None:
    run, listener = run_of(tmp_path), Silent()
    assert exported(run, listener) == place_of(choose_runs([run], ChooseRequest(), Silent()))
    assert f"one: layer fc6 of epoch 2, as {run.command('choose')} says" in listener.heard
    assert run.choice_file.exists()


def test_export_of_another_epoch_than_the_stored_choice_says_so_and_stores_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, epochs=(1, 2))
    choose_once([run], ChooseRequest("2", device="cpu"), Silent())
    before, listener = run.choice_file.read_bytes(), Silent()
    assert exported(run, listener, epoch=1)[0] == 1
    command = run.command("choose", "--epochs", "1")
    assert f"one: layer fc6 of epoch 1, as {command} says; it is not stored" in listener.heard
    assert run.choice_file.read_bytes() == before
    assert exported(run, Silent(), epoch=2)[0] == 2


def test_a_threshold_without_a_stored_choice_stores_none(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    thresholded(run, Silent())
    assert not run.choice_file.exists()


def test_a_stale_choice_is_not_exported(tmp_path: Path) -> None:
    good, fair = hits(*[4] * 20), hits(*[3] * 20)
    run = write_run(tmp_path, "a", {split: {C1: fair, C2: good} for split in ("validation", "test")})
    choose_once([run], ChooseRequest(device="cpu", layers=("c1",)), Silent())
    assert exported(run, Silent()) == (2, C1)
    rewrite(run, manifests={"validation": "m", "test": "n"})
    listener = Silent()
    assert exported(run, listener) == (2, C2)
    assert listener.heard[0] == "a: the stored choice no longer holds: its images are others now"


def test_the_run_of_a_watched_training_keeps_the_choice_until_its_next_epoch(tmp_path: Path) -> None:
    splits = {"validation": DataLoader(Augmented(200, 0), 8), **loaders()}
    model, watch = network(), watching(tmp_path, splits=splits, share=None)
    watch(model, 0)
    run = Run(tmp_path / "watched")
    choice = choose_once([run], ChooseRequest(device="cpu"), Silent())
    assert exported(run, Silent()) == thresholded(run, Silent()) == place_of(choice)
    watch(model, 1)
    listener = Silent()
    choose_once([run], ChooseRequest(device="cpu"), listener)
    assert listener.heard == ["watched: the stored choice no longer holds: other epochs are ranked on test now"]
