from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from layerprobe.values.own_input import OwnInput
from layerprobe.values.records import record_fault, recorded_input

INPUT = {**asdict(OwnInput(16, 18, kept=0.875)), "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
NETWORK = {"layers": ["a"], "embedding": ["a", "max"], "cuts": {"a": [0.5, 0.25]}, "input": INPUT, "files": {"": "ab"}}


def record(**fields: object) -> dict[str, Any]:
    required: dict[str, Any] = {
        "state": "finished", "recipe_name": "a", "recipe": {}, "experiment": "e", "seed": 0, "epochs_done": 0,
        "hashes": {}, "manifests": {}, "new_parameters": [],
    }  # fmt: skip
    return required | fields


def test_the_input_of_a_model_is_read_back() -> None:
    assert record_fault(record(network=NETWORK)) == ""
    assert recorded_input(record(network=NETWORK)) == OwnInput(
        16, 18, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5), kept=0.875
    )


def test_an_unknown_input_is_none() -> None:
    assert recorded_input(record(network=NETWORK | {"input": None})) is None
    assert recorded_input(record()) is None


@pytest.mark.parametrize(
    "part",
    [
        {"input": INPUT | {"filter": "__class__"}},
        {"input": INPUT | {"resized": 8}},  # smaller than what is cropped out of it
        {"input": INPUT | {"size": True}},
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
        {"embedding": ["a"]},
        {"files": {"": 1}},
        {"layers": None},
    ],
)
def test_a_network_that_is_none_is_told(part: dict[str, Any]) -> None:
    assert record_fault(record(network=NETWORK | part)).startswith("network is {")


def test_files_of_weights_are_one_for_each_epoch() -> None:
    file = {"path": "/a.pt", "part": None, "sha256": "0", "size": 3}
    assert record_fault(record(weights_files=[file, file], epochs_done=1)) == ""
    assert record_fault(record(weights_files=[file])) == ""
    fault = record_fault(record(weights_files=[file], epochs_done=1))
    assert fault == "weights_files has 1 files, expected one for each of the epochs 0 to 1"
    assert record_fault(record(weights_files=[file | {"size": -1}])).startswith("weights_files is ")
