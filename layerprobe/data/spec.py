"""DatasetSpec: all that layerprobe knows of a data set, as one value that the registry points at."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from layerprobe.data.counts import Count
from layerprobe.data.splits import Dataset


@dataclass(frozen=True, eq=False)
class DatasetSpec:
    """How a data set is loaded, and its description for users.

    Only `load` is needed.

    Args:
        load: (root, *, its own options) -> Dataset, images at their original sizes. Every parameter with a default is a
            key of a recipe's [data]; `root` and `image_size` are passed only to a loader that takes them.
        unchecked: the same options -> every image that the data set names, whether or not it is there; nothing else is
            required, so that `data check` can report all faults at once where `load` refuses at the first. It raises a
            DataError where no image can be named. None: the error of `load` is all that can be said.
        defaults: keys of [data] with other defaults than the common ones.
        argument: what follows the name in `--data NAME:ARGUMENT`, where `load` takes a root.
        layout: what its folder or file looks like, in one line.
        where: its official page, as text; empty where there is none.
        counts: split -> published size of a whole copy; empty where there is none.
    """

    load: Callable[..., Dataset]
    unchecked: Callable[..., Dataset] | None = None
    defaults: Mapping[str, object] = field(default_factory=dict)
    argument: str = "ROOT"
    holds: str = ""
    layout: str = ""
    where: str = ""
    counts: Mapping[str, Count] = field(default_factory=dict)

    @property
    def takes_root(self) -> bool:
        """Whether it lies in a folder or file; else it is made by code."""
        return bool(self.taken({"root": None}))

    def taken(self, options: Mapping[str, Any]) -> dict[str, Any]:
        """Those of some options that `load` takes."""
        parameters = inspect.signature(self.load).parameters
        return {name: value for name, value in options.items() if name in parameters}

    def usage(self, name: str) -> str:
        """What to give to --data for the data set that is registered under a name: `cub200:ROOT`."""
        return f"{name}:{self.argument}" if self.takes_root else name
