from __future__ import annotations

import numpy as np
import pytest

from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.ranking import nearest_positive_ranks
from layerprobe.system.errors import LayerprobeError, NotFiniteError
from tests.post_processing.fitting import features, fitted, stored


def test_each_feature_is_normalised_by_its_own_numbers() -> None:
    asked = features(9, 12) * np.logspace(-3, 3, 9)[:, None]
    centred = asked - asked.mean(1, keepdims=True)
    expected = centred / np.sqrt((centred**2).mean(1, keepdims=True) + 1e-5)
    assert fitted("layernorm", features(4, 12), asked) == pytest.approx(expected, rel=1e-12)


def test_equal_numbers_become_0() -> None:
    assert (fitted("layernorm", features(4, 12), np.full((1, 12), 0.1)) == 0).all()


@pytest.mark.parametrize("dim", [1, 8, 12])
def test_bits_are_packed_as_numpy_packs_them(dim: int) -> None:
    asked = features(20, dim)
    found = stored("binary", asked, asked)
    assert found.dtype == np.uint8
    assert (found == np.packbits(asked > 0, axis=1)).all()


def test_zero_is_no_bit() -> None:
    assert stored("binary", np.ones((1, 3)), np.array([[0.0, -0.0, 1e-300]])).tolist() == [[0b001_00000]]


def test_ranks_are_those_of_hamming_distances_of_all_numbers() -> None:
    # 12 bits leave half a byte empty
    asked, labels = features(60, 12), np.arange(60) % 5
    ranks = nearest_positive_ranks(stored("binary", asked, asked), labels, similarity="hamming")
    for i, row in enumerate(asked):
        apart = ((row > 0) != (asked > 0)).sum(1)
        same = (labels == labels[i]) & (np.arange(60) != i)
        assert ranks.closer[i] == (apart[labels != labels[i]] < apart[same].min()).sum()


def test_it_is_searched_by_hamming_alone() -> None:
    assert parse_chain("layernorm+binary").similarity == "hamming"


def test_first_keeps_the_first_numbers() -> None:
    assert fitted("first:2", np.ones((1, 3)), np.array([[3.0, 4.0, 5.0]])).tolist() == [[3, 4]]


def test_first_refuses_features_that_have_fewer_numbers() -> None:
    with pytest.raises(NotApplicableError, match="first:4: the features have 3 dimensions. Use at most 3"):
        fitted("first:4", np.ones((1, 3)), np.ones((1, 3)))


@pytest.mark.parametrize("argument", ["", "0", "-1", "2.5", "x"])
def test_first_takes_a_number_of_dimensions(argument: str) -> None:
    with pytest.raises(LayerprobeError, match="first:"):
        parse_chain(f"first:{argument}")


def test_rows_that_are_not_finite_are_counted_not_cut() -> None:
    asked = features(5000, 12)
    asked[3, 0] = asked[4999, 1] = np.nan
    with pytest.raises(NotFiniteError, match="2 of 5000"):
        stored("binary", asked, asked)
