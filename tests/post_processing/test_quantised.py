from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np
import pytest
import torch

from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.post_processing.quantised import before_rounding, round_to_float16, round_to_int8
from layerprobe.ranking import nearest_positive_ranks
from layerprobe.system.errors import NotFiniteError
from layerprobe.values.retrieval import Similarity
from tests.post_processing.fitting import features, fitted, stored


def test_numbers_are_rounded_to_the_nearest_float16_as_numpy_rounds_them() -> None:
    asked = features(400, 50) * np.logspace(-9, 3, 400)[:, None]  # subnormal ones, too
    found = fitted("float16", asked, asked)
    assert found.dtype == np.float16
    assert (found == asked.astype(np.float16)).all()


def test_a_number_is_rounded_once() -> None:
    # beside 1 lies 1 + 2^-10: a hair above their middle the upper one is nearer, and float32 drops the hair
    middle = 1 + 2.0**-11
    asked = torch.tensor([[middle - 2.0**-40, middle, middle + 2.0**-40, -middle - 2.0**-40]], dtype=torch.float64)
    assert round_to_float16(asked).tolist() == [[1, 1, 1 + 2.0**-10, -1 - 2.0**-10]]


def test_numbers_beyond_float16_are_refused() -> None:
    # 65,504 is the largest, and 65,520 the middle to the next power of two
    assert stored("float16", np.ones((1, 1)), np.array([[65519.0]])).tolist() == [[65504]]
    with pytest.raises(NotApplicableError, match="float16: numbers are beyond its range.*Put l2 before float16"):
        stored("float16", np.ones((1, 1)), np.array([[1.0], [-65520.0]]))


def test_infinite_features_are_not_blamed_on_float16() -> None:
    assert stored("float16", np.ones((1, 1)), np.array([[np.inf]])).tolist() == [[np.inf]]


def test_codes_are_127_times_the_share_of_the_largest_number() -> None:
    # 127 x (3 / 4, -4 / 4, 1 / 4) = 95.25, -127, 31.75
    assert stored("int8", np.ones((1, 3)), np.array([[3.0, -4.0, 1.0], [0.0, -0.0, 0.0]])).tolist() == [
        [95, -127, 32],
        [0, 0, 0],
    ]
    assert round_to_int8(torch.ones(1, 3, dtype=torch.float64)).dtype == torch.int8


def test_codes_are_rounded_half_to_even() -> None:
    # 127 / 254 = 1 / 2: 0.5, 1.5, 2.5 and -0.5, exactly
    assert stored("int8", np.ones((1, 5)), np.array([[254.0, 1.0, 3.0, 5.0, -1.0]])).tolist() == [[127, 0, 2, 2, 0]]


def test_codes_do_not_depend_on_the_length() -> None:
    asked = features(20, 12)
    assert (stored("int8", asked, asked) == stored("int8", asked, asked * 2.0**40)).all()


def test_codes_are_searched_by_the_cosine_alone() -> None:
    assert parse_chain("l2+int8").similarity == "cosine"
    assert parse_chain("l2+float16").similarity is None


def test_rows_that_are_not_finite_are_counted_not_coded() -> None:
    asked = features(5000, 12)
    asked[3, 0] = asked[4999, 1] = np.nan
    with pytest.raises(NotFiniteError, match="2 of 5000"):
        stored("int8", asked, asked)


def signed_square(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    """cos |cos| of two vectors, exactly: it orders as the cosine does."""
    product = sum((x * y for x, y in zip(a, b, strict=True)), Fraction())
    squares = sum((x * x for x in a), Fraction()) * sum((x * x for x in b), Fraction())
    return product * abs(product) / squares if squares else Fraction()


def euclidean(a: Sequence[Fraction], b: Sequence[Fraction]) -> Fraction:
    return -sum(((x - y) ** 2 for x, y in zip(a, b, strict=True)), Fraction())


@pytest.mark.parametrize(
    ("chain", "similarity", "measure"),
    [
        ("int8", "cosine", signed_square),
        ("float16", "cosine", signed_square),
        ("float16", "euclidean", euclidean),
    ],
)
def test_ranks_are_those_of_the_stored_numbers_in_rational_arithmetic(
    chain: str, similarity: Similarity, measure: Callable[[Sequence[Fraction], Sequence[Fraction]], Fraction]
) -> None:
    # 4 dimensions, coarse numbers and a zero vector: many cosines are equal, of vectors of several lengths
    asked = np.random.default_rng(0).integers(-2, 3, (90, 4)) * np.random.default_rng(1).choice([0.1, 0.3], (90, 1))
    asked[5] = 0
    asked[60:75] = features(15, 4)
    labels = np.arange(90) % 6
    codes = stored(chain, asked, asked)
    ranks = nearest_positive_ranks(codes, labels, similarity=similarity)
    numbers = [[Fraction(float(x)) for x in row] for row in codes]
    ties = 0
    for i, row in enumerate(numbers):
        near = [measure(row, other) for other in numbers]
        best = max(near[j] for j in range(90) if labels[j] == labels[i] and j != i)
        negatives = [near[j] for j in range(90) if labels[j] != labels[i]]
        assert ranks.closer[i] == sum(x > best for x in negatives)
        assert ranks.tied_negatives[i] == sum(x == best for x in negatives)
        ties += sum(x == best for x in negatives)
    assert ties > 50


def test_the_numbers_before_rounding_are_those_that_are_rounded() -> None:
    for name in ("float16", "int8", "binary"):
        numbers = before_rounding(parse_chain(f"layernorm+{name}").fit([], 2, seed=0))
        assert numbers is not None
        assert numbers(torch.tensor([[1.0, 3.0]])).sign().tolist() == [[-1, 1]]  # less the mean, 2
    assert before_rounding(parse_chain("layernorm").fit([], 2, seed=0)) is None
    assert before_rounding(parse_chain("none").fit([], 2, seed=0)) is None
