from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import layerprobe
from layerprobe.system.errors import UnknownNameError
from layerprobe.values.choice import Choice
from layerprobe.values.facts import WITHIN_FOLDS
from layerprobe.values.scores import ScoreTable
from layerprobe.workflow.choose import choose_once as room
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.choose_once import choose_model, choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.probed_run import RunExtractor
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import RULE, stored_choice
from layerprobe.workflow.train.frozen import frozen_run
from layerprobe.workflow.train.frozen_request import FrozenRequest
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, C2, FC6, hits, write_run

GOOD, FAIR, POOR = hits(*[4] * 20), hits(*[3] * 20), hits(*[1] * 20)
HELD_OUT = {"validation": {C1: FAIR, C2: GOOD, FC6: POOR}, "test": {C1: GOOD, C2: FAIR, FC6: POOR}}
REQUEST = ChooseRequest(device="cpu")
CLASSES = 12
WHITE = replace(C1, post_processing="l2+whiten:9:0.5+l2")
AGAIN = "the stored choice, as what it rests on has not changed"


@pytest.fixture
def held(tmp_path: Path) -> Run:
    return write_run(tmp_path, "a", HELD_OUT)


@pytest.fixture
def folded(tmp_path: Path) -> Run:
    """A run that is chosen on test, where partial whitening within folds is better than the stored layer."""
    rng, classes = np.random.default_rng(0), np.repeat(np.arange(CLASSES), 4)
    noise = rng.standard_normal((len(classes), 9)) * [5, 5, 5, 1, 1, 1, 1, 1, 1]
    features = {"test": {"c1@max": (2 * rng.standard_normal((CLASSES, 9))[classes] + noise).astype(np.float32)}}
    return write_run(tmp_path, "a", {"test": {C1: np.ones(4 * CLASSES)}}, features=features, epochs=(0,))


def kept(run: Run) -> Choice:
    stored = stored_choice(run)
    assert stored is not None
    return stored.choice


def test_a_choice_is_the_one_that_nothing_stored_gives_and_the_run_keeps_it(held: Run) -> None:
    listener = Silent()
    choice = choose_once([held], REQUEST, listener)
    assert choice == choose_runs([held], REQUEST, Silent()) == kept(held)
    assert listener.heard == []


