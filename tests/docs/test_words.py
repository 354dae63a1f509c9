from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from docs._ext.words import default_words, type_words


@pytest.mark.parametrize(
    ("hint", "words"),
    [
        (int, "whole number"),
        (float | None, "number"),
        (bool, "`true` or `false`"),
        (Literal["a", 0], '`"a"` or `0`'),
        (Annotated[int, Field(ge=1, le=1000)], "whole number, at least 1, at most 1,000"),
        (tuple[Annotated[float, Field(gt=0, lt=1)], ...], "list of numbers, above 0, below 1"),
        (float | tuple[float, float, float] | Literal["imagenet"], 'number or list of 3 numbers or `"imagenet"`'),
    ],
)
def test_a_type_in_words(hint: Any, words: str) -> None:
    assert type_words(hint) == words


def test_a_default_is_written_as_in_a_recipe() -> None:
    assert default_words(True) == "default `true`"
    assert default_words((1, 2)) == "default `[1, 2]`"
    assert default_words("all") == 'default `"all"`'
    assert default_words(None) == ""
