from __future__ import annotations

import csv
import itertools
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from layerprobe import store
from layerprobe.errors import DataError, InterruptedRun, RecipeError, UnknownNameError
from layerprobe.files import sha256
from layerprobe.keys import LayerKey
from layerprobe.runs import Run, set_aside
from layerprobe.scores import Score, read_scores
from layerprobe.workflow import extractors as module
from layerprobe.workflow.building import TrainRequest
from layerprobe.workflow.probe import estimate_probe, probe
from layerprobe.workflow.selection import ProbeRequest
from layerprobe.workflow.train import train
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
POOL = LayerKey("pool5.3", "max")

Requests = Callable[..., TrainRequest]
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), ks=(1, 2), device="cpu", workers=0)


@pytest.fixture
def run(request_for: Requests) -> Run:
    return train(request_for(), Silent())


def by_hand(run: Run, images: Path, classes: range, epoch: int) -> dict[str, float]:
    """R@1 of pool5.3 and fc6 from the files alone: pixels, checkpoint, a forward and a loop of our own."""
    from torchvision.models.vgg import cfgs, make_layers

    tensors = safetensors.torch.load_file(run.checkpoint_file(epoch))
    trunk = make_layers(cfgs["D"], batch_norm=True)[:-1].eval()
    head = torch.nn.Linear(512, 8)
    prefix = "net.features."
    trunk.load_state_dict({k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)})
    head.load_state_dict({"weight": tensors["net.fc6.weight"], "bias": tensors["net.fc6.bias"]})
    paths = [(label, images / f"class{label}" / f"{i}.png") for label in classes for i in range(4)]
    pixels = np.stack([np.asarray(Image.open(p).resize((16, 16), Image.Resampling.BILINEAR)) for _, p in paths])
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
    x = (x - torch.tensor([0.485, 0.456, 0.406])[:, None, None]) / torch.tensor([0.229, 0.224, 0.225])[:, None, None]
    with torch.inference_mode():
        pooled = trunk(x).amax((2, 3))
        features = {"pool5.3": pooled, "fc6": head(pooled)}
    return {name: _recall_at_1(f.double().numpy(), [label for label, _ in paths]) for name, f in features.items()}


def _recall_at_1(features: np.ndarray, labels: list[int]) -> float:
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    hits = 0
    for i in range(len(unit)):
        nearest = max((j for j in range(len(unit)) if j != i), key=lambda j: float(unit[i] @ unit[j]))
        hits += labels[nearest] == labels[i]
    return hits / len(unit)


def only(scores: list[Score], **fields: object) -> list[Score]:
    return [score for score in scores if all(getattr(score, name) == value for name, value in fields.items())]


def test_recall_equals_a_computation_from_the_files_alone(request_for: Requests, images: Path) -> None:
    # At the usual rate so small a head leaves all embeddings within 1e-11 of one direction, where some tie.
    run = train(request_for("net.name=vgg16_bn", "train.learning_rate=1e-6"), Silent())
    scores = probe(run, REQUEST, Silent())
    for (split, classes), epoch in itertools.product({"train": range(4), "test": range(4, 8)}.items(), range(3)):
        for layer, value in by_hand(run, images, classes, epoch).items():
            (score,) = only(scores, split=split, epoch=epoch, layer=layer, metric="R@1")
            assert score.value == value
            assert score.n == 16


def test_a_second_probe_extracts_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    first = probe(run, REQUEST, Silent())
    monkeypatch.setattr(module, "extract", None)
    assert probe(run, REQUEST, Silent()) == first


def test_further_layers_take_the_old_ones_along(run: Run) -> None:
    probe(run, REQUEST, Silent())
    before = h5py.File(run.feature_file(2, "test"))["features/fc6@none"][:]
    probe(run, replace(REQUEST, layers=("pool4.1",), pools=("max", "avg")), Silent())
    with h5py.File(run.feature_file(2, "test")) as file:
        assert set(file["features"]) == {"pool5.3@max", "fc6@none", "pool4.1@max", "pool4.1@avg"}
        assert np.array_equal(file["features/fc6@none"][:], before)
    assert {(score.layer, score.pool) for score in read_scores(run.scores_file)} == {
        ("pool5.3", "max"), ("fc6", "none"), ("pool4.1", "max"), ("pool4.1", "avg"),
    }  # fmt: skip


def test_features_of_other_weights_are_not_trusted(run: Run, request_for: Requests) -> None:
    probe(run, REQUEST, Silent())
    stale = run.feature_file(2, "test").read_bytes()
    train(request_for("train.learning_rate=0.1", fresh=True), Silent())
    run.feature_file(2, "test").parent.mkdir()
    run.feature_file(2, "test").write_bytes(stale)
    listener = Silent()
    fresh = probe(run, REQUEST, listener)
    assert listener.heard == ["epoch-0002.test.h5 is computed again: weights_sha256 is not what it was"]
    with h5py.File(run.feature_file(2, "test")) as file:
        assert file.attrs["weights_sha256"].decode() == sha256(run.checkpoint_file(2))
    assert only(fresh, epoch=2)


