from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from layerprobe.metrics.accuracy import Accuracy
from layerprobe.ranking import retrieval
from layerprobe.system.errors import NumericError
from layerprobe.values.retrieval import Classifier, Retrieval

CLASSES = np.array([2, 5, 7])


def given(features: torch.Tensor, labels: list[int], weight: torch.Tensor) -> Retrieval:
    made = retrieval(features.numpy(), np.array(labels))
    return replace(made, classifier=Classifier(lambda rows: rows @ weight.T, CLASSES))


def test_it_is_scikit_learns_of_the_largest_logit() -> None:
    generator = torch.Generator().manual_seed(0)
    features, weight = torch.randn(9000, 4, generator=generator), torch.randn(3, 4, generator=generator)
    labels = CLASSES[torch.randint(3, (9000,), generator=generator).numpy()]
    wanted = accuracy_score(labels, CLASSES[(features @ weight.T).argmax(1).numpy()])
    assert Accuracy()(given(features, labels.tolist(), weight))["accuracy"] == pytest.approx(wanted, abs=1e-12)


def test_equal_logits_count_by_chance() -> None:
    features = torch.ones(4, 2)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])  # the first two tie
    assert Accuracy()(given(features, [2, 5, 7, 7], weight))["accuracy"] == (0.5 + 0.5) / 4


def test_collapsed_logits_score_one_of_c() -> None:
    assert Accuracy()(given(torch.ones(3, 2), [2, 5, 7], torch.zeros(3, 2)))["accuracy"] == pytest.approx(1 / 3)


@pytest.mark.parametrize("labels", [[2, 3], [1, 2], [9, 2]])
def test_classes_that_were_not_trained_have_none(labels: list[int]) -> None:
    assert Accuracy()(given(torch.ones(2, 2), labels, torch.ones(3, 2))) == {}


def test_a_layer_without_a_classifier_has_none() -> None:
    assert Accuracy()(retrieval(np.ones((2, 2), np.float32), np.array([2, 2]))) == {}


def test_logits_that_are_not_finite_are_told() -> None:
    weight = torch.full((3, 2), torch.inf)
    with pytest.raises(NumericError, match="a logit is not finite"):
        Accuracy()(given(torch.ones(2, 2), [2, 5], weight))
