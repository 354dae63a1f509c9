"""Feature and rank files, and those of other programs: the only room that knows HDF5.

HDF5: feature files and rank files, their keys, groups, attributes and checksums; arrays of other programs.

Types and words: `FeatureKey`, `RankKey`, `RankEntry`, `StoredFeatures`, `StoredRanks`; h5py, hard links, damaged.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.store.features import (
        Columns,
        FeatureFile,
        FeatureHead,
        LayerTables,
        StoredFeatures,
        open_feature_file,
        read_feature_head,
        read_features,
        stale_note,
        stored_layers,
        write_features,
    )
    from layerprobe.store.hdf5 import is_feature_file, read_arrays, stale_passed
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
    from layerprobe.store.rows import FeatureKey, Rows, key_attributes

__all__ = [
    "Columns",
    "FeatureFile",
    "FeatureHead",
    "FeatureKey",
    "LayerTables",
    "RankEntry",
    "RankFile",
    "RankKey",
    "Rows",
    "StoredFeatures",
    "StoredRanks",
    "is_feature_file",
    "is_fitted_on",
    "is_made_from",
    "key_attributes",
    "open_feature_file",
    "rank_file_of",
    "read_arrays",
    "read_feature_head",
    "read_features",
    "read_rank_file",
    "stale_note",
    "stale_passed",
    "stored_layers",
    "write_features",
    "write_ranks",
]

_MODULES = {
    "Columns": "features",
    "FeatureFile": "features",
    "FeatureHead": "features",
    "FeatureKey": "rows",
    "LayerTables": "features",
    "RankEntry": "ranks",
    "RankFile": "ranks",
    "RankKey": "ranks",
    "Rows": "rows",
    "StoredFeatures": "features",
    "StoredRanks": "ranks",
    "is_feature_file": "hdf5",
    "is_fitted_on": "ranks",
    "is_made_from": "ranks",
    "key_attributes": "rows",
    "open_feature_file": "features",
    "rank_file_of": "ranks",
    "read_arrays": "hdf5",
    "read_feature_head": "features",
    "read_features": "features",
    "read_rank_file": "ranks",
    "stale_note": "features",
    "stale_passed": "hdf5",
    "stored_layers": "features",
    "write_features": "features",
    "write_ranks": "ranks",
}


def __getattr__(name: str) -> Any:
    # Imported on first use, so that importing the package needs no h5py.
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
