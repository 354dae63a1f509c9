"""Recall@1 in draws: equal to a search of every draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.ranking import in_draws as module
from layerprobe.ranking import nearest_positive_ranks
from layerprobe.ranking.in_draws import hits_in_draws
from layerprobe.system.errors import NotFiniteError
from layerprobe.values.retrieval import Similarity

Rows = NDArray[np.intp]
Labels = NDArray[np.int64]


def random_draws(rng: np.random.Generator, size: int, *, count: int = 12, share: float = 0.9) -> list[Rows]:
    drawn = max(2, int(share * size))
    return [np.sort(rng.permutation(size)[:drawn]) for _ in range(count)]


def each_draw_searched(
    features: NDArray[Any], labels: Labels, drawn: Sequence[Rows], similarity: Similarity = "cosine"
) -> NDArray[np.float64]:
    found = np.full((len(drawn), len(labels)), np.nan)
    for hits, rows in zip(found, drawn, strict=True):
        hits[rows] = nearest_positive_ranks(features[rows], labels[rows], similarity=similarity, resolve="all").hits(1)
    return mean_of_draws(found)


def by_loops(similar: NDArray[np.float64], labels: Labels, drawn: Sequence[Rows]) -> NDArray[np.float64]:
    """The share of positives among the items that are exactly as close as the closest."""
    found = np.full((len(drawn), len(labels)), np.nan)
    for hits, rows in zip(found, drawn, strict=True):
        for query in rows:
            others = rows[rows != query]
            equal = others[similar[query, others] == similar[query, others].max()]
            hits[query] = np.mean(labels[equal] == labels[query])
    return mean_of_draws(found)


def mean_of_draws(found: NDArray[np.float64]) -> NDArray[np.float64]:
    often = (~np.isnan(found)).sum(0)
    return np.where(often > 0, np.nansum(found, 0) / np.maximum(often, 1), np.nan)


def made(kind: str, seed: int, *, size: int = 60, dim: int = 8) -> tuple[NDArray[np.float32], Labels]:
    """Features and classes of 1 to 8 items, of a kind that is hard on lists."""
    rng = np.random.default_rng(seed)
    labels = np.sort(rng.integers(0, size // int(rng.integers(2, 9)), size))
    values = rng.normal(size=(size, dim)) + 0.7 * rng.normal(size=(size, dim))[labels]
    if kind == "duplicates":
        values = values[rng.integers(0, size, size)]
    elif kind == "quantised":
        values = np.sign(values[:, :4]) * (np.abs(values[:, :4]) > 0.5)
    elif kind == "collapsed":
        values = np.ones_like(values) * rng.choice([1.0, 1 + 1e-15], (size, 1))
    elif kind == "near ties":
        values = 1 + values * 1e-7
    elif kind == "offset":
        values += 1000
    elif kind == "half collapsed":
        values[: size // 2] = 0
    return values.astype(np.float32), labels


KINDS = ["random", "duplicates", "quantised", "collapsed", "near ties", "offset", "half collapsed"]


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("kind", KINDS)
def test_hits_are_those_of_searching_each_draw(kind: str, similarity: Similarity) -> None:
    for seed in range(4):
        values, labels = made(kind, seed)
        drawn = random_draws(np.random.default_rng(seed), len(labels), share=[0.9, 0.6, 0.97, 0.82][seed])
        wanted = each_draw_searched(values, labels, drawn, similarity)
        np.testing.assert_allclose(hits_in_draws(values, labels, drawn, similarity), wanted, rtol=0, atol=1e-12)


def test_hits_of_bits_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, (50, 16), dtype=np.uint8)
    bits[25:] = bits[:25]
    labels, drawn = rng.integers(0, 12, 50), random_draws(rng, 50)
    similar = -(bits[:, None] != bits).sum(2).astype(np.float64)
    found = hits_in_draws(np.packbits(bits, axis=1), labels, drawn, "hamming")
    np.testing.assert_allclose(found, by_loops(similar, labels, drawn), rtol=0, atol=1e-12)


def test_hits_of_whole_numbers_are_those_of_plain_loops() -> None:
    rng = np.random.default_rng(1)
    values = rng.integers(-2, 3, (60, 4))
    labels, drawn = np.repeat(np.arange(20), 3), random_draws(rng, 60)
    found = hits_in_draws(values.astype(np.float32), labels, drawn, "dot")
    np.testing.assert_allclose(found, by_loops((values @ values.T).astype(float), labels, drawn), rtol=0, atol=1e-12)


def test_lists_answer_without_a_search_of_a_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    values, labels = made("random", 0, size=200)
    values[100:150] = values[:50]  # ties of two
    drawn = random_draws(np.random.default_rng(0), 200, count=20)
    wanted = each_draw_searched(values, labels, drawn)
    assert ((wanted * 20) % 1 > 0).any()
    monkeypatch.setattr(module, "_search_hits", None)
    np.testing.assert_allclose(hits_in_draws(values, labels, drawn), wanted, rtol=0, atol=1e-12)


def test_draws_far_smaller_than_their_union_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    values, labels = made("random", 0)
    drawn = random_draws(np.random.default_rng(0), 60, share=0.2)
    wanted = each_draw_searched(values, labels, drawn)
    monkeypatch.setattr(module, "_Lists", None)
    np.testing.assert_allclose(hits_in_draws(values, labels, drawn), wanted, rtol=0, atol=1e-12)


def test_lists_that_end_before_a_draw_are_completed_by_a_search() -> None:
    # 40 equal items around each query of the first class, of which a draw has one or none.
    rng = np.random.default_rng(0)
    angles = np.concatenate([np.linspace(0, 1e-3, 40), rng.uniform(0, np.pi, 60)])
    values = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    labels = np.concatenate([np.arange(40) % 2, rng.integers(0, 20, 60)])
    drawn = [np.sort(np.r_[rng.integers(0, 40, 1), np.arange(40, 100)]) for _ in range(20)]
    wanted = each_draw_searched(values, labels, drawn)
    np.testing.assert_allclose(hits_in_draws(values, labels, drawn), wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("similarity", ["dot", "euclidean"])
def test_ties_are_those_of_the_draw_not_of_all_items(similarity: Similarity) -> None:
    # Items 1 and 2 differ by 1e-8, which is a tie only beside item 3.
    values = np.array([[1, 0], [0.5, 0.3], [0.5 + 1e-8, 0.3], [0, 1e6], [-1, 0]])
    labels, drawn = np.array([0, 0, 1, 2, 1]), [np.array([0, 1, 2, 4])] * 7 + [np.arange(5)]
    found = hits_in_draws(values, labels, drawn, similarity)
    assert found[0] == 0.5 / 8  # a miss, and in the last draw a tie
    np.testing.assert_allclose(found, each_draw_searched(values, labels, drawn, similarity), rtol=0, atol=1e-12)


def test_items_without_a_positive_never_hit() -> None:
    values = np.eye(6, dtype=np.float32)
    found = hits_in_draws(values, np.arange(6), [np.arange(6)] * 4)
    assert found.tolist() == [0] * 6
    assert hits_in_draws(values[:1], np.zeros(1, np.int64), [np.arange(1)] * 4).tolist() == [0]


def test_rows_in_no_draw_are_nan_and_may_be_anything() -> None:
    values, labels = made("random", 3)
    values[7] = np.nan
    drawn = [rows[rows != 7] for rows in random_draws(np.random.default_rng(0), 60)]
    found = hits_in_draws(values, labels, drawn)
    assert np.flatnonzero(np.isnan(found)).tolist() == [7]
    np.testing.assert_allclose(found, each_draw_searched(values, labels, drawn), rtol=0, atol=1e-12)
    with pytest.raises(NotFiniteError):
        hits_in_draws(values, labels, [*drawn, np.arange(60)])


def test_a_tensor_gives_what_an_array_does() -> None:
    values, labels = made("duplicates", 1)
    drawn = random_draws(np.random.default_rng(0), 60)
    wanted = hits_in_draws(values, labels, drawn)
    assert hits_in_draws(torch.from_numpy(values), labels, drawn).tolist() == pytest.approx(
        wanted.tolist(), nan_ok=True
    )


def test_draws_are_told_one_by_one() -> None:
    values, labels = made("random", 0)
    seen = []

    def tell(drawn: Sequence[Rows]) -> Iterator[Rows]:
        for rows in drawn:
            seen.append(len(rows))
            yield rows

    hits_in_draws(values, labels, random_draws(np.random.default_rng(0), 60), progress=tell)
    assert seen == [54] * 12
