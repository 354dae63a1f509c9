from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.norm_softmax import NormSoftmax
from tests.losses.oracles import agrees, cosine, embeddings, finite_where_it_hurts, log_sum_exp

LABELS = torch.tensor([0, 3, 3, 1, 0, 2])


def build(**options: float) -> NormSoftmax:
    torch.manual_seed(1)
    return NormSoftmax(5, 4, **options).double()


def by_loops(loss: NormSoftmax, features: Tensor, *, sigma: float = 0.05, smoothing: float = 0.0) -> Tensor:
    """Equation 5, one image and one class at a time."""
    total = features.new_zeros(())
    for x, y in zip(features, LABELS.tolist(), strict=True):
        logits = [cosine(x, proxy) / sigma for proxy in loss.proxies]
        for z, logit in enumerate(logits):
            target = (1 - smoothing) * (z == y) + smoothing / len(logits)
            total = total + target * (log_sum_exp(logits) - logit)
    return total / len(features)


@pytest.mark.parametrize("sigma", [0.05, 0.5])
def test_value_and_gradient_equal_the_loops(sigma: float) -> None:
    loss = build(temperature=sigma)
    agrees(loss, LABELS, lambda features: by_loops(loss, features, sigma=sigma))


def test_label_smoothing_spreads_the_target_over_all_classes() -> None:
    loss = build(label_smoothing=0.1)
    agrees(loss, LABELS, lambda features: by_loops(loss, features, smoothing=0.1))


def test_an_embedding_orthogonal_to_all_proxies_costs_ln_c() -> None:
    loss = build()
    with torch.no_grad():
        loss.proxies[:, 4] = 0
    orthogonal = torch.eye(5, dtype=torch.float64)[[4, 4]]
    assert loss(orthogonal, torch.tensor([0, 3])).item() == pytest.approx(math.log(4), rel=1e-12)


def test_an_embedding_on_its_proxy_among_orthogonal_ones_costs_the_closed_form() -> None:
    loss = build()
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(5)[:4])
    found = loss(torch.eye(5, dtype=torch.float64)[:1], torch.tensor([0]))
    assert found.item() == pytest.approx(math.log1p(3 * math.exp(-20)), rel=1e-9)


def test_lengths_change_nothing() -> None:
    loss = build()
    expected = loss(embeddings(), LABELS)
    with torch.no_grad():
        loss.proxies.mul_(torch.tensor([[0.1], [2], [30], [4]]))
    torch.testing.assert_close(loss(embeddings() * 7, LABELS), expected)


def test_rotating_embeddings_and_proxies_together_changes_nothing() -> None:
    loss = build()
    expected = loss(embeddings(), LABELS)
    rotation = torch.linalg.qr(embeddings(5, 5, seed=3).detach()).Q
    with torch.no_grad():
        loss.proxies.copy_(loss.proxies @ rotation)
    torch.testing.assert_close(loss(embeddings() @ rotation, LABELS), expected)


def test_the_order_of_the_batch_changes_nothing() -> None:
    order = torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(build()(embeddings()[order], LABELS[order]), build()(embeddings(), LABELS))


def test_proxies_start_uniform_within_one_over_root_dim() -> None:
    torch.manual_seed(0)
    largest = NormSoftmax(16, 500).proxies.abs().max().item()
    assert 0.249 < largest <= 0.25


def test_it_is_the_librarys_formula() -> None:
    library = pytest.importorskip("pytorch_metric_learning.losses")
    ours = build()
    theirs = library.NormalizedSoftmaxLoss(4, 5, temperature=0.05).double()
    theirs.W.data = ours.proxies.data.T
    torch.testing.assert_close(ours(embeddings(), LABELS), theirs(embeddings(), LABELS))


def test_gradients_are_finite_for_awkward_rows() -> None:
    finite_where_it_hurts(build().float(), LABELS)


def test_the_scale_is_no_trained_parameter_and_kept_with_the_weights() -> None:
    loss = build()
    assert [len(group.parameters) for group in loss.parameter_groups()] == [1]
    assert loss.state_dict()["scale"].item() == pytest.approx(20)


def test_heating_the_scale_heats_the_logits() -> None:
    loss = build()
    before = loss.logits(embeddings())
    loss.scale.mul_(0.25)
    torch.testing.assert_close(loss.logits(embeddings()), before / 4)


def test_the_classifier_weight_gives_the_logits() -> None:
    loss = build()
    features = embeddings().detach()
    expected = 20 * features / features.norm(dim=1, keepdim=True) @ loss.classifier_weight.T
    torch.testing.assert_close(loss.logits(features), expected)
    assert not loss.classifier_weight.requires_grad


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"temperature": -1.0}, {"label_smoothing": 1.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} is {next(iter(options.values()))}; "):
        build(**options)
