"""The stored features of a run: keys, values, and those that are missing, stale or damaged."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe import store
from layerprobe.data.splits import Dataset
from layerprobe.hooks import Hook, Layer, member_hooks
from layerprobe.measure.analysis import Features, search_sha256
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.recipe.recipe import Recipe
from layerprobe.store.features import FeatureArray
from layerprobe.system.errors import BusyError, DataError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.layers import SHARD_ROWS, LayerKey
from layerprobe.values.scores import Score
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import require_unchanged, require_weights, weights_sha256
from layerprobe.workflow.run.opened_run import read_layer, table_of, values_of
from layerprobe.workflow.run.run_network import network_text
from layerprobe.workflow.run.runs import Run, kept_epochs
from layerprobe.workflow.run.sample_fit import SampleFit

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Missing:
    """What of an epoch and split is not stored, or is stale or damaged.

    Args:
        hooks: in execution order.
        dims: layer -> the number of dimensions with which it is stored.
        plan: the files to write.
        dtype: of the features, as in `FeatureKey`.
        precision: of the network's products, as in `FeatureKey`.
    """

    epoch: int
    split: str
    hooks: tuple[Hook, ...]
    dims: Mapping[LayerKey, int]
    plan: store.Plan
    dtype: str = ""
    precision: str = ""

    @property
    def images(self) -> int:
        """How many images are run through the network; those of two files of the same rows count twice."""
        return sum(len(part.rows) for part in self.plan.parts)

    @property
    def disk(self) -> int:
        """Bytes of the features to be stored."""
        return sum(
            feature_disk((self.dims[layer] for layer in part.layers), len(part.rows), self.dtype)
            for part in self.plan.parts
        )

    def hooks_of(self, part: store.Part) -> tuple[Hook, ...]:
        """The hooks whose features are in a file."""
        return tuple(hook for hook in self.hooks if hook.key in part.layers)


@dataclass(frozen=True, eq=False)
class RunFeatures:
    """The features of a run, in files for each epoch and split.

    Args:
        weights_sha256: epoch -> hash of its weights, as recorded.
        require_weights: epoch -> DataError if its weights have changed.
        manifest_sha256: split -> hash of its images and classes.
        network: as from `network_text`.
        shard_rows: rows of a split above which its features are stored in several files, each of so many rows.
        dtype: epoch, split -> the type that features are stored as, as in `FeatureKey`.
        sample: of features that are stored post-processed alone; its samples are splits of the data set. None: layers'
            own.
        precision: epoch, split -> that of the network's products, as in `FeatureKey`.
    """

    run: Run
    dataset: Dataset
    transform: str
    weights_sha256: Callable[[int], str]
    require_weights: Callable[[int], None]
    manifest_sha256: Callable[[str], str]
    network: str = ""
    shard_rows: int = SHARD_ROWS
    dtype: Callable[[int, str], str] = lambda *_: ""
    sample: SampleFit | None = None
    precision: Callable[[int, str], str] = lambda *_: ""
    _open: dict[tuple[int, str], store.LayerTables] = field(default_factory=dict, init=False)

    def key(self, epoch: int, split: str) -> store.FeatureKey:
        """The key of valid features of an epoch and split."""
        manifest = self.manifest_sha256(split)
        if self.sample is not None and self.sample.is_post_processed(split):
            manifest = f"{manifest} {self.manifest_sha256(self.sample.sample_of(split))}"
        return store.FeatureKey(
            run=self.run.name,
            epoch=epoch,
            split=self._stored_as(split),
            weights_sha256=self.weights_sha256(epoch),
            transform=self.transform,
            manifest_sha256=manifest,
            network=self.network,
            dtype=self.dtype(epoch, split),
            precision=self.precision(epoch, split),
        )

    def missing(
        self, epoch: int, split: str, layers: Sequence[Layer], *, read: Collection[LayerKey] | None = None
    ) -> Missing:
        """The hooks to extract for some layers; of `A+B` its members.

        Layers that would be removed because they have another type or precision are a RecipeError.

        Args:
            read: the hooks whose stored features will be read, so that damaged ones are missing, too; None for all.
        """
        path, key, hooks = self._path(epoch, split), self.key(epoch, split), member_hooks(layers)

        def intact(file: Path, stored: frozenset[LayerKey]) -> frozenset[LayerKey]:
            read_layers = stored if read is None else stored.intersection(read)
            if not read_layers:
                return stored
            return stored - read_layers | store.stored_layers(file, key, layers=read_layers)

        ranges = store.row_ranges(len(self.dataset.splits[split]), self.shard_rows)
        wanted = [hook.key for hook in hooks]
        plan = store.plan_parts(path, key, wanted, ranges, intact=intact, head_of=self.run.read_head)
        if plan.lost:
            names = ",".join(sorted(map(str, plan.lost)))
            problem = f"the features of {names} at epoch {epoch} of {split} have another type or precision"
            fix = f"Add them to --layers of {self.run.command('probe')}: those of an epoch and split have one"
            raise RecipeError(problem, file=path, fix=fix)
        absent = frozenset[LayerKey]().union(*(part.layers for part in plan.parts))
        dims = {hook.key: self.sample.dim(split, hook.dim) if self.sample else hook.dim for hook in hooks}
        return Missing(
            epoch, split, tuple(hook for hook in hooks if hook.key in absent), dims, plan, key.dtype, key.precision
        )

    def _stored_as(self, split: str) -> str:
        return split if self.sample is None else self.sample.stored_as(split)

    def _path(self, epoch: int, split: str) -> Path:
        return self.run.feature_file(epoch, self._stored_as(split))

    def stale_note(self, epoch: int, split: str) -> str:
        """Why an existing file is stale; empty if all are valid."""
        path, key = self._path(epoch, split), self.key(epoch, split)
        for file in (file for group in store.layer_groups(path) for file in group.files.values()):
            if reason := store.stale_note(file, key):
                return f"{file.relative_to(path.parent)} is computed again: {reason}"
        return ""

    @cached_property
    def search_sha256(self) -> Callable[[str], str]:
        """Split -> hash of its search rules."""
        dataset = self.dataset
        return cache(lambda split: search_sha256(*dataset.search_of(split), dataset.search_rules.get(split)))

    def without_stale(self, scores: Sequence[Score], listener: Listener | None) -> list[Score]:
        """The scores whose features and ranks have the present transform and search rules; reports the others."""

        @cache
        def difference(epoch: int, split: str) -> str:
            with contextlib.suppress(DataError, BusyError):  # missing features are unknown
                if self.run.feature_head(epoch, self._stored_as(split)).facts.get("transform", "") != self.transform:
                    return "another test transform"
            with contextlib.suppress(DataError, BusyError):
                rules = self.run.ranks(epoch, split).search_sha256
                if rules and split in self.dataset.searched and rules != self.search_sha256(split):
                    return "other groups, lists or queries"
            return ""

        differences = Counter(difference(score.epoch, score.split) for score in scores)
        for reason, count in differences.items():
            if reason and listener:
                listener.say(f"{count} scores of {reason} leave scores.csv: probe their layers and epochs again")
        return [score for score in scores if not difference(score.epoch, score.split)]

    def write(
        self,
        missing: Missing,
        part: store.Part,
        columns: store.Columns,
        batches: Iterable[Mapping[LayerKey, FeatureArray]],
    ) -> None:
        """Write one of the files that are missing."""
        rows = self.rows(missing.split).part(part.rows)
        store.write_features(part.path, self.key(missing.epoch, missing.split), rows, columns, batches)

    def rows(self, split: str) -> store.Rows:
        """The images of a split, as feature files store them."""
        images = self.dataset.splits[split]
        return store.Rows(images.labels, images.ids, self.dataset.class_names, self.dataset.class_ids)

    def read_values(self, epoch: int, split: str, layer: LayerKey) -> FeatureArray:
        """The features of a layer, (N, D)."""
        return read_layer(self.run, epoch, split, layer)

    @contextlib.contextmanager
    def opened(
        self, epoch: int, split: str, layer: LayerKey, device: torch.device, memory: int | None
    ) -> Iterator[Features]:
        """The features of a layer, on a device, or on disk if they exceed the memory."""
        import torch

        images = self.dataset.splits[split]
        with self._file(epoch, split) as file:
            table = table_of(file, layer)
            if memory is not None and 4 * table.shape[0] * table.shape[1] > memory:
                yield Features(table, images.labels, images.ids)
            else:
                values = torch.from_numpy(values_of(file, layer)).to(device)
                yield Features(values, images.labels, images.ids)

    @contextlib.contextmanager
    def kept_open(self, epoch: int, splits: Iterable[str]) -> Iterator[None]:
        """Keep feature files open inside the block, so that each is opened once for all its layers."""
        keys = [(epoch, split) for split in dict.fromkeys(splits)]
        try:
            with contextlib.ExitStack() as stack:
                for key in keys:
                    self._open[key] = stack.enter_context(self._opened(*key))
                yield
        finally:
            for key in keys:
                self._open.pop(key, None)

    def _file(self, epoch: int, split: str) -> contextlib.AbstractContextManager[store.LayerTables]:
        if (epoch, split) in self._open:
            return contextlib.nullcontext(self._open[epoch, split])
        return self._opened(epoch, split)

    def _opened(self, epoch: int, split: str) -> contextlib.AbstractContextManager[store.LayerTables]:
        return self.run.open_features(epoch, self._stored_as(split))


def features_of(  # noqa: PLR0913 - the run, and how its features are computed and stored
    run: Run,
    recipe: Recipe,
    dataset: Dataset,
    *,
    dtype: str | None = None,
    precision: str | None = None,
    shard_rows: int = SHARD_ROWS,
    sample: SampleFit | None = None,
) -> RunFeatures:
    """The features of a single run of hashed images, made with its checkpoints.

    Args:
        dataset: without samples.
        dtype: float32 or float16; None for the type in which features of the epoch and split are stored, or, where
            there are none, those of another split.
        precision: float32 or bfloat16; None for that of the stored features, likewise.
        shard_rows: as in `RunFeatures`.
        sample: as there.
    """
    dataset = dataset if sample is None else sample.with_samples(dataset)

    @cache
    def fact_of(name: str, requested: str | None, epoch: int, split: str) -> str:
        splits = dict.fromkeys([split, *dataset.splits])
        names = splits if sample is None else map(sample.stored_as, splits)
        return _stored_fact(name, run, epoch, names) if requested is None else key_text(requested)

    network = network_text(recipe)
    recorded = run.read().network if run.exists() else None
    transform = from_recipe.transform_text(recipe, recorded.channels if recorded else 3)
    return RunFeatures(
        run,
        dataset,
        transform,
        cache(partial(weights_sha256, run)),
        partial(require_weights, run),
        dataset.contents_sha256,
        network,
        shard_rows,
        partial(fact_of, "dtype", dtype),
        sample,
        partial(fact_of, "precision", precision),
    )


def key_text(name: str | None) -> str:
    """A type or precision as a `FeatureKey` has it: empty for float32."""
    return "" if name in (None, "float32") else name


def _stored_fact(name: str, run: Run, epoch: int, splits: Iterable[str]) -> str:
    for split in splits:
        with contextlib.suppress(DataError, BusyError):
            return run.feature_head(epoch, split).facts.get(name, "")
    return ""


def feature_disk(dims: Iterable[int], images: int, dtype: str = "") -> int:
    """Bytes of the features of so many images.

    Args:
        dtype: as in `FeatureKey`.
    """
    return (2 if dtype else 4) * images * sum(dims)


class PartlyMeasuredError(DataError):
    """Epochs with damaged checkpoints, with the scores of the others."""

    def __init__(self, message: str, *, file: object = None, fix: str = "", scores: Iterable[Score] = ()) -> None:
        super().__init__(message, file=file, fix=fix)
        self.scores = list(scores)


class PartlyPostProcessedError(NotApplicableError):
    """Post-processing that is applicable to no layer, with the scores of the others."""

    def __init__(self, message: str, *, file: object = None, fix: str = "", scores: Iterable[Score] = ()) -> None:
        super().__init__(message, file=file, fix=fix)
        self.scores = list(scores)


def whole_epochs(features: RunFeatures, epochs: Sequence[int], listener: Listener | None, *, alone: bool) -> list[int]:
    """The epochs whose checkpoints are unchanged or were removed on purpose; the others are reported.

    Args:
        epochs: whose checkpoints will be loaded.
        alone: whether nothing else is measured, so that the first error is raised where none is whole.
    """
    intact, damaged = [], []
    for epoch in epochs:
        try:
            features.require_weights(epoch)
            intact.append(epoch)
        except DataError as error:
            if listener is not None:
                listener.say(f"epoch {epoch} is skipped: {error}")
            damaged.append(error)
    if damaged and not intact and alone:
        raise damaged[0]
    return intact


def require_measured(run: Run, damaged: Sequence[int], scores: Iterable[Score] = ()) -> None:
    """Raise an error if there are damaged epochs, after all others were measured."""
    if damaged:
        raise PartlyMeasuredError(
            f"not measured: epochs with a damaged checkpoint ({', '.join(map(str, damaged))})",
            file=run.folder,
            fix="Restore these checkpoints from a copy; all other epochs are measured",
            scores=scores,
        )


def damaged_epochs(run: Run, listener: Listener) -> list[int]:
    """The epochs of a run with damaged checkpoints, reported except the last, which resumed training replaces."""
    damaged: list[int] = []
    if not run.exists():
        return damaged
    record = run.read()
    for epoch in kept_epochs(run, record):
        path = run.checkpoint_file(epoch)
        try:
            require_unchanged(path, [record.hashes.get(path.name, "")])
        except DataError as error:
            if epoch < record.epochs_done:
                listener.say(str(error))
            damaged.append(epoch)
    return damaged
