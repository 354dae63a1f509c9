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
    is_made_from,
    open_feature_file,
    read_feature_head,
    read_rank_file,
    stale_passed,
    write_features,
    write_ranks,
)
from layerprobe.system.errors import DataError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.retrieval import Ranks

FC6 = LayerKey("fc6", "none")
POOL = LayerKey("pool5.3", "max")

FEATURES = FeatureKey("a", 3, "test", "w", "resize", "m")
KEY = RankKey(FEATURES, None, "s", 1e-12)
ROWS = Rows(np.array([4, 5, 4]), ["a/é.png", "b.png", "c.png"])
LAYER = RankedLayer(POOL, "none", "cosine")
OTHER = RankedLayer(FC6, "none", "cosine")


def some_ranks() -> Ranks:
    closer, closer_high, negatives, positives = np.array([[0, 2, 1], [0, 3, 1], [1, 0, 0], [1, 1, 0]], np.int32)
    return Ranks(closer, closer_high, negatives, positives, zeros=2)


def held(path: Path, key: RankKey) -> dict[RankedLayer, RankEntry]:
    """The entries that hold where every layer must be made from one key."""
    with stale_passed():
        return read_rank_file(path).holding(lambda ranked: key)
    return {}


def written(path: Path) -> Path:
    write_ranks(path, ROWS, {LAYER: RankEntry(KEY, some_ranks()), OTHER: BAD})
    return path


BAD = RankEntry(KEY, None, "2 of 3 feature rows hold NaN or Inf")


def test_ranks_come_back_as_they_were_written(tmp_path: Path) -> None:
    found = held(written(tmp_path / "r.h5"), KEY)
    ranks = found[LAYER].ranks
    assert ranks is not None
    for name in ("closer", "closer_high", "tied_negatives", "tied_positives"):
        np.testing.assert_array_equal(getattr(ranks, name), getattr(some_ranks(), name))
    assert ranks.zeros == 2


def test_a_layer_that_could_not_be_ranked_keeps_the_reason(tmp_path: Path) -> None:
    entry = held(written(tmp_path / "r.h5"), KEY)[OTHER]
    assert (entry.ranks, entry.invalid) == (None, "2 of 3 feature rows hold NaN or Inf")


def test_the_file_has_the_groups_and_types_that_are_promised(tmp_path: Path) -> None:
    with h5py.File(written(tmp_path / "r.h5")) as file:
        assert file["pool5.3@max/none/cosine/closer"].dtype == np.int32
        assert file["pool5.3@max/none/cosine"].attrs["lone"] == 1
        assert file["labels"][()].tolist() == [4, 5, 4]
        assert file["ids"][0].decode() == "a/é.png"


def test_a_file_says_by_what_search_and_against_which_chance_its_ranks_are(tmp_path: Path) -> None:
    assert read_rank_file(written(tmp_path / "r.h5")).search_sha256 == "s"
    assert read_rank_file(tmp_path / "r.h5").chance is None
    write_ranks(tmp_path / "r.h5", ROWS, {}, chance=1 / 3)
    assert read_rank_file(tmp_path / "r.h5").search_sha256 == ""
    assert read_rank_file(tmp_path / "r.h5").chance == 1 / 3
    with h5py.File(tmp_path / "r.h5", "r+") as file:
        file.attrs["chance"] = np.bytes_(b"x")
    with pytest.raises(DataError):
        _ = read_rank_file(tmp_path / "r.h5").chance


@pytest.mark.parametrize(
    "other",
    [
        replace(KEY, queries=replace(FEATURES, weights_sha256="v")),
        replace(KEY, queries=replace(FEATURES, transform="crop")),
        replace(KEY, gallery=replace(FEATURES, split="gallery")),
        replace(KEY, tie_window=1e-9),
        replace(KEY, engine=1),
        replace(KEY, search_sha256="t"),
        replace(KEY, post_processing="fitted on train"),
    ],
)
def test_ranks_of_something_else_are_not_used(tmp_path: Path, other: RankKey) -> None:
    path = written(tmp_path / "r.h5")
    assert held(path, other) == {}
    assert held(path, KEY)
    assert read_rank_file(path).stale(lambda ranked: other if ranked == LAYER else KEY) == {LAYER}


def test_each_layer_has_a_key_of_its_own(tmp_path: Path) -> None:
    fitted = replace(KEY, post_processing="fitted on train")
    post_processed = RankedLayer(POOL, "pca:8", "cosine")
    entries = {LAYER: RankEntry(KEY, some_ranks()), post_processed: RankEntry(fitted, some_ranks())}
    write_ranks(tmp_path / "r.h5", ROWS, entries)
    found = read_rank_file(tmp_path / "r.h5").holding(
        lambda ranked: fitted if ranked.post_processing == "pca:8" else KEY
    )
    assert set(found) == {LAYER, post_processed}
    assert set(held(tmp_path / "r.h5", KEY)) == {LAYER}


