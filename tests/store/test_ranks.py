from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerprobe.errors import DataError
from layerprobe.retrieval import Ranks
from layerprobe.store import (
    Columns,
    FeatureKey,
    RankEntry,
    RankKey,
    Rows,
    feature_table,
    read_ranks,
    write_features,
    write_ranks,
)

FEATURES = FeatureKey("a", 3, "test", "w", "resize", "m")
KEY = RankKey(FEATURES, None, 1e-12)
ROWS = Rows(np.array([4, 5, 4]), ["a/é.png", "b.png", "c.png"])
LAYER = ("pool5.3@max", "none")


def some_ranks() -> Ranks:
    closer, closer_high, negatives, positives = np.array([[0, 2, 1], [0, 3, 1], [1, 0, 0], [1, 1, 0]], np.int32)
    return Ranks(closer, closer_high, negatives, positives, zeros=2)


def written(path: Path) -> Path:
    write_ranks(path, KEY, ROWS, {LAYER: RankEntry("cosine", some_ranks()), ("fc6@none", "none"): BAD})
    return path


BAD = RankEntry("cosine", None, "2 of 3 feature rows hold NaN or Inf")


def test_ranks_come_back_as_they_were_written(tmp_path: Path) -> None:
    found = read_ranks(written(tmp_path / "r.h5"), KEY)
    ranks = found[LAYER].ranks
    assert ranks is not None
    for name in ("closer", "closer_high", "tied_negatives", "tied_positives"):
        np.testing.assert_array_equal(getattr(ranks, name), getattr(some_ranks(), name))
    assert (ranks.zeros, found[LAYER].similarity) == (2, "cosine")


def test_a_layer_that_could_not_be_ranked_keeps_the_reason(tmp_path: Path) -> None:
    entry = read_ranks(written(tmp_path / "r.h5"), KEY)["fc6@none", "none"]
    assert (entry.ranks, entry.invalid) == (None, "2 of 3 feature rows hold NaN or Inf")


def test_the_file_has_the_groups_and_types_that_are_promised(tmp_path: Path) -> None:
    with h5py.File(written(tmp_path / "r.h5")) as file:
        assert file["pool5.3@max/none/closer"].dtype == np.int32
        assert file["pool5.3@max/none"].attrs["lone"] == 1
        assert file["labels"][()].tolist() == [4, 5, 4]
        assert file["ids"][0].decode() == "a/é.png"


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, queries=replace(FEATURES, weights_sha256="v")),
        replace(KEY, queries=replace(FEATURES, transform="crop")),
        replace(KEY, gallery=replace(FEATURES, split="gallery")),
        replace(KEY, tie_window=1e-9),
    ],
)
def test_ranks_of_something_else_are_not_used(tmp_path: Path, other: RankKey) -> None:
    path = written(tmp_path / "r.h5")
    assert read_ranks(path, other) == {}
    assert read_ranks(path, KEY)


def test_a_gallery_that_changed_makes_ranks_stale(tmp_path: Path) -> None:
    gallery = replace(FEATURES, split="gallery")
    with_gallery = replace(KEY, gallery=gallery)
    write_ranks(tmp_path / "r.h5", with_gallery, ROWS, {LAYER: RankEntry("cosine", some_ranks())})
    assert read_ranks(tmp_path / "r.h5", with_gallery)
    assert read_ranks(tmp_path / "r.h5", replace(KEY, gallery=replace(gallery, manifest_sha256="x"))) == {}
    assert read_ranks(tmp_path / "r.h5", KEY) == {}


def test_no_file_and_a_damaged_file_hold_no_ranks(tmp_path: Path) -> None:
    assert read_ranks(tmp_path / "r.h5", KEY) == {}
    (tmp_path / "r.h5").write_bytes(b"no HDF5")
    assert read_ranks(tmp_path / "r.h5", KEY) == {}


def test_a_flipped_byte_costs_its_layer_only(tmp_path: Path) -> None:
    write_ranks(
        tmp_path / "r.h5",
        KEY,
        ROWS,
        {LAYER: RankEntry("cosine", some_ranks()), ("fc6@none", "none"): RankEntry("cosine", some_ranks())},
    )
    with h5py.File(tmp_path / "r.h5") as file:
        place = file["pool5.3@max/none/closer"].id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "r.h5").read_bytes())
    content[place] ^= 1
    (tmp_path / "r.h5").write_bytes(content)
    assert set(read_ranks(tmp_path / "r.h5", KEY)) == {("fc6@none", "none")}


def test_ranks_of_another_number_of_queries_are_refused_and_the_old_file_stands(tmp_path: Path) -> None:
    path = written(tmp_path / "r.h5")
    ones = np.ones(2, np.int32)
    short = Ranks(ones, ones, ones, ones)
    with pytest.raises(ValueError, match="ranks of 2 queries, not 3"):
        write_ranks(path, KEY, ROWS, {LAYER: RankEntry("cosine", short)})
    assert LAYER in read_ranks(path, KEY)
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.h5"]


def features_written(path: Path) -> np.ndarray:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_features(path, FEATURES, ROWS, Columns({"fc6@none": 4}, "cpu", 3), [{"fc6@none": values}])
    return values


def test_features_left_on_disk_are_read_in_slices(tmp_path: Path) -> None:
    values = features_written(tmp_path / "f.h5")
    with feature_table(tmp_path / "f.h5", "fc6@none") as table:
        assert (table.shape, str(table.dtype), len(table)) == ((3, 4), "float32", 3)
        np.testing.assert_array_equal(table[1:3], values[1:])


def test_a_slice_of_a_damaged_layer_names_the_file(tmp_path: Path) -> None:
    features_written(tmp_path / "f.h5")
    with h5py.File(tmp_path / "f.h5") as file:
        place = file["features/fc6@none"].id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "f.h5").read_bytes())
    content[place] ^= 1
    (tmp_path / "f.h5").write_bytes(content)
    with feature_table(tmp_path / "f.h5", "fc6@none") as table, pytest.raises(DataError, match=r"f\.h5"):
        table[0:3]


def test_what_goes_wrong_beside_an_open_table_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    features_written(tmp_path / "f.h5")
    with pytest.raises(ValueError, match="mine"), feature_table(tmp_path / "f.h5", "fc6@none"):
        raise ValueError("mine")
