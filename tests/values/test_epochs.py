from __future__ import annotations

from collections.abc import Sequence

import pytest

from layerprobe.system.errors import RecipeError
from layerprobe.values.epochs import named_epochs


def named(text: str, known: Sequence[int] = range(6)) -> list[int]:
    return named_epochs(text, {"all": lambda: known, "last": lambda: [known[-1]]}, known, "netA")


@pytest.mark.parametrize(
    ("text", "found"),
    [("all", [0, 1, 2, 3, 4, 5]), ("last", [5]), ("3, 0", [0, 3]), ("last,0", [0, 5]), ("5,last", [5])],
)
def test_words_and_numbers_name_epochs_in_any_combination(text: str, found: list[int]) -> None:
    assert named(text) == found


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("soon", "--epochs soon: 'soon' is neither all, last nor an epoch. For example --epochs last or"),
        ("0,", "--epochs 0,: '' is neither all, last nor an epoch"),
        ("-1", "'-1' is neither"),
        ("²", "'²' is neither"),
        ("6", "--epochs 6: netA has epochs 0 to 5"),
    ],
)
def test_what_names_no_epoch_is_told_with_what_would(text: str, message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        named(text)
    assert str(caught.value).startswith(message) or message in str(caught.value)


def test_epochs_with_gaps_are_listed() -> None:
    with pytest.raises(RecipeError, match="netA has epochs 0, 2, 9. Choose among these"):
        named("1", (0, 2, 9))


def test_a_word_is_computed_only_if_it_is_used() -> None:
    assert named_epochs("0", {"best": lambda: pytest.fail("computed")}, (0,), "netA") == [0]
