"""Feature files: the only room that knows HDF5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from layerprobe.store.features import (
        Columns,
        FeatureKey,
        Rows,
        read_features,
        read_index,
        stale_note,
        stored_layers,
        write_features,
    )

__all__ = [
    "Columns",
    "FeatureKey",
    "Rows",
    "read_features",
    "read_index",
    "stale_note",
    "stored_layers",
    "write_features",
]


def __getattr__(name: str) -> Any:
    # On first use, so that the package's name alone needs no h5py.
    if name in __all__:
        from layerprobe.store import features

        return getattr(features, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
