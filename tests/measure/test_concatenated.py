from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features, rank
from layerprobe.measure.concatenated import SideBySide
from layerprobe.system.errors import NotFiniteError

RNG = np.random.default_rng(0)
A = RNG.standard_normal((40, 3)).astype(np.float32)
B = (100 * RNG.standard_normal((40, 5))).astype(np.float32)  # of another length, which must not count
A[3] = 0
A[4], B[4] = 0, 0
LABELS = np.repeat(np.arange(10), 4)


class OnDisk:
    """Rows that only slices give, as those of a file."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self.values = values
        self.shape, self.dtype = values.shape, values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        assert isinstance(rows, slice)
        return self.values[rows]


def concatenated(*members: NDArray[np.float32]) -> NDArray[np.float64]:
    """Each row of each member over its length in float64, one after the other; zero vectors stay."""
    rows = []
    for of_row in zip(*members, strict=True):
        parts = []
        for vector in of_row:
            length = sum(float(x) ** 2 for x in vector) ** 0.5
            parts += [float(x) / length if length else 0.0 for x in vector]
        rows.append(parts)
    return np.array(rows)


def test_each_member_is_normalised_and_they_stand_side_by_side() -> None:
    found = SideBySide([A, B, A])
    assert (found.shape, len(found), found.dtype) == ((40, 11), 40, np.dtype(np.float32))
    np.testing.assert_array_equal(found[:], concatenated(A, B, A).astype(np.float32))


def test_a_zero_vector_stays_zero() -> None:
    found = SideBySide([A, B])[3:5]
    assert not found[0, :3].any()
    assert np.isclose(np.linalg.norm(found[0, 3:]), 1)
    assert not found[1].any()


def test_slices_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SideBySide([A, B])[:]
    monkeypatch.setattr("layerprobe.measure.concatenated._ROWS", 7)
    table = SideBySide([OnDisk(A), OnDisk(B)])
    for rows in (slice(0, 40), slice(5, 30), slice(33, 99), slice(8, 8)):
        np.testing.assert_array_equal(table[rows], whole[rows])


def test_the_largest_and_smallest_numbers_have_a_length() -> None:
    huge, tiny = np.full((1, 4), 3e38, np.float32), np.full((1, 4), 1e-44, np.float32)
    np.testing.assert_allclose(SideBySide([huge, tiny])[:], 0.5, rtol=1e-6)


def test_ranks_are_those_of_the_concatenated_rows_and_of_brute_force() -> None:
    unit = concatenated(A, B)
    lengths = np.linalg.norm(unit, axis=1, keepdims=True)
    cosine = (unit / np.where(lengths, lengths, 1)) @ (unit / np.where(lengths, lengths, 1)).T
    np.fill_diagonal(cosine, -np.inf)
    ids = [str(i) for i in range(40)]
    side_by_side = SideBySide([OnDisk(A), OnDisk(B)])
    found = rank(Features(side_by_side, LABELS, ids), None)
    again = rank(Features(unit.astype(np.float32), LABELS, ids), None)
    np.testing.assert_array_equal(found.closer, again.closer)
    finite = [i for i in range(40) if i != 4]  # the zero vector has no nearest
    brute = [LABELS[cosine[i].argmax()] == LABELS[i] for i in finite]
    np.testing.assert_array_equal(found.hits(1)[finite], brute)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_stays_to_be_told_of(bad: float) -> None:
    broken = A.copy()
    broken[2, 1] = bad
    ids = [str(i) for i in range(40)]
    with pytest.raises(NotFiniteError, match="1 of 40"):
        rank(Features(SideBySide([broken, B]), LABELS, ids), None)


def test_rows_are_read_one_after_the_other() -> None:
    with pytest.raises(ValueError, match="one after the other"):
        SideBySide([A, B])[::2]
