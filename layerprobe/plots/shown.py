"""Which layers a plot shows first, where all of them would be a tangle."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean

from layerprobe.plots.networks import group_by_network
from layerprobe.plots.values import Series, layer_names_of, names_in_order
from layerprobe.values.facts import DataFacts
from layerprobe.values.headline_layers import headline_layers
from layerprobe.values.keys import RankedLayer

_ALL = 5  # as many layers are all shown


def default_layers(
    runs: Mapping[str, Series], embeddings: Mapping[str, RankedLayer], data: Mapping[str, DataFacts]
) -> list[RankedLayer]:
    """At most five layers of each network, the same for all its runs: all there are, or the `headline_layers`.

    Args:
        runs: run -> its layers. The best on validation is that of the mean over the runs, each at its last epoch.
        embeddings: run -> its embedding layer where that is known; of several the last is shown.
        data: run -> its network, where that is known.
    """
    groups = group_by_network({run: layer_names_of(series) for run, series in runs.items()}, data)
    layers = [
        ranked
        for group in groups
        for ranked in _default_layers_of_network({run: runs[run] for run in group}, embeddings)
    ]
    return list(dict.fromkeys(layers))


def _default_layers_of_network(runs: Mapping[str, Series], embeddings: Mapping[str, RankedLayer]) -> list[RankedLayer]:
    """The layers of `default_layers` in network order, of runs of one network."""
    by_label: dict[str, RankedLayer] = {}
    validation: dict[RankedLayer, list[float]] = {}
    for series in runs.values():
        last_epoch = max((point.epoch for layer in series.values() for point in layer), default=0)
        for label, layer in series.items():
            ranked = by_label.setdefault(label, layer[-1].ranked)
            value = layer[-1].values.get("validation")
            if layer[-1].epoch == last_epoch and value is not None:
                validation.setdefault(ranked, []).append(value)
    layers = [by_label[label] for label in names_in_order(runs)]
    if len(layers) <= _ALL:
        return layers
    names = [ranked.layer.layer for ranked in layers]
    known_embeddings = [embeddings[run] for run in runs if run in embeddings and embeddings[run].layer.layer in names]
    embedding = max(known_embeddings, key=lambda ranked: names.index(ranked.layer.layer), default=None)
    return headline_layers(layers, {ranked: fmean(values) for ranked, values in validation.items()}, embedding)
