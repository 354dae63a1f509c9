"""The epochs that `--epochs` names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from layerprobe.system.errors import RecipeError


def named_epochs(
    text: str, words: Mapping[str, Callable[[], Iterable[int]]], epochs_of_run: Sequence[int], run: str
) -> list[int]:
    """The epochs of `last,best` or `0,5`, ascending.

    Args:
        words: word -> its epochs, computed only if used.
        epochs_of_run: the valid numbers, ascending.
    """
    epochs: set[int] = set()
    for word in require_epochs(text, words):
        if word in words:
            epochs.update(words[word]())
        elif int(word) not in epochs_of_run:
            raise RecipeError(
                f"--epochs {text}: {run} has epochs {epochs_text(epochs_of_run)}", fix="Choose among these"
            )
        else:
            epochs.add(int(word))
    return sorted(epochs)


def require_epochs(text: str, words: Collection[str]) -> list[str]:
    """The parts of `last,best` or `0,5`, each a word or a number, whether or not a run has it."""
    parts = [word_text.strip() for word_text in text.split(",")]
    for word in parts:
        if word not in words and not (word.isascii() and word.isdecimal()):
            refusal = f"--epochs {text}: {word!r} is neither {', '.join(words)} nor an epoch"
            raise RecipeError(refusal, fix="For example --epochs last or --epochs 0,5")
    return parts


def epochs_text(epochs: Sequence[int]) -> str:
    """`0 to 12`, or `5, 12, 300`."""
    is_range = len(epochs) > 1 and list(epochs) == list(range(epochs[0], epochs[-1] + 1))
    return f"{epochs[0]} to {epochs[-1]}" if is_range else ", ".join(map(str, epochs))
