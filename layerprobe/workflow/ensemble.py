"""Ensembles (DREML): members that are ordinary runs, and a run that holds their embeddings side by side."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe import store
from layerprobe.data.splits import Dataset
from layerprobe.errors import DataError, RecipeError
from layerprobe.progress import Listener
from layerprobe.runs import Run, command_line, find_run, locked, named_run, set_aside
from layerprobe.scores import Score
from layerprobe.store.features import FeatureArray
from layerprobe.workflow import probe as single
from layerprobe.workflow.estimate import Estimate, estimate_training
from layerprobe.workflow.probe import Prober, ProbeRequest, Work
from layerprobe.workflow.train import TrainRequest, build, changed_keys, train

_ROWS = 512


def train_any(request: TrainRequest, listener: Listener) -> Run:
    """Train a run, or the members of an ensemble one after the other: NAME.1, NAME.2 ...

    The same command again goes on with the member that it stopped in.

    Raises:
        RecipeError: `--probe` for an ensemble, or a run of that name that was trained with another recipe.
        LayerprobeError: whatever else a user can mend.
    """
    ensemble = request.recipe.ensemble
    if ensemble is None:
        return train(request, listener)
    if request.probe is not None:
        raise RecipeError("--probe is for a single run", fix="Probe the ensemble when its members are trained")
    run = request.target()
    if request.fresh and run.exists():
        with locked(run):
            listener.say(f"{run.name}: the old run is now {set_aside(run).name}")
    # Whether more epochs go on from those done, the members say.
    if run.exists() and (changes := _but_epochs(changed_keys(run.read(), request.recipe))):
        raise RecipeError(
            f"was trained with another recipe: {', '.join(changes)}",
            file=run.folder,
            fix="Use --run NAME for a new run, or --fresh to move the old one aside",
        )
    members = []
    for number in range(1, ensemble.members + 1):
        listener.say(f"{run.name}: member {number} of {ensemble.members}")
        members.append(train(member_request(request, number), listener))
    with locked(run):
        run.write(_record(request, members))
    return run


def _but_epochs(changes: Sequence[str]) -> list[str]:
    return [change for change in changes if not change.startswith("train.epochs:")]


def member_request(request: TrainRequest, number: int) -> TrainRequest:
    """What trains a member, counted from 1."""
    return replace(request, recipe=request.recipe.member(number), run=f"{request.target().name}.{number}")


def _record(request: TrainRequest, members: Sequence[Run]) -> dict[str, Any]:
    recipe, first = request.recipe, members[0].read()
    shared = ("versions", "device", "threads", "transform", "manifests")
    return {
        "state": "finished",
        "command": command_line(),
        "recipe_name": recipe.name,
        "recipe": recipe.as_dict(),
        "experiment": recipe.identity(with_seed=False)[:12],
        "seed": recipe.train.seed,
        "members": [member.name for member in members],
        "epochs_done": min(member.read()["epochs_done"] for member in members),
        "hashes": {},
        "new_parameters": [],
        **{key: first[key] for key in shared},
    }


class EnsembleProber(Prober):
    """Measures the members' embeddings, each L2-normalised, side by side.

    Raises:
        RecipeError: another layer than the embedding is asked for.
        DataError: a member is not there, or has other images.
    """

    def __init__(
        self, run: Run, request: ProbeRequest, dataset: Dataset | None = None, listener: Listener | None = None
    ) -> None:
        super().__init__(run, replace(request, layers=None, pools=None), dataset, listener)
        embedding = self.embedding
        if any(name not in ("*", embedding.layer) for name in request.layers or ()):
            raise RecipeError(
                f"an ensemble has its members' embeddings alone: {embedding.layer}",
                fix=f"Probe a member for other layers: layerprobe probe {run.name}.1",
            )
        wanted = replace(request, layers=(embedding.layer,), pools=(embedding.pool,), metrics=(), export_index=False)
        self.members = [self._member(name, wanted) for name in self.record["members"]]
        self.taps = [replace(embedding, dim=embedding.dim * len(self.members))]

    def _member(self, name: str, request: ProbeRequest) -> Prober:
        if not named_run(self.run.folder.parent, name).exists():
            raise DataError("no such run", file=self.run.folder.with_name(name), fix="Train the ensemble again")
        return Prober(find_run(self.run.folder.parent, name), request, self.dataset)

    def _require_same_images(self, splits: Sequence[str]) -> None:
        # Each member has drawn a share of the training images of its own.
        all_trained = self.recipe.data.share == 1
        super()._require_same_images([name for name in splits if name != "train" or all_trained])

    def _weights_sha256(self, epoch: int) -> str:
        if epoch not in self._digests:
            digests = [member.key(epoch, "train").weights_sha256 for member in self.members]
            self._digests[epoch] = hashlib.sha256(" ".join(digests).encode()).hexdigest()
        return self._digests[epoch]

    def work(self, epochs: Sequence[int]) -> list[Work]:
        """As of a single run; the members' images count each."""
        return [replace(item, images=item.images * len(self.members)) for item in super().work(epochs)]

    def _extract(self, work: Work, tell: Callable[[Iterable[Tensor]], Iterator[Tensor]]) -> None:
        (tap,) = self.taps
        with ExitStack() as stack:
            for member in self.members:
                stack.enter_context(locked(member.run))
                for item in member.work([work.epoch]):
                    if item.split == work.split and item.taps:
                        member._extract(item, tell)
            parts = [_unit(member, work, member.taps[0].key) for member in self.members]
        rows = torch.cat(parts, dim=1)
        batches: Iterator[Mapping[str, FeatureArray]] = ({tap.key: chunk.numpy()} for chunk in rows.split(_ROWS))
        columns = store.Columns(dims={tap.key: tap.dim}, device=str(self.device), batch_size=_ROWS, keep=frozenset())
        path, key = self.run.features(work.epoch, work.split), self.key(work.epoch, work.split)
        store.write_features(path, key, self._rows(work.split), columns, batches)


def _unit(member: Prober, work: Work, layer: str) -> Tensor:
    """(N, D) a member's embeddings, each of length 1; zero vectors stay."""
    path = member.run.features(work.epoch, work.split)
    # The file's key has the hash of ids and classes: its rows are the images of this split.
    return F.normalize(torch.from_numpy(store.read_features(path, layer)))


def probe_any(run: Run, request: ProbeRequest, listener: Listener) -> list[Score]:
    """Measure a run or an ensemble as asked; see `probe.probe`."""
    return single.probe(run, request, listener, EnsembleProber if "members" in run.read() else Prober)


def estimate_training_of(request: TrainRequest) -> Estimate:
    """As `estimate_training`; of an ensemble from its first member."""
    ensemble = request.recipe.ensemble
    one = request if ensemble is None else member_request(request, 1)
    found = estimate_training(one.target(), build(one).trainer, fresh=request.fresh)
    members = 1 if ensemble is None else ensemble.members
    return replace(found, seconds=found.seconds * members, disk=found.disk * members)


def estimate_probe_of(run: Run, request: ProbeRequest) -> Estimate:
    """As `estimate_probe`.

    Raises:
        RecipeError: the run is an ensemble.
    """
    if "members" in run.read():
        raise RecipeError("--dry-run is for a single run", fix=f"Estimate a member: {run.name}.1")
    return single.estimate_probe(run, request)
