"""Every command of docs/papers/rows.md, but for its images: recipe, network, loss, batches, and a batch's loss."""

from __future__ import annotations

import json
import re
import shlex
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from layerprobe.data.splits import Image, Split
from layerprobe.hooks import Hook, resolve_hooks
from layerprobe.nets.net import Net
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import Recipe, load_recipe
from layerprobe.recipe.recipe_files import list_recipes
from layerprobe.training.loop import Trainer
from layerprobe.workflow.probe.chains import find_inapplicable, parse_chains
from layerprobe.workflow.probe.classifiers import why_no_weight
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.train.building import build_plan

TABLE = Path(__file__).parents[1] / "docs" / "papers" / "rows.md"
SETS = ("cub200", "cars196", "sop", "inshop")


def commands() -> list[str]:
    """Each command of the tables, for each of its sets."""
    found = []
    for line in TABLE.read_text().splitlines():
        if match := re.fullmatch(r"\|[^|]*\| ([a-z0-9, ]+) \| `(layerprobe train .*)` \|", line):
            found += [match[2].replace("SET", name) for name in match[1].split(", ")]
    return found


def post_processed_rows() -> list[tuple[str, str]]:
    """The command of each row that changes features after training, and one that trains its network."""
    lines = TABLE.read_text().splitlines()
    found = []
    for line in lines:
        if match := re.fullmatch(r"\|[^|]*\| ([^|]*) \| `(layerprobe probe .*)` \|", line):
            (row,) = [other for other in lines if other.startswith(f"| {match[1]}") and "`layerprobe train " in other]
            _, _, sets, command, _ = row.split("|")
            found.append((match[2], command.strip(" `").replace("SET", sets.split(",")[0].strip())))
    return found


@cache
def recipe_of(command: str) -> Recipe:
    """What the command would train."""
    words = shlex.split(command)[2:]
    name, options = words[0], words[1:]
    assert all(flag in ("--data", "--set") for flag in options[::2])
    given = list(zip(options[::2], options[1::2], strict=True))
    (data,) = [value for flag, value in given if flag == "--data"]
    return load_recipe(name, Overrides(data, tuple(value for flag, value in given if flag == "--set")))


def no_image(index: int) -> Image:
    raise AssertionError(index)


_BUILT: dict[str, Net] = {}


def net_of(command: str) -> Net:
    """Its network; those of equal [net] sections are built once."""
    key = json.dumps(recipe_of(command).as_dict()["net"], sort_keys=True)
    if key not in _BUILT:
        _BUILT[key] = from_recipe.build_net(recipe_of(command))
    return _BUILT[key]


@cache
def hooks_of(net: Net, layers: tuple[str, ...]) -> list[Hook]:
    """The layers of a network to probe, which it has at any size of images; at 96 pixels a forward takes a fifth."""
    return resolve_hooks(layers, net, image_size=96)


def test_the_tables_have_every_set() -> None:
    assert len(commands()) > 100
    assert {name for name in SETS if any(f" {name}:DIR" in c for c in commands())} == set(SETS)


@pytest.mark.parametrize("command", commands())
def test_a_rows_command_would_train(command: str) -> None:
    recipe = recipe_of(command)
    net = net_of(command)
    # As many images a class as the real ones; cub200 and cars196 as many in all.
    classes, images = {"cub200": (100, 59), "cars196": (98, 82)}.get(recipe.data.name, (240, 6))
    labels = np.repeat(np.arange(classes), images)
    recipe = recipe.member(1)
    targets = labels % (recipe.train.meta_classes or classes)
    loss = from_recipe.build_loss(recipe, embedding_dim=net.embedding_dim, num_classes=int(targets.max()) + 1)
    plan = build_plan(recipe, targets, workers=0)
    from_recipe.require_input(recipe, net)
    split = Split("train", labels, tuple(map(str, range(len(labels)))), no_image)
    Trainer(net, loss, split, from_recipe.build_normalise(recipe), plan, targets)
    changes = (*plan.schedule.milestones, *plan.schedule.heatings)
    assert all(0 < step < plan.steps_per_epoch * plan.epochs for step in changes)
    assert hooks_of(net, recipe.probe.layers)
    batch = plan.batches(1)[0]
    torch.manual_seed(0)
    embeddings = torch.randn(len(batch), net.embedding_dim, requires_grad=True)
    value = loss(embeddings, torch.from_numpy(targets[batch]))
    value.backward()
    assert torch.isfinite(value)
    assert embeddings.grad is not None
    assert bool(torch.isfinite(embeddings.grad).all())


def test_rows_that_change_features_are_measured() -> None:
    assert len(post_processed_rows()) > 5


@pytest.mark.parametrize(("command", "training"), post_processed_rows())
def test_a_rows_layer_can_take_its_post_processings(command: str, training: str) -> None:
    words = shlex.split(command)[3:]
    asked = dict(zip(words[::2], words[1::2], strict=True))
    assert asked.keys() <= {"--epochs", "--layers", "--similarity", "--post"}
    recipe, layers = recipe_of(training), (asked["--layers"],)
    request = ProbeRequest(layers, similarity=asked.get("--similarity"), post=tuple(asked["--post"].split(",")))
    hooks = hooks_of(net_of(training), layers)
    chains = parse_chains(request.post or ())
    assert find_inapplicable(hooks, chains, hooks[0].key, why_no_weight(recipe) or "") == []
    # The paper's Euclidean distance, of vectors of any length.
    if "shift" in asked["--post"]:
        assert request.similarity == "euclidean"
        assert hooks[0].dim > 100
        assert not getattr(recipe.loss, "relu", False)


