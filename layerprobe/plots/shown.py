"""Which layers a plot shows first, where all of them would be a tangle."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from layerprobe.plots.values import Series, names_in_order
from layerprobe.values.headline_layers import headline_layers
from layerprobe.values.keys import RankedLayer


def few(runs: Mapping[str, Series]) -> list[str]:
    """The labels of `headline_layers`, in network order: at most five, the same for all runs.

    Args:
        runs: run -> its layers. The best on validation is that of the mean over the runs, each at its last epoch.
    """
    of_label: dict[str, RankedLayer] = {}
    validation: dict[str, list[float]] = {}
    for series in runs.values():
        last = max((point.epoch for layer in series.values() for point in layer), default=0)
        for label, layer in series.items():
            of_label.setdefault(label, layer[-1].ranked_layer)
            value = layer[-1].values.get("validation")
            if layer[-1].epoch == last and value is not None:
                validation.setdefault(label, []).append(value)
    labels = {of_label[label]: label for label in names_in_order(runs)}
    means = {of_label[label]: fmean(values) for label, values in validation.items()}
    return [labels[ranked] for ranked in headline_layers(list(labels), means)]
