"""The network of a watched training: its layers, found once, and their values at an epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from layerprobe.data.splits import require_retrieval
from layerprobe.nets.net import Net
from layerprobe.system.errors import RecipeError
from layerprobe.taps import Tap, execution_order, find_layers, member_taps, outlying_tokens, skipped_pool_lines
from layerprobe.taps.hooks import hook_modules, prepare_images
from layerprobe.values.layers import NO_REDUCTION, RankedLayer, network_order
from layerprobe.values.records import RecordedNetwork
from layerprobe.workflow.probe.measures import Measures, check_right_items
from layerprobe.workflow.probe.scoring import Searches
from layerprobe.workflow.probe.selection import require_storable
from layerprobe.workflow.python.loaders import SEED, Batch, ImageShape, ProbeInputs, weights_sha256
from layerprobe.workflow.python.memory_features import MemoryFeatures, SearchResults, extract_features, search
from layerprobe.workflow.python.user_model import classifier_notes, measure_network, network_facts
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.watch.watched_images import WatchedImages

_FORWARDS = 3  # a training step costs at least a forward, and a backward of twice its arithmetic


@dataclass(frozen=True, eq=False)
class WatchedNetwork:
    """The watched layers of a network.

    Args:
        facts: None where the model's output is no layer.
        parts: path, class and shapes of the tensors of every module; the same at each epoch.
    """

    members: Sequence[Tap]
    layer_order: Sequence[str]
    rows: Sequence[RankedLayer]
    facts: RecordedNetwork | None
    parts: Sequence[tuple[str, str]]

    def require_same(self, module: nn.Module) -> None:
        """Check that a module has the parts of the first one."""
        now = parts_of(module)
        if now != self.parts:
            changed = [f"{name or 'the model'} ({shapes})" for name, shapes in {*now} ^ {*self.parts}]
            message = f"the model has other parts than at the first epoch: {', '.join(sorted(changed)[:3])}"
            raise RecipeError(message, fix="Give the same model each time, or make another Watch with another name")


@dataclass(frozen=True, eq=False)
class MeasuredEpoch:
    """What an epoch gave."""

    features: MemoryFeatures
    searches: Searches
    results: SearchResults


def find_watched_layers(
    net: Net, layers: Sequence[str], pools: Sequence[str] | None, shape: ImageShape
) -> tuple[WatchedNetwork, list[str]]:
    """The asked layers of a network that takes images (C, H, W), and notes on its classifier and their pools."""
    network = measure_network(net, shape)
    taps = require_storable(find_layers(layers, network, pools=pools))
    if not taps:
        raise RecipeError("layers is empty", fix='Name some, such as layers="*"')
    members = member_taps(taps)
    notes = [
        *classifier_notes([network.net.classifier]),
        *skipped_pool_lines(layers, network, pools=pools),
        *network.unknown_pool(pools),
        *outlying_tokens(members),
    ]
    order = execution_order([tap.layer for tap in members], network)
    rows = network_order([RankedLayer(tap.key, NO_REDUCTION, "cosine") for tap in taps], order)
    return WatchedNetwork(members, order, rows, network_facts(network), parts_of(net.module)), notes


def parts_of(module: nn.Module) -> list[tuple[str, str]]:
    """Path, and class with the shapes of its own tensors, of every module."""
    parts = []
    for path, submodule in module.named_modules():
        tensors = [*submodule.named_parameters(recurse=False), *submodule.named_buffers(recurse=False)]
        shapes = "".join(f" {name} {tuple(tensor.shape)}" for name, tensor in tensors)
        parts.append((path, f"{type(submodule).__name__}{shapes}"))
    return parts


def measure_epoch(  # noqa: PLR0913 - the network, its images, and where their values go
    network: WatchedNetwork,
    net: Net,
    images: Mapping[str, WatchedImages],
    measures: Measures,
    *,
    run: Run,
    epoch: int,
    experiment: str,
    device: torch.device,
) -> MeasuredEpoch:
    """Extract, rank and score the watched layers."""
    module = net.module
    by_split = {
        split: extract_features(module, network.members, split_images.batches, device, hashed=True)
        for split, split_images in images.items()
    }
    digests = {split: split_features.digests for split, split_features in by_split.items()}
    inputs = ProbeInputs(type(module).__name__, weights_sha256(module), digests)
    features = MemoryFeatures(run, inputs, by_split)
    require_retrieval(features.dataset, fix="Put all images of a class into one split")
    # Of drawn images, the right items may be among those that were not drawn.
    if all(len(split_images.labels) == sum(split_images.counts.values()) for split_images in images.values()):
        check_right_items(features.dataset)
    searches = Searches(features, experiment, SEED, lambda: device)
    results = search(searches, measures, network.rows, lambda layers, _: layers, epoch=epoch)
    return MeasuredEpoch(features, searches, results)


def least_epoch(module: nn.Module, batch: Batch, images: int, device: torch.device) -> float:
    """Seconds that an epoch of so many training images takes at least: three forwards."""
    with hook_modules(module, {}), torch.inference_mode():
        inputs = prepare_images(batch.images.to(device), module)
        module(inputs)  # the first one allocates
        wait_for(device)
        began = time.perf_counter()
        module(inputs)
        wait_for(device)
    return _FORWARDS * images * (time.perf_counter() - began) / len(inputs)


def wait_for(device: torch.device) -> None:
    """Wait until a GPU has computed what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
