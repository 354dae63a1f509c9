"""A run that is opened for probing: its recipe, its network and the network's layers."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata

import torch

from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, write_text
from layerprobe.system.progress import Listener
from layerprobe.taps import Measured, forwards_as_json, measure_layers, recorded_forwards
from layerprobe.values.pooling import NO_POOL
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import read_scores
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.new_record import record_of
from layerprobe.workflow.run.run_network import network_text, require_unchanged_files, run_network
from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True, eq=False)
class ProbedRun:
    """A run that is opened for probing.

    Args:
        build: builds the network of the recipe.
    """

    run: Run
    record: RunRecord
    recipe: Recipe
    device: torch.device
    build: Callable[[], Net]

    @functools.cached_property
    def net(self) -> Net:
        """The network, on `device`, built when it is first asked for; its weights are those of no epoch yet."""
        net = self.build()
        net.module.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks device with memory_format
        return net

    @functools.cached_property
    def measured(self) -> Measured:
        """The network's layers; by default with the pools that the run was probed with."""
        found = self._forwards
        scores = read_scores(self.run.scores_file) if self.run.scores_file.exists() else []
        kept = tuple(dict.fromkeys(score.pool for score in scores if score.pool != NO_POOL))
        # An earlier state of this version pooled every map by max.
        return replace(found, pools=kept) if found.pools and kept and not set(found.pools) & set(kept) else found

    @functools.cached_property
    def _forwards(self) -> Measured:
        """What dry forwards show: those in the run's folder if they were made from this network, else new ones."""
        return self._recorded or measure_layers(self.net, self.recipe.data.image_size)

    @functools.cached_property
    def _recorded(self) -> Measured | None:
        with contextlib.suppress(OSError, DataError):
            require_file(self.run.forwards_file)
            text = self.run.forwards_file.read_bytes()
            return recorded_forwards(text, self._made_from, lambda: self.net.module)
        return None

    @functools.cached_property
    def _made_from(self) -> Mapping[str, str]:
        """All that decides what dry forwards show; the files of the user's own code are compared on opening."""
        versions = {name: metadata.version(name) for name in ("layerprobe", "torch", "torchvision")}
        net, size = self.recipe.net.model_dump(mode="json"), self.recipe.data.image_size
        own = {"net": json.dumps(net), "image_size": json.dumps(size), "network": network_text(self.recipe)}
        return {**own, **versions}

    def keep_forwards(self) -> None:
        """Keep what dry forwards showed, for the next command; for the holder of the run's lock."""
        if self._recorded is None:
            write_text(self.run.forwards_file, forwards_as_json(self._forwards, self._made_from))


def open_for_probing(run: Run, request: ProbeRequest) -> ProbedRun:
    """A run's recipe, and its network, which is built when it is needed."""
    record = run.read()
    recipe = recorded_recipe(record, run.record_file).at(request.model)
    device = from_recipe.choose_device(request.device)
    require_unchanged_files(run, record, recipe)
    return ProbedRun(run, record, recipe, device, lambda: run_network(run, record, recipe))


def opened_anew(run: Run, recipe: Recipe, request: ProbeRequest) -> ProbedRun:
    """As `open_for_probing`, of a run that there is not yet."""
    device = from_recipe.choose_device(request.device)
    record = record_of(recipe, state="training")
    return ProbedRun(run, record, recipe, device, lambda: from_recipe.build_net(recipe))


def decoding_of(opened: ProbedRun, request: ProbeRequest, listener: Listener | None) -> Decoding:
    """The run's decoded images; missing ones are decoded."""
    in_process = from_recipe.choose_workers(request.workers, opened.device) == 0
    return Decoding(opened.run.folder.parent, listener, request.workers, in_process=in_process)
