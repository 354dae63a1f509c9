from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import Any

import pytest

from layerprobe.values.network_input import OwnInput
from layerprobe.values.records import RunRecord
from tests.records import recorded

INPUT = {**asdict(OwnInput(16, 18, kept=0.875)), "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
NETWORK = {"layers": ["a"], "embedding": ["a", "max"], "cuts": {"a": [0.5, 0.25]}, "input": INPUT, "files": {"": "ab"}}


def test_the_input_of_a_model_is_read_back() -> None:
    network = recorded({"network": NETWORK}).network
    assert network is not None
    assert network.input == OwnInput(16, 18, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), kept=0.875)


def test_an_input_that_is_no_square_and_the_channels_are_read_back() -> None:
    own = INPUT | {"size": [16, 8], "resized": [18, 9], "mean": [0.5], "std": [0.25]}
    network = recorded({"network": NETWORK | {"input": own, "channels": 1}}).network
    assert network is not None
    assert network.input == OwnInput((16, 8), (18, 9), mean=(0.5,), std=(0.25,), kept=0.875)
    assert json.loads(json.dumps(network.as_json()["channels"])) == 1
    assert "channels" not in recorded({"network": NETWORK}).network.as_json()  # type: ignore[union-attr] # it has one


def test_the_multiply_adds_of_an_image_are_read_back() -> None:
    network = recorded({"network": NETWORK | {"multiply_adds": 8968}}).network
    assert network is not None
    assert network.multiply_adds == network.as_json()["multiply_adds"] == 8968
    assert "multiply_adds" not in recorded({"network": NETWORK}).network.as_json()  # type: ignore[union-attr] # it has one


def test_a_record_is_written_as_it_was_read() -> None:
    file = {"path": "/a.pt", "part": None, "sha256": "0", "size": 3, "epoch": 0}
    values = {"network": NETWORK, "layer_order": ["a", "b"], "weights_files": [file], "untrained": False, "later": [1]}
    written = json.loads(json.dumps(recorded(values).as_json()))
    assert {name: written[name] for name in values} == json.loads(json.dumps(values))
    assert recorded(written) == recorded(values)
    assert "members" not in written


def test_the_layer_before_the_embedding() -> None:
    found = recorded({"network": NETWORK | {"layers": ["a", "b", "c"], "embedding": ["c", "max"]}}).network
    assert found is not None
    assert found.before == "b"


