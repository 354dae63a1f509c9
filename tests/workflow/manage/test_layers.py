from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.system.errors import UnknownNameError
from layerprobe.workflow.manage.layers import layers
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import RECIPES, Silent


def test_a_network_is_listed_in_execution_order_with_its_dimensions(tmp_path: Path) -> None:
    listed = layers("vgg16_bn", tmp_path)
    rows = listed.layers
    assert [row.layer for row in rows] == [
        "pool1.1", "pool1.2", "pool2.1", "pool2.2", "pool3.1", "pool3.2", "pool3.3", "pool4.1", "pool4.2", "pool4.3",
        "pool5.1", "pool5.2", "pool5.3", "fc6",
    ]  # fmt: skip
    assert [row.dim for row in rows] == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 7
    assert (rows[12].module, rows[12].weights) == ("features.42", "")
    assert listed.notes == ()  # no classifier is left out


def test_a_recipe_says_that_everything_is_new(tmp_path: Path) -> None:
    assert {row.weights for row in layers(str(RECIPES / "netF.toml"), tmp_path).layers} == {"new"}


def test_a_run_says_what_was_pretrained(request_for: Callable[..., TrainRequest], tmp_path: Path) -> None:
    train(request_for("train.epochs=0", run="first"), Silent())
    settings = ("net.weights=run:first", 'net.from_scratch=["conv5.3"]', "net.fc=[8, 4]", "train.epochs=0")
    train(request_for(*settings, run="second"), Silent())
    origin = {row.layer: row.weights for row in layers("second", tmp_path / "cache").layers}
    assert origin["pool5.2"] == "pretrained"
    assert origin["pool5.3"] == "new"
    assert origin["fc6"] == "pretrained"
    assert origin["fc7"] == "new"


def test_a_name_that_is_none_of_them_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="network, recipe, run or source 'resnet5'. Did you mean 'resnet50'"):
        layers("resnet5", tmp_path)


def test_a_recipes_layers_need_no_data(tmp_path: Path) -> None:
    rows = layers(str(RECIPES / "fcr1-cub200.toml"), tmp_path).layers
    assert rows[-1].layer == "fc6"


def test_a_model_from_elsewhere_is_listed_at_its_own_size_with_the_pools_of_its_layers(tmp_path: Path) -> None:
    rows = {row.layer: row for row in layers("timm:test_vit", tmp_path).layers}
    assert list(rows) == [*(f"blocks.{i}" for i in range(6)), "output"]
    block, output = rows["blocks.5"], rows["output"]
    assert (block.module, block.dim, block.kind, block.weights) == ("model.blocks.5", 64, "tokens", "")
    assert block.pools == ("cls", "cls+avg", "max", "avg", "grid:s")
    assert (output.kind, output.dim, output.pools) == ("vector", 64, ("none",))


def test_gem_is_a_pool_of_layers_that_cannot_be_negative_alone(tmp_path: Path) -> None:
    pools = {row.layer: row.pools for row in layers("torchvision:resnet18", tmp_path).layers}
    assert pools["layer4.1"] == ("avg", "max", "gem", "grid:s")  # its own pool first
    assert pools["output"] == ("none",)


def test_the_size_of_each_map_is_listed(tmp_path: Path) -> None:
    sizes = {row.layer: row.size for row in layers("torchvision:resnet18", tmp_path).layers}
    assert (sizes["layer1.0"], sizes["layer4.1"], sizes["output"]) == ("56x56", "7x7", "")


def test_a_classifier_that_is_left_out_is_noted(tmp_path: Path) -> None:
    assert layers("torchvision:resnet18", tmp_path).notes == (
        "output is the input of the model's classifier (fc), which is left out",
    )
    assert layers("timm:test_vit", tmp_path).notes == (
        "output is the input of the model's classifier (head), which is left out",
    )
