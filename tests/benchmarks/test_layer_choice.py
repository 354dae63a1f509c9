"""The simple ways to choose a layer, which `choose` is compared with."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.linear_model import Ridge

from benchmarks.layer_choice import effective_ranks, loes_scores, of_one_dimension, picks, regrets
from layerprobe.system.errors import NumericError


@pytest.mark.parametrize("dim", [12, 520])
def test_loes_is_the_residual_of_a_ridge_regression_and_the_unevenness_of_the_spectrum(dim: int) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(5, size=60) * 7  # classes need not be numbered from 0
    features = rng.standard_normal((60, dim)) * np.linspace(0.1, 3, dim) + 4
    targets = (labels[:, None] == np.unique(labels)).astype(float)
    residual = targets - Ridge(alpha=1e-3, solver="cholesky").fit(features, targets).predict(features)
    eigenvalues: NDArray[Any]
    if dim > 512:  # there the squared singular values, of which 60 rows have 60
        eigenvalues = np.maximum(np.linalg.svd(features - features.mean(0))[1] ** 2 / 60, 1e-6)
    else:
        eigenvalues = np.linalg.eigvalsh(np.cov(features.T, bias=True)) + 1e-6
    expected = (residual**2).mean() + 1 - eigenvalues.mean() / (eigenvalues.std() + 1e-6)
    assert loes_scores({"fc6": features}, labels) == {"fc6": pytest.approx(expected, abs=1e-9)}


def test_loes_of_a_layer_that_does_not_vary() -> None:
    # The ridge regression predicts the mean: two classes of equal size leave 1/4. All eigenvalues are 1e-6.
    score = loes_scores({"flat": np.ones((4, 3))}, [0, 0, 1, 1])["flat"]
    assert score == pytest.approx(0.25 + 1 - 1e-6 / 1e-6)


def test_loes_refuses_what_is_not_finite() -> None:
    with pytest.raises(NumericError, match="fc6: a feature is not finite"):
        loes_scores({"fc6": np.array([[np.nan], [1.0]])}, [0, 1])


def test_loes_refuses_another_number_of_rows() -> None:
    with pytest.raises(ValueError, match=r"fc6: expected \(3, D\)"):
        loes_scores({"fc6": np.ones((2, 2))}, [0, 1, 1])


def test_each_way_picks_by_its_own_number() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat([0, 1], 20)
    features = {
        "even": rng.standard_normal((40, 6)),  # uses six directions evenly: the largest effective rank
        "classes": np.eye(2)[labels] + 0.01 * rng.standard_normal((40, 2)),
        "flat": np.ones((40, 2)) + 0.001 * rng.standard_normal((40, 2)),
    }
    chosen = picks(features, labels, {"even": 50.0, "classes": 100.0, "flat": 60.0})
    lowest = min(features, key=loes_scores(features, labels).__getitem__)
    assert chosen.pop("LOES, equal dim") in features
    assert chosen == {
        "last layer": "flat", "best on split": "classes", "LOES": lowest, "effective rank": "even"
    }  # fmt: skip


def test_as_many_dimensions_of_each_layer_as_the_smallest_has() -> None:
    wide = np.arange(12.0).reshape(2, 6)
    found = of_one_dimension({"wide": wide, "narrow": np.eye(2)})
    assert {layer: values.shape for layer, values in found.items()} == {"wide": (2, 2), "narrow": (2, 2)}
    assert set(found["wide"][0]) <= set(wide[0])
    assert (found["wide"][1] - found["wide"][0] == 6).all()  # whole columns


def test_effective_rank_of_equal_directions_is_their_number() -> None:
    assert effective_ranks({"axes": np.eye(3)}) == {"axes": pytest.approx(3)}


def test_regret_is_the_difference_from_the_best_layer_on_test() -> None:
    assert regrets({"last layer": "b", "LOES": "a"}, {"a": 80.0, "b": 72.5}) == {"last layer": 7.5, "LOES": 0.0}