def test_values_of_a_metric_for_each_query_are_kept_beside_the_ranks(tmp_path: Path) -> None:
    values = {"MAP@R": np.array([0.25, 1.0, 0.0])}
    write_ranks(tmp_path / "r.h5", ROWS, {LAYER: RankEntry(KEY, some_ranks(), values=values)})
    np.testing.assert_array_equal(held(tmp_path / "r.h5", KEY)[LAYER].values["MAP@R"], values["MAP@R"])
    with h5py.File(tmp_path / "r.h5") as file:
        assert file["pool5.3@max/none/cosine/values/MAP@R"].dtype == np.float64


def test_values_of_another_number_of_queries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ranks of 2 queries, not 3"):
        write_ranks(tmp_path / "r.h5", ROWS, {LAYER: RankEntry(KEY, some_ranks(), values={"MAP@R": np.zeros(2)})})


def test_ranks_without_their_provenance_are_stale(tmp_path: Path) -> None:
    path = written(tmp_path / "r.h5")
    with h5py.File(path, "r+") as file:
        for name in list(file["pool5.3@max/none/cosine"].attrs):
            del file["pool5.3@max/none/cosine"].attrs[name]
    assert set(held(path, KEY)) == {OTHER}
    assert read_rank_file(path).stale(lambda _: KEY) == {LAYER}


def test_a_gallery_that_changed_makes_ranks_stale(tmp_path: Path) -> None:
    gallery = replace(FEATURES, split="gallery")
    with_gallery = replace(KEY, gallery=gallery)
    write_ranks(tmp_path / "r.h5", ROWS, {LAYER: RankEntry(with_gallery, some_ranks())})
    assert held(tmp_path / "r.h5", with_gallery)
    assert held(tmp_path / "r.h5", replace(KEY, gallery=replace(gallery, manifest_sha256="x"))) == {}
    assert held(tmp_path / "r.h5", KEY) == {}


def test_no_file_and_a_damaged_file_hold_no_ranks(tmp_path: Path) -> None:
    assert held(tmp_path / "r.h5", KEY) == {}
    (tmp_path / "r.h5").write_bytes(b"no HDF5")
    assert held(tmp_path / "r.h5", KEY) == {}


def test_a_file_of_a_newer_format_is_not_passed_over(tmp_path: Path) -> None:
    path = written(tmp_path / "r.h5")
    with h5py.File(path, "r+") as file:
        file.attrs["schema"] = 3
    with pytest.raises(DataError, match=r"written by layerprobe \S+ \(format 3\); this is \S+ \(format 1\)"):
        held(path, KEY)


def test_ranks_of_queries_that_were_changed_are_counted_again(tmp_path: Path) -> None:
    path = written(tmp_path / "r.h5")
    with h5py.File(path, "r+") as file:
        file["ids"][:] = file["ids"][:][::-1]
    assert held(path, KEY) == {}


def test_a_flipped_byte_costs_its_layer_only(tmp_path: Path) -> None:
    write_ranks(
        tmp_path / "r.h5",
        ROWS,
        {
            LAYER: RankEntry(KEY, some_ranks()),
            OTHER: RankEntry(KEY, some_ranks()),
        },
    )
    with h5py.File(tmp_path / "r.h5") as file:
        place = file["pool5.3@max/none/cosine/closer"].id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "r.h5").read_bytes())
    content[place] ^= 1
    (tmp_path / "r.h5").write_bytes(content)
    assert set(held(tmp_path / "r.h5", KEY)) == {OTHER}


def test_ranks_of_another_number_of_queries_are_refused_and_the_old_file_stands(tmp_path: Path) -> None:
    path = written(tmp_path / "r.h5")
    ones = np.ones(2, np.int32)
    short = Ranks(ones, ones, ones, ones)
    with pytest.raises(ValueError, match="ranks of 2 queries, not 3"):
        write_ranks(path, ROWS, {LAYER: RankEntry(KEY, short)})
    assert LAYER in held(path, KEY)
    assert [entry.name for entry in tmp_path.iterdir()] == ["r.h5"]


def features_written(path: Path) -> np.ndarray:
    values = np.arange(12, dtype=np.float32).reshape(3, 4)
    write_features(path, FEATURES, ROWS, Columns({FC6: 4}, "cpu", 3), [{FC6: values}])
    return values


def test_features_left_on_disk_are_read_in_slices(tmp_path: Path) -> None:
    values = features_written(tmp_path / "f.h5")
    with open_feature_file(tmp_path / "f.h5") as file:
        table = file.table(FC6)
        assert (table.shape, str(table.dtype), len(table)) == ((3, 4), "float32", 3)
        np.testing.assert_array_equal(table[1:3], values[1:])


