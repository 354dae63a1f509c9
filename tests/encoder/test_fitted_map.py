from __future__ import annotations

import numpy as np
import pytest
import torch

from layerprobe.encoder.example import mapped
from layerprobe.encoder.fitted_map import fitted_map, with_ends
from layerprobe.encoder.graph import apply_map
from layerprobe.measure.extraction import side_by_side
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import InTurn
from layerprobe.system.errors import LayerprobeError
from tests.post_processing.fitting import features, stored

CHAINS = (
    "none", "l2", "layernorm", "pca:5", "l2+pca:5+l2", "whiten:5:1", "l2+whiten:5:0.5+l2", "random:4",
    "l2+pca:9+binary", "layernorm+binary", "first:5", "layernorm+first:5+l2", "l2+float16", "first:7+int8",
    "l2+whiten:5:0.5+l2+int8",
)  # fmt: skip


@pytest.mark.parametrize("chain", CHAINS)
def test_numpy_computes_what_is_ranked(chain: str) -> None:
    train, given = features(40, 12), features(9, 12, seed=1).astype(np.float32)
    fitted = fitted_map(parse_chain(chain).fit([torch.from_numpy(train)], 12, seed=0))
    found = mapped(given, fitted.steps, fitted.arrays)
    kind = {"float16": np.float16, "int8": np.int8, "bit": np.uint8}.get(parse_chain(chain).number, np.float32)
    assert found.dtype == kind
    np.testing.assert_allclose(found.astype(float), stored(chain, train, given).astype(float), atol=1e-6)


def test_shift_is_two_projections() -> None:
    weight, given = torch.randn(3, 6, generator=torch.Generator().manual_seed(0)), torch.rand(4, 6).double()
    post_process = parse_chain("shift").fit([], 6, seed=0, classifier_weight=weight)
    fitted = fitted_map(post_process)
    assert fitted.steps == ("projection", "projection")
    np.testing.assert_allclose(mapped(given.numpy(), fitted.steps, fitted.arrays), post_process(given), atol=1e-6)


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


@pytest.mark.parametrize("name", ["float16", "int8"])
def test_nothing_is_normalised_after_numbers_of_fewer_bits(name: str) -> None:
    finish = with_ends(parse_chain(name).fit([], 2, seed=0), sizes=[2], similarity="cosine")
    assert fitted_map(finish).steps == (name,)


def test_numpy_rounds_a_zero_vector_to_zero_and_half_to_even() -> None:
    # 127 / 254 = 1 / 2: 0.5 and 1.5
    found = mapped(np.array([[0.0, 0.0, 0.0], [254.0, 1.0, 3.0]]), ["int8"], {})
    assert found.tolist() == [[0, 0, 0], [127, 0, 2]]


def test_a_step_that_numpy_does_not_know_is_refused() -> None:
    with pytest.raises(LayerprobeError, match=r"map.npz: step 1 of the post-processing.*Leave npz out of --format"):
        fitted_map(InTurn((torch.sigmoid,)))
