from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from layerprobe.nets.checkpoint_layouts import parts_of, sha256_of_weights, size_of_weights
from layerprobe.system.errors import DataError

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")


def written(folder: Path, *names: str) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(name)
    return [folder / name for name in names]


def indexed(folder: Path) -> Path:
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": SHARDS[0], "b": SHARDS[1], "c": SHARDS[0]}}))
    return index


def test_a_folder_its_index_and_each_shard_stand_for_all_shards(tmp_path: Path) -> None:
    shards = tuple(written(tmp_path, *SHARDS))
    assert parts_of(tmp_path) == shards
    assert [parts_of(path) for path in (indexed(tmp_path), tmp_path, *shards)] == [shards] * 4


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "open_clip_model.safetensors"])
def test_a_folder_stands_for_its_only_file_of_weights(tmp_path: Path, name: str) -> None:
    written(tmp_path, "config.json", name)
    assert parts_of(tmp_path) == (tmp_path / name,)


def test_deepspeeds_latest_names_the_folder_of_the_weights(tmp_path: Path) -> None:
    (weights,) = written(tmp_path / "global_step7", "mp_rank_00_model_states.pt")
    (tmp_path / "latest").write_text("global_step7")
    assert parts_of(tmp_path / "latest") == parts_of(tmp_path) == (weights,)


def test_other_files_are_themselves(tmp_path: Path) -> None:
    for path in (*written(tmp_path, "a.pt", "a-1-of-0.bin", "latest"), tmp_path / "absent.pt"):
        assert parts_of(path) == (path,)


def test_an_absent_shard_is_named(tmp_path: Path) -> None:
    (shard,) = written(tmp_path, SHARDS[1])
    for path in (shard, tmp_path):
        with pytest.raises(DataError, match=r"model-00001-of-00002\.safetensors: not there, and it is one of 2 shards"):
            parts_of(path)


@pytest.mark.parametrize("content", ["{}", "[]", "x", '{"weight_map": {"a": "../b.bin"}}', '{"weight_map": {"a": 3}}'])
def test_an_index_that_names_no_shards_beside_it_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"index\.json: (no index of shards|its weight_map names no files beside it)"):
        parts_of(path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    written(tmp_path, "epoch1.pth")
    with pytest.raises(DataError, match=r"a folder without model\.safetensors, .* Name the files in it"):
        parts_of(tmp_path)


def test_the_hash_and_size_of_shards_are_of_all_and_of_one_file_its_own(tmp_path: Path) -> None:
    first, _ = written(tmp_path, *SHARDS)
    digests = [hashlib.sha256(name.encode()).hexdigest() for name in SHARDS]
    listed = f"{SHARDS[0]} {digests[0]}\n{SHARDS[1]} {digests[1]}\n"
    assert sha256_of_weights(first) == hashlib.sha256(listed.encode()).hexdigest()
    assert size_of_weights(first) == len(SHARDS[0]) + len(SHARDS[1])
    (alone,) = written(tmp_path / "other", "model.safetensors")
    assert sha256_of_weights(alone.parent) == hashlib.sha256(b"model.safetensors").hexdigest()
