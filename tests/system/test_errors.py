from __future__ import annotations

import pickle

import pytest

from layerprobe.system.errors import (
    DataError,
    InterruptedRun,
    LayerprobeError,
    NotFiniteError,
    NumericError,
    UnknownNameError,
    names_of,
    require_type,
)


def test_an_error_is_one_line_of_file_reason_and_cure() -> None:
    error = DataError("the file is empty", file="train/a/1.jpg", fix="Download it again")
    assert str(error) == "train/a/1.jpg: the file is empty. Download it again."


def test_a_question_keeps_its_mark() -> None:
    assert str(LayerprobeError("No such command. Did you mean 'train'?")) == "No such command. Did you mean 'train'?"


def test_an_unknown_name_has_the_near_miss() -> None:
    error = UnknownNameError("layer", "pool5.4", ["fc6", "pool5.2", "pool5.3"])
    assert str(error) == "unknown layer 'pool5.4'. Did you mean 'pool5.3'? Known: fc6, pool5.2, pool5.3."


def test_a_name_is_listed_once() -> None:
    assert str(UnknownNameError("layer", "xyz", ["fc6", "fc6"])) == "unknown layer 'xyz'. Known: fc6."


def test_case_is_the_nearest_miss() -> None:
    assert "Did you mean 'netA'?" in str(UnknownNameError("recipe", "neta", ["netA", "netF"]))


def test_a_name_far_from_all_has_no_question() -> None:
    assert str(UnknownNameError("loss", "xyz", ["softmax"])) == "unknown loss 'xyz'. Known: softmax."


@pytest.mark.parametrize(
    "error",
    [
        DataError("empty", file="a", fix="b"), NumericError("NaN"), UnknownNameError("loss", "x", ["softmax"]),
        UnknownNameError("run", "x", ["netA"], file="cache"), NotFiniteError(1, 2),
        InterruptedRun("stopped", signal_number=15),
    ],
)  # fmt: skip
def test_an_error_survives_the_way_from_a_worker(error: LayerprobeError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.exit_code) == (type(error), str(error), error.exit_code)
    assert copy.file == error.file


def test_the_kind_of_a_data_error_survives_it_too() -> None:
    error = DataError("the file is empty", file="a", fix="b", kind="empty")
    assert pickle.loads(pickle.dumps(error)).kind == "empty"


def test_a_file_that_the_system_refuses_is_named_with_its_reason() -> None:
    refused = PermissionError(13, "Permission denied", "a/list.txt")
    assert str(DataError.unreadable(refused)) == (
        "a/list.txt: cannot be read (Permission denied). Check that it is there and that you may read it."
    )
    assert DataError.unreadable(refused, file="b").file == "b"


def test_an_error_shows_no_control_character_and_keeps_the_name_for_programs() -> None:
    error = DataError("empty", file="a\x1b[2J\nerror: forged")
    assert str(error).isprintable()
    assert error.file == "a\x1b[2J\nerror: forged"


@pytest.mark.parametrize("given", ["a, b", ["a", "b"], ("a", "b"), {"a": 1, "b": 2}, iter(["a", "b"])])
def test_names_come_in_a_text_or_a_sequence(given: object) -> None:
    assert names_of("layers", given) == ["a", "b"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, "layers must be a name or a sequence of names, not int"),
        (None, "layers must be a name or a sequence of names, not None"),
        (str, "layers must be a name or a sequence of names, not the class str"),
        (["a", 5], "a name in layers must be text, not int"),
    ],
)
def test_what_is_no_name_is_told_in_a_sentence(given: object, said: str) -> None:
    with pytest.raises(TypeError) as told:
        names_of("layers", given)
    assert str(told.value) == said


def test_a_value_of_a_type_passes() -> None:
    require_type("seed", 3, int, "a whole number")
