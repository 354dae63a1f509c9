"""Watch: the layers of a model at each epoch of anybody's training, kept as a run."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import time
import uuid
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral, Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.data import Dataset

from layerprobe.data.splits import require_retrieval
from layerprobe.hooks import Hook, execution_order, find_layers, member_hooks, outlying_tokens, skipped_pool_lines
from layerprobe.hooks.hooks import hook_modules, prepare_images
from layerprobe.nets.net import Net
from layerprobe.system.errors import RecipeError, names_of, require_type
from layerprobe.system.memory import free_memory
from layerprobe.system.progress import stoppable
from layerprobe.trackers.tracker import Trackers, require_trackers
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, network_order
from layerprobe.values.records import RecordedNetwork
from layerprobe.values.scores import SPLITS, Score
from layerprobe.workflow.probe.measures import Measures, build_measures, check_right_items
from layerprobe.workflow.probe.scoring import Searches
from layerprobe.workflow.probe.selection import require_storable
from layerprobe.workflow.python.loaders import (
    SEED,
    Batch,
    BatchOf,
    ImageShape,
    ProbeInputs,
    folder_name,
    image_shape,
    require_loaders,
    weights_sha256,
)
from layerprobe.workflow.python.memory_features import MemoryFeatures, SearchResults, extract_features, search
from layerprobe.workflow.python.probe_model import parse_metrics, require_types
from layerprobe.workflow.python.stored_probe import probe_record, store_probe
from layerprobe.workflow.python.user_model import (
    classifier_notes,
    measure_network,
    net_of,
    network_facts,
    place_on_device,
)
from layerprobe.workflow.run.runs import Run, named_run
from layerprobe.workflow.run.tracking import log_epoch, log_epochs, numbers_of
from layerprobe.workflow.watch.watched_images import WatchedImages, image_rows, keep_random_state, read_images
from layerprobe.workflow.watch.watched_run import (
    LayerEpochs,
    best_words,
    continue_run,
    epoch_record,
    finish,
    forget_from,
    mark_watched,
    read_stored_counts,
    remove_features,
    require_same_images,
)

if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback
    from transformers import Trainer, TrainerCallback

_MEMORY = 0.1  # of the free memory, for the images of all splits
NETWORK = "network"  # among the hashes of run.json: that of its modules and the shapes of their tensors
_FORWARDS = 3  # a training step costs at least a forward, and a backward of twice its arithmetic


@dataclass(frozen=True, eq=False)
class WatchedNetwork:
    """The watched layers of a network.

    Args:
        facts: None where the model's output is no layer.
        parts: path, class and shapes of the tensors of every module; the same at each epoch.
    """

    members: Sequence[Hook]
    layer_order: Sequence[str]
    rows: Sequence[RankedLayer]
    facts: RecordedNetwork | None
    parts: Sequence[tuple[str, str]]

    @property
    def sha256(self) -> str:
        """Hash of the parts."""
        return hashlib.sha256(repr(self.parts).encode()).hexdigest()

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


@dataclass(eq=False)
class _Training:
    """A training since its first watched epoch."""

    run: Run
    images: Mapping[str, WatchedImages]
    network: WatchedNetwork
    experiment: str
    epochs: LayerEpochs
    epoch: int
    first: MeasuredEpoch | None
    ended: float = 0.0  # when the last watched epoch had been stored


class Watch:
    """Measure the layers of a model at each epoch of a training, in any loop.

    >>> import torch, layerprobe
    >>> first, last = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 8, 3)
    >>> model = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    >>> labels = torch.arange(24) // 2
    >>> images = torch.rand(12, 3, 1, 1)[labels].expand(-1, -1, 8, 8)
    >>> train, test = (images[:12], labels[:12]), (images[12:], labels[12:])
    >>> splits = {"train": [train], "test": [test]}
    >>> watch = layerprobe.Watch(splits, layers="0,2", pools="avg", ks=[1], name="mine")
    >>> _ = watch(model, 0)  # before training
    >>> for epoch in range(1, 4):
    ...     values = watch(model, epoch)  # after each epoch
    >>> list(values)
    ['train_R@1/0@avg', 'train_R@1/2@avg', 'test_R@1/0@avg', 'test_R@1/2@avg']
    >>> watch.close()

    The training is not changed: modes, weights, buffers, gradients, hooks and random state (torch, numpy, Python) are
    as before each call. Lightning takes `watch.lightning()`, the Trainer of transformers `watch.trainer(trainer)`.

    The first call reads the images, which are then held in memory and are the same at each epoch, in the order of the
    data set and with random transforms drawn once. Whole classes are drawn by a seed, or some images of 10 where fewer
    fit, so that a call takes less than `share` of an epoch; the first line says how many. Each call prints a line to
    stderr: recall and gap of the last layer, the epoch at which its gap opened, the best layer, and the seconds that it
    took. Values are stored as a run; features of the first and last epoch only.

    A call for the epoch measured last replaces it. `watch(model, 0)` of another training moves the run of the same
    name aside, as `NAME~1`; a first call for a later epoch continues it.

    Args:
        splits: train, validation or test -> a DataLoader, other batches or a Dataset, as for `layerprobe.probe`. A
            layer can be chosen on classes of `validation` that the training does not use.
        layers, pools, metrics, device, batch: as for `layerprobe.probe`.
        ks: K of Recall@K; those that are not below the number of watched images are left out.
        every: epochs from one measurement to the next; other calls do nothing.
        share: of an epoch's time, in (0, 1]; None for all images. A tenth of the free memory bounds the images, too.
        cache: folder of runs; None for that of the commands, LAYERPROBE_CACHE or ./cache.
        name: of the run; None for the name of the model's class.
        log: trackers that are given the values, the gap of each layer, and at `close` figures and page of the run:
            `tensorboard:DIR`, `wandb:PROJECT`, `mlflow:URI`, `trackio:PROJECT`. One that fails is told in a line.

    Raises:
        UnknownNameError: unknown split, metric or tracker.
        EnvironmentFault: a tracker that is not installed, or whose folder cannot be written to.
        RecipeError: no split, or an invalid `every`, `share`, `name`, K or metric.
        TypeError: an argument of another type.
    """

    def __init__(  # noqa: PLR0913 - those of layerprobe.probe, and of the run
        self,
        splits: Mapping[str, Iterable[Any] | Dataset[Any]],
        *,
        layers: str | Sequence[str] = "*",
        pools: str | Sequence[str] | None = None,
        ks: Sequence[int] = (1, 2, 4, 8),
        metrics: str | Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
        every: int = 1,
        share: float | None = 0.1,
        device: str | torch.device = "auto",
        cache: str | Path | None = None,
        name: str | None = None,
        batch: BatchOf | None = None,
        log: str | Sequence[str] = (),
    ) -> None:
        require_types(ks=ks, device=device, cache=cache, batch=batch)
        if name is not None:
            require_type("name", name, str, "text")
        self._splits: dict[str, Iterable[Any]] = require_loaders(splits, SPLITS)
        if not splits:
            raise RecipeError("there is no split to watch", fix='Give loaders: {"train": loader, "test": loader}')
        if isinstance(every, bool) or not isinstance(every, Integral) or every < 1:
            raise RecipeError(f"every is {every!r}", fix="Give a whole number of epochs from 1")
        if share is not None:
            require_type("share", share, Real, "a share of an epoch's time, or None for all images")
        if share is not None and not 0 < share <= 1:
            raise RecipeError(f"share is {share!r}", fix="Give a share of an epoch in (0, 1], or None for all images")
        names, options = parse_metrics(metrics)
        self._measures: partial[Measures] = partial(build_measures, names, [1, *ks], options=options, may_drop=True)
        self._measures({})  # refuses unknown metrics before the training
        self._log: list[str] = names_of("log", log)
        require_trackers(self._log)
        self._cache: Path = Path(os.environ.get("LAYERPROBE_CACHE", "cache") if cache is None else cache)
        self._run: Run | None = None if name is None else named_run(self._cache, name)
        self._layers: list[str] = names_of("layers", layers)
        self._pools: list[str] | None = None if pools is None else names_of("pools", pools)
        self._every: int = int(every)
        self._share: float | None = share
        self._device: str = str(device)
        self._batch: BatchOf | None = batch
        self._training: _Training | None = None
        self._finish: weakref.finalize[..., Watch] | None = None
        self._trackers: Trackers | None = None

    def __call__(self, model: nn.Module | Net, epoch: int) -> dict[str, float]:
        """Measure a model after an epoch of its training.

        Args:
            model: the same at each call, with present weights.
            epoch: 0 = before training.

        Returns:
            For a logger: `test_R@1/layer3@avg` -> its value, a fraction for shares. Empty where `every` skips an epoch.

        Raises:
            UnknownNameError: unknown layer or pool.
            RecipeError: an epoch before the last one, a model of other parts, a name that another run has, a run that
                is continued on other images, and what `layerprobe.probe` raises.
            DataError: invalid batches, a split of fewer than 2 classes, a class in two splits.
            BusyError: another process uses the run.
        """
        if isinstance(epoch, bool) or not isinstance(epoch, Integral) or epoch < 0:
            raise RecipeError(f"the epoch is {epoch!r}", fix="Give a whole number: 0 before training, 1 after an epoch")
        epoch = int(epoch)
        if epoch % self._every:
            return {}
        if self._training is not None and epoch < self._training.epoch:
            message = f"epoch {epoch} comes after epoch {self._training.epoch}"
            raise RecipeError(message, fix="Give epochs in ascending order, and another training another Watch")
        net = net_of(model)
        with keep_random_state(), place_on_device(net.module, self._device) as device:
            wait_for(device)
            began = time.perf_counter()
            if self._training is None:
                self._training = self._begin(net, epoch, device)
            elif epoch == self._training.epoch:
                _say(f"epoch {epoch} is measured again, in place of its first values")
            training = self._training
            training.network.require_same(net.module)
            measured, training.first = training.first or self._measure(training, net, epoch, device), None
            _store(training, measured, epoch)
            seconds = time.perf_counter() - began
            self._log_epoch(training.run, measured.results.scores, epoch)
        self._print_epoch(training, measured, epoch, began, seconds)
        training.epoch, training.ended = epoch, time.perf_counter()
        if self._finish is None:
            self._finish = weakref.finalize(self, finish, training.run, mark_watched(training.run), os.getpid())
        return numbers_of(measured.results.scores, training.epochs.ranked.similarity)

    def close(self) -> None:
        """Record the run as finished, as the end of the process does, and give the trackers its figures and page."""
        if self._finish is not None:
            self._finish()
        if self._trackers is not None and self._training is not None:
            from layerprobe.workflow.report.tracked import log_artefacts  # it imports matplotlib

            with keep_random_state():
                log_artefacts(self._trackers, self._training.run, _say)
                self._trackers.close(failed=False)

    def lightning(self, network: str | None = None) -> Callback:
        """A callback for Lightning's Trainer: measures before training and at the end of each epoch.

        Args:
            network: attribute of the LightningModule; "" for itself, None for its only submodule with parameters.
        """
        from layerprobe.workflow.watch.lightning_callback import WatchCallback

        return WatchCallback(network, self, self.close)

    def trainer(self, trainer: Trainer, network: str = "") -> TrainerCallback:
        """Add a callback to the Trainer of transformers: measures before training and at the end of each epoch.

        Args:
            network: path of a submodule of its model; "" for the model.
        """
        from layerprobe.workflow.watch.trainer_callback import WatchCallback

        callback = WatchCallback(trainer, network, self, self.close)
        trainer.add_callback(callback)
        return callback

    def _begin(self, net: Net, epoch: int, device: torch.device) -> _Training:
        """Read the images, find the layers, and measure as many images as the share allows."""
        run = self._run or named_run(self._cache, folder_name(type(net.module).__name__))
        record = continue_run(run, epoch, _say)
        images = self._read(run, continued=record is not None)
        shape = image_shape(next(iter(images.values())).images)
        network, notes = find_watched_layers(net, self._layers, self._pools, shape)
        for note in notes:
            _say(note)
        experiment = uuid.uuid4().hex[:12] if record is None else record.experiment
        training = _Training(run, images, network, experiment, LayerEpochs(network.rows[-1], {}), epoch, None)
        training.first = self._measure(training, net, epoch, device)
        if record is None:
            self._shrink(training, net, device)
        else:
            require_same_images(run, record, training.first.features.inputs)
            if record.hashes.get(NETWORK, network.sha256) != network.sha256:
                refusal = "has another network than is given now: other modules, or shapes of their tensors"
                raise RecipeError(refusal, file=run.folder, fix="Give its model, or another name=")
        splits = training.first.features.dataset.splits
        training.epochs = LayerEpochs(network.rows[-1], {split: splits[split].labels for split in images})
        for stored_epoch in run.ranked_epochs(next(iter(images))) if record else []:
            if stored_epoch < epoch:
                training.epochs = training.epochs.with_stored(run, stored_epoch)
        watched = "; ".join(f"{split}: {split_images}" for split, split_images in training.images.items())
        _say(f"{watched}; run {run.folder}")
        return training

    def _read(self, run: Run, *, continued: bool) -> dict[str, WatchedImages]:
        most = None
        if self._share is not None and (rows := image_rows(next(iter(self._splits.values())))) is not None:
            # A measurement costs at least a forward of each of its images, an epoch three of each training image.
            most = max(1, int(_FORWARDS * self._share * len(rows) / len(self._splits)))
        memory = int(_MEMORY * free_memory() / len(self._splits))
        images, ignored = {}, dict[str, None]()
        for split, loader in self._splits.items():
            images[split] = read_images(
                loader,
                split,
                memory=memory,
                most=most,
                counts=read_stored_counts(run, split) if continued else None,
                batch=self._batch,
                note=ignored.setdefault,
            )
        for line in ignored:
            _say(line)
        return images

    def _shrink(self, training: _Training, net: Net, device: torch.device) -> None:
        """Leave classes out until a measurement takes less than `share` of the shortest possible epoch."""
        if self._share is None:
            return
        split_images = next(iter(training.images.values()))
        least = least_epoch(net.module, next(split_images.batches), sum(split_images.counts.values()), device)
        while True:
            began = time.perf_counter()
            training.first = self._measure(training, net, training.epoch, device)
            allowed = self._share * least / (time.perf_counter() - began)
            fewer = {
                split: images.max_loss(int(0.9 * allowed * len(images.labels)))
                for split, images in training.images.items()
            }
            if allowed >= 1 or all(len(x.labels) == len(training.images[s].labels) for s, x in fewer.items()):
                return
            training.images = fewer

    def _measure(self, training: _Training, net: Net, epoch: int, device: torch.device) -> MeasuredEpoch:
        """Extract, rank and score the watched layers."""
        module, network, images = net.module, training.network, training.images
        by_split = {
            split: extract_features(module, network.members, split_images.batches, device, hashed=True)
            for split, split_images in images.items()
        }
        digests = {split: split_features.digests for split, split_features in by_split.items()}
        inputs = ProbeInputs(type(module).__name__, weights_sha256(module), digests)
        features = MemoryFeatures(training.run, inputs, by_split)
        require_retrieval(features.dataset, fix="Put all images of a class into one split")
        # Of drawn images, the right items may be among those that were not drawn.
        if all(len(split_images.labels) == sum(split_images.counts.values()) for split_images in images.values()):
            check_right_items(features.dataset)
        searches = Searches(features, training.experiment, SEED, lambda: device)
        measures = self._measures({split: len(split_images.labels) for split, split_images in images.items()})
        results = search(searches, measures, network.rows, lambda layers, _: layers, epoch=epoch)
        return MeasuredEpoch(features, searches, results)

    def _log_epoch(self, run: Run, scores: Sequence[Score], epoch: int) -> None:
        """Log an epoch that is stored, and with the first one those that a continued run has."""
        if self._trackers is None:
            self._trackers = Trackers(self._log, run.name, run.read().recipe, _say)
            log_epochs(self._trackers, run)
        else:
            log_epoch(self._trackers, run, epoch, scores)

    def _print_epoch(
        self, training: _Training, measured: MeasuredEpoch, epoch: int, began: float, seconds: float
    ) -> None:
        entries = {split: ranks[training.epochs.ranked] for split, ranks in measured.results.entries.items()}
        training.epochs = training.epochs.with_epoch(epoch, entries)
        best = best_words(measured.results.scores, "R@1", training.epochs.ranked)
        took = f"{seconds:.2g} s" if seconds < 1 else f"{seconds:.1f} s"
        if training.ended and epoch > training.epoch:
            took += f", {seconds / (began - training.ended) * (epoch - training.epoch) * 100:.0f} % of an epoch"
        _say(f"epoch {epoch}: {training.epochs.text(epoch)}{best} ({took})")


def find_watched_layers(
    net: Net, layers: Sequence[str], pools: Sequence[str] | None, shape: ImageShape
) -> tuple[WatchedNetwork, list[str]]:
    """The asked layers of a network that takes images (C, H, W), and notes on its classifier and their pools."""
    network = measure_network(net, shape)
    hooks = require_storable(find_layers(layers, network, pools=pools))
    if not hooks:
        raise RecipeError("layers is empty", fix='Name some, such as layers="*"')
    members = member_hooks(hooks)
    notes = [
        *classifier_notes([network.net.classifier]),
        *skipped_pool_lines(layers, network, pools=pools),
        *network.unknown_pool(pools),
        *outlying_tokens(members),
    ]
    order = execution_order([hook.layer for hook in members], network)
    rows = network_order([RankedLayer(hook.key, NO_POST_PROCESSING, "cosine") for hook in hooks], order)
    return WatchedNetwork(members, order, rows, network_facts(network), parts_of(net.module)), notes


def parts_of(module: nn.Module) -> list[tuple[str, str]]:
    """Path, and class with the shapes of its own tensors, of every module."""
    parts = []
    for path, submodule in module.named_modules():
        tensors = [*submodule.named_parameters(recurse=False), *submodule.named_buffers(recurse=False)]
        shapes = "".join(f" {name} {tuple(tensor.shape)}" for name, tensor in tensors)
        parts.append((path, f"{type(submodule).__name__}{shapes}"))
    return parts


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


def _store(training: _Training, measured: MeasuredEpoch, epoch: int) -> None:
    """Store an epoch; a signal waits until all of it is stored."""
    features, order = measured.features, training.network.layer_order
    with stoppable() as stop:
        forget_from(training.run, epoch)
        probed = probe_record(features.inputs, str(measured.searches.device()), order)
        network = training.network
        probed = replace(probed, network=network.facts, hashes={NETWORK: network.sha256})
        record = epoch_record(probed, epoch, training.experiment, training.images)
        store_probe(features, measured.searches, measured.results, order, epoch=epoch, record=record)
        if 0 < training.epoch < epoch:
            remove_features(training.run, list(training.images), training.epoch)
    if stop.signal_number is not None:
        signal.raise_signal(stop.signal_number)


def _say(line: str) -> None:
    print(f"watch: {line}", file=sys.stderr, flush=True)
