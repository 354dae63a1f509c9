from __future__ import annotations

from collections.abc import Callable

import pytest
import timm
import torch
from torch import Tensor, nn
from torchvision import models

from layerprobe.taps import find_classifier, without_classifier
from tests.taps.models import images


class Ending(nn.Module):
    """A convolution, its mean and a linear layer of a given name; what follows it is given, too."""

    def __init__(self, name: str, after: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.body, self.after = nn.Conv2d(3, 4, 3), after
        self.add_module(name, nn.Linear(4, 5))
        self.last = name

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = self.get_submodule(self.last)(self.body(given).mean((2, 3)))
        return found if self.after is None else self.after(found)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (Ending("classifier"), "classifier"),
        (nn.Sequential(Ending("classifier")), "0.classifier"),
        (Ending("fc"), None),  # it may be the projection of an embedding network
        (Ending("head"), None),
        (Ending("embedding"), None),
        (Ending("classifier", nn.functional.normalize), None),  # an embedding, whatever its name
        (Ending("classifier", nn.ReLU(inplace=True)), None),
    ],
)
def test_a_linear_layer_called_classifier_that_gives_the_output_is_one(model: nn.Module, path: str | None) -> None:
    assert find_classifier(model, 16) == path


def test_libraries_say_what_their_classifier_is() -> None:
    assert find_classifier(models.squeezenet1_1(weights=None), 32) is None  # a convolution before the mean
    assert find_classifier(models.mobilenet_v3_small(weights=None), 32) == "classifier.3"
    assert find_classifier(nn.Sequential(models.resnet18(weights=None)), 32) == "0.fc"
    assert find_classifier(timm.create_model("test_vit", num_classes=3, img_size=32), 32) == "head"
    assert find_classifier(timm.create_model("test_vit", num_classes=0, img_size=32), 32) is None


def test_the_output_is_what_the_classifier_takes_and_nothing_else_changes() -> None:
    model, given = Ending("classifier"), images(16)
    classifier = model.get_submodule("classifier")
    seen: list[Tensor] = []
    classifier.register_forward_hook(lambda *called: seen.append(called[2]))
    with without_classifier(model, "classifier"), torch.no_grad():
        assert torch.equal(model(given), model.body(given).mean((2, 3)))
    with torch.no_grad():
        assert torch.equal(model(given), seen[0])
    assert not model._forward_hooks
    assert not classifier._forward_pre_hooks
