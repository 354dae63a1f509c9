"""A probe from Python as a run: in a folder, which every command reads like any other, or in memory."""

from __future__ import annotations

import contextlib
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.system.errors import UnknownNameError
from layerprobe.system.wording import first_named
from layerprobe.values.keys import VECTOR_SIMILARITIES, RankedLayer
from layerprobe.values.records import RecordedNetwork, RunRecord
from layerprobe.values.scores import Score, ScoreTable, read_scores
from layerprobe.workflow.probe.identical_images import identical_images
from layerprobe.workflow.probe.searches import Searches
from layerprobe.workflow.python.layer_search import SearchResults
from layerprobe.workflow.python.memory_features import TRANSFORM, MemoryFeatures
from layerprobe.workflow.python.probe_inputs import EPOCH, SEED, ProbeInputs
from layerprobe.workflow.run.new_record import made_with
from layerprobe.workflow.run.reduction_draws import draws_of
from layerprobe.workflow.run.references import RankedSplit
from layerprobe.workflow.run.runs import Run, locked


def known_layers(run: Run) -> list[str]:
    """The layers that were measured of the same model and images before, in execution order."""
    return list(run.read().layer_order) if run.exists() else []


@dataclass(frozen=True, eq=False)
class MemoryProbe:
    """What a probe measured, as a run that nobody has written.

    Args:
        layer_order: the measured layers in execution order.
        network: None where the model's output is no layer.
        notes: on the model.
        cached: whether it was also stored, in the run of its features.
    """

    features: MemoryFeatures
    results: SearchResults
    layer_order: tuple[str, ...]
    device: str
    network: RecordedNetwork | None
    notes: tuple[str, ...]
    cached: bool

    def record(self, layer_order: Sequence[str]) -> RunRecord:
        """The record of its run."""
        made = probe_record(self.features.inputs, self.device, layer_order)
        return replace(made, network=self.network, notes=self.notes)

    def identical(self, split: str) -> NDArray[np.bool_] | None:
        """(Q,) whether each image of a split has an identical one in what it searches; None where it is not known."""
        return identical_images(self.features.dataset, split)

    def ranked_split(self, split: str) -> RankedSplit:
        """The ranks of a split, as `open_ranked_split` reads them."""
        if split not in self.results.entries:
            raise UnknownNameError("split", split, self.results.entries)
        entries, images = self.results.entries[split], self.features.dataset.splits[split]
        stored = store.StoredRanks(
            labels=images.labels.astype(np.int32),
            ids=images.ids,
            search_sha256=self.features.search_sha256(split),
            transform=TRANSFORM,
            ranks={ranked: entry.ranks for ranked, entry in entries.items() if entry.ranks is not None},
            values={ranked: entry.values for ranked, entry in entries.items()},
            invalid={ranked: entry.invalid for ranked, entry in entries.items() if entry.ranks is None},
        )
        dims = {layer: values.shape[1] for layer, values in self.features.splits[split].features.items()}
        return RankedSplit(self.features.run, self._own_record(), EPOCH, split, stored, dims)

    @contextlib.contextmanager
    def as_run(self, *, seen: bool = True) -> Iterator[Run]:
        """The run that keeps it, or one in a folder that lasts as long as the block.

        Args:
            seen: whether the model may have been trained on the train split; a kept run counts as if it was.
        """
        if self.cached and self.features.run.exists() and seen:
            yield self.features.run
            return
        with tempfile.TemporaryDirectory(prefix="layerprobe-") as folder:
            features = replace(self.features, run=Run(Path(folder, self.features.run.name)))
            experiment = features.inputs.experiment
            searches = Searches(features, experiment, SEED, lambda: torch.device(self.device))
            record = self._own_record()
            record = record if seen else replace(record, recipe={**record.recipe, "data": {"seen": False}})
            store_probe(features, searches, self.results, self.layer_order, record=record)
            yield features.run

    def _own_record(self) -> RunRecord:
        """The record of a run of nothing else: its similarity is that of the results."""
        record = self.record(self.layer_order)
        found = [
            score.ranked.similarity for score in self.results.scores if score.ranked.similarity in VECTOR_SIMILARITIES
        ]
        sections = {"probe": {"similarity": found[0]}} if found else {}
        return replace(record, recipe={**record.recipe, **sections})


