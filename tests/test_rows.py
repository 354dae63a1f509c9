"""Every command of recipes/README.md, but for its images: recipe, network, loss, batches, and a batch's loss."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch

from layerprobe.nets.net import Net
from layerprobe.overrides import Overrides
from layerprobe.recipe import Recipe, list_recipes, load_recipe
from layerprobe.registry import LOSSES, load
from layerprobe.taps import resolve_taps
from layerprobe.workflow import parts

TABLE = Path(__file__).parents[1] / "recipes" / "README.md"
SETS = ("cub200", "cars196", "sop", "inshop")


def commands() -> list[str]:
    """Each command of the tables, for each of its sets."""
    found = []
    for line in TABLE.read_text().splitlines():
        if match := re.fullmatch(r"\|[^|]*\| ([a-z0-9, ]+) \| `(layerprobe train .*)` \|", line):
            found += [match[2].replace("SET", name) for name in match[1].split(", ")]
    return found


def recipe_of(command: str) -> Recipe:
    """What the command would train."""
    words = shlex.split(command)[2:]
    name, options = words[0], words[1:]
    assert all(flag in ("--data", "--set") for flag in options[::2])
    given = list(zip(options[::2], options[1::2], strict=True))
    (data,) = [value for flag, value in given if flag == "--data"]
    return load_recipe(name, Overrides(data, tuple(value for flag, value in given if flag == "--set")))


_BUILT: dict[str, Net] = {}


def net_of(command: str) -> Net:
    """Its network; those of equal [net] sections are built once."""
    key = json.dumps(recipe_of(command).as_dict()["net"], sort_keys=True)
    if key not in _BUILT:
        _BUILT[key] = parts.build_net(recipe_of(command))
    return _BUILT[key]


def test_the_losses_table_is_the_registrys() -> None:
    stated = re.findall(r"^\| `(\w+)` \| .* \| (.*) \| (\w+) \|$", TABLE.read_text(), re.MULTILINE)
    wanted = []
    for name in LOSSES:
        loss = load("loss", LOSSES, name)
        batches = loss.sampler + ("" if loss.sampler == "shuffled" else f", {loss.images_per_class} images a class")
        wanted.append((name, batches, loss.similarity))
    assert stated == wanted


def test_the_tables_have_every_set() -> None:
    assert len(commands()) > 100
    assert {name for name in SETS if any(f" {name}:DIR" in c for c in commands())} == set(SETS)


@pytest.mark.parametrize("command", commands())
def test_a_rows_command_would_train(command: str) -> None:
    recipe = recipe_of(command)
    net = net_of(command)
    few = recipe.data.name in ("sop", "inshop")
    labels = np.repeat(np.arange(240 if few else 98), 6 if few else 30)  # as many a class as the real ones
    classes = recipe.train.meta_classes or int(labels.max()) + 1
    loss = parts.build_loss(recipe, embedding_dim=net.embedding_dim, num_classes=classes)
    targets = labels % classes
    batch = parts.build_plan(recipe, targets, workers=0).batches(1)[0]
    embeddings = torch.randn(len(batch), net.embedding_dim, requires_grad=True)
    value = loss(embeddings, torch.from_numpy(targets[batch]))
    value.backward()
    assert resolve_taps(recipe.probe.layers, net, image_size=recipe.data.image_size)
    parts.require_input(recipe, net)
    assert torch.isfinite(value)
    assert embeddings.grad is not None
    assert bool(torch.isfinite(embeddings.grad).all())


@pytest.mark.parametrize("name", SETS)
def test_paper_003s_network_sees_pixels_from_minus_1_to_1(name: str) -> None:
    recipe = load_recipe(f"heated-hbn-{name}", Overrides(f"{name}:DIR"))
    pixels = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 1, 1, 3)
    seen = parts.build_net(recipe).module.get_submodule("transform_input")(parts.build_normalise(recipe)(pixels))
    torch.testing.assert_close(seen, torch.tensor([-1.0, 1.0])[:, None, None, None].expand(2, 3, 1, 1))


def test_every_recipe_of_a_paper_stands_in_a_table() -> None:
    named = {shlex.split(command)[2] for command in commands()}
    packaged = {name for name in list_recipes() if name.endswith((*SETS, "-code"))}
    assert packaged - named == set()
