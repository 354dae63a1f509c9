"""A run that is opened for probing: its recipe, its network and the network's layers."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch

from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.system.progress import Listener
from layerprobe.taps import Measured, measure_layers
from layerprobe.values.pooling import NO_POOL
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import read_scores
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.new_record import record_of
from layerprobe.workflow.run.run_network import run_network
from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True, eq=False)
class ProbedRun:
    """A run that is opened for probing.

    Args:
        net: built from the recipe, on `device`; its weights are those of no epoch yet.
    """

    run: Run
    record: RunRecord
    recipe: Recipe
    net: Net
    device: torch.device

    @functools.cached_property
    def measured(self) -> Measured:
        """The network's layers, from dry forwards, once; by default with the pools that the run was probed with."""
        found = measure_layers(self.net, self.recipe.data.image_size)
        scores = read_scores(self.run.scores_file) if self.run.scores_file.exists() else []
        kept = tuple(dict.fromkeys(score.pool for score in scores if score.pool != NO_POOL))
        # An earlier state of this version pooled every map by max.
        return replace(found, pools=kept) if found.pools and kept and not set(found.pools) & set(kept) else found


def open_for_probing(run: Run, request: ProbeRequest) -> ProbedRun:
    """A run's recipe and network."""
    record = run.read()
    recipe = recorded_recipe(record, run.record_file).at(request.model)
    device = from_recipe.choose_device(request.device)
    return _opened(run, record, recipe, run_network(run, record, recipe), device)


def opened_anew(run: Run, recipe: Recipe, request: ProbeRequest) -> ProbedRun:
    """As `open_for_probing`, of a run that there is not yet."""
    device = from_recipe.choose_device(request.device)
    return _opened(run, record_of(recipe, state="training"), recipe, from_recipe.build_net(recipe), device)


def _opened(run: Run, record: RunRecord, recipe: Recipe, net: Net, device: torch.device) -> ProbedRun:
    net.module.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks device with memory_format
    return ProbedRun(run, record, recipe, net, device)


def decoding_of(opened: ProbedRun, request: ProbeRequest, listener: Listener | None) -> Decoding:
    """The run's decoded images; missing ones are decoded."""
    in_process = from_recipe.choose_workers(request.workers, opened.device) == 0
    return Decoding(opened.run.folder.parent, listener, request.workers, in_process=in_process)
