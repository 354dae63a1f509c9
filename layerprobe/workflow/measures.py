"""What is measured of a layer: the K of Recall@K, and further metrics by name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from layerprobe.analysis import Metric
from layerprobe.errors import RecipeError
from layerprobe.metrics.recall import recall_name
from layerprobe.registry import METRICS, load


@dataclass(frozen=True)
class Measures:
    """What is measured of each layer.

    Args:
        ks: K of Recall@K.
        metrics: each with those of its names that were asked for.
        memory: bytes that a ranking may take; features that are larger stay on disk.
        dropped: K of the recipe that a split has too few items for.
    """

    ks: Sequence[int]
    metrics: Sequence[tuple[Metric, tuple[str, ...]]] = ()
    memory: int | None = None
    dropped: Sequence[int] = ()

    @property
    def names(self) -> list[str]:
        """Every metric asked for."""
        return [*map(recall_name, self.ks), *(name for _, names in self.metrics for name in names)]


def build_measures(
    names: Sequence[str],
    ks: Sequence[int],
    galleries: Mapping[str, int],
    *,
    options: Mapping[str, Mapping[str, Any]],
    may_drop: bool,
) -> Measures:
    """The metrics, and the K that every gallery is large enough for.

    Args:
        names: metrics; `R@K` among them adds that K.
        ks: K of Recall@K.
        galleries: split that is searched -> number of its images; empty where these are not known yet, so that K is
            not checked.
        options: metric -> its options.
        may_drop: leave out those of `ks` that a gallery is too small for, unless none is left.

    Raises:
        RecipeError: no K at all, one that is no whole number above 0, or is too large and may not be dropped; or an
            option that a metric does not take.
        UnknownNameError: no such metric; with the near miss.
    """
    for name in names:
        if name.startswith("R@") and not re.fullmatch("R@[1-9][0-9]*", name):
            raise RecipeError(f"metric {name}: K must be a whole number above 0", fix="Write it like R@10")
    recalls = [int(name[2:]) for name in names if name.startswith("R@")]
    metrics = _build_metrics([name for name in names if name not in map(recall_name, recalls)], options)
    for k in ks:
        if isinstance(k, bool) or not isinstance(k, Integral) or k < 1:
            raise RecipeError(f"K = {k!r}: must be a whole number above 0", fix="Choose one such as 1")
    wanted = list(dict.fromkeys((*map(int, ks), *recalls)))
    if not wanted:
        raise RecipeError("no K of Recall@K is asked for", fix="Choose one such as 1")
    if not galleries:
        return Measures(wanted, metrics)
    smallest = min(galleries, key=galleries.__getitem__)
    large = [k for k in wanted if k >= galleries[smallest]]
    if large and (not may_drop or len(large) == len(wanted) or set(large) & set(recalls)):
        raise RecipeError(
            f"K = {large[0]} is not below the {galleries[smallest]} images of the {smallest} split",
            fix="Choose a smaller K",
        )
    return Measures([k for k in wanted if k not in large], metrics, dropped=sorted(large))


def _build_metrics(
    names: Sequence[str], options: Mapping[str, Mapping[str, Any]]
) -> list[tuple[Metric, tuple[str, ...]]]:
    """Each metric once, with its options; beside it the names under which it was asked for."""
    factories: dict[Any, list[str]] = {}
    for name in names:
        factories.setdefault(load("metric", METRICS, name), []).append(name)
    found = []
    for factory, asked in factories.items():
        taken = {key: value for name in asked for key, value in options.get(name, {}).items()}
        try:
            found.append((factory(**taken), tuple(asked)))
        except (TypeError, ValueError) as error:  # no such option, or not such a value
            raise RecipeError(f"[metrics.{asked[0]}]: {error}", fix="Change it, or leave it out") from error
    return found
