from __future__ import annotations

import hashlib

import numpy as np
import pytest

from layerprobe.data.hash_table import RECORD, hash_names, hash_rows, last_of_each

TABLES = ["a.tar", "b.tar", "c/a.tar"]


def test_a_name_has_its_blake2b() -> None:
    expected = [hashlib.blake2b(name, digest_size=16).digest() for name in (b"a/1.png", b"\xff.png")]
    assert [row.tobytes() for row in hash_names(["a/1.png", "\udcff.png"])] == expected


@pytest.mark.parametrize("sizes", [[59], [58, 59, 60]])
def test_places_in_tables_have_different_hashes(sizes: list[int]) -> None:
    table, first, size = (axis.ravel() for axis in np.meshgrid(np.arange(3), 512 * np.arange(5000), sizes))
    hashes = hash_rows(TABLES, table, np.stack([first, size], axis=1))
    for half in hashes.T:
        assert len(np.unique(half)) == len(table)


def test_rows_of_tables_have_different_hashes() -> None:
    table, rows = np.repeat(np.arange(3), 10_000), np.tile(np.arange(10_000), 3)
    for half in hash_rows(TABLES, table, rows).T:
        assert len(np.unique(half)) == len(rows)


def test_the_hash_of_a_place_is_the_stored_one() -> None:
    def mixed(word: int, number: int, factor: int) -> int:
        word = (word ^ number) * factor % 2**64
        return word ^ word >> 29

    digest = hashlib.blake2b(b"b.tar", digest_size=16).digest()
    expected = []
    for start, factor in ((0, 0x9E3779B97F4A7C15), (8, 0xD1342543DE82EF95)):
        word = int.from_bytes(digest[start : start + 8], "little")
        expected.append(mixed(mixed(word, 1536, factor), 59, factor))
    assert hash_rows(TABLES, np.array([1]), np.array([[1536, 59]])).tolist() == [expected]


def test_of_many_records_of_a_name_the_last_counts() -> None:
    names = hash_names(map(str, range(50)))
    of_records = np.random.default_rng(0).integers(0, 50, 10_000)
    records = np.zeros(len(of_records), RECORD)
    records["name"] = names[of_records]
    assert last_of_each(records, names).tolist() == [int(np.flatnonzero(of_records == name)[-1]) for name in range(50)]
