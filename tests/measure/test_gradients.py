from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.measure.gradients import Classified, kinds_of
from layerprobe.values.retrieval import FloatArray


def drawn(*, unit: bool, alpha: float = 3.0, biased: bool = True) -> Classified:
    """40 features in 5 dimensions of 4 classes, with weights as long as the loss has them."""
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(4, 5))
    weight = weight / np.linalg.norm(weight, axis=1, keepdims=True) if unit else weight
    bias = 0.3 * rng.normal(size=4) if biased else np.zeros(4)
    return Classified(2 * rng.normal(size=(40, 5)), rng.integers(0, 4, 40), weight, bias, alpha, unit)


def by_autograd(of: Classified, at: FloatArray, logits: Callable[[Tensor], Tensor]) -> FloatArray:
    """Lengths of the gradient of torch's cross-entropy with respect to `at`."""
    leaf = torch.tensor(at, requires_grad=True)
    F.cross_entropy(logits(leaf), torch.tensor(of.labels), reduction="sum").backward()
    assert leaf.grad is not None
    return np.asarray(leaf.grad.norm(dim=1).numpy(), np.float64)


@pytest.mark.parametrize("unit", [True, False])
def test_by_alpha_is_the_gradient_of_equation_1_with_respect_to_what_the_classifier_multiplies(unit: bool) -> None:
    of = drawn(unit=unit)
    x = of.features / np.linalg.norm(of.features, axis=1, keepdims=True) if unit else of.features
    weight, bias = torch.tensor(of.weight), torch.tensor(of.bias)
    for alpha, found in zip((0.01, 3.0, 50.0), of.by_alpha(np.array([0.01, 3.0, 50.0])), strict=True):
        expected = by_autograd(of, x, lambda leaf, alpha=alpha: alpha * (leaf @ weight.T + bias))  # type: ignore[misc] # bound now
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("unit", [True, False])
def test_by_norm_is_the_gradient_with_respect_to_a_feature_of_that_length(unit: bool) -> None:
    of = drawn(unit=unit)
    weight, bias = torch.tensor(of.weight), torch.tensor(of.bias)
    for norm, found in zip((0.1, 2.0, 30.0), of.by_norm(np.array([0.1, 2.0, 30.0])), strict=True):
        at = norm * of.features / np.linalg.norm(of.features, axis=1, keepdims=True)

        def logits(leaf: Tensor) -> Tensor:
            return 3.0 * ((F.normalize(leaf) if unit else leaf) @ weight.T + bias)

        np.testing.assert_allclose(found, by_autograd(of, at, logits), rtol=1e-9, atol=1e-14)


# Two weights of length 1 at right angles, and features at 20 and 70 degrees, both of class 0.
ANGLES = np.deg2rad([20.0, 70.0])
PAIR = Classified(
    np.stack([np.cos(ANGLES), np.sin(ANGLES)], 1), np.array([0, 0]), np.eye(2), np.zeros(2), alpha=1.0, unit=True
)


def test_property_1_no_gradient_at_alpha_0() -> None:
    # p is 1/2 for both classes: alpha times |-w_0 / 2 + w_1 / 2|, which is alpha times the root of 1/2 (equation 6)
    np.testing.assert_allclose(PAIR.by_alpha(np.array([1e-6])), 1e-6 * np.sqrt(0.5), rtol=1e-5)


def test_property_2_at_a_large_alpha_correct_samples_have_none_and_incorrect_ones_any() -> None:
    # the correct one's p goes to 1 (equation 7); the incorrect one's gradient to alpha |w_1 - w_0| (equation 8)
    correct, incorrect = PAIR.by_alpha(np.array([1000.0]))[0]
    assert correct < 1e-200
    assert incorrect == pytest.approx(1000 * np.sqrt(2))


def test_two_equal_weights_are_the_exception_of_the_footnote() -> None:
    # "if one positive weight and one negative weight have exactly the same magnitude and direction": no gradient at all
    twins = Classified(np.array([[1.0, 0.2]]), np.array([0]), np.ones((2, 2)), np.zeros(2), alpha=1.0, unit=False)
    assert twins.by_alpha(np.array([1000.0]))[0, 0] == 0
    assert twins.margins().tolist() == [0.0]


def test_without_normalisation_a_long_feature_has_none_if_correct_and_a_fixed_gradient_if_not() -> None:
    # appendix B.1, alpha 1: the incorrect one's goes to |w_1 - w_0|
    plain = Classified(PAIR.features, PAIR.labels, PAIR.weight, PAIR.bias, alpha=1.0, unit=False)
    correct, incorrect = plain.by_norm(np.array([1000.0]))[0]
    assert correct < 1e-200
    assert incorrect == pytest.approx(np.sqrt(2))


def test_with_normalisation_the_gradient_is_inversely_proportional_to_the_norm() -> None:
    short, long = PAIR.by_norm(np.array([1.0, 8.0]))
    np.testing.assert_allclose(short, 8 * long)


def test_a_margin_is_the_distance_to_the_nearest_decision_boundary() -> None:
    # the boundary of two unit weights at right angles lies at 45 degrees: 25 degrees from either feature
    np.testing.assert_allclose(PAIR.margins(), [np.sin(np.deg2rad(25)), -np.sin(np.deg2rad(25))])
    # with weights 3 x and 1 x and bias 0 and 4, the boundary of one dimension lies at x = 2
    line = Classified(
        np.array([[5.0], [1.5]]), np.array([0, 1]), np.array([[3.0], [1.0]]), np.array([0.0, 4.0]), 1.0, unit=False
    )
    np.testing.assert_allclose(line.margins(), [3, 0.5])


def test_equal_weights_have_no_boundary_between_them() -> None:
    twins = Classified(np.ones((2, 1)), np.array([0, 1]), np.ones((2, 1)), np.array([0.0, 1.0]), 1.0, unit=False)
    assert twins.margins().tolist() == [-np.inf, np.inf]


def test_many_images_have_the_margins_of_few() -> None:
    of = drawn(unit=True)
    many = of.of(np.tile(np.arange(40), 40))
    np.testing.assert_array_equal(many.margins(), np.tile(of.margins(), 40))


def test_the_kinds_are_tenths_of_the_correct_images_and_all_others() -> None:
    # 20 correct ones of margin 1 ... 20, so that 2 are a tenth; a margin of 0 is a tie, which counts as incorrect
    margins = np.array([0.0, -2.0, *range(20, 0, -1)])
    found = {kind: sorted(margins[rows].tolist()) for kind, rows in kinds_of(margins).items()}
    assert found == {"centroid": [19, 20], "boundary": [1, 2], "incorrect": [-2, 0]}


@pytest.mark.parametrize(
    ("margins", "kinds"),
    [([2.0], {"centroid"}), ([1.0, 2.0], {"centroid", "boundary"}), ([-1.0], {"incorrect"})],
)
def test_kinds_without_an_image_are_left_out(margins: list[float], kinds: set[str]) -> None:
    assert kinds_of(np.array(margins)).keys() == kinds


def test_of_many_images_of_a_kind_500_are_taken_evenly() -> None:
    rows = kinds_of(-np.arange(1.0, 1000.0))["incorrect"]
    assert (len(rows), rows.max(), rows.min()) == (500, 998, 0)