def test_images_that_changed_since_the_training_are_noticed(run: Run, images: Path) -> None:
    with (images / "class0" / "0.png").open("ab") as stream:
        stream.write(b"more")
    message = "images: the train images are not those the run began with. Restore them, or train a new run"
    with pytest.raises(DataError, match=message):
        probe(run, REQUEST, Silent())
    assert not run.scores_file.exists()
    assert only(probe(run, replace(REQUEST, splits=("test",)), Silent()), split="test")


def test_a_split_that_the_run_does_not_know_the_images_of_is_probed(run: Run, images: Path) -> None:
    run.write(run.read() | {"manifests": {}})
    (images / "class0" / "0.png").unlink()
    assert probe(run, REQUEST, Silent())


def test_scores_are_written_as_a_table(run: Run) -> None:
    scores = probe(run, REQUEST, Silent())
    with run.scores_file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(scores) == 3 * 2 * 2 * 2  # epochs, splits, layers, K
    assert rows[0]["experiment"] == run.read()["experiment"]
    assert {row["similarity"] for row in rows} == {"cosine"}


@pytest.mark.parametrize(("text", "epochs"), [("all", {0, 1, 2}), ("last", {2}), ("0,2", {0, 2})])
def test_epochs_are_chosen(run: Run, text: str, epochs: set[int]) -> None:
    assert {score.epoch for score in probe(run, replace(REQUEST, epochs=text), Silent())} == epochs


