from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.workflow.run import embedding as module
from layerprobe.workflow.run.embedding import LastTwo, NetworkEnd, last_two, network_end
from layerprobe.workflow.run.runs import Run

RUN = Run(Path("cache") / "one")


def ranked(text: str, reduction: str = "none", similarity: str = "cosine") -> RankedLayer:
    return RankedLayer(LayerKey.parse(text), reduction, similarity)


def recorded(*settings: str) -> dict[str, object]:
    return {"recipe_name": "quick", "recipe": load_recipe("quick", Overrides(None, settings)).as_dict()}


def test_our_own_network_is_built_to_know_its_end() -> None:
    assert network_end(RUN, recorded("net.name=lenet")) == NetworkEnd("fc6", "pool5", None)


def test_a_model_from_elsewhere_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "build_net", None)
    record = recorded("net.name=timm:resnet18", "net.weights=none")
    assert network_end(RUN, record) == NetworkEnd("output", None, None)


@pytest.mark.parametrize(
    ("head", "end"),
    [
        (("net.fc=[8]",), NetworkEnd("fc6", "output", None)),
        (("net.fc=[8,4]", "net.pool=avg"), NetworkEnd("fc7", "fc6", None)),
        (("net.fc=[8]", "net.fc_norm=layer"), NetworkEnd("norm6", "fc6", None)),
        (("net.norm=layer", "net.dropout=0.5"), NetworkEnd("norm5", "output", None)),
        (("net.pool=avg",), NetworkEnd("output", None, "avg")),
    ],
)
def test_the_embedding_of_a_model_from_elsewhere_is_the_end_of_its_head(head: tuple[str, ...], end: NetworkEnd) -> None:
    assert network_end(RUN, recorded("net.name=timm:resnet18", "net.weights=none", *head)) == end


def test_the_end_of_a_model_measured_from_python_is_not_known() -> None:
    assert network_end(RUN, {"from_python": True}) is None


END = NetworkEnd("fc6", "pool5", None)
ORDER = ["pool4", "pool5", "fc6"]


@pytest.mark.parametrize(
    ("measured", "found"),
    [
        (["fc6@none", "pool5@max", "pool4@max"], LastTwo(ranked("pool5@max"), ranked("fc6@none"), adjacent=True)),
        (["fc6@none", "pool4@max"], LastTwo(ranked("pool4@max"), ranked("fc6@none"), adjacent=False)),
        (["pool5@avg", "pool5@max", "fc6@none"], LastTwo(ranked("pool5@max"), ranked("fc6@none"), adjacent=True)),
        (["pool5@cls", "pool5@avg", "fc6@none"], LastTwo(ranked("pool5@avg"), ranked("fc6@none"), adjacent=True)),
        (
            ["pool4@max", "pool4+pool5@max", "fc6@none"],
            LastTwo(ranked("pool4@max"), ranked("fc6@none"), adjacent=False),
        ),
        (["pool4@max", "pool5@max"], None),
        (["fc6@none"], None),
    ],
)
def test_the_pair_is_the_embedding_and_the_last_layer_measured_before_it(
    measured: list[str], found: LastTwo | None
) -> None:
    assert last_two(END, map(ranked, measured), "cosine", ORDER) == found


def test_neither_of_the_pair_is_reduced_or_searched_otherwise() -> None:
    layers = [ranked("pool4@max"), ranked("pool5@max", "l2"), ranked("pool5@max", similarity="dot"), ranked("fc6@none")]
    assert last_two(END, layers, "cosine", ORDER) == LastTwo(layers[0], layers[-1], adjacent=False)


def test_the_embedding_has_the_pool_of_its_network() -> None:
    found = last_two(
        NetworkEnd("pool5", "pool4", "avg"), map(ranked, ["pool4@max", "pool5@max", "pool5@avg"]), "cosine", ORDER
    )
    assert found == LastTwo(ranked("pool4@max"), ranked("pool5@avg"), adjacent=True)