@pytest.mark.parametrize(
    "part",
    [
        {"input": INPUT | {"filter": "__class__"}},
        {"input": INPUT | {"resized": 8}},  # smaller than what is cropped out of it
        {"input": INPUT | {"size": True}},
        {"input": INPUT | {"size": [16, 19]}},
        {"input": INPUT | {"size": [16, 16, 16]}},
        {"input": INPUT | {"mean": [0.5]}},  # as many as std
        {"channels": 2},
        {"input": INPUT | {"mean": [True, 0, 0]}},
        {"input": INPUT | {"mean": ["a", "b", "c"]}},
        {"input": INPUT | {"kept": 0}},
        {"input": INPUT | {"kept": 1e-300}},
        {"input": INPUT | {"mean": [10**400, 0, 0]}},
        {"input": INPUT | {"std": [float("nan"), 1, 1]}},
        {"input": INPUT | {"resized": 10**9}},
        {"files": {"a\0": "ab"}},
        {"input": {"size": 16}},
        {"cuts": {"a": [0.5]}},
        {"cuts": {"a": [0.5, 1.5]}},
        {"cuts": {"a": [None, 0.5]}},
        {"embedding": ["a"]},
        {"files": {"": 1}},
        {"layers": None},
    ],
)
def test_a_network_that_is_none_is_told(part: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^network is \{"):
        recorded({"network": NETWORK | part})


def test_files_of_weights_are_one_for_each_epoch() -> None:
    file = {"path": "/a.pt", "part": None, "sha256": "0", "size": 3, "epoch": 0}
    named = [file | {"epoch": 5}, file | {"epoch": 12}]
    assert recorded({"weights_files": named, "epochs_done": 12}).epochs == [5, 12]
    for files, epochs in ([file], "0"), (named[:1], "5"), (named[::-1], "12, 5"), (named[1:] * 2, "12, 12"):
        with pytest.raises(ValueError, match=f"^weights_files has the epochs {epochs}, expected ascending"):
            recorded({"weights_files": files, "epochs_done": 12})
    with pytest.raises(ValueError, match="^weights_files is "):
        recorded({"weights_files": [file | {"size": -1}]})
    del file["epoch"]
    with pytest.raises(ValueError, match="expected the path, part, sha256, size and epoch of files"):
        recorded({"weights_files": [file]})


def test_more_epochs_than_any_training_counts_are_refused() -> None:
    assert len(recorded({"epochs_done": 1_000_000}).epochs) == 1_000_001
    with pytest.raises(ValueError, match="^epochs_done is 1000000000, expected at most 1,000,000$"):
        recorded({"epochs_done": 10**9})


WRONG = {
    "state": (1, "text"),
    "recipe_name": (None, "text"),
    "recipe": ({"train": {"epochs": "3"}}, "the sections of a recipe, train.epochs a whole number"),
    "experiment": (["e"], "text"),
    "seed": (1.0, "a whole number"),
    "epochs_done": (True, "a whole number"),
    "hashes": ({"resume.pt": 1}, "the hash of each file"),
    "manifests": ([], "the hash of each split"),
    "new_parameters": ("fc6", "a list of names"),
    "contents": ({"test": None}, "the hash of each split"),
    "command": (["probe"], "text"),
    "versions": ({"torch": 2}, "a version of each package"),
    "device": (0, "text"),
    "threads": (-1, "a whole number"),
    "transform": ({}, "text"),
    "notes": ([["a"]], "a list of sentences"),
    "network": ([], "the network's layers, cuts, input and files"),
    "layer_order": ({"a": 1}, "a list of layers"),
    "members": ([1], "a list of runs"),
    "checkpoints_removed": (["1"], "a list of epochs"),
    "weights_files": ([{"path": "/a.pt"}], "the path, part, sha256, size and epoch of files"),
    "untrained": (1, "true or false"),
    "from_python": ("false", "true or false"),
    "request": (7, "text"),
    "processes": ([[1]], "pairs of an epoch and a number"),
    "touched": (7, "a time"),
}


def test_a_field_of_another_type_is_refused_with_what_would_be_right() -> None:
    assert WRONG.keys() == {each.name for each in fields(RunRecord)} - {"others"}
    for name, (value, expected) in WRONG.items():
        with pytest.raises(ValueError, match=f"^{name} is .*, expected {expected}$") as refused:
            recorded({name: value})
        assert ascii(value) in str(refused.value)


def test_the_first_field_that_is_missing_is_told() -> None:
    with pytest.raises(ValueError, match="^state is missing, expected text$"):
        RunRecord.of_json({"recipe_name": 1})


def test_names_that_are_no_utf_8_and_whole_numbers_stay_as_they_are() -> None:
    levels = {"mean": [0, 0.5, 1], "std": [1, 1, 1]}
    values = {"command": "train \udcff", "network": NETWORK | {"input": INPUT | levels, "files": {"\udcff.py": "ab"}}}
    written = json.dumps(recorded(values).as_json())
    assert json.dumps(recorded(json.loads(written)).as_json()) == written
    assert '"command": "train \\udcff"' in written
    assert '"mean": [0, 0.5, 1], "std": [1, 1, 1]' in written


@pytest.mark.parametrize(
    ("processes", "epoch", "note"),
    [
        ([], 5, ""),
        ([[1, 2]], 5, ""),
        ([[6, 4]], 5, ""),
        ([[6, 4]], 8, "epochs 1-5 by 1, 6-8 by 4 processes"),
        ([[1, 2], [4, 1]], 4, "epochs 1-3 by 2, 4-4 by 1 processes"),
    ],
)
def test_the_note_says_which_epochs_how_many_processes_trained(
    processes: list[list[int]], epoch: int, note: str
) -> None:
    assert recorded({"processes": processes}).processes_note(epoch) == note
