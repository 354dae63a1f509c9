from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layerprobe.losses.proxy_triplet import ProxyTriplet
from tests.losses.oracles import agrees, embeddings, finite_where_it_hurts

LABELS = torch.tensor([0, 3, 3, 1, 0, 2])


def build(**options: float | None) -> ProxyTriplet:
    torch.manual_seed(1)
    return ProxyTriplet(5, 4, **options).double()  # type: ignore[arg-type] # options of one test each


def by_loops(loss: ProxyTriplet, features: Tensor, *, margin: float = 0.1) -> tuple[Tensor, int]:
    """Every (image, other class), one at a time; the mean over those that cost, and how many do."""
    total, violating = features.new_zeros(()), 0
    for x, y in zip(features, LABELS.tolist(), strict=True):
        distances = [(x / x.norm() - proxy / proxy.norm()).square().sum() for proxy in loss.proxies.unbind()]
        for z, distance in enumerate(distances):
            value = distances[y] - distance + margin
            if z != y and value > 0:
                total, violating = total + value, violating + 1
    return total / violating, violating


@pytest.mark.parametrize("margin", [0.1, 0.0, 1.5])
def test_value_and_gradient_equal_the_loops(margin: float) -> None:
    loss = build(margin=margin)
    agrees(loss, LABELS, lambda features: by_loops(loss, features, margin=margin)[0])


@pytest.mark.parametrize("margin", [0.1, 1.5])
def test_informative_counts_the_violating_triplets(margin: float) -> None:
    loss = build(margin=margin)
    loss(embeddings(), LABELS)
    _, violating = by_loops(loss, embeddings(), margin=margin)
    assert 0 < violating < 18
    assert loss.informative is not None
    assert loss.informative.item() == violating


def test_equal_proxies_cost_the_margin() -> None:
    loss = build()
    torch.nn.init.ones_(loss.proxies)
    assert loss(embeddings(), LABELS).item() == pytest.approx(0.1, rel=1e-12)


def test_nothing_violated_is_zero_with_a_zero_gradient() -> None:
    # On its proxy among orthogonal ones: 0 - 2 + 0.1 < 0.
    loss = build()
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(5)[:4])
    rows = torch.eye(5, dtype=torch.float64)[LABELS].requires_grad_()
    value = loss(rows, LABELS)
    value.backward()
    assert value.item() == 0
    assert loss.informative is not None
    assert loss.informative.item() == 0
    assert rows.grad is not None
    assert loss.proxies.grad is not None
    assert not rows.grad.any()
    assert not loss.proxies.grad.any()


def test_a_single_violation_is_not_diluted() -> None:
    # Half-way between proxies 0 and 1: equal distances cost the margin, the two orthogonal proxies nothing.
    loss = build()
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(5)[:4])
    rows = torch.tensor([[1.0, 1.0, 0, 0, 0]], dtype=torch.float64)
    assert loss(rows, torch.tensor([0])).item() == pytest.approx(0.1, rel=1e-12)


def test_it_is_the_librarys_triplet_loss_of_proxies() -> None:
    library = pytest.importorskip("pytorch_metric_learning")
    from pytorch_metric_learning.distances import LpDistance
    from pytorch_metric_learning.losses import TripletMarginLoss

    assert library
    ours = build(margin=0.5)
    theirs = TripletMarginLoss(margin=0.5, distance=LpDistance(power=2))
    rows, classes = embeddings().detach(), torch.arange(4)
    triplets = [(a, int(y), z) for a, y in enumerate(LABELS) for z in range(4) if z != y]
    tuples = tuple(torch.tensor(index) for index in zip(*triplets, strict=True))
    expected = theirs(rows, LABELS, tuples, ref_emb=ours.proxies.detach(), ref_labels=classes)
    torch.testing.assert_close(ours(rows, LABELS).detach(), expected)


def test_lengths_change_nothing() -> None:
    loss = build()
    expected = loss(embeddings(), LABELS)
    with torch.no_grad():
        loss.proxies.mul_(torch.tensor([[0.1], [2], [30], [4]]))
    torch.testing.assert_close(loss(embeddings() * 7, LABELS), expected)


def test_gradients_are_finite_for_awkward_rows() -> None:
    finite_where_it_hurts(build().float(), LABELS)


def test_the_proxies_have_a_rate_of_their_own_and_no_decay_unless_asked() -> None:
    (group,) = build().parameter_groups()
    assert (group.learning_rate, group.weight_decay, len(group.parameters)) == (1e-3, 0.0, 1)
    (group,) = build(proxy_weight_decay=5e-4).parameter_groups()
    assert group.weight_decay == 5e-4


@pytest.mark.parametrize("options", [{"margin": -0.1}, {"proxy_learning_rate": 0.0}, {"proxy_weight_decay": -1.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} is {next(iter(options.values()))}; "):
        build(**options)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 2"):
        ProxyTriplet(5, 1)
