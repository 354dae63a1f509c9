from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.proxy_anchor import ProxyAnchor
from tests.losses.oracles import agrees, cosine, embeddings, finite_where_it_hurts

LABELS = torch.tensor([0, 3, 3, 1, 0, 3])  # class 2 is not in the batch


def build(**options: float | None) -> ProxyAnchor:
    torch.manual_seed(1)
    return ProxyAnchor(5, 4, **options).double()  # type: ignore[arg-type] # options of one test each


def by_loops(loss: ProxyAnchor, features: Tensor, labels: Tensor, *, alpha: float = 32, delta: float = 0.1) -> Tensor:
    """The formula, one proxy and one image at a time."""
    pull, push, present = features.new_zeros(()), features.new_zeros(()), 0
    for c, proxy in enumerate(loss.proxies.unbind()):
        near, far = features.new_zeros(()), features.new_zeros(())
        for x, y in zip(features, labels.tolist(), strict=True):
            if y == c:
                near = near + torch.exp(-alpha * (cosine(x, proxy) - delta))
            else:
                far = far + torch.exp(alpha * (cosine(x, proxy) + delta))
        present += c in labels.tolist()
        pull, push = pull + torch.log(1 + near), push + torch.log(1 + far)
    return pull / present + push / len(loss.proxies)


@pytest.mark.parametrize(("alpha", "delta"), [(32.0, 0.1), (4.0, 0.0)])
def test_value_and_gradient_equal_the_loops(alpha: float, delta: float) -> None:
    loss = build(scale=alpha, margin=delta)
    agrees(loss, LABELS, lambda features: by_loops(loss, features, LABELS, alpha=alpha, delta=delta))


def test_a_batch_of_one_class_has_no_push_on_its_own_proxy() -> None:
    loss, labels = build(), torch.tensor([1, 1, 1])
    agrees(loss, labels, lambda features: by_loops(loss, features, labels))


def test_an_orthogonal_batch_costs_the_closed_form() -> None:
    # s = 0 everywhere: the proxy of the 2 images: ln(1 + 2 e^3.2); a quarter of three times the same for the push.
    loss = build()
    with torch.no_grad():
        loss.proxies[:, 4] = 0
    rows = torch.eye(5, dtype=torch.float64)[[4, 4]]
    expected = math.log1p(2 * math.exp(3.2)) * (1 + 3 / 4)
    assert loss(rows, torch.tensor([0, 0])).item() == pytest.approx(expected, rel=1e-6)


def test_it_is_the_librarys_formula() -> None:
    library = pytest.importorskip("pytorch_metric_learning.losses")
    ours = build()
    theirs = library.ProxyAnchorLoss(4, 5, margin=0.1, alpha=32).double()
    theirs.proxies.data = ours.proxies.data
    torch.testing.assert_close(ours(embeddings(), LABELS), theirs(embeddings(), LABELS), rtol=1e-6, atol=1e-9)


def test_large_scales_do_not_overflow() -> None:
    loss = build(scale=1e4).float()
    assert loss(embeddings().float(), LABELS).isfinite()


def test_lengths_and_the_order_of_the_batch_change_nothing() -> None:
    loss, order = build(), torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(loss(embeddings()[order] * 7, LABELS[order]), loss(embeddings(), LABELS))


def test_gradients_are_finite_for_awkward_rows() -> None:
    finite_where_it_hurts(build().float(), LABELS)


def test_logits_are_scaled_cosines_of_the_classifier_weight() -> None:
    loss = build()
    expected = 32 * embeddings() / embeddings().norm(dim=1, keepdim=True) @ loss.classifier_weight.T
    torch.testing.assert_close(loss.logits(embeddings()), expected)


def test_the_proxies_have_a_rate_of_their_own_and_no_decay() -> None:
    (group,) = build().parameter_groups()
    assert (group.learning_rate, group.weight_decay, len(group.parameters)) == (1e-2, 0.0, 1)


@pytest.mark.parametrize("options", [{"scale": 0.0}, {"margin": -0.1}, {"proxy_learning_rate": 0.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} is {next(iter(options.values()))}; "):
        build(**options)
