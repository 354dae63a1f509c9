from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import layerprobe
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from tests.attribution.networks import convolutional, image
from tests.hooks.models import timm_vit

QUERY, NEIGHBOUR = image(0)[0], image(1)[0]


def test_layers_come_with_their_maps_in_execution_order() -> None:
    found = layerprobe.explain(convolutional(), QUERY, NEIGHBOUR, "7,1@avg")
    assert list(found) == ["1@avg", "7"]
    assert found["7"].query.pixels.shape == (16, 16)
    assert found["7"].query.places is not None
    assert found["7"].query.places.shape == (5, 5)
    assert found["7"].similarity == pytest.approx(found["7"].query.difference + start(), abs=1e-5)


def start() -> float:
    """The similarity of an image of zeros to the neighbour."""
    with torch.no_grad():
        features = convolutional().eval()(torch.stack([torch.zeros_like(QUERY), NEIGHBOUR]))
    return float(torch.cosine_similarity(features[0], features[1], dim=0))


def test_the_same_weights_given_as_untrained_agree() -> None:
    module = convolutional()
    found = layerprobe.explain(module, QUERY, NEIGHBOUR, "7", untrained=copy.deepcopy(module))["7"]
    assert found.query.random_pixels is not None
    assert found.query.random_pixels.signed == pytest.approx(1)


def test_weights_are_drawn_anew_in_a_copy() -> None:
    module = convolutional()
    before = copy.deepcopy(module.state_dict())
    torch.manual_seed(3)
    found = layerprobe.explain(module, QUERY, NEIGHBOUR, "7")["7"]
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(torch.rand(1), drawn)
    assert found.query.random_pixels is not None
    assert found.query.random_pixels.signed is not None
    assert found.query.random_pixels.signed < 0.9
    assert all(torch.equal(before[name], own) for name, own in module.state_dict().items())


def test_a_network_with_parameters_of_its_own_is_not_checked_and_says_so() -> None:
    found = layerprobe.explain(timm_vit(), image(0, 32)[0], image(1, 32)[0], "blocks.1@avg")["blocks.1@avg"]
    assert found.query.random_pixels is None
    (note,) = found.notes
    assert note == "no check against random weights: cls_token cannot be drawn anew; give `untrained`"


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"layers": "8"}, UnknownNameError, "unknown layer '8'"),
        ({"similarity": "hamming"}, UnknownNameError, "unknown similarity 'hamming'"),
        ({"query": torch.zeros(3, 16)}, DataError, "images of `query` are float32"),
        (
            {"neighbour": torch.zeros(3, 8, 8)},
            DataError,
            "images of `neighbour` are \\(3, 8, 8\\) after others of \\(3, 16, 16\\)",
        ),
        ({"model": convolutional().double()}, RecipeError, "the model computes in float64. Give model.float()"),
        ({"model": nn.Conv2d}, TypeError, "model must be a torch.nn.Module, not the class Conv2d"),
        ({"query": "a.jpg"}, TypeError, r"query must be floats \(C, H, W\), not str"),
        ({"layers": 3}, TypeError, "layers must be a name or a sequence of names, not int"),
    ],
)
def test_what_cannot_be_explained_is_refused(change: dict[str, object], error: type[Exception], message: str) -> None:
    given = {"model": convolutional(), "query": QUERY, "neighbour": NEIGHBOUR, "layers": "7"}
    with pytest.raises(error, match=message):
        layerprobe.explain(**(given | change))  # type: ignore[arg-type] # some are wrong
