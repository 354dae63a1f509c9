from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.store import (
    Columns,
    FeatureKey,
    RankEntry,
    RankKey,
    Rows,
    is_made_from,
    read_feature_head,
    read_rank_file,
    write_features,
    write_ranks,
)
from layerprobe.values.layers import LayerKey, RankedLayer
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