def test_the_same_request_is_answered_by_the_stored_choice_and_this_is_said(
    held: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice, listener = choose_once([held], REQUEST, Silent()), Silent()
    monkeypatch.setattr(room, "choose_runs", None)
    assert choose_once([held], REQUEST, listener) == choice
    assert listener.heard == [f"a: {AGAIN}"]


@pytest.mark.parametrize(
    ("request_now", "made_with"),
    [
        (ChooseRequest("2", 100, "cpu"), "--epochs all, --within 1"),
        (ChooseRequest(device="cpu", layers=("c1", "fc6")), "no --layers"),
    ],
)
def test_another_request_is_answered_anew_and_replaces_the_stored_choice(
    request_now: ChooseRequest, made_with: str, held: Run
) -> None:
    choose_once([held], REQUEST, Silent())
    listener = Silent()
    assert choose_once([held], request_now, listener) == choose_runs([held], request_now, Silent()) == kept(held)
    assert listener.heard == [f"a: replaces the stored choice of c2@max, made with {made_with}"]


def test_a_stale_choice_is_made_anew_and_the_reason_is_said(held: Run) -> None:
    choose_once([held], REQUEST, Silent())
    scores = [score for score in held.scores() if score.ranked != C2]
    ScoreTable(scores, stored=[]).write(held.scores_file)
    listener = Silent()
    assert choose_once([held], REQUEST, listener).selected.layer == "c1" == kept(held).selected.layer
    assert listener.heard == ["a: the stored choice no longer holds: its layers have other scores on test now"]


def test_a_damaged_choice_is_told_once_with_its_file_and_made_anew(held: Run) -> None:
    choice, listener = choose_once([held], REQUEST, Silent()), Silent()
    held.choice_file.write_text("{")
    assert choose_once([held], REQUEST, listener) == choice == kept(held)
    assert listener.heard == [f"{held.choice_file}: not a stored choice; it is not taken"]


def test_an_interrupted_choice_leaves_the_stored_one(held: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    choice = choose_once([held], REQUEST, Silent())

    def interrupted(*_: object) -> Choice:
        raise KeyboardInterrupt

    monkeypatch.setattr(room, "choose_runs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        choose_once([held], ChooseRequest("2", device="cpu"), Silent())
    assert kept(held) == choice
    assert not list(held.folder.glob(".choice*"))


def test_where_it_cannot_be_stored_a_choice_is_made_all_the_same(held: Run) -> None:
    held.choice_file.mkdir()
    listener = Silent()
    assert choose_once([held], REQUEST, listener) == choose_runs([held], REQUEST, Silent())
    (unreadable, unwritable) = listener.heard
    assert unreadable.startswith(f"{held.choice_file}: cannot be read")
    assert unwritable == f"{held.choice_file}: the choice could not be stored (Is a directory)"


def test_partially_whitened_candidates_stay_in_the_next_choice(folded: Run) -> None:
    first = choose_once([folded], REQUEST, Silent(), [WHITE])
    assert first.selected.name == str(WHITE)
    assert choose_once([folded], REQUEST, Silent()) == first


def test_partially_whitened_candidates_stay_in_a_choice_by_another_request(folded: Run) -> None:
    choose_once([folded], REQUEST, Silent(), [WHITE])
    asked, listener = ChooseRequest(within=0, device="cpu"), Silent()
    again = choose_once([folded], asked, listener)
    assert again == choose_runs([folded], asked, Silent(), [WHITE]) != choose_runs([folded], asked, Silent())
    assert listener.heard == [f"a: replaces the stored choice of {WHITE}, made with --within 1"]


def test_partially_whitened_candidates_that_are_none_any_more_are_told(folded: Run) -> None:
    choose_once([folded], REQUEST, Silent(), [WHITE])
    folded.feature_file(0, "test").rename(folded.feature_file(0, "train"))  # dimensions are read from any file
    listener = Silent()
    found = choose_once([folded], ChooseRequest(within=0, device="cpu"), listener)
    assert found.selected.post_processing == "none"
    told, replaced = listener.heard
    assert told.startswith("a: whitened layers were candidates of the stored choice, and are not now: ")
    assert replaced == f"a: replaces the stored choice of {WHITE}, made with --within 1, whitened layers"


def test_indexes_are_of_one_call_and_not_stored(held: Run) -> None:
    found = choose_once([held], ChooseRequest(device="cpu", indexes=("flat",)), Silent())
    assert found.indexes is not None
    assert choose_once([held], REQUEST, Silent()).indexes is None


def test_of_two_seeds_each_keeps_the_choice_until_one_is_chosen_alone(tmp_path: Path) -> None:
    runs = [write_run(tmp_path, name, HELD_OUT, seed=seed) for seed, name in enumerate("ab")]
    both = choose_once(runs, REQUEST, Silent())
    assert [kept(run) for run in runs] == [both, both]
    assert choose_once(runs[::-1], REQUEST, listener := Silent()) == both
    assert listener.heard == [f"a, b: {AGAIN}"]
    alone = choose_once(runs[:1], REQUEST, listener := Silent())
    assert (alone.run, kept(runs[0]), kept(runs[1])) == ("a", alone, both)
    assert listener.heard == ["a: replaces the stored choice of c2@max, made with the runs a, b"]


def test_the_file_names_rule_request_runs_and_candidate(held: Run) -> None:
    choose_once([held], REQUEST, Silent())
    values = json.loads(held.choice_file.read_text())
    request = {"epochs": "all", "within": 1, "layers": [], "metric": "R@1", "cluster": None, "budget": None}
    assert values["request"] == request
    assert (values["rule"], list(values["states"]), values["choice"]["selected"]["layer"]) == (RULE, ["a"], "c2")


CODE = """
from torch import nn

def build():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    return model, {"size": 16, "filter": "bilinear", "crop": 1.0, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
"""


@pytest.fixture
def asked(images: Path, tmp_path: Path) -> FrozenRequest:
    (tmp_path / "mine.py").write_text(CODE)
    model = f"python:{tmp_path / 'mine.py'}:build"
    return FrozenRequest(model, f"folder:{images}", tmp_path / "cache", "none", device="cpu", workers=0)


def test_a_model_is_measured_and_chosen_in_one_call_and_measured_once(asked: FrozenRequest) -> None:
    run, choice = choose_model(asked, ChooseRequest(device="cpu"), Silent())
    assert (choice.run, choice.chosen.split) == (run.name, "train")
    post_processings = {score.ranked.post_processing.split(":")[0] for score in run.scores()}
    assert post_processings == {"none", "l2+whiten"}
    metrics = {
        raw: {x.metric for x in run.scores() if (x.ranked.post_processing == "none") is raw} for raw in (True, False)
    }
    assert metrics[True] == metrics[False]
    stored = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.h5")}
    again, same = choose_model(asked, ChooseRequest(device="cpu"), Silent())
    assert (again.name, same) == (run.name, choice)
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.h5")} == stored


def test_features_are_extracted_once_whatever_the_weights_were_trained_on(
    asked: FrozenRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = choose_model(asked, ChooseRequest(device="cpu"), Silent())
    tuned = replace(asked, weights=f"run:{first.name}")
    run = frozen_run(tuned, Silent())
    probe(run, ProbeRequest(device="cpu", workers=0), Silent())
    unseen = replace(tuned, settings=("data.seen=false",))
    extracted: list[object] = []
    monkeypatch.setattr(RunExtractor, "extract", lambda *args: extracted.append(args))
    same, choice = choose_model(unseen, ChooseRequest(device="cpu"), Silent())
    assert (same.name, extracted, choice.chosen.split) == (run.name, [], "train")
    assert run.read().data["seen"] is False
    assert sorted(path.name for path in (tmp_path / "cache").glob("*/run.json")) == ["run.json"] * 2


def test_the_name_of_a_run_does_not_say_whether_the_weights_have_seen_its_classes(asked: FrozenRequest) -> None:
    unseen = replace(asked, settings=("data.seen=false",))
    assert unseen.target(unseen.recipe()).name == asked.target(asked.recipe()).name


@pytest.mark.parametrize("layers", [("zz",), ("zz@avg/l2",)])
def test_an_unknown_candidate_is_told_before_anything_is_measured(
    asked: FrozenRequest, layers: tuple[str, ...]
) -> None:
    with pytest.raises(UnknownNameError, match="unknown layer 'zz'. Known: .*output"):
        choose_model(asked, ChooseRequest(device="cpu", layers=layers), Silent())
    assert not list(asked.cache.rglob("*.h5"))


@pytest.mark.usefixtures("switches")
def test_without_training_classes_the_choice_is_cross_fitted(asked: FrozenRequest) -> None:
    whole = replace(asked, settings=("data.train_classes=0",))
    run, choice = choose_model(whole, ChooseRequest(device="cpu"), Silent())
    assert choice.chosen.split == "test"
    assert any(note.startswith("cross-fitted") for note in choice.notes)
    assert choice.classes == 8
    assert choice.embedding is not None
    assert choice.embedding.whole_gallery is not None
    name = choice.embedding.layer.layer
    probed = [
        score
        for score in run.scores()
        if (score.ranked.layer.layer, score.split, score.metric) == (name, "test", "R@1")
    ]
    assert choice.embedding.whole_gallery.value == pytest.approx(probed[0].value)
    assert WITHIN_FOLDS in choice.embedding.test.notes
    # Three layers, raw and partially whitened; the output is the last one by another name, or not above chance.
    assert choice.candidates <= 4
    assert any(line.startswith("counted once: ") for line in choice.details)


def test_a_checkpoint_of_half_of_a_folder_gives_one_answer_by_command_line_and_python(
    tmp_path: Path, asked: FrozenRequest
) -> None:
    pixels, labels = coloured(tmp_path / "coloured", classes=28)
    own = trained(pixels[:56], labels[:56])
    torch.save(own.state_dict(), tmp_path / "own.pth")
    files = replace(asked, data=f"folder:{tmp_path / 'coloured'}", weights=str(tmp_path / "own.pth"))
    _, choice = choose_model(files, ChooseRequest(device="cpu"), Silent())
    halves = {"train": loader(pixels[:56], labels[:56]), "test": loader(pixels[56:], labels[56:])}
    same = layerprobe.probe(own, halves, device="cpu").choose()
    text = "cross-fitted on the 14 test classes, as the network may have been trained on the 14 training classes"
    assert (choice.basis, choice.chosen.split) == (same.basis, same.chosen.split) == (text, "test")
    assert len({(one.preferred.name, one.selected.name, one.advice, one.candidates) for one in (choice, same)}) == 1
    for one, other in ((choice.test, same.test), (choice.preferred_test, same.preferred_test)):
        assert one is not None
        assert other is not None
        assert one.value == pytest.approx(other.value)
    assert "assumed, not verified: own.pth was not trained on the 14 test classes" in choice.notes
    assert "assumed, not verified: the model was not trained on the 14 test classes" in same.notes


def coloured(root: Path, classes: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A folder of four 16 x 16 images of each class, told apart by noisy colours; and its images and labels."""
    rng, images = np.random.default_rng(0), []
    for label in range(classes):
        folder, colour = root / f"class{label:02}", rng.integers(40, 216, 3)
        folder.mkdir(parents=True)
        for i in range(4):
            image = (colour + rng.normal(0, 30, 3) + rng.normal(0, 20, (16, 16, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(image).save(folder / f"{i}.png")
            images.append(image)
    return np.stack(images), np.repeat(np.arange(classes), 4)


def trained(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> nn.Module:
    """The model of `CODE` after a few steps of a classifier."""
    torch.manual_seed(0)
    code: dict[str, Any] = {}
    exec(CODE, code)
    model = code["build"]()[0]
    head = nn.Linear(5, int(labels.max()) + 1)
    steps = torch.optim.Adam([*model.parameters(), *head.parameters()], 0.01)
    for _ in range(20):
        steps.zero_grad()
        functional.cross_entropy(head(model(as_input(pixels))), torch.from_numpy(labels)).backward()
        steps.step()
    return model.eval()  # type: ignore[no-any-return] # an nn.Module


def as_input(pixels: NDArray[np.uint8]) -> Tensor:
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255 * 2 - 1


def loader(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> DataLoader[Any]:
    return DataLoader(TensorDataset(as_input(pixels), torch.from_numpy(labels)), batch_size=16)