def test_a_slice_of_a_damaged_layer_names_the_file(tmp_path: Path) -> None:
    features_written(tmp_path / "f.h5")
    with h5py.File(tmp_path / "f.h5") as file:
        place = file["features/fc6@none"].id.get_chunk_info(0).byte_offset
    content = bytearray((tmp_path / "f.h5").read_bytes())
    content[place] ^= 1
    (tmp_path / "f.h5").write_bytes(content)
    with open_feature_file(tmp_path / "f.h5") as file, pytest.raises(DataError, match=r"f\.h5"):
        file.table(FC6)[0:3]


def test_what_goes_wrong_beside_an_open_table_is_not_blamed_on_the_file(tmp_path: Path) -> None:
    features_written(tmp_path / "f.h5")
    with pytest.raises(ValueError, match="mine"), open_feature_file(tmp_path / "f.h5"):
        raise ValueError("mine")


def test_everything_stored_is_read_without_its_keys(tmp_path: Path) -> None:
    kept = RankEntry(KEY, some_ranks(), values={"mAP": np.array([0.5, 1.0, np.nan])})
    write_ranks(tmp_path / "r.h5", ROWS, {LAYER: kept, OTHER: BAD})
    found = read_rank_file(tmp_path / "r.h5").stored
    assert (found.labels.tolist(), found.ids) == ([4, 5, 4], ("a/é.png", "b.png", "c.png"))
    assert (found.search_sha256, found.transform) == ("s", "resize")
    assert found.ranks[LAYER].closer.tolist() == [0, 2, 1]
    np.testing.assert_array_equal(found.values[LAYER]["mAP"], [0.5, 1.0, np.nan])
    assert found.invalid == {OTHER: "2 of 3 feature rows hold NaN or Inf"}
    assert OTHER not in found.ranks


def test_an_absent_rank_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such feature file"):
        _ = read_rank_file(tmp_path / "r.h5").stored


def test_which_queries_have_an_identical_image_comes_back(tmp_path: Path) -> None:
    entries = {LAYER: RankEntry(KEY, some_ranks())}
    for name, identical in (("some", [True, False, True]), ("none", [False] * 3)):
        write_ranks(tmp_path / name, ROWS, entries, identical=np.array(identical))
    found = read_rank_file(tmp_path / "some")
    assert found.identical is not None
    assert found.identical.tolist() == [True, False, True]
    assert list(found.groups) == [LAYER]
    assert read_rank_file(tmp_path / "none").identical is None


RANKED_FC6, RANKED_POOL = (RankedLayer(LayerKey(name, "none"), "none", "cosine") for name in ("fc6", "pool5.3"))
MAP = np.array([0.5, np.nan, 1.0])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    counts = np.zeros((4, 3), np.int32)
    ranks = Ranks(counts[0], counts[1], counts[2], counts[3] + 1)
    entries = {
        RANKED_FC6: RankEntry(KEY, ranks, values={"MAP@R": MAP}),
        RANKED_POOL: RankEntry(KEY, None, "NaN (2 rows)"),
    }
    write_ranks(tmp_path / "r.h5", ROWS, entries, chance=0.25)
    return tmp_path / "r.h5"


def test_ranks_are_known_to_be_made_from_the_stored_features(path: Path) -> None:
    features = path.with_name("f.h5")
    batch = {RANKED_FC6.layer: np.zeros((3, 2), np.float32)}
    write_features(features, FEATURES, ROWS, Columns({RANKED_FC6.layer: 2}, "cpu", 3), [batch])
    assert is_made_from(read_rank_file(path), read_feature_head(features), RANKED_FC6)
    assert not is_made_from(read_rank_file(path), read_feature_head(features), RANKED_POOL)
    write_features(
        features, replace(FEATURES, weights_sha256="x"), ROWS, Columns({RANKED_FC6.layer: 2}, "cpu", 3), [batch]
    )
    assert not is_made_from(read_rank_file(path), read_feature_head(features), RANKED_FC6)


def test_ranks_are_known_to_be_made_from_a_stored_gallery(path: Path) -> None:
    gallery, features = replace(FEATURES, split="gallery"), path.with_name("g.h5")
    batch = {RANKED_FC6.layer: np.zeros((3, 2), np.float32)}
    write_features(features, gallery, ROWS, Columns({RANKED_FC6.layer: 2}, "cpu", 3), [batch])
    assert not is_made_from(read_rank_file(path), read_feature_head(features), RANKED_FC6, "gallery")
    zeros = np.zeros(3, np.int32)
    entry = RankEntry(replace(KEY, gallery=gallery), Ranks(zeros, zeros, zeros, zeros + 1))
    write_ranks(path, ROWS, {RANKED_FC6: entry})
    assert is_made_from(read_rank_file(path), read_feature_head(features), RANKED_FC6, "gallery")
    assert not is_made_from(read_rank_file(path), read_feature_head(features), RANKED_FC6)
