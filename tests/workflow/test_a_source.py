"""A model from elsewhere is trained and probed as any network is."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

from layerprobe.store.hdf5 import attribute, open_file
from layerprobe.system.errors import UnknownNameError
from layerprobe.values.network_input import OwnInput
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.run_network import network_text
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

CONVNEXT = ("net.name=timm:test_convnext", "net.weights=none", "data.image_size=32", "train.epochs=1")


@pytest.fixture
def trained(request_for: Callable[..., TrainRequest]) -> Run:
    return train(request_for(*CONVNEXT, "net.fc=[4]"), Silent())


def test_it_trains_goes_on_and_records_its_version(
    request_for: Callable[..., TrainRequest],
) -> None:
    settings = (*CONVNEXT, "net.fc=[4]", "train.decay_at=[]")
    record = train(request_for(*settings), Silent()).read()
    assert record.versions["timm"] == timm.__version__
    assert {"fc6.weight", "model.stem.0.weight"} <= set(record.new_parameters)
    grown = train(request_for(*settings, "train.epochs=2"), Silent()).read()
    assert (grown.epochs_done, grown.new_parameters) == (2, record.new_parameters)


def test_its_features_belong_to_the_version_of_its_package(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    probe(trained, ProbeRequest(layers=("output",), epochs="last"), Silent())
    with open_file(trained.feature_file(1, "test")) as file:
        assert attribute(file, "network") == f"timm {timm.__version__}"


def test_a_run_goes_on_without_the_weights_that_it_began_with(
    request_for: Callable[..., TrainRequest], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    model = timm.create_model("test_convnext", num_classes=0)
    folder = tmp_path / "hub" / "models--timm--test_convnext.r160_in1k"
    (folder / "snapshots" / "abc").mkdir(parents=True)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("abc")
    file = folder / "snapshots" / "abc" / "model.safetensors"
    safetensors.torch.save_file(model.state_dict(), file)
    settings = (*CONVNEXT, "net.weights=model", "net.fc=[4]", "train.decay_at=[]")
    begun = train(request_for(*settings, "train.epochs=0"), Silent())
    stored = safetensors.torch.load_file(begun.checkpoint_file(0))
    assert all(torch.equal(stored[f"net.model.{key}"], tensor) for key, tensor in model.state_dict().items())
    assert begun.read().new_parameters == ("fc6.bias", "fc6.weight")
    file.unlink()
    assert train(request_for(*settings), Silent()).read().epochs_done == 1


def test_features_of_a_package_that_is_gone_are_not_as_they_would_be_now(
    request_for: Callable[..., TrainRequest], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    recipe = request_for(*CONVNEXT).recipe
    assert network_text(recipe) == f"timm {timm.__version__}"
    monkeypatch.setattr("importlib.metadata.version", absent)
    assert network_text(recipe) == "timm is not installed"


def test_a_layer_of_the_model_cannot_start_anew(request_for: Callable[..., TrainRequest]) -> None:
    request = request_for(*CONVNEXT, "net.fc=[4]", 'net.from_scratch=["stages.3.blocks.1"]')
    with pytest.raises(UnknownNameError, match=r"to train from scratch 'stages.3.blocks.1'. Known: fc6"):
        from_recipe.build_net(request.recipe)


def test_a_models_own_input_is_found_by_the_recipe(request_for: Callable[..., TrainRequest]) -> None:
    assert from_recipe.own_input(request_for(*CONVNEXT).recipe) == OwnInput(
        160, 168, "bicubic", (0.5,) * 3, (0.5,) * 3, kept=0.95
    )
    assert from_recipe.own_input(request_for().recipe) is None


def test_a_trainers_checkpoint_is_loaded_into_it_and_its_classifier_left_and_said(
    request_for: Callable[..., TrainRequest], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("test_convnext", num_classes=5).state_dict()
    state = {f"model.{name}": value for name, value in theirs.items()}
    torch.save({"state_dict": state, "hyper_parameters": {"args": argparse.Namespace(rate=0.1)}}, tmp_path / "a.ckpt")
    net = from_recipe.build_net(request_for(*CONVNEXT, f"net.weights={tmp_path / 'a.ckpt'}").recipe, cache=tmp_path)
    own = {name.removeprefix("model."): value for name, value in net.module.state_dict().items() if name[:3] != "fc6"}
    assert own.keys() == theirs.keys() - {"head.fc.weight", "head.fc.bias"}
    assert all(torch.equal(value, theirs[name]) for name, value in own.items())
    assert "head.fc.weight (there is no such layer)" in net.notes[-1]
    assert all(name.startswith("fc6") for name in net.new_parameters)


def test_a_run_gives_it_the_model_and_the_head(trained: Run, request_for: Callable[..., TrainRequest]) -> None:
    settings = (*CONVNEXT, "net.fc=[4]", f"net.weights=run:{trained.name}")
    net = from_recipe.build_net(request_for(*settings).recipe, cache=trained.folder.parent)
    stored = safetensors.torch.load_file(trained.checkpoint_file(1))
    assert all(torch.equal(value, stored[f"net.{name}"]) for name, value in net.module.state_dict().items())
    assert (net.new_parameters, net.notes) == (
        frozenset(),
        ("output is the input of the model's classifier (head.fc), which is left out",),
    )
