from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.proxy_nca import ProxyNCA
from tests.losses.oracles import agrees, embeddings, finite_where_it_hurts, log_sum_exp

LABELS = torch.tensor([0, 3, 3, 1, 0, 2])


def build(**options: float | None) -> ProxyNCA:
    torch.manual_seed(1)
    return ProxyNCA(5, 4, **options).double()  # type: ignore[arg-type] # options of one test each


def by_loops(loss: ProxyNCA, features: Tensor, *, scale: float = 3.0) -> Tensor:
    """Equation 14 with distances of vectors of length `scale`, one image and one class at a time."""
    total = features.new_zeros(())
    for x, y in zip(features, LABELS.tolist(), strict=True):
        distances = [
            (scale * x / x.norm() - scale * proxy / proxy.norm()).square().sum() for proxy in loss.proxies.unbind()
        ]
        others = [-distance for n, distance in enumerate(distances) if n != y]
        total = total + distances[y] + log_sum_exp(others)
    return total / len(features)


@pytest.mark.parametrize("scale", [3.0, 1.0])
def test_value_and_gradient_equal_the_loops(scale: float) -> None:
    loss = build(scale=scale)
    agrees(loss, LABELS, lambda features: by_loops(loss, features, scale=scale))


def test_an_embedding_orthogonal_to_all_proxies_costs_ln_of_the_other_classes() -> None:
    loss = build()
    with torch.no_grad():
        loss.proxies[:, 4] = 0
    orthogonal = torch.eye(5, dtype=torch.float64)[[4, 4]]
    assert loss(orthogonal, torch.tensor([0, 3])).item() == pytest.approx(math.log(3), rel=1e-12)


def test_the_positive_is_not_in_the_denominator() -> None:
    # On its proxy, the others orthogonal: 0 + ln(3 e^-18), far below 0.
    loss = build()
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(5)[:4])
    found = loss(torch.eye(5, dtype=torch.float64)[:1], torch.tensor([0]))
    assert found.item() == pytest.approx(math.log(3) - 18, rel=1e-12)


def test_logits_are_negative_squared_distances() -> None:
    loss = build()
    x, p = 3 * embeddings() / embeddings().norm(dim=1, keepdim=True), 3 * loss.classifier_weight
    torch.testing.assert_close(loss.logits(embeddings()), -torch.cdist(x, p).square())


def test_lengths_change_nothing() -> None:
    loss = build()
    expected = loss(embeddings(), LABELS)
    with torch.no_grad():
        loss.proxies.mul_(torch.tensor([[0.1], [2], [30], [4]]))
    torch.testing.assert_close(loss(embeddings() * 7, LABELS), expected)


def test_the_order_of_the_batch_changes_nothing() -> None:
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(build()(embeddings()[order], LABELS[order]), build()(embeddings(), LABELS))


def test_gradients_are_finite_for_awkward_rows() -> None:
    finite_where_it_hurts(build().float(), LABELS)


def test_the_proxies_have_a_rate_of_their_own_and_no_decay_unless_asked() -> None:
    (group,) = build().parameter_groups()
    assert (group.learning_rate, group.weight_decay, len(group.parameters)) == (1e-3, 0.0, 1)
    (group,) = build(proxy_weight_decay=5e-4).parameter_groups()
    assert group.weight_decay == 5e-4
    (group,) = build(proxy_learning_rate=None).parameter_groups()
    assert group.learning_rate is None


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"proxy_learning_rate": -1.0}, {"proxy_weight_decay": -1.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} is {next(iter(options.values()))}; "):
        build(**options)


def test_one_class_is_refused() -> None:
    with pytest.raises(ValueError, match="needs at least 2"):
        ProxyNCA(5, 1)
