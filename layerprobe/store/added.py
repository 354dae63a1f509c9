"""Values of each query that are added to stored ranks, from the features that these were made from."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from layerprobe.store.feature_key import FeatureKey
from layerprobe.store.features import FeatureHead
from layerprobe.store.hdf5 import create_file, open_file, reading
from layerprobe.store.ranks import RankFile, group_path
from layerprobe.store.rows import has_facts, write_values
from layerprobe.system.files import written_whole
from layerprobe.values.keys import RankedLayer, members_of


def add_values(path: Path, values: Mapping[RankedLayer, Mapping[str, NDArray[np.float64]]]) -> None:
    """Put values of each query into a rank file, beside or in place of those it has; all else is unchanged.

    Args:
        values: layer that has ranks there -> metric -> (N,); NaN where a query is excluded.
    """
    added = sum(len(new) for of_layer in values.values() for new in of_layer.values())
    with reading(path):
        size = path.stat().st_size
    with written_whole(path, needed=size + 8 * added) as aside, create_file(aside) as (file, _):
        _copy(path, file)
        count = len(file["labels"])
        for ranked, of_layer in values.items():
            if group_path(ranked) not in file:
                raise ValueError(f"{path}: no ranks of {ranked}")
            group = file[group_path(ranked)].require_group("values")
            for metric, new in of_layer.items():
                if new.shape != (count,):
                    raise ValueError(f"{metric} of {ranked.layer}: expected {count} values, got {new.shape}")
                if metric in group:
                    del group[metric]
                write_values(group, metric, new.astype(np.float64))


def _copy(path: Path, file: h5py.File) -> None:
    """Put all that a rank file holds into a new one."""
    with open_file(path, holds="labels") as old:
        for name in old.attrs:
            file.attrs[name] = old.attrs[name]
        for name in old:
            if isinstance(old.get(name, getlink=True), h5py.HardLink):
                old.copy(name, file)  # with checksums, as they are; links in it stay links


def is_made_from(
    ranks: RankFile, features: FeatureHead, ranked: RankedLayer, role: Literal["queries", "gallery"] = "queries"
) -> bool:
    """Whether a layer's ranks were made from the features of it that a feature file holds today."""
    if ranked not in ranks.groups:
        return False
    with contextlib.suppress(ValueError):
        key = json.loads(ranks.groups[ranked].facts[role])
        return _held(features, ranked) and isinstance(key, dict) and has_facts(features.facts, key)
    return False


def is_fitted_on(ranks: RankFile, training: FeatureHead | None, ranked: RankedLayer) -> bool:
    """Whether a layer was reduced by a map fitted on the stored features.

    Args:
        training: None where there are none.

    Returns:
        True where nothing was fitted.
    """
    if ranked not in ranks.groups:
        return False
    recorded = ranks.groups[ranked].facts["reduction"]
    if not recorded or recorded.startswith("seed "):
        return True
    if training is None:
        return False
    with contextlib.suppress(ValueError):
        facts = {field.name: training.facts.get(field.name, "") for field in fields(FeatureKey)}
        key = FeatureKey(**{**facts, "epoch": int(facts["epoch"])})  # type: ignore[arg-type] # texts but for that
        return _held(training, ranked) and recorded.startswith(f"{key} ")
    return False


def _held(features: FeatureHead, ranked: RankedLayer) -> bool:
    """Whether a feature file has the features of a layer, or of the members that it is made of."""
    return bool(members_of(ranked.layer, tuple(features.columns)))
