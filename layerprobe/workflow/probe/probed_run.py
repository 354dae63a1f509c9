"""A run that is opened for probing, and its checkpoints and images -> stored features."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Protocol

from layerprobe import store
from layerprobe.data.splits import Dataset
from layerprobe.hooks import Measured, forwards_as_json, measure_layers, recorded_forwards
from layerprobe.measure.extraction import BATCH_SIZE, Arrays, extract, gather_batches, send_batches
from layerprobe.nets.net import Net
from layerprobe.post_processing.applying import PostProcessedRows
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, write_text
from layerprobe.system.progress import Listener
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.workflow.probe.post_processed_features import PostProcessedFeatures
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_net
from layerprobe.workflow.run.features import Missing, RunFeatures
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.run_network import network_text, record_of, require_unchanged_files, run_network
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    Tell = Callable[[Iterable[Tensor]], Iterator[Tensor]]  # passes batches of images on and tells of progress


@dataclass(frozen=True, eq=False)
class ProbedRun:
    """A run that is opened for probing.

    Args:
        build: builds the network of the recipe.
        given: the data set with decoded images, where the caller has it; None: it is loaded when it is asked for.
    """

    run: Run
    record: RunRecord
    recipe: Recipe
    request: ProbeRequest
    build: Callable[[], Net]
    listener: Listener | None = None
    given: Dataset | None = None

    @functools.cached_property
    def device(self) -> torch.device:
        """Where the network runs and features are ranked."""
        return from_recipe.choose_device(self.request.device)

    @functools.cached_property
    def dataset(self) -> Dataset:
        """The data set with the hashes of its images; none is decoded."""
        request = self.request
        decoding = Decoding(self.run.folder.parent, self.listener, request.workers, launch=request.launch)
        return self.given or from_recipe.build_dataset(self.recipe, decoding, decode=False)

    @functools.cached_property
    def decoded(self) -> Dataset:
        """The data set with decoded images, where decoding pays."""
        return self.given or from_recipe.build_dataset(self.recipe, self.decoding)

    @property
    def decoding(self) -> Decoding:
        """The run's decoded images; missing ones are decoded."""
        in_process = from_recipe.choose_workers(self.request.workers, self.device) == 0
        return Decoding(self.run.folder.parent, self.listener, self.request.workers, in_process=in_process)

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


def open_for_probing(
    run: Run, request: ProbeRequest, dataset: Dataset | None = None, listener: Listener | None = None
) -> ProbedRun:
    """A run's recipe, and its network and data set, which are built when they are needed.

    Args:
        dataset: with decoded images; None: that of the recipe is loaded.
    """
    record = run.read()
    recipe = recorded_recipe(record, run.record_file, checked=False).at(request.model)
    from_recipe.require_device(request.device)
    require_unchanged_files(run, record, recipe)

    def build() -> Net:
        return run_network(run, record, recorded_recipe(record, run.record_file).at(request.model))

    return ProbedRun(run, record, recipe, request, build, listener, dataset)


def open_new_run(run: Run, recipe: Recipe, request: ProbeRequest) -> ProbedRun:
    """As `open_for_probing`, of a run that does not exist yet."""
    from_recipe.require_device(request.device)
    record = record_of(recipe, state="training")
    return ProbedRun(run, record, recipe, request, lambda: from_recipe.build_net(recipe))


class Extractor(Protocol):
    """Stores features that are missing."""

    def images(self, missing: Missing) -> int:
        """How many images will be read for it."""

    def decode(self) -> None:
        """Decode the images, where that is worth it; before any is extracted."""

    def extract(self, missing: Missing, tell: Tell) -> None:
        """Compute and store the missing features of an epoch and split."""


@dataclass(eq=False)
class RunExtractor:
    """Extracts layers with the checkpoints of one run.

    Args:
        images_of: the run whose decoded images are read: this one, or the ensemble that it is of.
        share: has the other processes of the launch extract the same features, each its part.
        maps: gives the maps by which features are post-processed before they are stored, where they are.
    """

    features: RunFeatures
    opened: ProbedRun
    images_of: ProbedRun
    share: Callable[[Missing], None]
    maps: Callable[[], PostProcessedFeatures] | None = None
    _loaded: int | None = field(default=None, init=False)

    def images(self, missing: Missing) -> int:
        """Those of the files that are missing."""
        return missing.images

    def decode(self) -> None:
        """Decode the images of all splits, where that is worth it."""
        _ = self.images_of.decoded

    def extract(self, missing: Missing, tell: Tell) -> None:
        """Run the network on the split's images and store the outputs of the hooks.

        The processes of a launch write whole files in turn; of few files each extracts batches in turn, which the first
        process writes.
        """
        from layerprobe.data.loading import plain_batches

        launch, parts, sample = self.opened.request.launch, missing.plan.parts, self.features.sample
        fitted = self._fitted(missing)
        if not launch.rank:
            missing.plan.remove_stale()
        self.share(missing)
        dataset = self.images_of.decoded
        dataset = dataset if sample is None else sample.with_samples(dataset)
        split = dataset.splits[missing.split]
        # The features were looked for by the images' hashes, before these were decoded.
        if dataset.contents_sha256(missing.split) != self.features.manifest_sha256(missing.split):
            raise DataError(f"the {missing.split} images changed while they were read", fix="Run the command again")
        net, device = self.opened.net, self.opened.device
        if self._loaded != missing.epoch:
            load_net(self.features.run, missing.epoch, net)
            self._loaded = missing.epoch
        workers = from_recipe.choose_workers(self.opened.request.workers, device)
        normalise = from_recipe.build_normalise(self.opened.recipe, net.channels)
        bfloat16 = missing.precision == "bfloat16"
        in_turn, whole = slice(launch.rank, None, launch.size), len(parts) >= launch.size
        for part in parts[in_turn] if whole else parts:
            hooks, share = missing.hooks_of(part), slice(None) if whole else in_turn
            pixels = tell(plain_batches(split, batch_size=BATCH_SIZE, workers=workers, rows=part.rows, share=share))
            batches: Iterator[Arrays] = extract(net.module, hooks, pixels, normalise, device=device, bfloat16=bfloat16)
            if fitted:
                batches = _through(batches, fitted, device)
            columns = store.Columns({hook.key: missing.dims[hook.key] for hook in hooks}, str(device), BATCH_SIZE)
            if whole:
                self.features.write(missing, part, columns, batches)
            elif launch.rank:
                send_batches(batches, launch.group)
            else:
                gathered = gather_batches(batches, columns.dims, len(part.rows), launch.group)
                self.features.write(missing, part, columns, gathered)
        launch.wait()

    def _fitted(self, missing: Missing) -> dict[LayerKey, FittedStep]:
        """The maps of layers that are stored post-processed; empty where their own features are stored."""
        sample = self.features.sample
        if self.maps is None or sample is None or not sample.is_post_processed(missing.split):
            return {}
        maps = self.maps()
        return {
            hook.key: maps.map_of(missing.epoch, missing.split, RankedLayer(hook.key, sample.post_processing, ""))
            for hook in missing.hooks
        }


def _through(
    batches: Iterable[Arrays], post_process: Mapping[LayerKey, FittedStep], device: torch.device
) -> Iterator[Arrays]:
    for batch in batches:
        yield {layer: PostProcessedRows(values, post_process[layer], device)[:] for layer, values in batch.items()}
