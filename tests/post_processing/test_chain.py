from __future__ import annotations

import numpy as np
import pytest

from layerprobe.post_processing.chain import equal_dim_of, equal_dimension, parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.system.errors import RecipeError, UnknownNameError
from tests.post_processing.fitting import features, fitted


def test_each_part_is_fitted_on_what_the_one_before_gives() -> None:
    train, test = features(90, 12), features(40, 12, seed=1)
    first = fitted("l2+pca:8", train, train), fitted("l2+pca:8", train, test)
    assert fitted("l2+pca:8+whiten:3:1", train, test) == pytest.approx(fitted("whiten:3:1", *first), abs=1e-12)


def test_no_post_processing_leaves_features_as_they_are() -> None:
    test = features(9, 12)
    assert (fitted("none", test, test) == test).all()


def test_l2_gives_length_1_and_leaves_zero() -> None:
    found = fitted("l2", np.ones((1, 2)), np.array([[3.0, 4.0], [0.0, 0.0]]))
    assert found.tolist() == [[0.6, 0.8], [0.0, 0.0]]


def test_the_dimension_is_the_last_parts() -> None:
    assert parse_chain("l2+pca:8+random:3+l2").dim(12) == 3


def test_a_part_cannot_ask_for_more_than_the_one_before_leaves() -> None:
    with pytest.raises(NotApplicableError, match="random:9: the features have 8 dimensions"):
        parse_chain("pca:8+random:9").dim(12)


def test_what_does_not_fit_is_not_fitted_on_the_gallery() -> None:
    with pytest.raises(RecipeError, match="l2@gallery: nothing is fitted. Leave @gallery out"):
        parse_chain("l2@gallery")


@pytest.mark.parametrize(("name", "near"), [("l2+pac:8", "pca:"), ("l2+pca", "pca:"), ("l2+Binary", "binary")])
def test_another_name_is_told_with_the_nearest(name: str, near: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{near}'"):
        parse_chain(name)


@pytest.mark.parametrize(
    ("chain", "dim"),
    [
        ("l2+pca:64+l2", 64),
        ("first:64+int8", 64),
        ("whiten:32:1@gallery", 32),
        ("random:16x5+l2", 16),
        ("none", None),
        ("l2", None),
    ],
)
def test_a_chain_with_a_number_of_dimensions_gives_every_layer_this_many(chain: str, dim: int | None) -> None:
    assert equal_dim_of(chain) == dim


@pytest.mark.parametrize(
    ("chain", "size"),
    [("none", 36), ("first:9+l2", 36), ("l2+float16", 18), ("int8", 9), ("l2+binary", 2)],  # 9 bits: 2 bytes
)
def test_a_vector_of_9_numbers_has_this_many_bytes(chain: str, size: int) -> None:
    assert parse_chain(chain).bytes_per_image(9) == size


@pytest.mark.parametrize("name", ["binary", "float16", "int8"])
def test_nothing_follows_numbers_of_fewer_bits(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"l2\+{name}\+l2: nothing can follow {name}. Put {name} at the end"):
        parse_chain(f"l2+{name}+l2")


def test_layers_are_compared_at_one_dimension_by_three_post_processings() -> None:
    chains = equal_dimension(8)
    assert chains == ("l2+pca:8+l2", "l2+whiten:8:0.5+l2", "random:8x5+l2")
    assert [parse_chain(chain).dim(100) for chain in chains] == [8, 8, 8]
    assert [len(parse_chain(chain).members()) for chain in chains] == [1, 1, 5]
