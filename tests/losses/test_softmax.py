from __future__ import annotations

import math

import pytest
import torch

from layerprobe.losses.softmax import Softmax


def test_value_is_the_formula_written_out() -> None:
    torch.manual_seed(0)
    loss = Softmax(3, 4).double()
    embeddings = torch.tensor([[1.0, -2.0, 0.5], [0.1, 0.2, -0.3]], dtype=torch.float64)
    weight, bias = loss.classifier.weight.detach(), loss.classifier.bias.detach()
    expected = 0.0
    for row, label in zip(embeddings, (3, 0), strict=True):
        logits = [float(weight[c] @ row.clamp(min=0) + bias[c]) for c in range(4)]
        expected += (math.log(sum(map(math.exp, logits))) - logits[label]) / 2
    assert loss(embeddings, torch.tensor([3, 0])).item() == pytest.approx(expected, rel=1e-12)


def test_equal_logits_cost_ln_of_the_class_count() -> None:
    torch.manual_seed(0)
    loss = Softmax(3, 7)
    torch.nn.init.zeros_(loss.classifier.weight)
    torch.nn.init.zeros_(loss.classifier.bias)
    assert loss(torch.randn(5, 3), torch.arange(5)).item() == pytest.approx(math.log(7), rel=1e-6)


def test_without_the_relu_negative_embeddings_count() -> None:
    torch.manual_seed(0)
    negative = -torch.rand(4, 3)
    with_relu, without = Softmax(3, 2, bias=False), Softmax(3, 2, relu=False, bias=False)
    assert not with_relu.logits(negative).any()
    assert without.logits(negative).abs().sum() > 0


def test_the_classifier_is_one_parameter_group() -> None:
    loss = Softmax(3, 4)
    (group,) = loss.parameter_groups()
    assert len(group.parameters) == 2
    assert group.learning_rate is None


def test_label_smoothing_spreads_the_target_over_all_classes() -> None:
    torch.manual_seed(0)
    loss = Softmax(3, 4, label_smoothing=0.2).double()
    embeddings = torch.tensor([[1.0, -2.0, 0.5], [0.1, 0.2, -0.3]], dtype=torch.float64)
    expected = 0.0
    for row, label in zip(loss.logits(embeddings).tolist(), (3, 0), strict=True):
        normaliser = math.log(sum(map(math.exp, row)))
        for z in range(4):
            expected += (0.8 * (z == label) + 0.2 / 4) * (normaliser - row[z]) / 2
    assert loss(embeddings, torch.tensor([3, 0])).item() == pytest.approx(expected, rel=1e-12)


def test_without_label_smoothing_nothing_has_changed() -> None:
    torch.manual_seed(0)
    loss = Softmax(3, 4)
    embeddings, labels = torch.randn(5, 3), torch.tensor([0, 1, 2, 3, 0])
    expected = torch.nn.functional.cross_entropy(loss.classifier(embeddings.relu()), labels)
    assert loss(embeddings, labels).item() == expected.item()


def test_the_classifier_weight_multiplies_the_embedding_after_its_relu() -> None:
    torch.manual_seed(0)
    loss = Softmax(3, 4, bias=False)
    embeddings = torch.randn(5, 3)
    torch.testing.assert_close(loss.logits(embeddings), embeddings.relu() @ loss.classifier_weight.T)
    assert not loss.classifier_weight.requires_grad


@pytest.mark.parametrize("smoothing", [-0.1, 1.0])
def test_label_smoothing_is_a_share(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"^label_smoothing is .* at least 0 and below 1$"):
        Softmax(3, 4, label_smoothing=smoothing)