# Section of the paper -> its values; "code": of its released code, where the paper has none.
STATED = [
    ("netA-cub200", "Vo & Hays, 5", {"train.batch_size": 32, "train.learning_rate": 0.01, "train.weight_decay": 5e-4}),
    ("netA-sop", "Vo & Hays, 5", {"train.momentum": 0.9, "data.image_size": 224, "data.transform": "D1"}),
    ("netA-cub200", "Vo & Hays, 3.4", {"loss.name": "smooth_triplet", "loss.scale": 4.0, "net.pool": "max"}),
    (
        "normsoftmax-r50-cub200",
        "Zhai & Wu, 6.1",
        {"train.batch_size": 75, "train.images_per_class": 25, "net.norm": "layer"},
    ),
    ("normsoftmax-r50-sop", "Zhai & Wu, 6.1", {"train.images_per_class": 5, "train.weight_decay": 1e-4}),
    (
        "normsoftmax-r50-cars196",
        "Zhai & Wu, 6.1",
        {"loss.temperature": 0.05, "train.momentum": 0.9, "data.transform": "D2"},
    ),
    ("normsoftmax-r50-cub200", "code of Zhai & Wu", {"train.learning_rate": 0.001}),
    *((f"normsoftmax-r50-{name}", "code of Zhai & Wu", {"train.warmup": "new_layers"}) for name in SETS),
    ("normsoftmax-r50-cars196", "code of Zhai & Wu", {"train.learning_rate": 0.01}),
    (
        "fcr1-cub200",
        "Horiguchi et al., 4.2",
        {"train.batch_size": 128, "train.new_layers_factor": 10.0, "loss.name": "softmax"},
    ),
    ("unbiased-cub200", "Fehervari et al., 4.1", {"train.batch_size": 120, "net.fc": (64,), "train.optimizer": "adam"}),
    (
        "unbiased-sop",
        "code of Fehervari et al.",
        {"train.learning_rate": 1e-4, "train.weight_decay": 1e-5, "loss.l2": 5e-4},
    ),
    (
        "dreml-cub200",
        "Fehervari et al., 4.1",
        {"ensemble.members": 12, "train.meta_classes": 12, "loss.name": "proxy_nca"},
    ),
    (
        "dreml-cars196",
        "code of Fehervari et al.",
        {"train.learning_rate": 0.01, "train.epochs": 12, "train.decay_epochs": (3, 7)},
    ),
    *(
        (
            f"dreml-{name}",
            "code of Fehervari et al.",
            {"train.weight_decay": 5e-4, "loss.proxy_rate_factor": 1.0, "loss.proxy_weight_decay": 5e-4},
        )
        for name in ("cub200", "cars196")
    ),
    *((f"netA-{name}-code", "code of Vo & Hays", {"net.dropout": 0.01}) for name in ("cub200", "cars196", "sop")),
    (
        "heated-hbn-cars196",
        "Zhang et al., 5.1",
        {"train.learning_rate": 0.004, "train.optimizer": "sgd", "train.batch_size": 32},
    ),
    ("heated-hbn-sop", "Zhang et al., 5.1", {"train.learning_rate": 0.01, "train.optimizer": "adam"}),
    ("heated-hbn-cub200", "Zhang et al., 5.2", {"loss.scale": 16.0, "train.heat_factor": 0.25, "train.heat_rate": 0.1}),
    (
        "heated-hbn-inshop",
        "code of Zhang et al.",
        {"train.epochs": 80, "train.heat_epochs": (61,), "train.weight_decay": 0.0},
    ),
]


@pytest.mark.parametrize(("name", "values"), [(name, values) for name, _, values in STATED])
def test_recipes_have_the_papers_values(name: str, values: dict[str, object]) -> None:
    (data,) = set(SETS) & set(name.split("-"))
    recipe = load_recipe(name, Overrides(f"{data}:DIR"))
    found = {key: getattr(getattr(recipe, key.split(".")[0]), key.split(".")[1]) for key in values}
    assert found == values


@pytest.mark.parametrize("name", ["cub200", "cars196", "sop"])
def test_horiguchi_et_als_nmi_is_the_mean_of_100_clusterings(name: str) -> None:
    recipe = load_recipe(f"fcr1-{name}", Overrides(f"{name}:DIR"))
    assert recipe.probe.metrics == ("NMI",)
    assert (recipe.metrics["NMI"]["restarts"], recipe.metrics["NMI"]["report"]) == (100, "mean")


@pytest.mark.parametrize("name", SETS)
def test_zhang_et_als_network_sees_pixels_from_minus_1_to_1(name: str) -> None:
    recipe = load_recipe(f"heated-hbn-{name}", Overrides(f"{name}:DIR"))
    pixels = torch.tensor([0, 255], dtype=torch.uint8)[:, None, None, None].expand(2, 1, 1, 3)
    seen = from_recipe.build_net(recipe).module.get_submodule("transform_input")(
        from_recipe.build_normalise(recipe)(pixels)
    )
    torch.testing.assert_close(seen, torch.tensor([-1.0, 1.0])[:, None, None, None].expand(2, 3, 1, 1))


def test_every_recipe_of_a_paper_stands_in_a_table() -> None:
    named = {shlex.split(command)[2] for command in commands()}
    packaged = {name for name in list_recipes() if name.endswith((*SETS, "-code"))}
    assert packaged - named == set()
