"""Rank files: where each query's nearest positive stands, in every layer of one run, epoch and split."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import h5py
import numpy as np

from layerprobe.errors import DataError
from layerprobe.files import written_whole
from layerprobe.retrieval import Ranks
from layerprobe.store.features import FeatureKey, compared, full_disk_told
from layerprobe.store.hdf5 import (
    HDF5_ERRORS,
    SCHEMA,
    attribute,
    created,
    opened,
    set_attributes,
    stored_dataset,
)
from layerprobe.store.rows import Rows, write_rows, write_values

_COUNTS = ("closer", "closer_high", "tied_negatives", "tied_positives")


@dataclass(frozen=True)
class RankKey:
    """What ranks are made from; if anything differs they are computed again.

    Args:
        queries: of the queries' features.
        gallery: of the features that they are searched in; None for themselves.
        tie_window: what counted as tied.
        engine: number of the way they were computed.
    """

    queries: FeatureKey
    gallery: FeatureKey | None
    tie_window: float
    engine: int = 0

    def facts(self) -> dict[str, str | int]:
        """As attributes of a file."""
        facts: dict[str, str | int] = {"tie_window": str(self.tie_window), "engine": self.engine}
        for role, key in (("queries", self.queries), ("gallery", self.gallery)):
            facts |= {f"{role}_{name}": value for name, value in compared(key).items()} if key else {role: "itself"}
        return facts


@dataclass(frozen=True, eq=False)
class RankEntry:
    """The ranks of one layer, or why there are none.

    Args:
        similarity: cosine, dot, euclidean or hamming.
        ranks: None where a feature was not finite.
        invalid: then the reason; empty otherwise.
    """

    similarity: str
    ranks: Ranks | None
    invalid: str = ""


RankEntries = Mapping[tuple[str, str], RankEntry]  # by `layer@pool` and reduction


def write_ranks(path: Path, key: RankKey, rows: Rows, entries: RankEntries) -> None:
    """Write a rank file whole; until it is, the old one stands.

    Args:
        path: the final name.
        key: what the ranks are made from.
        rows: the queries.
        entries: everything that the file is to hold.

    Raises:
        EnvironmentFault: the disk is full.
        ValueError: ranks of another number of queries.
    """
    with (
        full_disk_told(path, path.stem, 16 * len(rows.ids) * len(entries)),
        written_whole(path) as aside,
        created(aside) as (file, _),
    ):
        set_attributes(file, {"schema": SCHEMA, "layerprobe": metadata.version("layerprobe"), **key.facts()})
        write_rows(file, rows)
        for (layer, reduction), entry in entries.items():
            group = file.require_group(layer).create_group(reduction)
            set_attributes(group, {"similarity": entry.similarity, "invalid": entry.invalid})
            if entry.ranks is not None:
                if len(entry.ranks) != len(rows.ids):
                    raise ValueError(f"{layer}: ranks of {len(entry.ranks)} queries, not {len(rows.ids)}")
                set_attributes(group, {"lone": entry.ranks.lone, "zero": entry.ranks.zeros})
                for name in _COUNTS:
                    write_values(group, name, getattr(entry.ranks, name))


def read_ranks(path: Path, key: RankKey) -> dict[tuple[str, str], RankEntry]:
    """The ranks of a file that are intact and made from just this key.

    Returns:
        (`layer@pool`, reduction) -> ranks; empty where the file is absent, unreadable or made from something else.
    """
    found: dict[tuple[str, str], RankEntry] = {}
    with contextlib.suppress(DataError), opened(path, holds="labels") as file:
        if any(attribute(file, name) != str(value) for name, value in key.facts().items()):
            return {}
        for layer in file:
            if layer not in ("labels", "ids"):
                for reduction in file[layer]:
                    with contextlib.suppress(DataError, *HDF5_ERRORS):
                        found[layer, reduction] = _entry(file, f"{layer}/{reduction}")
    return found


def _entry(file: h5py.File, place: str) -> RankEntry:
    """Raises whatever HDF5 or Ranks find wrong."""
    group, count = file[place], len(stored_dataset(file, "labels"))
    similarity, invalid = attribute(group, "similarity"), attribute(group, "invalid")
    if invalid:
        return RankEntry(similarity, None, invalid)
    counts = [stored_dataset(file, f"{place}/{name}") for name in _COUNTS]
    if any(values.shape != (count,) or values.dtype != np.int32 for values in counts):
        raise ValueError("not four counts of every query")
    closer, closer_high, tied_negatives, tied_positives = (values[()] for values in counts)
    zeros = int(attribute(group, "zero"))
    return RankEntry(similarity, Ranks(closer, closer_high, tied_negatives, tied_positives, zeros))
