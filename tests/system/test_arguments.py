from __future__ import annotations

import pytest

from layerprobe.system.arguments import names_of, require_type


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
