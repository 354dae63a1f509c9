"""Feature and rank files, and those of other programs: the only room that knows HDF5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.store.added import is_fitted_on, is_made_from
    from layerprobe.store.feature_key import FeatureKey, key_attributes
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
    from layerprobe.store.foreign import is_feature_file, read_arrays
    from layerprobe.store.hdf5 import stale_passed
    from layerprobe.store.ranks import (
        RankEntry,
        RankFile,
        RankKey,
        StoredRanks,
        rank_file_of,
        read_rank_file,
        write_ranks,
    )
    from layerprobe.store.rows import Rows

_ADDED = ("is_fitted_on", "is_made_from")
_FOREIGN = ("is_feature_file", "read_arrays")
_HDF5 = ("stale_passed",)
_RANKS = (
    "RankEntry",
    "RankFile",
    "RankKey",
    "StoredRanks",
    "rank_file_of",
    "read_rank_file",
    "write_ranks",
)
_ROWS = ("Rows",)
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


def __getattr__(name: str) -> Any:
    # Imported on first use, so that importing the package needs no h5py.
    if name in __all__:
        from layerprobe.store import added, features, foreign, hdf5, ranks, rows

        rooms = ((added, _ADDED), (foreign, _FOREIGN), (hdf5, _HDF5), (ranks, _RANKS), (rows, _ROWS))
        return getattr(next((module for module, names in rooms if name in names), features), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
