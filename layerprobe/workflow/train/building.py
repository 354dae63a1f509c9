"""The plan, data set, network, loss and trainer of a run, built from a request."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from layerprobe.data import loading
from layerprobe.data.splits import Dataset, LabelArray, Split
from layerprobe.data.subsets import meta_classes
from layerprobe.hooks import find_layers, measure_layers, member_hooks
from layerprobe.losses.loss import Loss
from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe
from layerprobe.recipe.validation import check_loss
from layerprobe.system.errors import DataError
from layerprobe.system.progress import Listener
from layerprobe.training.loop import Plan, Trainer
from layerprobe.training.schedule import Schedule, milestones
from layerprobe.workflow.probe.selection import ProbeRequest, select_hooks, select_splits, splits_to_store
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.features import feature_disk
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.run_network import run_network
from layerprobe.workflow.train.request import TrainRequest as TrainRequest


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
    train = recipe.train
    epoch_batches: Callable[..., list[NDArray[np.int64]]]
    if train.images_per_class is not None:  # the recipe has none for the sampler `shuffled` alone
        options: dict[str, Any] = {
            "batch_size": train.batch_size,
            "images_per_class": train.images_per_class,
            "singletons": train.sampler == "balanced",
        }
        epoch_batches = partial(
            loading.class_batches,
            targets,
            by_size=train.sampler == "classes",
            replacement=bool(train.replacement),
            self_pairs=train.self_pairs,
            **options,
        )
        count = partial(loading.count_class_batches, targets, **options)
    else:
        epoch_batches = partial(loading.shuffled_batches, targets, batch_size=train.batch_size)
        count = partial(loading.count_shuffled_batches, targets, batch_size=train.batch_size)
    # Of 0 epochs nothing is trained, and the images need not suffice for a batch.
    batches, images = count() if train.epochs else (0, 0)
    plan = Plan(
        epochs=train.epochs,
        batches=lambda epoch: epoch_batches(seed=train.seed, epoch=epoch),
        batches_per_epoch=batches,
        images_per_batch=images,
        schedule=Schedule(),
        learning_rate=train.learning_rate,
        new_layers_factor=train.new_layers_factor,
        optimizer=train.optimizer,
        momentum=train.momentum,
        epsilon=train.epsilon,
        weight_decay=train.weight_decay,
        clip_gradient=train.clip_gradient,
        accumulate=train.accumulate,
        chunk=train.chunk,
        bfloat16=train.precision == "bfloat16",
        augment=recipe.data.augment,
        seed=train.seed,
        workers=workers,
    )
    return replace(plan, schedule=build_schedule(recipe, plan.steps_per_epoch))


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


@dataclass(frozen=True, eq=False)
class Built:
    """What a run is trained with.

    Args:
        loaded: the images as they are stored.
        dataset: the images as the network takes them.
        features: split -> bytes of the features that `--probe` stores after each epoch; empty without it.
    """

    loaded: Dataset
    dataset: Dataset
    trainer: Trainer
    features: Mapping[str, int]


def build(request: TrainRequest) -> Built:
    """Build data set, network, loss and trainer of a request; nothing is written."""
    import torch

    recipe = request.recipe
    device = from_recipe.choose_device(request.device)
    loaded = from_recipe.load_dataset(recipe.data, request.cache)
    dataset = from_recipe.build_dataset(recipe, loaded=loaded)
    net = _build_net(request)
    # A misspelt layer, or an image too small for the network, is reported before anything is written.
    measured = measure_layers(net, recipe.data.image_size)
    find_layers((*recipe.probe.layers, *(request.probe or ())), measured, pools=recipe.probe.pool)
    net.module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks device with memory_format
    num_classes = int(build_targets(recipe, split_to_train(recipe, dataset).labels).max()) + 1
    loss = from_recipe.build_loss(recipe, embedding_dim=net.embedding_dim, num_classes=num_classes).to(device)
    features: dict[str, int] = {}
    if request.probe is not None:
        layers = select_hooks(ProbeRequest(layers=request.probe), recipe, measured)
        dims = [hook.dim for hook in member_hooks(layers)]
        splits = splits_to_store(select_splits(request.splits, dataset), dataset)
        features = {name: feature_disk(dims, len(dataset.splits[name])) for name in splits}
    return Built(loaded, dataset, _build_trainer(request, dataset, net, loss), features)


def _build_net(request: TrainRequest) -> Net:
    """Build the network. A run that is continued needs no file of pretrained weights: its checkpoint holds them."""
    run, recipe = request.target(), request.recipe
    if request.fresh or not run.exists():
        return from_recipe.build_net(recipe, cache=request.cache)
    record = run.read()
    same = record.net.get("name") == recipe.net.name  # else the change of the recipe is reported
    net = run_network(run, record, recipe) if same else from_recipe.build_net(recipe)
    return replace(net, new_parameters=frozenset(record.new_parameters))


def _build_trainer(request: TrainRequest, dataset: Dataset, net: Net, loss: Loss) -> Trainer:
    recipe, split = request.recipe, split_to_train(request.recipe, dataset)
    targets = build_targets(recipe, split.labels)
    workers = from_recipe.choose_workers(request.workers, from_recipe.choose_device(request.device))
    plan = build_plan(recipe, targets, workers=workers)
    return Trainer(net, loss, split, from_recipe.build_normalise(recipe, net.channels), plan, targets)


def with_decoded_images(built: Built, request: TrainRequest, listener: Listener | None = None) -> Built:
    """The same parts with images that are decoded once and kept on disk, where that is worth it.

    Args:
        listener: None: those that are kept are used, and none is decoded.
    """
    decoding = Decoding(request.cache, listener, request.workers, in_process=built.trainer.plan.workers == 0)
    dataset = from_recipe.build_dataset(request.recipe, decoding, built.loaded)
    trainer = _build_trainer(request, dataset, built.trainer.net, built.trainer.loss)
    return replace(built, dataset=dataset, trainer=trainer)
