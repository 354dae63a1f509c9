"""That every loss trains with its defaults: the limits of `losses/`, filled in by the recipe, kept by the loop."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from layerprobe.data.loading import load_batches
from layerprobe.data.splits import Split
from layerprobe.plots.plot import PlotOptions
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.registry import LOSSES, PLOTS
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.training.loop import Trainer
from layerprobe.workflow.plot.plot import plot
from layerprobe.workflow.plot.request import PlotRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.train.building import (
    TrainRequest,
    build_plan,
    build_targets,
    find_unreached_settings,
    rates_apart,
)
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import RECIPES, Silent
from tests.workflow.plot.test_plot import OF_A_TRAINING

GLYPHS = ("data.train_classes=20", "data.test_classes=2", "data.augment=none", "train.epochs=1")
LENET = ("net.name=lenet", "data.image_size=28", "data.images_per_class=12", "train.batch_size=20")
# Its embeddings are longer than LeNet's.
VGG = ("net.name=narrow_vgg", "data.image_size=32", "data.images_per_class=16", "train.batch_size=32")


@cache
def glyphs(settings: tuple[str, ...]) -> Split:
    recipe = load_recipe("netA", Overrides(settings=(*GLYPHS, *settings)))
    split = from_recipe.build_dataset(recipe).splits["train"]
    pixels = np.stack([split.image(index) for index in range(len(split.ids))])
    return replace(split, image=lambda index: pixels[index])


def trainer_of(loss_name: str, settings: tuple[str, ...]) -> Trainer:
    recipe = load_recipe("netA", Overrides(settings=(*GLYPHS, *settings, f"loss.name={loss_name}")))
    split = glyphs(settings)
    net, targets = from_recipe.build_net(recipe), build_targets(recipe, split.labels)
    loss = from_recipe.build_loss(recipe, embedding_dim=net.embedding_dim, num_classes=20)
    return Trainer(
        net, loss, split, from_recipe.build_normalise(recipe), build_plan(recipe, targets, workers=0), targets
    )


@torch.no_grad()
def cost(trainer: Trainer) -> float:
    """Mean loss of three batches that are the same on every call."""
    torch.manual_seed(0)
    trainer.net.module.train()
    trainer.loss.eval()
    batches, found = [(1, batch) for batch in trainer.plan.batches(2)[:3]], []
    for pixels, indices in load_batches(trainer.split, batches, seed=0, augment="none", workers=0):
        embeddings = trainer.net.module(trainer.normalise(pixels))
        found.append(float(trainer.loss(embeddings, trainer.targets[torch.from_numpy(indices)])))
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("loss", "settings"), [*((loss, LENET) for loss in LOSSES), ("n_pairs", VGG), ("angular", VGG)]
)
def test_an_epoch_from_scratch_with_a_losss_defaults_lowers_it(loss: str, settings: tuple[str, ...]) -> None:
    trainer = trainer_of(loss, settings)
    before = cost(trainer)
    (result,) = trainer.epochs()
    assert np.isfinite(result.loss)
    assert cost(trainer) < before


Make = Callable[..., TrainRequest]


@pytest.mark.parametrize(
    ("settings", "late"),
    [
        (("train.decay_epochs=[1, 2]",), ["train.decay_epochs = [1, 2]"]),
        (("train.decay_epochs=[1]",), []),
        (("train.decay_iterations=[4]",), ["train.decay_iterations = [4]"]),
        (("loss.name=heated_softmax", "train.heat_epochs=[5]"), ["train.heat_epochs = [5]"]),
        (("train.warmup_epochs=3",), ["train.warmup_epochs = 3"]),
        (("loss.name=cross_batch_memory",), ["loss.warmup = 1000"]),
        (("loss.name=cross_batch_memory", "train.epochs=0"), []),
    ],
)
def test_what_a_run_does_not_reach_is_told(request_for: Make, settings: tuple[str, ...], late: list[str]) -> None:
    recipe = request_for("train.epochs=2", "train.decay_at=[]", *settings).recipe
    plan = build_plan(recipe, from_recipe.build_dataset(recipe).splits["train"].labels, workers=0)
    assert plan.steps_per_epoch == (2 if recipe.train.epochs else 0)
    loss = from_recipe.build_loss(recipe, embedding_dim=4, num_classes=3)
    assert find_unreached_settings(recipe, plan, loss) == late


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (
            ("loss.name=proxy_anchor",),
            ["proxies is 0.01, whatever train.learning_rate is; loss.proxy_rate_factor sets"],
        ),
        (("loss.name=proxy_anchor", "loss.proxy_rate_factor=100"), []),
        (("loss.name=norm_softmax",), []),
        (("loss.learn_scale=true",), ["scale is 0.01, whatever train.learning_rate is"]),
    ],
)
def test_what_does_not_follow_the_learning_rate_is_told(settings: tuple[str, ...], told: list[str]) -> None:
    found = rates_apart(load_recipe("netA", Overrides(settings=settings)))
    assert [text.removeprefix("the learning rate of the loss's ")[: len(told[0])] for text in found] == told


@pytest.fixture
def only_test(request_for: Make, images: Path) -> Make:
    """A request on a table whose rows are all in the test split."""
    table = images / "all.csv"
    rows = [f"{path.relative_to(images)},{path.parent.name},test" for path in sorted(images.glob("*/*.png"))]
    table.write_text("\n".join(["path,label,split", *rows]) + "\n")

    def make(*settings: str) -> TrainRequest:
        request = request_for()
        recipe = load_recipe(
            str(RECIPES / "netA.toml"),
            Overrides(
                f"csv:{table}", ("data.image_size=16", "net.name=narrow_vgg", "net.fc=[8]", "probe.k=[1,2]", *settings)
            ),
        )
        return replace(request, recipe=recipe)

    return make


def test_a_run_of_no_epochs_needs_no_training_images(only_test: Make) -> None:
    run = train(only_test("train.epochs=0"), Silent())
    scores = probe(run, ProbeRequest(layers=("pool5.3", "fc6"), device="cpu", workers=0), Silent())
    assert {(score.split, score.epoch, score.n) for score in scores} == {("test", 0, 32)}
    assert plot(PlotRequest("layers", [run])).is_file()


def test_every_plot_is_drawn_of_a_folder_whose_classes_are_all_in_test(
    request_for: Make, images: Path, tmp_path: Path
) -> None:
    request = request_for()
    settings = (
        "data.image_size=16", "net.name=narrow_vgg", "net.fc=[8]", "probe.k=[1,2]", "data.train_classes=0",
        "train.epochs=0",
    )  # fmt: skip
    recipe = load_recipe(str(RECIPES / "netA.toml"), Overrides(f"folder:{images}", settings))
    run = train(replace(request, recipe=recipe), Silent())
    # No post-processing can be fitted without training images; a random projection needs none.
    post = ("none", "random:4+l2")
    layers, metrics = ("pool5.3", "fc6"), ("MAP@R",)
    scores = probe(run, ProbeRequest(layers, metrics=metrics, post=post, device="cpu", workers=0), Silent())
    assert {(score.split, score.n) for score in scores} == {("test", 32)}
    drawable = [kind for kind in PLOTS if kind not in ("gap", *OF_A_TRAINING)]
    options = {"over-key": PlotOptions(key="net.fc")}
    for kind in drawable:
        asked = options.get(kind, PlotOptions())
        assert plot(PlotRequest(kind, [run], csv=tmp_path / f"{kind}.csv", options=asked)).is_file()
    with pytest.raises(DataError, match="no layer has R@1 on both train and test"):
        plot(PlotRequest("gap", [run]))
    # Of one epoch alone, no layer is compared with itself at another.
    (_, *rows) = (tmp_path / "cka.csv").read_text().splitlines()
    assert {row.split(",")[2] for row in rows} == {"linear CKA of the layers at epoch 0"}


def test_epochs_need_training_images(only_test: Make) -> None:
    with pytest.raises(
        DataError, match="no training images. Put some into the split train, or measure the untrained network"
    ):
        train(only_test("train.epochs=1"), Silent())


@pytest.mark.parametrize("setting", ["data.validation_classes=0.5", "data.share=0.5"])
def test_a_part_of_training_images_that_are_not_there_is_refused(only_test: Make, setting: str) -> None:
    with pytest.raises(RecipeError, match="this data set has no training images to take it from. Leave it out"):
        train(only_test("train.epochs=0", setting), Silent())
