from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from layerprobe.losses.heated_softmax import HeatedSoftmax
from layerprobe.losses.loss import Loss
from layerprobe.losses.margin import Margin
from layerprobe.losses.norm_softmax import NormSoftmax
from layerprobe.losses.smooth_triplet import SmoothTriplet
from layerprobe.losses.softmax import Softmax


def trained(loss: Loss) -> Loss:
    """The loss in float64 after two steps, in which its statistics have moved."""
    torch.manual_seed(0)
    loss.double()
    optimizer = torch.optim.SGD(loss.parameters(), 0.5)
    for _ in range(2):
        loss(3 + 2 * torch.randn(20, 3, dtype=torch.float64), torch.arange(20) % 4).backward()
        optimizer.step()
    return loss.eval()


@pytest.mark.parametrize(
    "loss",
    [
        Softmax(3, 4),
        Softmax(3, 4, relu=False, bias=False),
        NormSoftmax(3, 4, temperature=0.1),
        HeatedSoftmax(3, 4, variant="SM"),
        HeatedSoftmax(3, 4, variant="SM", scale=8.0, bias=False),
        HeatedSoftmax(3, 4, variant="LN", learn_scale=True),
        HeatedSoftmax(3, 4, variant="BN"),
        HeatedSoftmax(3, 4, variant="BN", normalise_weights=False),
    ],
)
def test_the_linear_classifier_gives_the_logits_of_the_loss(loss: Loss) -> None:
    embeddings = torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    of = trained(loss).linear(embeddings)  # type: ignore[operator] # of these losses
    x = F.normalize(of.features) if of.unit else of.features
    expected = loss.logits(embeddings)  # type: ignore[operator]
    torch.testing.assert_close(of.scale * x @ of.weight.T + of.bias, expected.detach())


def test_the_classifier_takes_its_origin_for_zero() -> None:
    # the logits at the origin are the bias alone, and beyond it those of classifier_weight times alpha
    loss = trained(HeatedSoftmax(3, 4, variant="BN"))
    assert isinstance(loss, HeatedSoftmax)
    assert loss.bias is not None
    step = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    logits = loss.logits(torch.stack([loss.classifier_origin, loss.classifier_origin + step]))
    torch.testing.assert_close(logits[0], loss.bias)
    torch.testing.assert_close((logits[1] - logits[0]).detach(), loss.scale * loss.classifier_weight @ step)
    assert HeatedSoftmax(3, 4, variant="LN").classifier_origin.tolist() == [0, 0, 0]


def test_a_loss_names_the_numbers_that_it_learns_beside_weights() -> None:
    names = {
        type(loss).__name__: set(loss.learnt_numbers())
        for loss in (
            HeatedSoftmax(2, 3, learn_scale=True),
            SmoothTriplet(2, 3, learn_scale=True),
            Margin(2, 3),
            NormSoftmax(2, 3),
        )
    }
    assert names == {"HeatedSoftmax": {"scale"}, "SmoothTriplet": {"scale"}, "Margin": {"beta"}, "NormSoftmax": set()}
    assert not HeatedSoftmax(2, 3).learnt_numbers()
    assert not SmoothTriplet(2, 3).learnt_numbers()
