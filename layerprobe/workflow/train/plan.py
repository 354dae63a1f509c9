"""How a run is trained: which images, their classes for the loss, the batches and the schedule."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from layerprobe.data import batches
from layerprobe.data.splits import Dataset, LabelArray, Split
from layerprobe.data.subsets import meta_classes
from layerprobe.losses.loss import Loss
from layerprobe.recipe.recipe import Recipe
from layerprobe.recipe.validation import check_loss
from layerprobe.system.errors import DataError
from layerprobe.training.loop import Plan
from layerprobe.training.schedule import Schedule, milestones


def split_to_train(recipe: Recipe, dataset: Dataset) -> Split:
    """The training split. A run of 0 epochs may lack one and gets any split, since none of its images is read."""
    if "train" not in dataset.splits and recipe.train.epochs:
        raise DataError(
            "no training images",
            file=recipe.data.root or recipe.data.name,
            fix="Put some into the split train, or measure the untrained network with --set train.epochs=0",
        )
    return dataset.splits.get("train") or next(iter(dataset.splits.values()))


def build_targets(recipe: Recipe, labels: LabelArray) -> LabelArray:
    """The class of each training image as the loss takes it: (N,) from 0, given the images' labels (N,)."""
    if recipe.train.meta_classes is not None:
        return meta_classes(labels, recipe.train.meta_classes, seed=recipe.train.seed)
    return np.unique(labels, return_inverse=True)[1].astype(np.int64)


def build_plan(recipe: Recipe, targets: LabelArray, *, workers: int) -> Plan:
    """Batches and schedule for training images with these targets (N,)."""
    train, labels = recipe.train, targets
    epoch_batches: Callable[..., list[NDArray[np.int64]]]
    if not train.epochs:  # nothing is trained, and the images need not suffice for a batch
        epoch_batches = _no_batches
    elif train.images_per_class is not None:  # the recipe has none for the sampler `shuffled` alone
        epoch_batches = partial(
            batches.class_batches,
            labels,
            batch_size=train.batch_size,
            images_per_class=train.images_per_class,
            by_size=train.sampler == "classes",
            singletons=train.sampler == "balanced",
            replacement=bool(train.replacement),
        )
    else:
        epoch_batches = partial(batches.shuffled_batches, labels, batch_size=train.batch_size)
    plan = Plan(
        epochs=train.epochs,
        batches=lambda epoch: epoch_batches(seed=train.seed, epoch=epoch),
        schedule=Schedule(),
        learning_rate=train.learning_rate,
        new_layers_factor=train.new_layers_factor,
        optimizer=train.optimizer,
        momentum=train.momentum,
        epsilon=train.epsilon,
        weight_decay=train.weight_decay,
        clip_gradient=train.clip_gradient,
        accumulate=train.accumulate,
        bfloat16=train.precision == "bfloat16",
        augment=recipe.data.augment,
        seed=train.seed,
        workers=workers,
    )
    return replace(plan, schedule=build_schedule(recipe, plan.steps_per_epoch))


def _no_batches(*, seed: int, epoch: int) -> list[NDArray[np.int64]]:  # noqa: ARG001 - same signature as other batches
    return []


def find_unreached_settings(recipe: Recipe, plan: Plan, loss: Loss) -> list[str]:
    """Settings that take effect only after the last step of this run, as `section.key = value`."""
    train, steps = recipe.train, plan.steps_per_epoch * plan.epochs
    after = {
        "train.decay_epochs": [epoch * plan.steps_per_epoch for epoch in train.decay_epochs],
        "train.decay_iterations": train.decay_iterations,
        "train.heat_epochs": [epoch * plan.steps_per_epoch for epoch in train.heat_epochs],
        "train.warmup_epochs": [train.warmup_epochs * plan.steps_per_epoch],
        "train.warmup_iterations": [train.warmup_iterations],
        **{f"loss.{key}": [batches // plan.accumulate] for key, batches in loss.effective_after().items()},
    }
    late = [name.split(".") for name, times in after.items() if times and max(times) >= steps > 0]
    return [f"{section}.{key} = {json.dumps(recipe.as_dict()[section][key])}" for section, key in late]


def rates_apart(recipe: Recipe) -> list[str]:
    """Parameters of the loss with an absolute learning rate, which `train.learning_rate` does not change."""
    loss = check_loss(recipe.loss, [])
    if loss is None:  # `load_recipe` has refused it
        return []
    names = {parameter: name for name, parameter in loss.named_parameters()}
    factors = [f"; loss.{key} sets it as a multiple" for key in recipe.loss.options() if key.endswith("_rate_factor")]
    return [
        f"the learning rate of the loss's {names[parameter]} is {group.learning_rate:g},"
        f" whatever train.learning_rate is{''.join(factors)}"
        for group in loss.parameter_groups()
        for parameter in group.parameters
        if group.learning_rate is not None
    ]


def build_schedule(recipe: Recipe, steps_per_epoch: int) -> Schedule:
    """At which steps the learning rate falls and the loss is heated."""
    train = recipe.train
    when = partial(milestones, steps_per_epoch, train.epochs)
    warmup = train.warmup_iterations + train.warmup_epochs * steps_per_epoch  # a recipe has one of the two
    return Schedule(
        milestones=when(fractions=train.decay_at, at_epochs=train.decay_epochs, at_iterations=train.decay_iterations),
        factor=train.decay_factor,
        warmup=warmup,
        warmup_by=train.warmup,
        cosine=max(1, train.epochs * steps_per_epoch - warmup) if train.decay == "cosine" else None,
        heatings=when(fractions=train.heat_at, at_epochs=train.heat_epochs),
        heat_factor=train.heat_factor,
        heat_rate=train.heat_rate,
    )
