"""Leading directions: the bound of what they leave out, in long double, and the counts that they give."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given

from layerprobe.ranking import nearest_positive_ranks, rounded, search
from layerprobe.ranking.items import Items
from layerprobe.ranking.products import float32
from layerprobe.ranking.rounded import Leading, Rounded
from layerprobe.ranking.sweep import Way
from layerprobe.ranking.vectors import Form, form_of
from layerprobe.values.retrieval import Similarity
from tests.ranking.conftest import SPECTRA, Array, exponential_labels
from tests.ranking.test_search import (
    check_all_ways,
    check_some_ks,
    choose_ways,
    often,
    seeds,
    small_tiles,
)

FLOATS: tuple[Similarity, ...] = ("cosine", "dot", "euclidean")


@pytest.fixture(params=[1, 2])
def few_directions(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    small_tiles(monkeypatch)
    choose_ways(monkeypatch, lambda way: way.leading is not None and way.leading.count == request.param)


@pytest.mark.usefixtures("few_directions")
@pytest.mark.parametrize("kind", SPECTRA)
@pytest.mark.parametrize("similarity", FLOATS)
def test_any_spectrum_gives_the_counts_of_a_loop(kind: str, similarity: str, seed: int) -> None:
    check_some_ks(kind, similarity, seed)


@pytest.mark.slow
@pytest.mark.usefixtures("few_directions")
@pytest.mark.parametrize("check", [check_all_ways, check_some_ks])
@pytest.mark.parametrize("kind", SPECTRA)
@pytest.mark.parametrize("similarity", FLOATS)
@often
@given(seed=seeds)
def test_any_spectrum_gives_the_counts_of_a_loop_in_many_cases(
    kind: str, similarity: str, check: Callable[[str, str, int], None], seed: int
) -> None:
    check(kind, similarity, seed)


def prepared(features: Array, similarity: Similarity) -> tuple[Form, torch.Tensor]:
    items = Items(torch.from_numpy(features), np.zeros(len(features), np.int64))
    form = form_of(items, items, similarity)
    return form, form.vectors(items.take(slice(None)))


@pytest.mark.parametrize("kind", SPECTRA)
@pytest.mark.parametrize("similarity", FLOATS)
def test_the_interval_of_a_pair_holds_its_similarity_in_long_double(
    kind: str, similarity: Similarity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounded, "_FLAT", 1e9)
    product = float32(torch.device("cpu"))
    for seed in range(5):
        rng = np.random.default_rng(seed)
        labels = exponential_labels(rng, 60, 9)
        form, vectors = prepared(SPECTRA[kind](rng, np.unique(labels, return_inverse=True)[1], 40), similarity)
        for count in (1, 3, 20):
            directions = Leading.of(vectors - form.offset, count)
            assert directions is not None
            some = Rounded.round_stages([vectors], len(vectors), form, product, [directions])[0]
            highest = product.multiply(some.swapped(slice(None)), some.values).numpy().astype(np.longdouble)
            exact = vectors.numpy().astype(np.longdouble)
            wanted = exact @ exact.T
            if similarity == "euclidean":
                wanted -= (exact**2).sum(1) / 2
            wanted -= form.constants(some.biases).numpy()[:, None]
            tolerance = some.tolerance(some, form, product).numpy()[:, None]
            rest = some.residuals().numpy().astype(np.longdouble)
            assert (highest >= wanted - tolerance).all()
            assert (highest - 2 * rest[:, None] * rest <= wanted + tolerance).all()


def test_a_tight_bound_is_reached() -> None:
    # All residuals point the same way: their product is the product of their lengths.
    rng = np.random.default_rng(0)
    features = np.concatenate([10 * rng.normal(size=(200, 2)), np.ones((200, 1)), np.zeros((200, 5))], axis=1)
    form, vectors = prepared(features, "dot")
    form = Form("dot", form.scale, form.origin, form.longest, torch.zeros_like(form.offset), 0.0, 0)
    directions = Leading(torch.eye(8, 2, dtype=torch.float64), 0.0)
    product = float32(torch.device("cpu"))
    some = Rounded.round_stages([vectors], len(vectors), form, product, [directions])[0]
    highest = product.multiply(some.swapped(slice(None)), some.values).double()
    assert (highest - vectors @ vectors.T).abs().max() < 2e-6


def test_the_directions_are_those_of_the_largest_variance() -> None:
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.normal(size=(20, 20)))[0]
    sample = torch.from_numpy(rng.normal(size=(400, 20)) * 0.5 ** np.arange(20) @ axes.T)
    found = Leading.of(sample, 3)
    assert found is not None
    # Cosines of the principal angles with the axes of the three largest variances.
    assert np.linalg.svd(found.directions.numpy().T @ axes[:, :3])[1].min() > 0.95
    assert found.slack < 1e-12
    assert (found.take(2).directions == found.directions[:, :2]).all()


@pytest.mark.parametrize("sample", [torch.randn(500, 60, generator=torch.manual_seed(0)), torch.zeros(50, 8)])
def test_a_flat_spectrum_has_no_leading_directions(sample: torch.Tensor) -> None:
    assert Leading.of(sample.double(), 4) is None


def test_directions_that_lapack_does_not_find_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(matrix: torch.Tensor) -> None:
        raise torch.linalg.LinAlgError("linalg.eigh: failed to converge")  # type: ignore[attr-defined] # untyped

    monkeypatch.setattr(torch.linalg, "eigh", fails)
    sample = torch.randn(100, 20, generator=torch.manual_seed(0)) * 0.5 ** torch.arange(20)
    assert Leading.of(sample.double(), 4) is None


def test_few_dimensions_are_counted_first_where_few_lead(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, cheapest = [], search.cheapest
    monkeypatch.setattr(search, "_SHARE_OF_A_BASIS", 1)

    def noted(found: list[tuple[float, Way]]) -> Way:
        chosen.append(cheapest(found).leading is not None)
        return cheapest(found)

    monkeypatch.setattr(search, "cheapest", noted)
    rng = np.random.default_rng(0)
    labels = np.arange(1200) % 300
    flat = rng.normal(size=(1200, 256)).astype(np.float32)
    steep = (rng.normal(size=(300, 256))[labels] + 0.1 * flat) * np.arange(1, 257) ** -1.5
    for features in (flat, steep):
        nearest_positive_ranks(features, labels)
    assert chosen == [False, True]
