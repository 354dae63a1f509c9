"""Which runs have the layers of one network, and so can share an axis of layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from layerprobe.values.facts import DataFacts


def group_by_network(measured: Mapping[str, Collection[str]], data: Mapping[str, DataFacts]) -> list[list[str]]:
    """The runs in groups of one network each.

    Two runs have the same network if its layers are the same, or those of the other are its first and so is its name,
    as of one network with and without a further fully connected layer. Where the network of either is not known, one
    must have measured layers of the other alone.

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
