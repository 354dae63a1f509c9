from __future__ import annotations

import pytest

from layerprobe.plots.networks import group_by_network
from layerprobe.values.facts import DataFacts

RESNET18 = ("layer1.0", "layer1.1", "layer2.0", "layer2.1", "output")
RESNET50 = ("layer1.0", "layer1.1", "layer1.2", "layer2.0", "layer2.1", "output")


def of(network: str, layers: tuple[str, ...]) -> DataFacts:
    return DataFacts("", {}, network=network, layers=layers)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (of("timm:resnet18", RESNET18), of("timm:resnet50", RESNET50), False),  # whose names include all of the first's
        (of("timm:resnet18", RESNET18), of("torchvision:resnet18", RESNET18), True),
        (of("netA", ("c1", "c2")), of("netA", ("c1", "c2", "fc6")), True),  # without and with fc6
        (of("vit", ("blocks.0", "blocks.1")), of("large", ("blocks.0", "blocks.1", "blocks.2")), False),
        (of("netA", ("c1", "c2")), of("netA", ("c2", "c1")), False),
    ],
)
def test_runs_share_a_network_by_its_layers(one: DataFacts, other: DataFacts, same: bool) -> None:
    measured = {"a": ["output"], "b": ["output"]}
    groups = group_by_network(measured, {"a": one, "b": other})
    assert sorted(map(sorted, groups)) == ([["a", "b"]] if same else [["a"], ["b"]])


def test_where_a_network_is_not_known_its_measured_layers_are_compared() -> None:
    known = {"a": of("timm:resnet18", RESNET18)}
    measured = {"a": ["output"], "b": ["layer1.0", "output"], "c": ["blocks.0", "output"]}
    assert group_by_network(measured, known) == [["a", "b"], ["c"]]
