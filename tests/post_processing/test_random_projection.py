from __future__ import annotations

import re

import numpy as np
import pytest

from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.system.errors import RecipeError
from tests.post_processing.fitting import features, fitted

NOTHING = np.full((1, 12), np.nan)  # features that nothing can be fitted on


def directions(name: str, seed: int = 0) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return fitted(name, NOTHING, np.eye(12), seed=seed)


def test_the_directions_are_orthonormal() -> None:
    drawn = directions("random:7")
    assert np.abs(drawn.T @ drawn - np.eye(7)).max() < 1e-12


def test_every_direction_is_as_likely_as_its_opposite() -> None:
    # a LAPACK's own signs make the first entry of the first direction negative in every draw
    assert 0.2 < np.mean([directions("random:2", seed)[0, 0] > 0 for seed in range(100)]) < 0.8


def test_the_seed_and_the_draw_decide_the_directions() -> None:
    drawn = [directions(*which).tobytes() for which in [("random:7", 0), ("random:7", 1), ("random:7:1", 0)]]
    assert len(set(drawn)) == 3
    assert drawn[2] == directions("random:7:1", 0).tobytes()


def test_it_draws_and_fits_nothing() -> None:
    chain = parse_chain("l2+random:7+l2")
    assert (chain.draws, chain.fits) == (True, False)


def test_draws_stand_for_single_ones() -> None:
    assert parse_chain("l2+random:4x3+l2").members() == ("l2+random:4+l2", "l2+random:4:1+l2", "l2+random:4:2+l2")


def test_the_members_of_a_chain_on_the_gallery_are_on_it() -> None:
    expected = ("pca:8+random:4@gallery", "pca:8+random:4:1@gallery")
    assert parse_chain("pca:8+random:4x2@gallery").members() == expected


@pytest.mark.parametrize("name", ["none", "random:4:1+l2"])
def test_a_chain_without_draws_stands_for_itself(name: str) -> None:
    assert parse_chain(name).members() == (name,)


def test_several_draws_are_no_function_of_features() -> None:
    with pytest.raises(ValueError, match="random:4x3 stands for 3 draws"):
        fitted("random:4x3", features(9, 12), features(9, 12))


def test_more_directions_than_dimensions_do_not_apply() -> None:
    with pytest.raises(NotApplicableError, match="random:13x5: the features have 12 dimensions. Use at most 12"):
        parse_chain("random:13x5").dim(12)


@pytest.mark.parametrize("name", ["random:x", "random:0", "random:64:0", "random:64x1", "random:64x", "random:64:1x5"])
def test_another_argument_is_refused(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"{re.escape(name)}: .*random:64"):
        parse_chain(name)
