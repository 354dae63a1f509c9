"""A run that is opened for probing: its recipe, its network and the network's layers."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING

from layerprobe.data.splits import Dataset
from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, write_text
from layerprobe.system.progress import Listener
from layerprobe.taps import Measured, forwards_as_json, measure_layers, recorded_forwards
from layerprobe.values.records import RunRecord
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.run_network import network_text, record_of, require_unchanged_files, run_network
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, eq=False)
class ProbedRun:
    """A run that is opened for probing.

    Args:
        device_name: name of the device.
        build: builds the network of the recipe.
    """

    run: Run
    record: RunRecord
    recipe: Recipe
    device_name: str
    build: Callable[[], Net]

    @functools.cached_property
    def device(self) -> torch.device:
        """Where the network runs and features are ranked."""
        return from_recipe.choose_device(self.device_name)

    @functools.cached_property
    def net(self) -> Net:
        """The network, on `device`, built when it is first asked for; its weights are those of no epoch yet."""
        import torch

        net = self.build()
        net.module.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks device with memory_format
        return net

    @functools.cached_property
    def measured(self) -> Measured:
        """The network's layers, by the dry forwards that the run keeps of this network, or by new ones."""
        return self._recorded_layers or measure_layers(self.net, self.recipe.data.image_size)

    @functools.cached_property
    def _recorded_layers(self) -> Measured | None:
        with contextlib.suppress(OSError, DataError):
            require_file(self.run.forwards_file)
            text = self.run.forwards_file.read_bytes()
            return recorded_forwards(text, self._facts, lambda: self.net.module)
        return None

    @functools.cached_property
    def _facts(self) -> Mapping[str, str]:
        """What the result of dry forwards depends on, but for files of the user's own code: opening compares these."""
        versions = {name: metadata.version(name) for name in ("layerprobe", "torch", "torchvision")}
        net, size = self.recipe.net.model_dump(mode="json"), self.recipe.data.image_size
        network = {"net": json.dumps(net), "image_size": json.dumps(size), "network": network_text(self.recipe)}
        return {**network, **versions}

    def keep_forwards(self) -> None:
        """Keep what dry forwards showed, for the next command; for the holder of the run's lock."""
        if self._recorded_layers is None:
            write_text(self.run.forwards_file, forwards_as_json(self.measured, self._facts))


def open_for_probing(run: Run, request: ProbeRequest) -> ProbedRun:
    """A run's recipe, and its network, which is built when it is needed."""
    record = run.read()
    recipe = recorded_recipe(record, run.record_file, checked=False).at(request.model)
    from_recipe.require_device(request.device)
    require_unchanged_files(run, record, recipe)

    def build() -> Net:
        return run_network(run, record, recorded_recipe(record, run.record_file).at(request.model))

    return ProbedRun(run, record, recipe, request.device, build)


def open_new_run(run: Run, recipe: Recipe, request: ProbeRequest) -> ProbedRun:
    """As `open_for_probing`, of a run that does not exist yet."""
    from_recipe.require_device(request.device)
    record = record_of(recipe, state="training")
    return ProbedRun(run, record, recipe, request.device, lambda: from_recipe.build_net(recipe))


def decoding_of(opened: ProbedRun, request: ProbeRequest, listener: Listener | None) -> Decoding:
    """The run's decoded images; missing ones are decoded."""
    in_process = from_recipe.choose_workers(request.workers, opened.device) == 0
    return Decoding(opened.run.folder.parent, listener, request.workers, in_process=in_process)


def load_hashed_dataset(opened: ProbedRun, request: ProbeRequest, listener: Listener | None) -> Dataset:
    """The run's data set with the hashes of its images; none is decoded."""
    decoding = Decoding(opened.run.folder.parent, listener, request.workers)
    return from_recipe.build_dataset(opened.recipe, decoding, decode=False)


def decode_lazily(
    opened: ProbedRun, request: ProbeRequest, dataset: Dataset | None, listener: Listener | None
) -> Callable[[], Dataset]:
    """A function that builds the run's data set with decoded images, where decoding pays, when it is first called.

    Args:
        dataset: the data set, where it is decoded already.
    """
    if dataset is not None:
        return lambda: dataset
    return functools.cache(lambda: from_recipe.build_dataset(opened.recipe, decoding_of(opened, request, listener)))
