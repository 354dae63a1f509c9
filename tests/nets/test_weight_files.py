from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import pytest
import torch
from torch import nn

from layerprobe.nets.weight_files import (
    expand,
    expand_epochs,
    natural_order,
    parts_of,
    renumber_epoch,
    require_weights_format,
    sha256_of_weights,
    size_of_weights,
    split_part,
)
from layerprobe.system.errors import DataError


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_programs_of_torch_are_called_so(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "script.pt")
    with pytest.raises(DataError, match=r"script\.pt: holds a TorchScript program\. .*torch\.jit\.load\(FILE\)\.state"):
        require_weights_format(tmp_path / "script.pt")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a.onnx", "an ONNX graph"),
        ("flax_model.msgpack", "weights of Flax"),
        ("m.ckpt.index", "a part of TensorFlow's"),
    ],
)
def test_formats_without_first_bytes_are_known_by_their_names(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).write_bytes(b"\x08\x07")
    with pytest.raises(DataError, match=rf"{name}: {what}.*\. Use the model's weights for PyTorch\."):
        require_weights_format(tmp_path / name)


def test_a_file_of_torch_passes(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    require_weights_format(tmp_path / "a.pt")


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


def touched(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    return [folder / name for name in names]


def test_numbers_in_names_are_ordered_by_size() -> None:
    names = ["a", "epoch2.pt", "epoch10.pt", "epoch10-step3.pt", "epoch10-step20.pt", "epoch11.pt", "last.pt"]
    ordered = [
        Path(name) for name in ["a", "epoch2.pt", "epoch10-step3.pt", "epoch10-step20.pt", *names[2:3], *names[5:]]
    ]
    shuffled = list(map(Path, names))
    random.Random(0).shuffle(shuffled)
    assert natural_order(shuffled) == ordered


def test_equal_numbers_keep_one_order() -> None:
    ordered = [Path("epoch2.pt"), Path("epoch02.pt"), Path("epoch3.pt")]
    assert natural_order(ordered[::-1]) == ordered


def test_a_pattern_gives_its_files_in_natural_order_and_no_folder(tmp_path: Path) -> None:
    files = touched(tmp_path, "epoch2.pt", "epoch10.pt", "epoch11.pt")
    touched(tmp_path, "epoch1.pt/inside")
    assert expand(f"{tmp_path}/*.pt") == [(file, None) for file in files]
    assert expand(f"{tmp_path}/epoch1?.pt#teacher") == [(file, "teacher") for file in files[1:]]


def test_the_shards_of_a_model_are_one_and_those_of_folders_one_each(tmp_path: Path) -> None:
    shards = [f"model-0000{place}-of-00002.safetensors" for place in (1, 2)]
    files = touched(tmp_path, *(f"checkpoint-{step}/{shard}" for step in (500, 1500) for shard in shards))
    assert expand_epochs(f"{tmp_path}/checkpoint-500/model-*.safetensors") == {0: (files[0], None)}
    assert expand_epochs(f"{tmp_path}/*/*.safetensors") == {500: (files[0], None), 1500: (files[2], None)}


def test_folders_of_the_trainer_are_epochs_by_their_steps(tmp_path: Path) -> None:
    touched(
        tmp_path, *(f"checkpoint-{step}/model.safetensors" for step in (1500, 500)), "checkpoint-9/trainer_state.json"
    )
    epochs = {step: (tmp_path / f"checkpoint-{step}", None) for step in (500, 1500)}
    assert expand_epochs(f"{tmp_path}/checkpoint-*") == epochs
    assert expand_epochs(str(tmp_path)) == epochs
    touched(tmp_path, "model.safetensors")
    assert expand_epochs(str(tmp_path)) == {0: (tmp_path, None)}


def test_a_pattern_without_files_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"ckpt/\*\.pt: no file has such a name\. Name at least one"):
        expand(f"{tmp_path}/ckpt/*.pt#teacher")


def test_a_file_alone_is_itself_though_it_does_not_exist(tmp_path: Path) -> None:
    assert expand(f"{tmp_path}/a.pt") == [(tmp_path / "a.pt", None)]
    assert expand(f"{tmp_path}/a.pt#state_dict.model") == [(tmp_path / "a.pt", "state_dict.model")]


@pytest.mark.parametrize("name", ["a#b.pt", "a[1].pt", "a*.pt", "what?.pt", "a#*.pt"])
def test_a_file_with_signs_in_its_name_is_taken_literally(tmp_path: Path, name: str) -> None:
    touched(tmp_path, name, "a1.pt", "ab.pt", "a")
    assert expand(f"{tmp_path}/{name}") == [(tmp_path / name, None)]
    assert expand(f"{tmp_path}/{name}#ema") == [(tmp_path / name, "ema")]
    assert split_part(f"{tmp_path}/{name}") == (tmp_path / name, None)


def test_an_empty_part_is_the_top_of_the_file(tmp_path: Path) -> None:
    assert split_part("a.pt#") == (Path("a.pt"), "")


@pytest.mark.parametrize(
    "names",
    [
        {"epoch_05.pth": 5, "epoch_12.pth": 12},
        {"model-epoch=12-step=3.ckpt": 12, "model-epoch=13-step=6.ckpt": 13},
        {"epoch=2-loss=0.25.ckpt": 2, "epoch=10-loss=0.2.ckpt": 10},
        {"checkpoint_0300.pt": 300, "checkpoint_0400.pt": 400},
        {"checkpoint_0300.pt": 300},
        {"resnet50_3.pt": 3, "resnet50_10.pt": 10},  # the only number in which they differ
        {"checkpoint-500/model.pt": 500, "checkpoint-1000/model.pt": 1000},
        {"a.pt": 0, "b.pt": 1},
        {"resnet50-0676ba61.pth": 0},
        {"epoch=3-v1.ckpt": 3, "epoch=4-v1.ckpt": 4},
        {"epoch=3-acc=1.ckpt": 0, "epoch=3-acc=2.ckpt": 1, "epoch=4-acc=2.ckpt": 2},  # both are epoch 3
        {"best.pt": 0, "last.pt": 1, "model_3.pt": 2},  # whose number is not known to count epochs
        {"rank_1_5.pt": 0, "rank_2_9.pt": 1},
        {"1700000000.pt": 0, "1700000060.pt": 1},  # seconds
    ],
)
def test_an_epoch_is_the_number_of_its_own_in_a_name_or_the_place(tmp_path: Path, names: dict[str, int]) -> None:
    touched(tmp_path, *names)
    pattern = f"{tmp_path}/*/*" if "/" in next(iter(names)) else f"{tmp_path}/*"
    assert expand_epochs(pattern) == {epoch: (tmp_path / name, None) for name, epoch in names.items()}


@pytest.mark.parametrize(
    ("numbered", "without"),
    [
        ({"epoch_05.pth": 5}, ["last.pth"]),
        ({"epoch=4-step=40.ckpt": 4, "epoch=9-step=90.ckpt": 9}, ["last.ckpt", "best-acc=0.5.ckpt"]),
        (
            {"epoch=4-step=40.ckpt": 4, "epoch=9-step=90.ckpt": 9},
            ["epoch=9-step=90-v1.ckpt", "epoch=9-step=90-v2.ckpt"],
        ),
        ({"model_4.pth": 4, "model_9.pth": 9, "model_14.pth": 14}, ["model_best.pth", "model_14-v1.pth"]),
        ({"model_4.pth": 4, "model_9.pth": 9}, ["best.pth", "last.pth"]),
        ({"ckpt-50/model.bin": 50, "ckpt-100/model.bin": 100}, ["final/model.bin"]),
    ],
)
def test_a_file_without_a_number_of_its_own_is_left_out_beside_those_with_one(
    tmp_path: Path, numbered: dict[str, int], without: list[str]
) -> None:
    touched(tmp_path, *numbered, *without)
    pattern = f"{tmp_path}/*/*" if "/" in next(iter(numbered)) else f"{tmp_path}/*"
    assert expand_epochs(pattern) == {epoch: (tmp_path / name, None) for name, epoch in numbered.items()}
    assert len(expand(pattern)) == len(numbered) + len(without)


def test_a_pattern_with_a_bracket_that_matches_nothing_says_how_to_write_one(tmp_path: Path) -> None:
    (file,) = touched(tmp_path, "run[1]/epoch=3.pt")
    with pytest.raises(DataError, match=r"no file has such a name.*write .*/run\[\[\]1\]/\*\.pt for itself"):
        expand(f"{tmp_path}/run[1]/*.pt")
    assert expand(f"{tmp_path}/run[[]1]/*.pt") == [(file, None)]


@pytest.mark.parametrize(
    ("name", "epoch", "renamed"),
    [("epoch=4-step=40.ckpt", 4, "epoch=5-step=40.ckpt"), ("model_014.pth", 14, "model_15.pth")],
)
def test_a_name_is_numbered_as_another_epoch(name: str, epoch: int, renamed: str) -> None:
    assert renumber_epoch(Path(name), epoch, epoch + 1) == renamed


def test_a_file_that_is_named_alone_is_epoch_0(tmp_path: Path) -> None:
    touched(tmp_path, "epoch_05.pth")
    assert expand_epochs(f"{tmp_path}/epoch_05.pth#ema") == {0: (tmp_path / "epoch_05.pth", "ema")}
