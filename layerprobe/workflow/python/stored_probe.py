"""A probe from Python as a run: in a folder, which every command reads like any other, or in memory."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from layerprobe import store
from layerprobe.system.wording import first_named
from layerprobe.values.layers import SHARD_ROWS, VECTOR_SIMILARITIES, RankedLayer
from layerprobe.values.records import RecordedNetwork, RunRecord
from layerprobe.values.scores import Score, ScoreTable, read_scores
from layerprobe.workflow.probe.identical_images import identical_images
from layerprobe.workflow.probe.scoring import Searches
from layerprobe.workflow.python.loaders import EPOCH, SEED, ProbeInputs
from layerprobe.workflow.python.memory_features import TRANSFORM, MemoryFeatures, SearchResults
from layerprobe.workflow.run.memory_run import MemoryRun, MemoryTables
from layerprobe.workflow.run.references import draws_of
from layerprobe.workflow.run.run_network import made_with
from layerprobe.workflow.run.runs import Run, locked


def read_layer_order(run: Run) -> list[str]:
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
        record = probe_record(self.features.inputs, self.device, layer_order)
        return replace(record, network=self.network, notes=self.notes)

    @cached_property
    def run(self) -> MemoryRun:
        """The run in memory: of these results alone, whatever else the run that keeps them has."""
        return self._make_run(self._record())

    def run_to_report(self, *, seen: bool) -> Run:
        """The run that keeps it, else the one in memory.

        Args:
            seen: whether the model may have been trained on the train split; a kept run counts as if it was.
        """
        if self.run.in_folder is not None and seen:
            return self.run.in_folder
        record = self._record()
        return self._make_run(record if seen else replace(record, recipe={**record.recipe, "data": {"seen": False}}))

    def _make_run(self, record: RunRecord) -> MemoryRun:
        features, dataset = self.features, self.features.dataset
        tables, rank_files = {}, {}
        for split, split_features in features.splits.items():
            rows, facts = _rows(features, split), store.key_attributes(features.key(EPOCH, split))
            columns = {layer: (values.shape[1], "float32") for layer, values in split_features.features.items()}
            head = store.FeatureHead(
                (rows.labels.astype(np.int32), tuple(rows.ids)),
                {name: str(value) for name, value in facts.items()},
                columns,
                tuple(rows.class_names),
            )
            tables[split] = MemoryTables(head, split_features.features)
        for split, entries in self.results.entries.items():
            identical = identical_images(dataset, split)
            rank_files[split] = store.rank_file_of(_rows(features, split), entries, identical=identical)
        stored_run = features.run if self.cached and features.run.exists() else None
        return MemoryRun(features.run.folder, record, self.results.scores, tables, rank_files, stored_run)

    def _record(self) -> RunRecord:
        """The record of a run of nothing else: its similarity is that of the results."""
        record = self.record(self.layer_order)
        similarities = [
            score.ranked.similarity for score in self.results.scores if score.ranked.similarity in VECTOR_SIMILARITIES
        ]
        sections = {"probe": {"similarity": similarities[0]}} if similarities else {}
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
            searches.write(epoch, split, _merge_entries(searches.read(epoch, split), entries))
        table.add(results.scores)
        table.write(run.scores_file)
    _warn_of_lost(run, before, table.scores())


def _warn_of_lost(run: Run, before: Sequence[Score], now: Sequence[Score]) -> None:
    measured = {_score_key(score) for score in now}
    lost = [score for score in before if _score_key(score) not in measured]
    if lost:
        layers = first_named(list(dict.fromkeys(str(score.ranked.layer) for score in lost)))
        subject = "1 score leaves" if len(lost) == 1 else f"{len(lost)} scores leave"
        warnings.warn(
            f"{subject} {run.name}, as features or ranks hold no longer: {layers}. They belong to the order of the"
            " images: give these in the same order each time",
            stacklevel=4,
        )


def _score_key(score: Score) -> tuple[object, ...]:
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
    rows = _rows(features, split)
    ranges = store.row_ranges(len(rows.ids), SHARD_ROWS)
    # Of what is stored of these layers nothing is used: ranks are of the features in memory.
    plan = store.plan_parts(path, key, values.features, ranges, intact=lambda *_: ())
    plan.remove_stale()
    for part in plan.parts:
        rows_of_part = slice(part.rows.start, part.rows.stop)
        batch = {layer: x[rows_of_part] for layer, x in values.features.items() if layer in part.layers}
        columns = store.Columns({layer: x.shape[1] for layer, x in batch.items()}, device, values.batch_size)
        store.write_features(part.path, key, rows.part(part.rows), columns, [batch])


def _merge_entries(
    stored: Mapping[RankedLayer, store.RankEntry], new: Mapping[RankedLayer, store.RankEntry]
) -> dict[RankedLayer, store.RankEntry]:
    """Replace stored ranks by new ones; the values of queries of both are kept."""
    entries = dict(stored)
    for ranked, entry in new.items():
        values = stored[ranked].values if ranked in stored else {}
        entries[ranked] = replace(entry, values={**values, **entry.values})
    return entries
