"""Which layers and epochs of the scores a figure draws."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from statistics import fmean

from layerprobe.plots.values import Series, layer_names_of, names_in_order
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import NO_REDUCTION, RankedLayer, headline_layers, matching_layers
from layerprobe.values.scores import Score

_ALL = 5  # as many layers are all shown


def match_layers(names: Sequence[str] | None, ranked_layers: Collection[RankedLayer]) -> list[RankedLayer] | None:
    """The layers that some names mean, in the order of the names, each once; None without names."""
    if names is None:
        return None
    distinct = list(dict.fromkeys(ranked_layers))
    return list(dict.fromkeys(ranked for name in names for ranked in _match_layer(name, distinct)))


def _match_layer(name: str, ranked_layers: Sequence[RankedLayer]) -> list[RankedLayer]:
    if matches := matching_layers(name, ranked_layers):
        return matches
    layers = {row.layer for row in matching_layers(name.partition("/")[0], ranked_layers)}
    raise UnknownNameError("layer", name, [str(row) for row in ranked_layers if not layers or row.layer in layers])


def scores_of_layers(scores: Sequence[Score], names: Sequence[str] | None) -> list[Score]:
    """The scores of the requested layers; all without names."""
    layers = match_layers(names, [score.ranked for score in scores])
    return [score for score in scores if layers is None or score.ranked in layers]


def resolve_epoch(scores: Sequence[Score], epoch: int | None) -> int:
    """The requested epoch; None: the last."""
    epochs = sorted({score.epoch for score in scores})
    if epoch not in (None, *epochs):
        raise RecipeError(f"no scores of epoch {epoch}", fix=f"Known: {', '.join(map(str, epochs))}")
    return epochs[-1] if epoch is None else epoch


def scores_until_epoch(scores: Sequence[Score], epoch: int | None) -> list[Score]:
    """The scores up to an epoch; None means the last."""
    return [score for score in scores if epoch is None or score.epoch <= resolve_epoch(scores, epoch)]


def select_unreduced(scores: Sequence[Score], layers: Collection[RankedLayer] | None = None) -> list[Score]:
    """The scores of the unreduced and the requested layers; all scores of a run without unreduced layers.

    In figures with a line for each layer, lines for each of its reductions could not be read.
    """
    raw = {score.run for score in scores if score.ranked.reduction == NO_REDUCTION}
    return [
        score
        for score in scores
        if score.ranked.reduction == NO_REDUCTION or score.run not in raw or (layers and score.ranked in layers)
    ]


def omission_notes(scores: Sequence[Score], layers: Collection[RankedLayer] | None = None) -> list[str]:
    """A note on the reductions that `select_unreduced` skips, if any."""
    reductions = {score.ranked.reduction for score in select_unreduced(scores, layers)}
    left_out = [name for name in dict.fromkeys(score.ranked.reduction for score in scores) if name not in reductions]
    which = "it" if len(left_out) == 1 else f"one of {len(left_out)} reductions"
    return [f"Unreduced layers; --layers '*/{left_out[0]}' shows them after {which}."] if left_out else []


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


def group_by_network(measured: Mapping[str, Collection[str]], data: Mapping[str, DataFacts]) -> list[list[str]]:
    """The runs in groups of one network each.

    Two runs are of one network if their networks have the same layers; of networks of one name, one may end in further
    layers, such as a fully connected one. Where the network of either run is unknown, the layers of one run must be
    among those of the other.

    Args:
        measured: run -> its layers.
        data: run -> its network, if known.
    """
    unknown = DataFacts("", {})
    networks = {run: data.get(run, unknown).layers or tuple(layers) for run, layers in measured.items()}
    groups: list[list[str]] = []
    for run in sorted(measured, key=lambda name: -len(networks[name])):  # stable: the largest network is first
        facts, layers = data.get(run, unknown), networks[run]
        for group in groups:
            other, longest = data.get(group[0], unknown), networks[group[0]]
            if facts.layers and other.layers:
                same = longest == layers or (facts.network == other.network and longest[: len(layers)] == layers)
            else:
                same = set(layers) <= set(longest)
            if same:
                group.append(run)
                break
        else:
            groups.append([run])
    return groups