def store_probe(  # noqa: PLR0913 - what is stored, and of which epoch
    features: MemoryFeatures,
    searches: Searches,
    results: SearchResults,
    layer_order: Sequence[str],
    *,
    epoch: int = EPOCH,
    record: RunRecord | None = None,
) -> None:
    """Add the results of an epoch to the run of their model and images.

    Args:
        record: None for that of a probe.
    """
    run = features.run
    with locked(run):
        run.remove_leftovers()
        run.write(record or probe_record(features.inputs, str(searches.device()), layer_order))
        before = read_scores(run.scores_file) if run.scores_file.exists() else []
        table = ScoreTable(before, layer_order=layer_order, stored=before)
        for split in results.entries:
            stale = searches.stale(epoch, split)
            scored = {score.ranked for score in before if score.split == split}
            table.drop(epoch, split, {x for x in scored if stale.intersection(draws_of(x))})
        table.write(run.scores_file)  # first, so that a kill leaves no score whose features are gone
        for split in features.splits:
            _write_features(features, epoch, split, str(searches.device()))
        for split, entries in results.entries.items():
            known = searches.read(epoch, split)
            identical = identical_images(features.dataset, split)
            file, rows = run.rank_file(epoch, split), _rows(features, split)
            store.write_ranks(file, rows, _merged(known, entries), identical=identical)
        table.add(results.scores)
        table.write(run.scores_file)
    _warn_of_lost(run, before, table.scores())


def _warn_of_lost(run: Run, before: Sequence[Score], now: Sequence[Score]) -> None:
    measured = {_measurement(score) for score in now}
    lost = [score for score in before if _measurement(score) not in measured]
    if lost:
        layers = first_named(list(dict.fromkeys(str(score.ranked.layer) for score in lost)))
        what = "1 score leaves" if len(lost) == 1 else f"{len(lost)} scores leave"
        warnings.warn(
            f"{what} {run.name}, as features or ranks hold no longer: {layers}. They belong to the order of the"
            " images: give these in the same order each time",
            stacklevel=4,
        )


def _measurement(score: Score) -> tuple[object, ...]:
    return score.split, score.ranked, score.metric


def probe_record(inputs: ProbeInputs, device: str, layer_order: Sequence[str]) -> RunRecord:
    """The record of a model measured from Python."""
    contents = {split: inputs.contents(split) for split in inputs.images}
    return RunRecord(
        state="finished",
        command="layerprobe.probe",
        from_python=True,
        untrained=False,
        recipe_name=inputs.model,
        recipe={"net": {"name": inputs.model}, "train": {"epochs": 0}},
        experiment=inputs.experiment,
        seed=SEED,
        **made_with(device),
        transform=TRANSFORM,
        new_parameters=(),
        manifests=contents,
        contents=contents,
        epochs_done=0,
        hashes={},
        layer_order=tuple(layer_order),
    )


def _rows(features: MemoryFeatures, split: str) -> store.Rows:
    dataset = features.dataset
    return store.Rows(dataset.splits[split].labels, dataset.splits[split].ids, dataset.class_names)


def _write_features(features: MemoryFeatures, epoch: int, split: str, device: str) -> None:
    path, key, values = features.run.feature_file(epoch, split), features.key(epoch, split), features.splits[split]
    columns = store.Columns(
        dims={layer: rows.shape[1] for layer, rows in values.features.items()},
        device=device,
        batch_size=values.batch_size,
        keep=frozenset(store.stored_layers(path, key) - values.features.keys()),
    )
    store.write_features(path, key, _rows(features, split), columns, [values.features])


def _merged(
    known: Mapping[RankedLayer, store.RankEntry], new: Mapping[RankedLayer, store.RankEntry]
) -> dict[RankedLayer, store.RankEntry]:
    """Replace stored ranks by new ones; the values of queries of both are kept."""
    entries = dict(known)
    for ranked, entry in new.items():
        stored = known[ranked].values if ranked in known else {}
        entries[ranked] = replace(entry, values={**stored, **entry.values})
    return entries
