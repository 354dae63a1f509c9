"""The record of a run that has no epoch yet."""

from __future__ import annotations

import platform
from dataclasses import replace
from importlib import metadata
from typing import Any

import torch

from layerprobe import __version__
from layerprobe.data.splits import Dataset
from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe
from layerprobe.taps import measure_layers
from layerprobe.values.records import RunRecord
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.manifests import manifests_of
from layerprobe.workflow.run.run_network import network_facts
from layerprobe.workflow.run.runs import command_line


def made_with(device: object) -> dict[str, Any]:
    """The fields of a record on versions and machine."""
    return {
        "versions": {
            "layerprobe": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": metadata.version("torchvision"),
        },
        "device": str(device),
        "threads": torch.get_num_threads(),
    }


def record_of(recipe: Recipe, **more: Any) -> RunRecord:
    """A record of a command, with further fields."""
    empty: dict[str, Any] = {"epochs_done": 0, "hashes": {}, "manifests": {}, "new_parameters": ()}
    return RunRecord(
        command=command_line(),
        recipe_name=recipe.name,
        recipe=recipe.as_dict(),
        experiment=recipe.experiment,
        seed=recipe.train.seed,
        **(empty | more),
    )


def new_record(recipe: Recipe, dataset: Dataset, net: Net, device: torch.device) -> RunRecord:
    """The record of a training that begins."""
    manifests, contents = manifests_of(dataset)
    record = record_of(
        recipe,
        state="training",
        **made_with(device),
        transform=from_recipe.transform_text(recipe, net.channels),
        network=network_facts(recipe, net, measure_layers(net, recipe.data.image_size)),
        new_parameters=tuple(sorted(net.new_parameters)),
        manifests=manifests,
        contents=contents,
        notes=tuple(from_recipe.input_notes(recipe, dataset, net)),
    )
    return replace(record, versions={**record.versions, **net.versions})
