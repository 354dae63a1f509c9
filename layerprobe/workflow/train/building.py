"""Data set, network, loss and trainer of a run, built from a request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from layerprobe.data.splits import Dataset
from layerprobe.losses.loss import Loss
from layerprobe.nets.net import Net
from layerprobe.system.progress import Listener
from layerprobe.taps import Measured, find_layers, measure_layers, member_taps
from layerprobe.training.loop import Trainer
from layerprobe.workflow.probe.selection import ProbeRequest, select_splits, select_taps, splits_to_store
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.features import feature_disk
from layerprobe.workflow.run.images import Decoding, with_contents
from layerprobe.workflow.run.run_network import run_network
from layerprobe.workflow.train.plan import build_plan, build_targets, split_to_train
from layerprobe.workflow.train.request import TrainRequest as TrainRequest


@dataclass(frozen=True, eq=False)
class Built:
    """What a run is trained with.

    Args:
        features: split -> bytes of the features that `--probe` stores after each epoch; empty without it.
    """

    loaded: Dataset
    dataset: Dataset
    net: Net
    loss: Loss
    trainer: Trainer
    features: Mapping[str, int]


def build(request: TrainRequest) -> Built:
    """Build data set, network, loss and trainer of a request; nothing is written."""
    import torch

    recipe = request.recipe
    device = from_recipe.choose_device(request.device)
    loaded = from_recipe.load_dataset(recipe)
    dataset = from_recipe.build_dataset(recipe, loaded=loaded)
    net = _build_net(request)
    # A misspelt layer, or an image too small for the network, is reported before anything is written.
    layers = (*recipe.probe.layers, *(request.probe or ()))
    measured = measure_layers(net, recipe.data.image_size)
    find_layers(layers, measured, pools=recipe.probe.pool)
    net.module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks device with memory_format
    targets = build_targets(recipe, split_to_train(recipe, dataset).labels)
    loss = from_recipe.build_loss(recipe, embedding_dim=net.embedding_dim, num_classes=int(targets.max()) + 1).to(
        device
    )
    trainer = _build_trainer(request, dataset, net, loss)
    return Built(loaded, dataset, net, loss, trainer, _feature_bytes(request, dataset, measured))


def _feature_bytes(request: TrainRequest, dataset: Dataset, measured: Measured) -> dict[str, int]:
    if request.probe is None:
        return {}
    layers = select_taps(ProbeRequest(layers=request.probe), request.recipe, measured)
    dims = [tap.dim for tap in member_taps(layers)]
    splits = splits_to_store(select_splits(None, dataset), dataset)
    return {name: feature_disk(dims, len(dataset.splits[name])) for name in splits}


def _build_trainer(request: TrainRequest, dataset: Dataset, net: Net, loss: Loss) -> Trainer:
    recipe, split = request.recipe, split_to_train(request.recipe, dataset)
    targets = build_targets(recipe, split.labels)
    workers = from_recipe.choose_workers(request.workers, from_recipe.choose_device(request.device))
    plan = build_plan(recipe, targets, workers=workers)
    normalise = from_recipe.build_normalise(recipe, net.channels)
    return Trainer(net, loss, split, normalise, plan, targets)


def with_hashed_images(built: Built, request: TrainRequest, listener: Listener) -> Built:
    """The same parts with the hash of each image's content, by which a run knows its images."""
    loaded = with_contents(built.loaded, _decoding(built, request, listener))
    return replace(built, loaded=loaded, dataset=from_recipe.build_dataset(request.recipe, loaded=loaded))


def with_decoded_images(built: Built, request: TrainRequest, listener: Listener) -> Built:
    """The same parts with images that are decoded once and kept on disk, where that is worth it."""
    dataset = from_recipe.build_dataset(request.recipe, _decoding(built, request, listener), built.loaded)
    return replace(built, dataset=dataset, trainer=_build_trainer(request, dataset, built.net, built.loss))


def _decoding(built: Built, request: TrainRequest, listener: Listener) -> Decoding:
    in_process = built.trainer.plan.workers == 0
    return Decoding(request.cache, listener, request.workers, in_process=in_process)


def _build_net(request: TrainRequest) -> Net:
    """Build the network. A run that is continued needs no file of pretrained weights: its checkpoint holds them."""
    run, recipe = request.target(), request.recipe
    if request.fresh or not run.exists():
        return from_recipe.build_net(recipe, cache=request.cache)
    record = run.read()
    same = record.net.get("name") == recipe.net.name  # else the change of the recipe is reported
    net = run_network(run, record, recipe) if same else from_recipe.build_net(recipe)
    return replace(net, new_parameters=frozenset(record.new_parameters))
