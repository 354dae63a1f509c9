"""A model from elsewhere is trained and probed as any network is."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import timm

from layerprobe.errors import UnknownNameError
from layerprobe.own_input import OwnInput
from layerprobe.runs import Run
from layerprobe.store.hdf5 import attribute, opened
from layerprobe.workflow import parts
from layerprobe.workflow.building import TrainRequest
from layerprobe.workflow.probe import probe
from layerprobe.workflow.selection import ProbeRequest
from layerprobe.workflow.train import train
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
    assert record["versions"]["timm"] == timm.__version__
    assert {"fc6.weight", "model.stem.0.weight"} <= set(record["new_parameters"])
    grown = train(request_for(*settings, "train.epochs=2"), Silent()).read()
    assert (grown["epochs_done"], grown["new_parameters"]) == (2, record["new_parameters"])


def test_its_features_belong_to_the_version_of_its_package(trained: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    probe(trained, ProbeRequest(layers=("output",), epochs="last"), Silent())
    with opened(trained.feature_file(1, "test")) as file:
        assert attribute(file, "network") == f"timm {timm.__version__}"


def test_a_layer_of_the_model_cannot_start_anew(request_for: Callable[..., TrainRequest]) -> None:
    request = request_for(*CONVNEXT, "net.fc=[4]", 'net.from_scratch=["stages.3.blocks.1"]')
    with pytest.raises(UnknownNameError, match=r"to train from scratch 'stages.3.blocks.1'. Known: fc6"):
        parts.build_net(request.recipe)


def test_a_models_own_input_is_found_by_the_recipe(request_for: Callable[..., TrainRequest]) -> None:
    assert parts.own_input(request_for(*CONVNEXT).recipe) == OwnInput(160, 168, "bicubic", (0.5,) * 3, (0.5,) * 3)
    assert parts.own_input(request_for().recipe) is None
