from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.errors import DataError
from layerprobe.scores import Matrix, Score, merge_scores, read_scores, write_scores

SCORE = Score("netA", "abc", 0, 3, "test", "pool5.3", "max", "none", "cosine", "R@1", 0.8125, None, None, 1360, "")


def test_a_table_reads_back_as_it_was_written(tmp_path: Path) -> None:
    scores = [SCORE, replace(SCORE, value=None, note='NaN (3 rows), "x"'), replace(SCORE, seed=None, value=1 / 3)]
    write_scores(tmp_path / "scores.csv", scores)
    assert read_scores(tmp_path / "scores.csv") == scores


def test_a_newer_measurement_replaces_the_older() -> None:
    newer, other = replace(SCORE, value=0.5), replace(SCORE, epoch=1)
    assert merge_scores([SCORE, other], [newer]) == [other, newer]


def test_a_missing_table_says_to_probe(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no scores yet. Run layerprobe probe first"):
        read_scores(tmp_path / "scores.csv")


def test_another_table_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scores.csv").write_text("a,b\n1,2\n")
    with pytest.raises(DataError, match="not a table of scores"):
        read_scores(tmp_path / "scores.csv")


def matrix(*values: tuple[float | None, ...]) -> Matrix:
    return Matrix("netA", "test", "linear CKA", "layers", "layer", "layer", ("a", "b"), ("c", "d"), values, 9)


def test_a_matrix_has_a_value_or_none_for_each_pair_of_names() -> None:
    assert matrix((0.5, None), (1.0, -0.1)).values[0] == (0.5, None)
    with pytest.raises(ValueError, match=r"expected 2 rows of 2 values, got \[2, 1\]"):
        matrix((0.5, None), (1.0,))
    with pytest.raises(ValueError, match=r"expected 2 rows of 2 values, got \[2\]"):
        matrix((0.5, None))


def test_nan_is_no_value_of_a_matrix() -> None:
    with pytest.raises(ValueError, match="NaN among the values: None stands for what has no valid number"):
        matrix((0.5, None), (1.0, float("nan")))
