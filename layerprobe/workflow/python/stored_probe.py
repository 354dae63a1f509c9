"""A probe from Python as a run's folder, which `runs`, `plot` and `open_run` read like any other."""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe import store
from layerprobe.data.image_files import first_named
from layerprobe.measure.analysis import search_sha256
from layerprobe.ranking.ranks import ENGINE
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.reductions.chain import parse_chain
from layerprobe.values.keys import RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import SPLITS, Score, ScoreTable, read_scores
from layerprobe.workflow.probe.reducing import FITTED_ON, fit_text
from layerprobe.workflow.python.layer_search import EPOCH, SEED, Found, LayerSearch, SplitFeatures, gallery_of
from layerprobe.workflow.run.new_record import made_with
from layerprobe.workflow.run.reduction_draws import draws_of
from layerprobe.workflow.run.runs import Run, locked, named_run

_TRANSFORM = "as the loader gave it"


@dataclass(frozen=True)
class Origin:
    """What a probe measured: a model, and the images of each split.

    Args:
        images: split -> hash of each image and its class, in the order in which they came.
    """

    model: str
    weights_sha256: str
    images: Mapping[str, tuple[str, ...]]

    @property
    def identity(self) -> str:
        """Hash of all of it, whatever the order of the images."""
        parts = (f"{split} {self.contents(split)}" for split in self.images)
        return hashlib.sha256("\0".join([self.model, self.weights_sha256, *parts]).encode()).hexdigest()

    def contents(self, split: str) -> str:
        """Hash of a split's images, whatever their order."""
        return hashlib.sha256("".join(sorted(self.images[split])).encode()).hexdigest()

    def in_order(self, split: str) -> str:
        """Hash of a split's images in the order in which they came, which is that of the features."""
        return hashlib.sha256("".join(self.images[split]).encode()).hexdigest()

    @property
    def run_name(self) -> str:
        """The name of the run, `ResNet-1a2b3c`."""
        name = re.sub("[^A-Za-z0-9._-]+", "-", self.model).lstrip("._-") or "model"
        return f"{name}-{self.identity[:6]}"

    @property
    def experiment(self) -> str:
        """As in scores."""
        return self.identity[:12]


def image_digests(images: Tensor, labels: NDArray[np.int64]) -> list[str]:
    """A hash of each image and its class."""
    rows = images.detach().cpu().contiguous().view(torch.uint8).flatten(1).numpy()
    return [
        f"{hashlib.blake2b(row.data, digest_size=16).hexdigest()} {label}\n"
        for row, label in zip(rows, labels.tolist(), strict=True)
    ]


def weights_sha256(module: nn.Module) -> str:
    """Hash of a module's parts as it prints them, and of its parameters and buffers.

    The parts belong to it, as an activation or a stride changes features and has no parameter. What only the code of a
    `forward` says is not in it.
    """
    # A part may print a function with its place in memory.
    digest = hashlib.sha256(re.sub(r" at 0x[0-9a-fA-F]+", "", repr(module)).encode())
    for name, value in module.state_dict().items():
        if isinstance(value, Tensor):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}\0".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def known_layers(cache: Path, origin: Origin) -> list[str]:
    """The layers that were measured of the same model and images before, in execution order."""
    run = named_run(cache, origin.run_name)
    return list(run.read().layer_order) if run.exists() else []


def store_probe(cache: Path, origin: Origin, search: LayerSearch, found: Found, layer_order: Sequence[str]) -> Run:
    """Write what a probe found into the run of its model and images, beside what that has."""
    run = named_run(cache, origin.run_name)
    with locked(run):
        run.remove_leftovers()
        run.write(_record(origin, str(search.device), layer_order))
        before = read_scores(run.scores_file) if run.scores_file.exists() else []
        table = ScoreTable(before, layer_order=layer_order, stored=before)
        searched = {name: _rank_key(run, name, origin, search) for name in search.splits if name in SPLITS}
        for name, key_of in searched.items():
            stale = store.stale_ranks(run.rank_file(EPOCH, name), key_of)
            scored = {score.ranked_layer for score in before if score.split == name}
            table.drop(EPOCH, name, {x for x in scored if stale.intersection(draws_of(x))})
        table.write(run.scores_file)  # first, so that a kill leaves no score whose features are gone
        for split in search.splits.values():
            _write_features(run, split, origin, search)
        for name, key_of in searched.items():
            _write_ranks(run, name, key_of, search, found)
        table.add(found.scores)
        table.write(run.scores_file)
    _warn_of_lost(run, before, table.scores())
    return run


