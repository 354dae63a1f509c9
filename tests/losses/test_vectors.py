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
from layerprobe.losses.vectors import euclidean, normal, pairs_of, squared_euclidean, uniform, unit
from tests.losses.oracles import embeddings
from tests.losses.pairwise import LABELS, rows


def test_unit_rows_have_length_1() -> None:
    torch.testing.assert_close(unit(embeddings()).norm(dim=1), torch.ones(6, dtype=torch.float64))


def test_unit_has_the_gradient_of_the_quotient() -> None:
    assert torch.autograd.gradcheck(unit, embeddings())


def test_a_zero_row_stays_zero_with_a_gradient_of_1() -> None:
    rows = torch.zeros(2, 3, requires_grad=True)
    result = unit(rows)
    result.sum().backward()
    assert not result.any()
    assert rows.grad is not None
    assert (rows.grad == 1).all()


def test_distances_are_those_of_the_rows_one_at_a_time() -> None:
    x = rows().detach()
    wanted = torch.tensor([[float((a - b).norm()) for b in x] for a in x], dtype=torch.float64)
    torch.testing.assert_close(euclidean(x), wanted)
    torch.testing.assert_close(squared_euclidean(x), wanted.square())


def test_equal_rows_are_at_distance_0_and_have_no_gradient() -> None:
    x = torch.full((3, 4), 1e3, requires_grad=True)
    distances = euclidean(x)
    distances.sum().backward()
    assert not distances.any()
    assert x.grad is not None
    assert not x.grad.any()


def test_the_gradient_is_that_of_the_norm() -> None:
    assert torch.autograd.gradcheck(lambda x: euclidean(x)[0, 1:], rows(4))


def test_pairs_are_of_one_class_without_itself_or_of_two() -> None:
    positives, negatives = pairs_of(LABELS)
    for i in range(8):
        for j in range(8):
            assert bool(positives[i, j]) == (i != j and LABELS[i] == LABELS[j])
            assert bool(negatives[i, j]) == (LABELS[i] != LABELS[j])


@pytest.mark.parametrize(("labels", "kind"), [([0, 1, 2], "positive"), ([1, 1, 1], "negative")])
def test_a_batch_without_pairs_is_refused(labels: list[int], kind: str) -> None:
    with pytest.raises(ValueError, match=f"a batch without {kind} pairs"):
        pairs_of(torch.tensor(labels))


def test_rows_that_differ_little_keep_their_distance() -> None:
    x = rows().detach()
    x[1] = x[0] + torch.tensor([3e-4, 4e-4, 0.0, 0.0, 0.0], dtype=torch.float64)
    assert euclidean(x)[0, 1].item() == pytest.approx(5e-4, rel=1e-6)
    single = euclidean(x.float())[0, 1].item()
    assert single == pytest.approx(5e-4, rel=1e-3)


def test_first_values_are_spread_as_named() -> None:
    torch.manual_seed(0)
    bounded, gaussian = uniform(2000, 16), normal(2000, 16)
    assert bounded.abs().max().item() == pytest.approx(0.25, rel=1e-3)
    assert bounded.abs().max() <= 0.25
    assert gaussian.norm(dim=1).square().mean().item() == pytest.approx(1, rel=0.02)


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
