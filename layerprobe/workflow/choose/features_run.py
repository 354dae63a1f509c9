"""A user's features as a run in memory: its layers as candidates, and the layer that a name means."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.measure.choosing_folds import QueryValues
from layerprobe.reductions.chain import parse_chain
from layerprobe.statistics.choice import folds_of
from layerprobe.system.computing import in_threads
from layerprobe.system.errors import RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.layers import NO_REDUCTION, LayerKey, RankedLayer, concatenated_layers, find_layer
from layerprobe.values.records import RecordedNetwork, RunRecord
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.choose.candidates import CandidateKey, CandidateRun, StoredValues, whole_units
from layerprobe.workflow.choose.refits import half_whitened_layers
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.choose.user_features import UserFeatures
from layerprobe.workflow.probe.reducing import FITTED_ON
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.memory_run import EPOCH, MemoryRun, MemoryTables
from layerprobe.workflow.run.references import RankedSplit, parse_reference
from layerprobe.workflow.run.seen import split_to_choose_on

SIMILARITY = "cosine"
_CPU = torch.device("cpu")
_UNKNOWN = "features"  # of a network that is not known
_REPEATED = "ids repeat: an index names the rows by their numbers"


@dataclass(frozen=True, eq=False)
class _RowsOfLayers(Mapping[LayerKey, NDArray[Any]]):
    """Some rows of each layer, taken when they are read, so that no layer lies in memory twice."""

    layers: Mapping[LayerKey, NDArray[Any]]
    rows: NDArray[np.intp]

    def __getitem__(self, layer: LayerKey) -> NDArray[Any]:
        values = self.layers[layer]
        return values if len(self.rows) == len(values) else values[self.rows]

    def __contains__(self, layer: object) -> bool:  # Mapping's takes the rows
        return layer in self.layers

    def __iter__(self) -> Iterator[LayerKey]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)


def rows_by_split(user_features: UserFeatures) -> dict[str, NDArray[np.intp]]:
    """Split -> its rows, ascending; all rows are those of test where there is a single split."""
    rows = {split: user_features.rows_of(split) for split in (FITTED_ON, "validation", "test")}
    rows = {split: split_rows for split, split_rows in rows.items() if len(split_rows)}
    return rows if len(rows) > 1 else {"test": np.arange(len(user_features.labels))}


def run_of_features(user_features: UserFeatures, *, seen: bool, seed: int) -> MemoryRun:
    """The run in memory of features, of which nothing is ranked.

    Args:
        seen: whether the network may have been trained on the train rows.
        seed: of folds and of random reductions.

    Raises:
        RecipeError: all are train rows that may have been seen.
    """
    if seen and user_features.splits is not None and (user_features.splits == FITTED_ON).all():
        fix = "Give test rows of classes that it has not seen; if it has seen none of these, leave the splits out"
        raise RecipeError(
            "all are train rows, on which the network may have been trained", file=user_features.file, fix=fix
        )
    rows, layers = rows_by_split(user_features), tuple(user_features.features)
    ids = (
        user_features.ids
        if user_features.ids is not None and len(set(user_features.ids)) == len(user_features.ids)
        else None
    )
    names = tuple(str(layer.layer) for layer in layers)
    record = RunRecord(
        state="finished",
        recipe_name=_UNKNOWN,
        recipe={"net": {"name": _UNKNOWN}, "train": {"epochs": 0}, "data": {"seen": seen}},
        experiment="",
        seed=int(seed),
        epochs_done=EPOCH,
        hashes={},
        manifests=dict.fromkeys(rows, ""),
        new_parameters=(),
        network=RecordedNetwork(names, layers[-1], {}, None, {}),
        layer_order=names,
        notes=(_REPEATED,) if user_features.ids is not None and ids is None else (),
        untrained=False,
        from_python=True,
    )
    columns = {layer: (values.shape[1], str(values.dtype)) for layer, values in user_features.features.items()}
    tables, rank_files, rules, units = {}, {}, {}, {}
    for split, split_rows in rows.items():
        labels = user_features.labels[split_rows]
        split_ids = tuple(str(row) if ids is None else ids[row] for row in split_rows.tolist())
        head = store.FeatureHead((labels.astype(np.int32), split_ids), {}, columns, user_features.class_names)
        tables[split] = MemoryTables(head, _RowsOfLayers(user_features.features, split_rows))
        rank_files[split] = store.rank_file_of(store.Rows(labels, split_ids), {})
        units[split] = user_features.units[split_rows]
        if user_features.groups is not None:
            rules[split] = SearchRules(groups=user_features.groups[split_rows])
    return MemoryRun(Path(), record, (), tables, rank_files, rules=rules, units=units)


@dataclass(frozen=True, eq=False)
class LayersOfFeatures:
    """The layers of features as the candidates of a choice, raw and half-whitened, with their values.

    Where reductions are fitted on the classes that are chosen on, all candidates are searched again within folds of
    these classes, and a value in the whole gallery is computed only where it is asked for.
    """

    user_features: UserFeatures
    run: MemoryRun
    request: ChooseRequest
    requested: Collection[LayerKey]
    listener: Listener
    notes: tuple[str, ...] = ()

    @cached_property
    def split(self) -> str:
        """The split that is chosen on."""
        return split_to_choose_on(self.run, self.run.record, [EPOCH])

    @cached_property
    def is_folded(self) -> bool:
        """Whether candidates are searched within folds of the classes that are chosen on."""
        return self.split == FITTED_ON or FITTED_ON not in self.run.features

    @cached_property
    def half_whitened(self) -> list[RankedLayer]:
        """The layers half-whitened, without those that it does not suit."""
        fitted_on = self.split if self.is_folded else FITTED_ON
        cluster = self.request.cluster
        return half_whitened_layers(
            self.run, fitted_on, [ranked for _, ranked in self._raw_keys], EPOCH, cluster=cluster
        )

    @cached_property
    def _raw_keys(self) -> list[CandidateKey]:
        last_layer = list(self.user_features.features)[-1]
        layers = [layer for layer in self.user_features.features if layer in self.requested or layer == last_layer]
        return [(EPOCH, RankedLayer(layer, NO_REDUCTION, SIMILARITY)) for layer in layers]

    def candidates(self) -> CandidateRun:
        """The layers as candidates; those that are half-whitened only where they need no fold."""
        keys = [*self._raw_keys, *([] if self.is_folded else [(EPOCH, ranked) for ranked in self.half_whitened])]
        choosing = self._build_values(self.split, keys)
        test = choosing if self.split == "test" else None
        if test is None and "test" in self.run.features:
            test = self._build_values("test", keys)
        baseline = None if test is None else self._raw_keys[-1]
        requested = frozenset(key for key in keys if key[1].layer in self.requested)
        return CandidateRun(self.run, self.run.record, self.split, choosing, test, requested, baseline)

    def _build_values(self, split: str, keys: Sequence[CandidateKey]) -> StoredValues:
        rank_file = self.run.ranks(EPOCH, split)
        ranked_split = RankedSplit(self.run, self.run.record, EPOCH, split, rank_file.stored)
        units = whole_units(self.run, split, *rank_file.rows, self.request.cluster)
        search = StoredSearch(self.run, EPOCH, split, _CPU)
        values = _SearchedValues(keys, lambda key: search.values(key[1], self.request.metric))
        if not self.is_folded:
            values.search_all(self.listener, split)
        identities = {key: self._hash_features(key[1]) for key in self._raw_keys if split == self.split}
        notes = self._score_notes(split)
        item = "row" if self.user_features.contents is None else "image"
        identical = partial(self.find_identical, split)
        return StoredValues(
            ranked_split,
            units,
            values,
            identities,
            dict.fromkeys(keys, notes),
            identical,
            self.notes if split == self.split else (),
            item,
        )

    def _hash_features(self, ranked: RankedLayer) -> bytes:
        values = self.run.features[self.split].read(ranked.layer)
        return hashlib.sha256(np.ascontiguousarray(values).data).digest()

    def _score_notes(self, split: str) -> tuple[str, ...]:
        lone = self.user_features.count_lone(rows_by_split(self.user_features)[split])
        return (
            (*self.user_features.notes, f"{lone:,} lone queries count as misses") if lone else self.user_features.notes
        )

    def find_identical(self, split: str) -> NDArray[np.bool_]:
        """(Q,) whether each row of a split has an identical one in what it searches."""
        rows, folds = rows_by_split(self.user_features)[split], None
        if self.is_folded and split == self.split:
            units = whole_units(self.run, split, *self.run.ranks(EPOCH, split).rows, self.request.cluster)
            folds = folds_of(units, seed=self.run.record.seed)[np.unique(units, return_inverse=True)[1]]
        return self.user_features.find_identical(rows, folds)


class _SearchedValues(Mapping[CandidateKey, QueryValues]):
    """The values of candidates, each searched when it is first read."""

    def __init__(self, keys: Sequence[CandidateKey], search: Callable[[CandidateKey], QueryValues]) -> None:
        self._keys, self._search = dict.fromkeys(keys), search
        self._values: dict[CandidateKey, QueryValues] = {}

    def __getitem__(self, key: CandidateKey) -> QueryValues:
        if key not in self._keys:
            raise KeyError(key)
        if key not in self._values:
            self._values[key] = self._search(key)
        return self._values[key]

    def __contains__(self, key: object) -> bool:  # Mapping's reads the value
        return key in self._keys

    def __iter__(self) -> Iterator[CandidateKey]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)

    def search_all(self, listener: Listener, split: str) -> None:
        """Search all, several at once."""
        with in_threads() as of_each, listener.task(f"ranking {split}", len(self._keys), "layers") as task:
            for key, values in zip(self._keys, of_each(self._search, list(self._keys)), strict=True):
                self._values[key] = values
                task.advance()


def ranked_of_rows(features: UserFeatures, text: str) -> RankedLayer:
    """The layer, or layers side by side, with a reduction that is one map for all images.

    Raises:
        RecipeError: a reduction without such a map.
        UnknownNameError: a layer of another name.
    """
    layers = list(features.features)
    if text in map(str, layers):  # a layer of a file may have a slash in its name
        return RankedLayer(LayerKey(text, "none"), "none", SIMILARITY)
    reference = parse_reference(text, bare="layer")
    chain = parse_chain(reference.reduction)
    name = reference.layer or ""
    joined = concatenated_layers(name, layers, [layer.layer for layer in layers])
    layer = joined[0] if joined else find_layer(name, layers)
    ranked = RankedLayer(layer, chain.text, reference.similarity or chain.similarity or SIMILARITY)
    require_one_map(ranked)
    return ranked


def require_one_map(ranked: RankedLayer) -> None:
    """Check that a layer's reduction is one map for all images, which stored features give again."""
    chain = parse_chain(ranked.reduction)
    reason = (
        "a mean over draws" if len(chain.members()) > 1
        else "made with the loss's classifier" if chain.needs_classifier
        else "fitted on the searched images, which other images have not" if chain.fits and chain.on_gallery
        else ""
    )  # fmt: skip
    if reason:
        raise RecipeError(f"{ranked}: {reason}", fix="Name a layer with another reduction, or none")
