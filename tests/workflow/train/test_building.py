"""That every loss trains with its defaults: the limits of `losses/`, filled in by the recipe, kept by the loop."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from layerprobe.data.loading import load_batches
from layerprobe.data.splits import Split
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.registry import LOSSES
from layerprobe.training.loop import Trainer
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.train.plan import build_plan, build_targets

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
    batches, found = trainer.plan.batches(2)[:3], []
    for pixels, indices in load_batches(trainer.split, batches, epoch=1, seed=0, augment="none", workers=0):
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
