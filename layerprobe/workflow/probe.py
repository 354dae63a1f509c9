"""probe: a run's checkpoints -> features of every layer asked for -> scores."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from layerprobe import store
from layerprobe.analysis import Features
from layerprobe.data.loading import plain_batches
from layerprobe.data.splits import Dataset, manifest_sha256
from layerprobe.errors import DataError, NumericError, RecipeError, UnknownNameError
from layerprobe.extraction import extract
from layerprobe.files import free_bytes, remove_leftovers, sha256
from layerprobe.metrics.recall import recall_name
from layerprobe.progress import Listener, Task
from layerprobe.ranking import export_index
from layerprobe.ranking.faiss_search import import_faiss
from layerprobe.recipe import resolve
from layerprobe.registry import LOSSES, load
from layerprobe.retrieval import Classifier
from layerprobe.runs import Run, locked
from layerprobe.scores import Score, merge_scores, read_scores, write_scores
from layerprobe.taps import Tap, resolve_taps
from layerprobe.training.checkpoints import load_weights
from layerprobe.workflow import parts
from layerprobe.workflow.estimate import Estimate, feature_disk, peak_memory
from layerprobe.workflow.images import Decoding
from layerprobe.workflow.scoring import Measures, Scorer
from layerprobe.workflow.signals import Stop, stoppable

# Recorded with the features, since it may change their last bits; large enough for a GPU, small enough for a laptop.
BATCH_SIZE = 64
_STOPPED = "probing stopped; what is stored is whole, the same command goes on"


@dataclass(frozen=True)
class ProbeRequest:
    """What `layerprobe probe` was asked for; None takes the recipe's [probe], or everything.

    Args:
        layers: layer expressions.
        pools: max, avg, gem or grid:s.
        epochs: all, last, or epochs with commas between.
        splits: names of splits.
        ks: K of Recall@K.
        metrics: further metrics by name; `R@K` among them adds that K.
        device: auto, cpu, cuda or cuda:i.
        workers: data worker processes.
        memory: bytes that a ranking may take beside what the process holds; None for as much as it likes.
        export_index: also write a faiss index of every layer and split of the last of the epochs.
    """

    layers: tuple[str, ...] | None = None
    pools: tuple[str, ...] | None = None
    epochs: str = "all"
    splits: tuple[str, ...] | None = None
    ks: tuple[int, ...] | None = None
    metrics: tuple[str, ...] | None = None
    device: str = "auto"
    workers: int | None = None
    memory: int | None = None
    export_index: bool = False


@dataclass(frozen=True)
class Work:
    """What is to be extracted of an epoch and split, and the `layer@pool` that are stored and valid."""

    epoch: int
    split: str
    taps: tuple[Tap, ...]
    stored: frozenset[str]
    images: int


class Prober:
    """Measures epochs of one run, each layer's features extracted once and stored.

    Args:
        run: it exists.
        request: what to measure.
        dataset: the run's, where the caller has it already; taken as it is.
        listener: hears of images being decoded, which without one is left to each reading.

    Raises:
        DataError: the images of a split to be measured are not those that the run was trained with.
    """

    def __init__(
        self, run: Run, request: ProbeRequest, dataset: Dataset | None = None, listener: Listener | None = None
    ) -> None:
        self.run, self.request, self.record = run, request, run.read()
        self.recipe = resolve(self.record["recipe_name"], self.record["recipe"], source=run.file)
        self.device = parts.choose_device(request.device)
        self.net = parts.build_net(self.recipe)
        self.net.module.to(device=self.device, memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks device with memory_format
        probe = self.recipe.probe
        self.taps: list[Tap] = resolve_taps(
            request.layers or probe.layers,
            self.net,
            pools=request.pools or probe.pool,
            image_size=self.recipe.data.image_size,
        )
        in_process = parts.choose_workers(request.workers, self.device) == 0
        decoding = Decoding(run.folder.parent, listener, request.workers, in_process=in_process)
        # Last: a misspelt layer is told before images are decoded.
        self.dataset = dataset or parts.build_dataset(self.recipe, decoding)
        self.splits = self._splits()
        if dataset is None:
            self._require_same_images(self.stored_splits)
        self.dropped: set[int] = set()
        self._digests: dict[int, str] = {}
        self._loaded: int | None = None

    @cached_property
    def embedding(self) -> Tap:
        """What the loss takes: the last layer, pooled as the network pools it where it is a map."""
        last = list(self.net.layers)[-1]
        pool = self.recipe.net.pool or "max"
        (tap,) = resolve_taps([last], self.net, pools=[pool], image_size=self.recipe.data.image_size)
        return tap

    def _splits(self) -> list[str]:
        known = [name for name in self.dataset.splits if name not in self._galleries]
        for name in self.request.splits or ():
            if name not in known:
                raise UnknownNameError("split", name, known)
        return [name for name in known if name in (self.request.splits or known)]

    @cached_property
    def _galleries(self) -> set[str]:
        return {gallery for query, gallery in self.dataset.search_in.items() if gallery != query}

    @cached_property
    def stored_splits(self) -> list[str]:
        """The splits whose features are needed: those asked for and the galleries they are searched in."""
        needed = [*self.splits, *(self.dataset.search_in.get(name, name) for name in self.splits)]
        return list(dict.fromkeys(needed))

    def _require_same_images(self, splits: Sequence[str]) -> None:
        for name in splits:
            recorded = self.record["manifests"].get(name)
            if recorded not in (None, self._manifest_sha256(name)):
                raise DataError(
                    f"the {name} images are not those the run began with",
                    file=self.recipe.data.root or self.recipe.data.name,
                    fix="Restore them, or train a new run",
                )

    def _manifest_sha256(self, split: str) -> str:
        return manifest_sha256(self.dataset.splits[split], self.dataset.class_names)

    def epochs(self) -> list[int]:
        """The epochs asked for.

        Raises:
            RecipeError: one that has no checkpoint, or `best` without validation classes.
        """
        done, text = self.record["epochs_done"], self.request.epochs
        if text == "all":
            return list(range(done + 1))
        if text == "last":
            return [done]
        if text == "best":
            return [self._best_epoch()]
        numbers = [part.strip() for part in text.split(",")]
        if not all(number.isdecimal() for number in numbers):
            raise RecipeError(f"--epochs {text}: neither all, last, best nor numbers like 0,5")
        asked = sorted({int(number) for number in numbers})
        if asked[-1] > done:
            raise RecipeError(f"--epochs {text}: {self.run.name} has epochs 0 to {done}")
        return asked

    def _best_epoch(self) -> int:
        if "validation" not in self.dataset.splits:
            raise RecipeError("--epochs best needs validation classes, which this run has none of", fix="Use last")
        embedding = self.embedding.layer
        rows = [
            score
            for score in (scores_of(self.run) if self.run.scores.exists() else [])
            if (score.split, score.layer, score.metric) == ("validation", embedding, "R@1") and score.value is not None
        ]
        if len({score.epoch for score in rows}) <= self.record["epochs_done"]:
            raise RecipeError(
                f"--epochs best needs {embedding} measured on the validation split at every epoch",
                fix=f"First layerprobe probe {self.run.name} --layers {embedding} --splits validation",
            )
        return max(rows, key=lambda score: (score.value or 0.0, -score.epoch)).epoch

    def work(self, epochs: Sequence[int]) -> list[Work]:
        """For each epoch and split the taps whose features are not stored, or no longer valid."""
        found = []
        for epoch in epochs:
            for split in self.stored_splits:
                stored = store.stored_layers(self.run.features(epoch, split), self.key(epoch, split))
                taps = tuple(tap for tap in self.taps if tap.key not in stored)
                found.append(Work(epoch, split, taps, frozenset(stored), len(self.dataset.splits[split])))
        return found

    def key(self, epoch: int, split: str) -> store.FeatureKey:
        """What the features of an epoch and split must be made from."""
        return store.FeatureKey(
            run=self.run.name,
            epoch=epoch,
            split=split,
            weights_sha256=self._weights_sha256(epoch),
            transform=parts.transform_text(self.recipe),
            manifest_sha256=self._manifest_sha256(split),
        )

    def _weights_sha256(self, epoch: int) -> str:
        if epoch not in self._digests:
            path = self.run.checkpoint(epoch)
            if not path.exists():
                raise DataError("no such checkpoint", file=path, fix="Train the run again with --fresh")
            self._digests[epoch] = sha256(path)
        return self._digests[epoch]

    def measures(self) -> Measures:
        """What to measure: the K that every gallery is large enough for, a recipe's others dropped, and the metrics.

        Raises:
            RecipeError: a K that was asked for on the command line is too large.
            UnknownNameError: no such metric; with the near miss.
        """
        named = self.request.metrics if self.request.metrics is not None else self.recipe.probe.metrics
        for name in named:
            if name.startswith("R@") and not re.fullmatch("R@[1-9][0-9]*", name):
                raise RecipeError(f"metric {name}: K must be a whole number above 0, as in R@10")
        recalls = [int(name[2:]) for name in named if name.startswith("R@")]
        if "accuracy" in named:
            self._require_classifier()
        metrics = parts.build_metrics(self.recipe, [name for name in named if name not in map(recall_name, recalls)])
        searched = [self.dataset.search_in.get(name, name) for name in self.splits]
        sizes = {name: len(self.dataset.splits[name]) for name in searched}
        smallest = min(sizes, key=sizes.__getitem__)
        ks = list(dict.fromkeys((*(self.request.ks or self.recipe.probe.k), *recalls)))
        large = [k for k in ks if k >= sizes[smallest]]
        if large and (self.request.ks or len(large) == len(ks) or set(large) & set(recalls)):
            raise RecipeError(f"K = {large[0]} is not below the {sizes[smallest]} images of the {smallest} split")
        self.dropped = set(large)
        return Measures([k for k in ks if k not in self.dropped], metrics, self.request.memory)

    def _require_classifier(self) -> None:
        layer, loss = self.embedding.key, self.recipe.loss.name
        if self.recipe.train.meta_classes is not None:
            raise RecipeError("accuracy: the classifier of meta-classes tells no classes apart", fix="Leave it out")
        if not hasattr(load("loss", LOSSES, loss), "logits"):
            raise RecipeError(f"accuracy: {loss} has no classifier", fix="Leave it out")
        if layer not in [tap.key for tap in self.taps]:
            raise RecipeError(f"accuracy is measured on {layer}", fix=f"Add {self.embedding.layer} to --layers")

    def measure(self, epochs: Sequence[int], listener: Listener, stop: Stop) -> list[Score]:
        """Extract what is missing, score everything asked for, and write scores.csv after each epoch.

        Raises:
            InterruptedRun: a signal came; whole epochs are kept.
        """
        self.record = self.run.read()  # training has gone on since
        measures = self.measures()
        if self.request.export_index:
            import_faiss()  # told before the work, not after it
        known = scores_of(self.run) if self.run.scores.exists() else []
        if self.dropped:
            listener.say(f"K = {', '.join(map(str, sorted(self.dropped)))} left out: not so many items to search")
        work = [item for item in self.work(epochs) if item.taps]
        for item in work:
            path = self.run.features(item.epoch, item.split)
            if note := store.stale_note(path, self.key(item.epoch, item.split)):
                listener.say(f"{path.name} is computed again: {note}")
        images = sum(item.images for item in work)
        scorer = Scorer(self.run, self.dataset, self.key, measures, self.device, self.classifier)
        found = []
        with contextlib.ExitStack() as stack:
            extracting = stack.enter_context(listener.task(f"probing {self.run.name}", images, "images"))
            scoring = stack.enter_context(
                listener.task("scoring", len(epochs) * len(self.splits) * len(self.taps), "layers")
            )
            for epoch in epochs:
                for item in (item for item in work if item.epoch == epoch):
                    self._extract(item, self._told(extracting, stop))
                scores = list(self._scores(scorer, epoch, scoring, stop))
                found += scores
                known = merge_scores(known, scores)
                write_scores(self.run.scores, known)
        if self.request.export_index:
            self._export(max(epochs), listener, stop)
        return found

    def _export(self, epoch: int, listener: Listener, stop: Stop) -> None:
        """Write a faiss index of every layer and split of an epoch."""
        for split in self.stored_splits:
            for tap in stop.between(self.taps, _STOPPED):
                facts = {"run": self.run.name, "epoch": epoch, "split": split, "layer": tap.layer, "pool": tap.pool}
                facts["weights_sha256"] = self._weights_sha256(epoch)
                values = store.read_features(self.run.features(epoch, split), tap.key)
                path = self.run.index(epoch, split, tap.key)
                try:
                    export_index(path, values, self.dataset.splits[split].ids, facts=facts)
                except NumericError as error:
                    for old in (path, path.with_name(f"{path.name}.json")):
                        old.unlink(missing_ok=True)
                    listener.say(f"no index of {tap.key} on {split}: {error.message}")
                else:
                    listener.say(f"index {path}, its ids in {path.name}.json")

    @staticmethod
    def _told(task: Task, stop: Stop) -> Callable[[Iterable[Tensor]], Iterator[Tensor]]:
        def tell(batches: Iterable[Tensor]) -> Iterator[Tensor]:
            for batch in stop.between(batches, _STOPPED):
                yield batch
                task.advance(len(batch))

        return tell

    def _extract(self, work: Work, tell: Callable[[Iterable[Tensor]], Iterator[Tensor]]) -> None:
        self._load(work.epoch)
        images = self.dataset.splits[work.split]
        workers = parts.choose_workers(self.request.workers, self.device)
        pixels = tell(plain_batches(images, batch_size=BATCH_SIZE, workers=workers))
        batches = extract(self.net.module, work.taps, pixels, parts.build_normalise(self.recipe), device=self.device)
        columns = store.Columns(
            dims={tap.key: tap.dim for tap in work.taps},
            device=str(self.device),
            batch_size=BATCH_SIZE,
            keep=work.stored,
        )
        path, key = self.run.features(work.epoch, work.split), self.key(work.epoch, work.split)
        store.write_features(path, key, self._rows(work.split), columns, batches)

    def _rows(self, split: str) -> store.Rows:
        images = self.dataset.splits[split]
        return store.Rows(images.labels, images.ids, self.dataset.class_names, self.dataset.class_ids)

    def _load(self, epoch: int) -> None:
        if self._loaded != epoch:
            path = self.run.checkpoint(epoch)
            load_weights(path, {"net": self.net.module}, expected=[self.record["hashes"].get(path.name, "")])
            self._loaded = epoch

    def classifier(self, epoch: int, layer: str) -> Classifier | None:
        """The loss's classifier of an epoch; None for a layer that it does not multiply, and of losses without one."""
        if layer != self.embedding.key or self.recipe.train.meta_classes is not None:
            return None
        classes = np.unique(self.dataset.splits["train"].labels)
        loss = parts.build_loss(self.recipe, embedding_dim=self.net.embedding_dim, num_classes=len(classes))
        logits = getattr(loss, "logits", None)
        if logits is None:
            return None
        path = self.run.checkpoint(epoch)
        load_weights(path, {"loss": loss}, expected=[self.record["hashes"].get(path.name, "")])
        loss.to(self.device).eval()
        return Classifier(torch.no_grad()(logits), classes)

    def _scores(self, scorer: Scorer, epoch: int, task: Task, stop: Stop) -> Iterator[Score]:
        for split in self.splits:
            rows = {tap.key: self._row(epoch, split, tap) for tap in self.taps}
            for scores in stop.between(scorer.scores(epoch, split, rows), _STOPPED):
                task.advance(1)
                yield from scores

    def _row(self, epoch: int, split: str, tap: Tap) -> Score:
        """What all scores of a layer share."""
        return Score(
            run=self.run.name,
            experiment=self.record["experiment"],
            seed=self.record["seed"],
            epoch=epoch,
            split=split,
            layer=tap.layer,
            pool=tap.pool,
            reduction="none",
            similarity="",
            metric="",
            value=None,
            low=None,
            high=None,
            n=0,
            note="; ".join(self.dataset.notes),
        )

    def features(self, epoch: int, split: str, tap: Tap) -> Features:
        """The stored features of a layer."""
        images = self.dataset.splits[split]
        values = store.read_features(self.run.features(epoch, split), tap.key)
        return Features(values, images.labels, images.ids)


