from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerprobe.store import (
    Columns,
    FeatureKey,
    RankEntry,
    RankKey,
    Rows,
    add_values,
    is_made_from,
    read_chance,
    read_feature_head,
    read_rank_file,
    read_stored_ranks,
    write_features,
    write_ranks,
)
from layerprobe.system.errors import DataError
from layerprobe.values.keys import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks

FEATURES = FeatureKey("a", 3, "test", "w", "resize", "m")
KEY = RankKey(FEATURES, None, "s", 1e-12)
ROWS = Rows(np.array([4, 5, 4]), ["a/é.png", "b.png", "c.png"])
FC6, POOL = (RankedLayer(LayerKey(name, "none"), "none", "cosine") for name in ("fc6", "pool5.3"))
MAP = np.array([0.5, np.nan, 1.0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    counts = np.zeros((4, 3), np.int32)
    ranks = Ranks(counts[0], counts[1], counts[2], counts[3] + 1)
    entries = {FC6: RankEntry(KEY, ranks, values={"MAP@R": MAP}), POOL: RankEntry(KEY, None, "NaN (2 rows)")}
    write_ranks(tmp_path / "r.h5", ROWS, entries, chance=0.25)
    return tmp_path / "r.h5"


def test_values_stand_beside_all_that_the_file_had(path: Path) -> None:
    new = np.array([np.nan, 1.0, 0.05])
    add_values(path, {FC6: {"R@1(2x2)": np.zeros(3)}})
    add_values(path, {FC6: {"R@1(2x2)": new}})
    found = read_rank_file(path).holding(lambda _: KEY)  # the keys still hold, and the checksums are right
    ranks = found[FC6].ranks
    assert ranks is not None
    assert ranks.tied_positives.tolist() == [1, 1, 1]
    np.testing.assert_array_equal(found[FC6].values["MAP@R"], MAP)
    np.testing.assert_array_equal(found[FC6].values["R@1(2x2)"], new)
    assert found[POOL].invalid == "NaN (2 rows)"
    assert read_chance(path) == 0.25
    assert read_stored_ranks(path).ids == tuple(ROWS.ids)


def test_values_of_a_layer_or_length_that_is_not_there_are_refused_and_change_nothing(path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(ValueError, match="no ranks of"):
        add_values(path, {replace(FC6, similarity="dot"): {"R@1(2x2)": np.zeros(3)}})
    with pytest.raises(ValueError, match=r"R@1\(2x2\) of fc6: expected 3 values, got \(2,\)"):
        add_values(path, {FC6: {"R@1(2x2)": np.zeros(2)}})
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_file_that_is_not_there_gets_no_values(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such"):
        add_values(tmp_path / "r.h5", {FC6: {"R@1(2x2)": np.zeros(3)}})


def test_ranks_are_known_to_be_made_from_the_stored_features(path: Path) -> None:
    features = path.with_name("f.h5")
    batch = {FC6.layer: np.zeros((3, 2), np.float32)}
    write_features(features, FEATURES, ROWS, Columns({FC6.layer: 2}, "cpu", 3), [batch])
    assert is_made_from(read_rank_file(path), read_feature_head(features), FC6)
    assert not is_made_from(read_rank_file(path), read_feature_head(features), POOL)
    write_features(features, replace(FEATURES, weights_sha256="x"), ROWS, Columns({FC6.layer: 2}, "cpu", 3), [batch])
    assert not is_made_from(read_rank_file(path), read_feature_head(features), FC6)


def test_ranks_are_known_to_be_made_from_a_stored_gallery(path: Path) -> None:
    gallery, features = replace(FEATURES, split="gallery"), path.with_name("g.h5")
    batch = {FC6.layer: np.zeros((3, 2), np.float32)}
    write_features(features, gallery, ROWS, Columns({FC6.layer: 2}, "cpu", 3), [batch])
    assert not is_made_from(read_rank_file(path), read_feature_head(features), FC6, "gallery")
    zeros = np.zeros(3, np.int32)
    entry = RankEntry(replace(KEY, gallery=gallery), Ranks(zeros, zeros, zeros, zeros + 1))
    write_ranks(path, ROWS, {FC6: entry})
    assert is_made_from(read_rank_file(path), read_feature_head(features), FC6, "gallery")
    assert not is_made_from(read_rank_file(path), read_feature_head(features), FC6)


def test_a_link_in_the_file_is_left_behind(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/x")
    add_values(path, {FC6: {"R@1(2x2)": np.zeros(3)}})
    with h5py.File(path) as file:
        assert set(file) == {"labels", "ids", FC6.layer.stored, POOL.layer.stored}
