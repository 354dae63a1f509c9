from __future__ import annotations

import numpy as np
import pytest
import torch

from layerprobe.encoder.example import mapped
from layerprobe.encoder.fitted_map import before_bits, fitted_map, with_ends
from layerprobe.encoder.graph import apply_map
from layerprobe.measure.extraction import side_by_side
from layerprobe.reductions.chain import parse_chain
from layerprobe.reductions.reduction import InTurn
from layerprobe.system.errors import LayerprobeError
from tests.reductions.fitting import features, stored

CHAINS = (
    "none", "l2", "layernorm", "pca:5", "l2+pca:5+l2", "whiten:5:1", "l2+whiten:5:0.5+l2", "random:4",
    "l2+pca:9+binary", "layernorm+binary",
)  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_numpy_computes_what_is_ranked(chain: str) -> None:
    train, given = features(40, 12), features(9, 12, seed=1).astype(np.float32)
    fitted = fitted_map(parse_chain(chain).fit([torch.from_numpy(train)], 12, seed=0))
    found = mapped(given, fitted.steps, fitted.arrays)
    expected = stored(chain, train, given)
    assert found.dtype == expected.dtype
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_shift_is_two_projections() -> None:
    weight, given = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)), torch.rand(4, 6).double()
    reduce = parse_chain("shift").fit([], 6, seed=0, classifier_weight=weight)
    fitted = fitted_map(reduce)
    assert fitted.steps == ("projection", "projection")
    np.testing.assert_allclose(mapped(given.numpy(), fitted.steps, fitted.arrays), reduce(given), atol=1e-6)


def test_a_zero_vector_stays_zero() -> None:
    assert mapped(np.zeros((1, 3)), ["l2"], {}).tolist() == [[0, 0, 0]]


def test_what_is_ranked_by_cosine_ends_at_length_1() -> None:
    finish = with_ends(InTurn(()), sizes=[2], similarity="cosine")
    assert finish(torch.tensor([[3.0, 4.0]])).tolist() == [[pytest.approx(0.6), pytest.approx(0.8)]]


@pytest.mark.parametrize("similarity", ["euclidean", "dot"])
def test_what_is_ranked_otherwise_keeps_its_length(similarity: str) -> None:
    assert fitted_map(with_ends(InTurn(()), sizes=[2], similarity=similarity)).steps == ()


def test_concatenated_layers_are_those_that_are_ranked() -> None:
    a, b = (features(5, dim, seed=dim).astype(np.float32) for dim in (3, 4))
    finish = with_ends(InTurn(()), sizes=[3, 4], similarity="dot")
    both, fitted = np.concatenate([a, b], axis=1), fitted_map(finish)
    np.testing.assert_array_equal(apply_map(finish, torch.from_numpy(both)), side_by_side([a, b]))
    np.testing.assert_allclose(mapped(both, fitted.steps, fitted.arrays), side_by_side([a, b]), atol=1e-7)


def test_the_numbers_before_bits_are_those_that_are_cut() -> None:
    fitted = parse_chain("layernorm+binary").fit([], 2, seed=0)
    numbers = before_bits(fitted)
    assert numbers is not None
    assert numbers(torch.tensor([[1.0, 3.0]])).sign().tolist() == [[-1, 1]]  # less the mean, 2
    assert before_bits(parse_chain("layernorm").fit([], 2, seed=0)) is None


def test_a_step_that_numpy_does_not_know_is_refused() -> None:
    with pytest.raises(LayerprobeError, match=r"map.npz: step 1 of the reduction.*Leave npz out of --format"):
        fitted_map(InTurn((torch.sigmoid,)))
