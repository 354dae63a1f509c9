"""Rank files: ranks of nearest positives of a run, epoch and split, and what they are made from."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.store.features import (
    FeatureHead,
    FeatureKey,
    Index,
    Rows,
    decoded_rows,
    has_facts,
    index_nbytes,
    index_or_error,
    key_attributes,
    write_rows,
    write_values,
)
from layerprobe.store.hdf5 import (
    HDF5_ERRORS,
    SCHEMA,
    attribute,
    create_file,
    open_file,
    read_dataset,
    set_attributes,
    stored_dataset,
)
from layerprobe.system.errors import DataError
from layerprobe.system.files import written_whole
from layerprobe.system.memory import memory_faults_told
from layerprobe.values.layers import LayerKey, RankedLayer, members_of
from layerprobe.values.retrieval import Ranks

_COUNTS = ("closer", "closer_high", "tied_negatives", "tied_positives")
_IDENTICAL = "identical"
KEY = (
    "queries",
    "gallery",
    "search_sha256",
    "tie_window",
    "engine",
    "post_processing",
)  # attributes, as `RankKey.facts`


@dataclass(frozen=True)
class RankKey:
    """What the ranks of one layer are made from. Stored ranks are used only if all of it is the same.

    Args:
        gallery: key of the features that are searched; None if the queries search each other.
        search_sha256: hash of what decides which items each query may find: rows, labels, groups, lists of pairs, the
            rule for lone queries.
        tie_window: similarities that differ by at most this are tied.
        post_processing: the images that it was fitted on, and its seed; empty if nothing was fitted.
    """

    queries: FeatureKey
    gallery: FeatureKey | None
    search_sha256: str
    tie_window: float
    engine: int = 0
    post_processing: str = ""

    def facts(self) -> dict[str, str | int]:
        """The key as attributes of an HDF5 group."""
        return {
            "queries": _as_text(self.queries),
            "gallery": "itself" if self.gallery is None else _as_text(self.gallery),
            "search_sha256": self.search_sha256,
            "tie_window": str(self.tie_window),
            "engine": self.engine,
            "post_processing": self.post_processing,
        }

    def texts(self) -> dict[str, str]:
        """The key as it is read back."""
        return {name: str(value) for name, value in self.facts().items()}


def _as_text(key: FeatureKey) -> str:
    return json.dumps(key_attributes(key), sort_keys=True)


@dataclass(frozen=True, eq=False)
class RankEntry:
    """The ranks of one layer, or why there are none.

    Args:
        ranks: None if some features were not finite.
        invalid: the reason why there are none; else empty.
        values: metric -> (N,) float64, its value for each query; NaN where it leaves a query out of its mean.
    """

    key: RankKey
    ranks: Ranks | None
    invalid: str = ""
    values: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class StoredRanks:
    """All that a rank file holds, whatever it was made from.

    Args:
        labels: (N,) classes of the queries.
        search_sha256: hash of what decides which items each query may find; empty where nothing is ranked.
        transform: every step from an image file to the network's input; empty likewise.
        ranks: layer -> its ranks; those without any because features were not finite are in `invalid`.
        values: layer, with ranks or without -> metric -> (N,) its value for each query, NaN where it leaves a query
            out.
        invalid: layer -> why it has no ranks.
    """

    labels: NDArray[np.int32]
    ids: tuple[str, ...]
    search_sha256: str
    transform: str
    ranks: Mapping[RankedLayer, Ranks]
    values: Mapping[RankedLayer, Mapping[str, NDArray[np.float64]]]
    invalid: Mapping[RankedLayer, str]


def write_ranks(
    path: Path,
    rows: Rows,
    entries: Mapping[RankedLayer, RankEntry],
    *,
    chance: float | None = None,
    identical: NDArray[np.bool_] | None = None,
) -> None:
    """Write a rank file; the old one is replaced only when the new one is complete.

    Args:
        chance: Recall@1 of a random order, where the classes alone do not say it.
        identical: (N,) the queries with an identical image in their results; None where that is not known.
    """
    with (
        written_whole(path, needed=16 * len(rows.ids) * len(entries)) as aside,
        create_file(aside) as (file, _),
    ):
        set_attributes(file, {"schema": SCHEMA, "layerprobe": metadata.version("layerprobe")})
        if chance is not None:
            set_attributes(file, {"chance": repr(chance)})
        write_rows(file, rows)
        if identical is not None and identical.any():
            write_values(file, _IDENTICAL, identical)
        for ranked, entry in entries.items():
            for count in (*([] if entry.ranks is None else [len(entry.ranks)]), *map(len, entry.values.values())):
                if count != len(rows.ids):
                    raise ValueError(f"{ranked.layer}: ranks of {count} queries, not {len(rows.ids)}")
            group = file.create_group(f"{ranked.layer.stored}/{ranked.post_processing}/{ranked.similarity}")
            set_attributes(group, {**entry.key.facts(), "invalid": entry.invalid})
            if entry.ranks is not None:
                set_attributes(group, {"lone": entry.ranks.lone, "zero": entry.ranks.zeros})
                for name in _COUNTS:
                    write_values(group, name, getattr(entry.ranks, name))
            for metric, values in entry.values.items():
                write_values(group.require_group("values"), metric, values.astype(np.float64))


@dataclass(frozen=True, eq=False)
class _Group:
    """An entry of a rank file: its key as text, and its ranks, or why it has none, and values; None if damaged."""

    facts: Mapping[str, str]
    contents: tuple[Ranks | None, str, Mapping[str, NDArray[np.float64]]] | None

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        ranks, _, values = self.contents or (None, "", {})
        counts = [] if ranks is None else [getattr(ranks, name) for name in _COUNTS]
        return sum(array.nbytes for array in (*counts, *values.values()))


@dataclass(frozen=True, eq=False)
class RankFile:
    """A rank file, read once.

    Args:
        index: (N,) labels and ids of the queries; the error if these are damaged.
        chance: Recall@1 of a random order, as passed to `write_ranks`; None if it was not passed.
        identical: (N,) as passed; None if it was not, or of no query.
    """

    index: Index | DataError
    chance: float | None
    groups: Mapping[RankedLayer, _Group]
    identical: NDArray[np.bool_] | None = None

    @property
    def rows(self) -> tuple[NDArray[np.int32], tuple[str, ...]]:
        """(N,) labels and ids of the queries."""
        return decoded_rows(self.index)

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return index_nbytes(self.index) + sum(group.nbytes for group in self.groups.values())

    @property
    def search_sha256(self) -> str:
        """That of the ranks, which have one in common; empty where there are none."""
        return next((group.facts["search_sha256"] for group in self.groups.values()), "")

    @property
    def searched_itself(self) -> bool:
        """Whether all ranks are of images that were searched among themselves."""
        return all(group.facts["gallery"] == "itself" for group in self.groups.values())

    def holding(self, key_of: Callable[[RankedLayer], RankKey]) -> dict[RankedLayer, RankEntry]:
        """The entries that are intact and made from the right key; none if the rows are damaged."""
        entries: dict[RankedLayer, RankEntry] = {}
        for ranked, group in {} if isinstance(self.index, DataError) else self.groups.items():
            key = key_of(ranked)
            if group.contents is not None and group.facts == key.texts():
                entries[ranked] = RankEntry(key, *group.contents)
        return entries

    def stale(self, key_of: Callable[[RankedLayer], RankKey]) -> set[RankedLayer]:
        """The layers that it has ranks of, but made from something else than the right key."""
        return {ranked for ranked, group in self.groups.items() if group.facts != key_of(ranked).texts()}

    @functools.cached_property
    def stored(self) -> StoredRanks:
        """The entries that are intact, as they were stored."""
        ranks: dict[RankedLayer, Ranks] = {}
        values: dict[RankedLayer, Mapping[str, NDArray[np.float64]]] = {}
        invalid: dict[RankedLayer, str] = {}
        search, transform = "", ""
        labels, ids = self.rows
        for ranked, group in self.groups.items():
            if group.contents is None:
                continue
            layer_ranks, reason, values[ranked] = group.contents
            if layer_ranks is None:
                invalid[ranked] = reason
            else:
                ranks[ranked] = layer_ranks
            search = group.facts["search_sha256"]
            with contextlib.suppress(ValueError):
                transform = str(json.loads(group.facts["queries"]).get("transform", ""))
        return StoredRanks(labels, ids, search, transform, ranks, values, invalid)


def rank_file_of(
    rows: Rows, entries: Mapping[RankedLayer, RankEntry], *, identical: NDArray[np.bool_] | None = None
) -> RankFile:
    """What `read_rank_file` gives of a file with some entries, which need not be written.

    Args:
        identical: as of `write_ranks`.
    """
    groups = {
        ranked: _Group(entry.key.texts(), (entry.ranks, entry.invalid, entry.values))
        for ranked, entry in entries.items()
    }
    there = identical is not None and identical.any()
    return RankFile((rows.labels.astype(np.int32), tuple(rows.ids)), None, groups, identical if there else None)


def read_rank_file(path: Path) -> RankFile:
    """All that a file holds; an entry that is damaged keeps its key."""
    groups: dict[RankedLayer, _Group] = {}
    with open_file(path, holds="labels") as file:
        index = index_or_error(file, path)
        text = attribute(file, "chance")
        chance, identical = float(text) if text else None, None
        if _IDENTICAL in file and not isinstance(index, DataError):
            with contextlib.suppress(DataError, *HDF5_ERRORS), memory_faults_told(path):
                identical = _vector(file, _IDENTICAL, len(index[0]), np.bool_)
        for ranked, group in _ranked_groups(file):
            contents = None
            with contextlib.suppress(DataError, *HDF5_ERRORS), memory_faults_told(path):
                contents = _contents(file, group, 0 if isinstance(index, DataError) else len(index[0]))
            groups[ranked] = _Group({name: attribute(group, name) for name in KEY}, contents)
    return RankFile(index, chance, groups, identical)


def _ranked_groups(file: h5py.File) -> Iterator[tuple[RankedLayer, h5py.Group]]:
    """The groups of the ranked layers, three levels down; anything else in the file is skipped."""
    for layer, of_layer in _subgroups(file):
        for post_processing, of_post_processing in _subgroups(of_layer):
            for similarity, group in _subgroups(of_post_processing):
                with contextlib.suppress(ValueError):
                    yield RankedLayer(LayerKey.parse(layer), post_processing, similarity), group


def _subgroups(group: h5py.Group) -> Iterator[tuple[str, h5py.Group]]:
    for name in group:
        if isinstance(group.get(name, getlink=True), h5py.HardLink) and group.get(name, getclass=True) is h5py.Group:
            yield name, group[name]


def _contents(
    file: h5py.File, group: h5py.Group, count: int
) -> tuple[Ranks | None, str, dict[str, NDArray[np.float64]]]:
    """Ranks or the reason why there are none, and values; errors of HDF5 and of `Ranks` pass through."""
    location = group.name
    metrics = dict(_subgroups(group)).get("values", ())
    values = {metric: _vector(file, f"{location}/values/{metric}", count, np.float64) for metric in metrics}
    if invalid := attribute(group, "invalid"):
        return None, invalid, values
    closer, closer_high, tied_negatives, tied_positives = (
        _vector(file, f"{location}/{name}", count, np.int32) for name in _COUNTS
    )
    return Ranks(closer, closer_high, tied_negatives, tied_positives, int(attribute(group, "zero"))), "", values


def _vector(file: h5py.File, location: str, count: int, kind: type[np.generic]) -> NDArray[Any]:
    dataset = stored_dataset(file, location)
    if dataset.shape != (count,) or dataset.dtype != kind:
        raise ValueError(f"{location}: not one value for each query")
    return read_dataset(dataset)


def is_made_from(
    ranks: RankFile, features: FeatureHead, ranked: RankedLayer, role: Literal["queries", "gallery"] = "queries"
) -> bool:
    """Whether a layer's ranks were made from the features of it that a feature file contains now."""
    if ranked not in ranks.groups:
        return False
    with contextlib.suppress(ValueError):
        key = json.loads(ranks.groups[ranked].facts[role])
        return _held(features, ranked) and isinstance(key, dict) and has_facts(features.facts, key)
    return False


def is_fitted_on(ranks: RankFile, training: FeatureHead | None, ranked: RankedLayer) -> bool:
    """Whether a layer was post-processed by a map fitted on the stored features.

    Args:
        training: None where there are none.

    Returns:
        True where nothing was fitted.
    """
    if ranked not in ranks.groups:
        return False
    recorded = ranks.groups[ranked].facts["post_processing"]
    if not recorded or recorded.startswith("seed "):
        return True
    if training is None:
        return False
    with contextlib.suppress(ValueError):
        facts = {field.name: training.facts.get(field.name, "") for field in fields(FeatureKey)}
        key = FeatureKey(**{**facts, "epoch": int(facts["epoch"])})  # type: ignore[arg-type] # texts but for that
        return _held(training, ranked) and recorded.startswith(f"{key} seed ")
    return False


def _held(features: FeatureHead, ranked: RankedLayer) -> bool:
    """Whether a feature file has the features of a layer, or of the members that it is made of."""
    return bool(members_of(ranked.layer, tuple(features.columns)))
