"""What the record of a new run says of how it is made."""

from __future__ import annotations

import platform
from typing import Any

import torch
import torchvision

from layerprobe import __version__
from layerprobe.data.splits import Dataset
from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe
from layerprobe.taps import measure_layers
from layerprobe.values.records import NETWORK
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.manifests import manifests_of
from layerprobe.workflow.run.run_network import network_facts
from layerprobe.workflow.run.runs import command_line


def made_by(recipe: Recipe) -> dict[str, Any]:
    """What run.json says of the command and the recipe."""
    return {
        "command": command_line(),
        "recipe_name": recipe.name,
        "recipe": recipe.as_dict(),
        "experiment": recipe.identity(with_seed=False)[:12],
        "seed": recipe.train.seed,
    }


def made_with(device: object) -> dict[str, Any]:
    """What run.json says of the machine: versions, device, threads."""
    return {
        "versions": {
            "layerprobe": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": torchvision.__version__,
        },
        "device": str(device),
        "threads": torch.get_num_threads(),
    }


def new_record(recipe: Recipe, dataset: Dataset, net: Net, device: torch.device) -> dict[str, Any]:
    """run.json of a run that has no epoch yet."""
    record = {"state": "training", **made_by(recipe), **made_with(device)}
    record["versions"] |= net.versions
    return record | {
        "transform": from_recipe.transform_text(recipe),
        NETWORK: network_facts(recipe, net, measure_layers(net, recipe.data.image_size)),
        "new_parameters": sorted(net.new_parameters),
        **manifests_of(dataset),
        "notes": from_recipe.input_notes(recipe, dataset, net),
        "epochs_done": 0,
        "hashes": {},
    }
