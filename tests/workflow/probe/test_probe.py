from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from layerprobe import store
from layerprobe.system.progress import Task
from layerprobe.values.layers import LayerKey
from layerprobe.values.scores import Score, read_scores
from layerprobe.workflow.probe.estimate_probe import estimate_probe
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run.runs import Run, set_aside
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.records import rewrite
from tests.workflow.conftest import Silent

FC6 = LayerKey("fc6", "none")
POOL = LayerKey("pool5.3", "max")

Requests = Callable[..., TrainRequest]
REQUEST = ProbeRequest(layers=("pool5.3", "fc6"), ks=(1, 2), device="cpu", workers=0)


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
    return [score for score in scores if fields.items() <= score.as_json().items()]


def test_recall_equals_a_computation_from_the_files_alone(request_for: Requests, images: Path) -> None:
    # At the usual rate so small a head leaves all embeddings within 1e-11 of one direction, where some tie.
    run = train(request_for("net.name=vgg16_bn", "train.learning_rate=1e-6"), Silent())
    scores = probe(run, REQUEST, Silent())
    for (split, classes), epoch in itertools.product({"train": range(4), "test": range(4, 8)}.items(), range(3)):
        for layer, value in by_hand(run, images, classes, epoch).items():
            (score,) = only(scores, split=split, epoch=epoch, layer=layer, metric="R@1")
            assert score.value == value
            assert score.n == 16


def test_scores_are_written_as_a_table(run: Run) -> None:
    scores = probe(run, REQUEST, Silent())
    with run.scores_file.open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == len(scores) == 3 * 2 * 2 * 2  # epochs, splits, layers, K
    assert rows[0]["experiment"] == run.read().experiment
    assert {row["similarity"] for row in rows} == {"cosine"}


def test_a_run_moved_aside_has_its_scores_under_its_new_name(run: Run) -> None:
    probe(run, replace(REQUEST, epochs="0"), Silent())
    aside = set_aside(run)
    probe(aside, replace(REQUEST, epochs="last"), Silent())
    assert {score.run for score in read_scores(aside.scores_file)} == {"tiny~1"}
    assert {score.epoch for score in read_scores(aside.scores_file)} == {0, 2}


def test_a_dry_run_writes_nothing_and_knows_the_bytes(run: Run) -> None:
    estimate = estimate_probe(run, REQUEST)
    assert not run.feature_file(0, "test").exists()
    # 3 epochs x 32 images x (64 + 8) float32
    assert estimate.disk == 3 * 32 * 72 * 4
    assert estimate.seconds > 0


class Counting(Silent):
    def __init__(self) -> None:
        super().__init__()
        self.totals: dict[str, int] = {}
        self.done: dict[str, int] = {}

    @contextlib.contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:
        self.totals[f"{name}, {unit}"], self.done[f"{name}, {unit}"] = total, 0
        yield CountingTask(self.done, f"{name}, {unit}")


@dataclass
class CountingTask:
    done: dict[str, int]
    name: str

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.done[self.name] += steps


@pytest.mark.parametrize("again", [False, True])
def test_progress_counts_extracted_images_and_ranked_layers(request_for: Requests, again: bool) -> None:
    run = train(request_for(), Silent())  # its images are hashed already
    if again:
        probe(run, replace(REQUEST, epochs="last"), Silent())
    listener = Counting()
    probe(run, replace(REQUEST, epochs="last"), listener)
    images = 0 if again else 16 + 16  # 4 classes of 4 images on each side
    assert listener.totals == {"extracting tiny, images": images, "ranking tiny, layers": 2}
    assert listener.done == listener.totals


def test_a_pool_that_globbed_layers_cannot_have_is_said(run: Run) -> None:
    listener = Silent()
    probe(run, replace(REQUEST, layers=("features.[0-2]@gem",), epochs="0"), listener)
    below = "features.0@gem: the layer has values below 0, which GeM would raise to 0"
    assert listener.heard[0] == f"gem skipped for features.0, features.1: {below}"


def test_accuracy_is_the_classifiers_on_the_embedding_of_trained_classes(request_for: Requests) -> None:
    run = train(request_for(recipe="netA-softmax"), Silent())
    scores = probe(run, replace(REQUEST, metrics=("accuracy",)), Silent())
    found = {(s.ranked.layer.layer, s.split, s.epoch): s.value for s in scores if s.metric == "accuracy"}
    assert set(found) == {("fc6", "train", epoch) for epoch in (0, 1, 2)}
    weights = safetensors.torch.load_file(run.checkpoint_file(2))
    features = torch.from_numpy(store.read_features(run.feature_file(2, "train"), FC6))
    logits = features.relu() @ weights["loss.classifier.weight"].T + weights["loss.classifier.bias"]
    labels = torch.arange(4).repeat_interleave(4)
    assert found["fc6", "train", 2] == float((logits.argmax(1) == labels).double().mean())


def test_all_scores_of_a_run_name_the_experiment_that_it_is_part_of_now(run: Run) -> None:
    probe(run, replace(REQUEST, epochs="last"), Silent())
    rewrite(run, experiment="new")
    probe(run, replace(REQUEST, epochs="last", layers=("pool4.1",)), Silent())
    assert {score.experiment for score in run.scores()} == {"new"}


def test_the_record_keeps_the_networks_order_of_all_layers_ever_measured(run: Run) -> None:
    probe(run, replace(REQUEST, epochs="last", layers=("fc6", "pool5.3")), Silent())
    probe(run, replace(REQUEST, epochs="last", layers=("pool4.1",)), Silent())
    assert run.read().layer_order == ("pool4.1", "pool5.3", "fc6")


def test_scores_are_in_network_order_whatever_was_measured_first(run: Run) -> None:
    probe(run, replace(REQUEST, epochs="last", layers=("pool5.3", "fc6")), Silent())
    found = probe(run, replace(REQUEST, epochs="last", layers=("fc6", "pool4.1@avg", "pool4.1@max")), Silent())
    assert list(dict.fromkeys((score.ranked.layer.layer, score.ranked.layer.pool) for score in found)) == [
        ("pool4.1", "max"), ("pool4.1", "avg"), ("fc6", "none"),
    ]  # fmt: skip
    names = ["pool4.1", "pool5.3", "fc6"]
    assert list(dict.fromkeys(score.ranked.layer.layer for score in run.scores())) == names
    assert list(dict.fromkeys(score.ranked.layer.layer for score in read_scores(run.scores_file))) == names


def test_scores_of_features_made_by_another_transform_leave_the_table(run: Run) -> None:
    probe(run, REQUEST, Silent())
    for split in ("train", "test"):
        with h5py.File(run.feature_file(0, split), "r+") as file:
            file.attrs["transform"] = np.bytes_("other steps")
    listener = Silent()
    probe(run, replace(REQUEST, layers=("fc6",), epochs="0"), listener)
    assert {score.ranked.layer.layer for score in run.scores() if score.epoch == 0} == {"fc6"}
    assert {score.ranked.layer.layer for score in run.scores() if score.epoch == 1} == {"pool5.3", "fc6"}
    assert any("of another test transform leave scores.csv" in line for line in listener.heard)