def _warn_of_lost(run: Run, before: Sequence[Score], now: Sequence[Score]) -> None:
    measured = {_measurement(score) for score in now}
    lost = [score for score in before if _measurement(score) not in measured]
    if lost:
        layers = first_named(list(dict.fromkeys(str(score.layer_key) for score in lost)))
        what = "1 score leaves" if len(lost) == 1 else f"{len(lost)} scores leave"
        warnings.warn(
            f"{what} {run.name}, as features or ranks hold no longer: {layers}. They belong to the order of the"
            " images: give these in the same order each time",
            stacklevel=4,
        )


def _measurement(score: Score) -> tuple[object, ...]:
    return score.split, score.ranked_layer, score.metric


def _record(origin: Origin, device: str, layer_order: Sequence[str]) -> RunRecord:
    contents = {split: origin.contents(split) for split in origin.images}
    return RunRecord(
        state="finished",
        command="layerprobe.probe",
        from_python=True,
        untrained=False,
        recipe_name=origin.model,
        recipe={"net": {"name": origin.model}, "train": {"epochs": 0}},
        experiment=origin.experiment,
        seed=SEED,
        **made_with(device),
        transform=_TRANSFORM,
        new_parameters=(),
        manifests=contents,
        contents=contents,
        epochs_done=0,
        hashes={},
        layer_order=tuple(layer_order),
    )


def _key(run: Run, split: str, origin: Origin) -> store.FeatureKey:
    return store.FeatureKey(run.name, EPOCH, split, origin.weights_sha256, _TRANSFORM, origin.in_order(split))


def _rows(split: SplitFeatures, search: LayerSearch) -> store.Rows:
    """The images of a split; classes are numbered from 0, and their names are the loader's labels."""
    classes = np.unique(np.concatenate([each.labels for each in search.splits.values()]))
    return store.Rows(np.searchsorted(classes, split.labels), split.ids, list(map(str, classes.tolist())))


def _write_features(run: Run, split: SplitFeatures, origin: Origin, search: LayerSearch) -> None:
    path, key = run.feature_file(EPOCH, split.name), _key(run, split.name, origin)
    columns = store.Columns(
        dims={layer: values.shape[1] for layer, values in split.features.items()},
        device=str(search.device),
        batch_size=split.batch_size,
        keep=frozenset(store.stored_layers(path, key) - split.features.keys()),
    )
    store.write_features(path, key, _rows(split, search), columns, [split.features])


def _rank_key(run: Run, name: str, origin: Origin, search: LayerSearch) -> Callable[[RankedLayer], store.RankKey]:
    """What the ranks of a split's layers are made from."""
    gallery, queries = gallery_of(name, search.splits), search.splits[name]
    shared = store.RankKey(
        queries=_key(run, name, origin),
        gallery=_key(run, gallery, origin) if gallery else None,
        search_sha256=search_sha256(queries, search.splits[gallery] if gallery else None),
        tie_window=TIE_WINDOW,
        engine=ENGINE,
    )

    def key_of(ranked: RankedLayer) -> store.RankKey:
        chain = parse_chain(ranked.reduction)
        fitted_on = (gallery or name) if chain.on_gallery else FITTED_ON
        return replace(shared, reduction=fit_text(chain, lambda: _key(run, fitted_on, origin), SEED))

    return key_of


def _write_ranks(
    run: Run, name: str, key_of: Callable[[RankedLayer], store.RankKey], search: LayerSearch, found: Found
) -> None:
    """Store the ranks of a split beside those that hold."""
    entries = store.read_ranks(run.rank_file(EPOCH, name), key_of)
    new = {
        place: store.RankEntry(key_of(place[1]), ranks, values=found.values[place])
        for place, ranks in found.ranks.items()
    }
    new |= {place: store.RankEntry(key_of(place[1]), None, reason) for place, reason in found.reasons.items()}
    for (split, ranked), entry in new.items():
        if split == name:
            known = entries[ranked].values if ranked in entries else {}
            entries[ranked] = replace(entry, values={**known, **entry.values})
    store.write_ranks(run.rank_file(EPOCH, name), _rows(search.splits[name], search), entries)
