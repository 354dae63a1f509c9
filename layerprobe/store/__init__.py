"""Feature and rank files, and those of other programs: the only package that knows HDF5.

HDF5: feature files and rank files, their keys, groups, attributes and checksums; arrays of other programs.

Types and words: `FeatureKey`, `Plan`, `Part`, `RankKey`, `RankEntry`, `StoredFeatures`, `StoredRanks`; h5py, hard
links, damaged.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.store.features import (
        Columns,
        FeatureFile,
        FeatureHead,
        FeatureKey,
        LayerTables,
        Rows,
        StoredFeatures,
        key_attributes,
        read_one_head,
        stale_note,
        stored_layers,
        write_features,
    )
    from layerprobe.store.hdf5 import is_feature_file, read_arrays, stale_passed
    from layerprobe.store.parts import (
        Part,
        Plan,
        has_feature_files,
        layer_groups,
        open_feature_file,
        plan_parts,
        read_feature_head,
        read_features,
        remove_feature_files,
        row_ranges,
    )
    from layerprobe.store.ranks import (
        RankEntry,
        RankFile,
        RankKey,
        StoredRanks,
        is_fitted_on,
        is_made_from,
        rank_file_of,
        read_rank_file,
        write_ranks,
    )

__all__ = [
    "Columns",
    "FeatureFile",
    "FeatureHead",
    "FeatureKey",
    "LayerTables",
    "Part",
    "Plan",
    "RankEntry",
    "RankFile",
    "RankKey",
    "Rows",
    "StoredFeatures",
    "StoredRanks",
    "has_feature_files",
    "is_feature_file",
    "is_fitted_on",
    "is_made_from",
    "key_attributes",
    "layer_groups",
    "open_feature_file",
    "plan_parts",
    "rank_file_of",
    "read_arrays",
    "read_feature_head",
    "read_features",
    "read_one_head",
    "read_rank_file",
    "remove_feature_files",
    "row_ranges",
    "stale_note",
    "stale_passed",
    "stored_layers",
    "write_features",
    "write_ranks",
]


def __getattr__(name: str) -> Any:
    # Imported on first use, so that importing the package needs no h5py.
    for module in ("hdf5", "features", "parts", "ranks") if name in __all__ else ():
        if name in vars(contents := import_module(f"{__name__}.{module}")):
            return vars(contents)[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