def scores_of(run: Run) -> list[Score]:
    """The scores of a run under its present name, which `--fresh` may have changed.

    Raises:
        DataError: there are none, or they cannot be read.
    """
    return [replace(score, run=run.name) for score in read_scores(run.scores)]


def probe(run: Run, request: ProbeRequest, listener: Listener, kind: type[Prober] = Prober) -> list[Score]:
    """Measure a run as asked and return the scores asked for; scores.csv keeps all of them.

    Args:
        run: it exists.
        request: what to measure.
        listener: hears of progress.
        kind: who measures a run of this kind.

    Raises:
        LayerprobeError: what a user can mend.
    """
    with locked(run):
        remove_leftovers(*run.written_folders)
        # Decoding catches the signals itself.
        prober = kind(run, request, listener=listener)
        with stoppable() as stop:
            epochs = prober.epochs()
            run.write(prober.record)
            return prober.measure(epochs, listener, stop)


def estimate_probe(run: Run, request: ProbeRequest) -> Estimate:
    """Time one batch of the extraction and extend it to all that is missing."""
    prober = Prober(run, request)
    prober.measures()
    work = [item for item in prober.work(prober.epochs()) if item.taps]
    if not work:
        return Estimate(0.0, peak_memory(prober.device), 0, free_bytes(run.folder))
    batch = next(plain_batches(prober.dataset.splits[work[0].split], batch_size=BATCH_SIZE, workers=0))
    normalise = parts.build_normalise(prober.recipe)
    for _ in range(2):  # the first also sets things up
        started = time.perf_counter()
        list(extract(prober.net.module, work[0].taps, [batch], normalise, device=prober.device))
    seconds = (time.perf_counter() - started) / len(batch) * sum(item.images for item in work)
    disk = sum(feature_disk((tap.dim for tap in item.taps), item.images) for item in work)
    return Estimate(seconds, peak_memory(prober.device), disk, free_bytes(run.folder))
