"""The peers of the Recall@K benchmark, on problems small enough for a loop."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from benchmarks.recall_methods import METHODS, Case, Problem, hits, read, write

KS = (1, 2, 5, 10)


def brute_force(problem: Problem) -> dict[int, float]:
    """A loop over the queries in float64; a query without a positive is a miss."""
    unit = [
        part / np.linalg.norm(part, axis=1, keepdims=True)
        for part in (problem.features.astype(np.float64), np.asarray(problem.gallery, np.float64))
        if part.ndim
    ]
    reached = dict.fromkeys(KS, 0)
    for query, label in enumerate(problem.labels):
        order = np.argsort(-(unit[-1] @ unit[0][query]))
        if problem.gallery is None:
            order = order[order != query]
        for k in KS:
            reached[k] += label in problem.searched_labels[order[:k]]
    return {k: count / len(problem.labels) for k, count in reached.items()}


@pytest.fixture(params=[0, 150], ids=["themselves", "gallery"])
def problem(request: pytest.FixtureRequest, tmp_path: Path) -> Problem:
    case = Case(200, 60, KS, 1.8, gallery=request.param, dims=(16,))  # 60 classes: some queries are lone
    write(case, False, tmp_path)
    return read(tmp_path)[0]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.filterwarnings("ignore")  # of the peers' own imports
def test_every_method_finds_what_a_loop_finds(problem: Problem, method: str, request: pytest.FixtureRequest) -> None:
    if method in ("faiss", "faiss, K = 1", "pytorch-metric-learning"):  # which searches by faiss
        request.getfixturevalue("faiss")
    if method == "open-metric-learning" and not find_spec("oml"):
        pytest.skip("not installed")
    expected = brute_force(problem)
    assert 0.1 < expected[1] < expected[10] < 1
    found = METHODS[method](problem, KS)
    assert found == pytest.approx({k: expected[k] for k in found}, abs=1e-6)


def test_the_query_is_removed_wherever_it_stands_and_where_it_is_not_found() -> None:
    # Classes 0 0 1 1. Query 0: itself, 1. Query 1: 2, itself, 0 -> second. Query 2: 0, 1 (itself cut off), then 3.
    # Query 3: 2, itself.
    found = np.array([[0, 1, 2], [2, 1, 0], [0, 1, 3], [2, 3, 0]])
    labels = np.array([0, 0, 1, 1])
    problem = Problem(np.eye(4, dtype=np.float32), labels)
    assert hits(found, problem, (1, 2)) == {1: 2 / 4, 2: 3 / 4}


def test_in_a_gallery_the_row_of_the_query_is_an_item_like_any_other() -> None:
    problem = Problem(np.eye(2, dtype=np.float32), np.array([0, 1]), np.eye(2, dtype=np.float32), np.array([0, 1]))
    assert hits(np.array([[0, 1], [1, 0]]), problem, (1,)) == {1: 1.0}


def test_offset_features_are_never_negative_and_lie_on_one_side(tmp_path: Path) -> None:
    case = Case(100, 10, KS, 1.2, dims=(16, 8))
    write(case, True, tmp_path)
    for problem in read(tmp_path):
        assert problem.features.min() >= 0
        assert problem.features.mean() > problem.features.std()