@pytest.mark.parametrize(
    ("text", "message"),
    [("3", "tiny has epochs 0 to 2"), ("first", "neither all, last, best"), ("best", "needs validation classes")],
)
def test_epochs_that_are_not_there_are_refused(run: Run, text: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        probe(run, replace(REQUEST, epochs=text), Silent())


def test_an_unknown_split_has_the_near_miss(run: Run) -> None:
    with pytest.raises(UnknownNameError, match="unknown split 'tset'. Did you mean 'test'"):
        probe(run, replace(REQUEST, splits=("tset",)), Silent())


def test_an_unknown_layer_has_the_near_miss_and_loses_nothing(run: Run) -> None:
    probe(run, REQUEST, Silent())
    before = sha256(run.scores_file)
    with pytest.raises(UnknownNameError, match=r"'pool5.4'. Did you mean 'pool5.\d'"):
        probe(run, replace(REQUEST, layers=("pool5.4",)), Silent())
    assert sha256(run.scores_file) == before


def test_a_large_k_is_refused_when_asked_for_and_dropped_from_a_recipe(run: Run) -> None:
    with pytest.raises(RecipeError, match="K = 16 is not below the 16 images of the train split"):
        probe(run, replace(REQUEST, ks=(1, 16)), Silent())
    listener = Silent()
    scores = probe(run, replace(REQUEST, ks=None), listener)
    assert "K = 16, 32 left out: not so many items to search" in listener.heard
    assert {score.metric for score in scores} == {"R@1", "R@2", "R@4", "R@8"}


def test_a_recipe_whose_every_k_is_too_large_is_refused_before_extraction(request_for: Requests) -> None:
    run = train(request_for("probe.k=[1000]"), Silent())
    with pytest.raises(RecipeError, match="K = 1000 is not below the 16 images"):
        probe(run, replace(REQUEST, ks=None), Silent())
    assert not run.feature_file(0, "train").exists()


def test_a_run_moved_aside_has_its_scores_under_its_new_name(run: Run) -> None:
    probe(run, replace(REQUEST, epochs="0"), Silent())
    aside = set_aside(run)
    probe(aside, replace(REQUEST, epochs="last"), Silent())
    assert {score.run for score in read_scores(aside.scores_file)} == {"tiny~1"}
    assert {score.epoch for score in read_scores(aside.scores_file)} == {0, 2}


def test_a_layer_with_nan_has_no_number_and_the_others_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from layerprobe.extraction import extract

    def spoilt(*arguments: object, **keywords: object):  # type: ignore[no-untyped-def] # passes on what it gets
        for batch in extract(*arguments, **keywords):  # type: ignore[arg-type] # likewise
            batch[FC6][1] = np.nan
            yield batch

    monkeypatch.setattr(module, "extract", spoilt)
    scores = probe(run, replace(REQUEST, epochs="last"), Silent())
    assert {(s.value, s.notes) for s in only(scores, layer="fc6")} == {(None, ("NaN (1 rows)",))}
    assert all(score.value is not None for score in only(scores, layer="pool5.3"))


def test_a_signal_leaves_whole_files_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from layerprobe.extraction import extract

    def slow(*arguments: object, **keywords: object):  # type: ignore[no-untyped-def] # passes on what it gets
        for batch in extract(*arguments, **keywords):  # type: ignore[arg-type] # likewise
            yield batch
            if run.feature_file(0, "test").exists():
                os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(module, "extract", slow)
    monkeypatch.setattr(module, "BATCH_SIZE", 4)
    with pytest.raises(InterruptedRun, match="probing stopped"):
        probe(run, REQUEST, Silent())
    assert sorted(path.name for path in run.feature_file(0, "test").parent.iterdir()) == [
        "epoch-0000.test.h5", "epoch-0000.train.h5",
    ]  # fmt: skip
    monkeypatch.undo()
    assert len(probe(run, REQUEST, Silent())) == 24


def test_a_dry_run_writes_nothing_and_knows_the_bytes(run: Run) -> None:
    estimate = estimate_probe(run, REQUEST)
    assert not run.feature_file(0, "test").exists()
    # 3 epochs x 32 images x (64 + 8) float32
    assert estimate.disk == 3 * 32 * 72 * 4
    assert estimate.seconds > 0


def test_the_best_epoch_is_the_best_on_validation_classes(images: Path, request_for: Requests, tmp_path: Path) -> None:
    splits = {0: "train", 1: "train", 2: "train", 3: "train", 4: "validation", 5: "validation", 6: "test", 7: "test"}
    rows = [f"class{c}/{i}.png,{c},{split}" for c, split in splits.items() for i in range(4)]
    (images / "table.csv").write_text("\n".join(["path,label,split", *rows]))
    made = request_for()
    from layerprobe.overrides import Overrides
    from layerprobe.recipe import load_recipe

    recipe = load_recipe("netA", Overrides(f"csv:{images / 'table.csv'}", (
        "net.name=narrow_vgg", "net.fc=[8]", "data.image_size=16", "train.batch_size=8", "train.images_per_class=2",
        "train.epochs=2",
    )))  # fmt: skip
    run = train(replace(made, recipe=recipe), Silent())
    with pytest.raises(RecipeError, match="--epochs best needs fc6 measured on the validation split at every epoch"):
        probe(run, replace(REQUEST, epochs="best"), Silent())
    scores = only(probe(run, replace(REQUEST, splits=("validation",)), Silent()), layer="fc6", metric="R@1")
    values = {score.epoch: score.value or 0.0 for score in scores}
    (epoch,) = {score.epoch for score in probe(run, replace(REQUEST, epochs="best"), Silent())}
    assert values[epoch] == max(values.values())
    assert epoch == min(e for e, value in values.items() if value == max(values.values()))


def test_classes_held_out_of_training_choose_the_best_epoch(request_for: Requests) -> None:
    run = train(request_for("data.validation_classes=0.5", "train.batch_size=4"), Silent())
    scores = probe(run, REQUEST, Silent())
    assert {score.split for score in scores} == {"train", "validation", "test"}
    assert {score.notes for score in scores} == {("2 of 4 training classes held out for validation",)}
    assert len({score.epoch for score in probe(run, replace(REQUEST, epochs="best"), Silent())}) == 1


def test_accuracy_is_the_classifiers_on_the_embedding_of_trained_classes(request_for: Requests) -> None:
    run = train(request_for(recipe="netA-softmax"), Silent())
    scores = probe(run, replace(REQUEST, metrics=("accuracy",)), Silent())
    found = {(s.layer, s.split, s.epoch): s.value for s in scores if s.metric == "accuracy"}
    assert set(found) == {("fc6", "train", epoch) for epoch in (0, 1, 2)}
    weights = safetensors.torch.load_file(run.checkpoint_file(2))
    features = torch.from_numpy(store.read_features(run.feature_file(2, "train"), FC6))
    logits = features.relu() @ weights["loss.classifier.weight"].T + weights["loss.classifier.bias"]
    labels = torch.arange(4).repeat_interleave(4)
    assert found["fc6", "train", 2] == float((logits.argmax(1) == labels).double().mean())


@pytest.mark.parametrize(
    ("recipe", "layers", "problem"),
    [
        ("netA", ("fc6",), "accuracy: smooth_triplet has no classifier"),
        ("netA-softmax", ("pool5.3",), "accuracy is measured on fc6@none. Add fc6 to --layers"),
    ],
)
def test_accuracy_without_a_classifier_is_refused(
    request_for: Requests, recipe: str, layers: tuple[str, ...], problem: str
) -> None:
    run = train(request_for("train.epochs=0", recipe=recipe), Silent())
    with pytest.raises(RecipeError, match=problem):
        probe(run, replace(REQUEST, layers=layers, metrics=("accuracy",)), Silent())
