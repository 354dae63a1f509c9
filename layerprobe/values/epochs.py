"""The epochs that `--epochs` names."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from layerprobe.system.errors import RecipeError


def named_epochs(
    text: str, words: Mapping[str, Callable[[], Iterable[int]]], known: Sequence[int], run: str
) -> list[int]:
    """The epochs of `last,best` or `0,5`, ascending.

    Args:
        words: word -> its epochs, computed only if used.
        known: the valid numbers, ascending.
    """
    found: set[int] = set()
    for word in require_epochs(text, words):
        if word in words:
            found.update(words[word]())
        elif int(word) not in known:
            raise RecipeError(f"--epochs {text}: {run} has epochs {epochs_text(known)}", fix="Choose among these")
        else:
            found.add(int(word))
    return sorted(found)


def require_epochs(text: str, words: Collection[str]) -> list[str]:
    """The parts of `last,best` or `0,5`, each a word or a number, whether or not a run has it."""
    parts = [part.strip() for part in text.split(",")]
    for word in parts:
        if word not in words and not (word.isascii() and word.isdecimal()):
            what = f"--epochs {text}: {word!r} is neither {', '.join(words)} nor an epoch"
            raise RecipeError(what, fix="For example --epochs last or --epochs 0,5")
    return parts


def epochs_text(known: Sequence[int]) -> str:
    """`0 to 12`, or `5, 12, 300`."""
    whole = len(known) > 1 and list(known) == list(range(known[0], known[-1] + 1))
    return f"{known[0]} to {known[-1]}" if whole else ", ".join(map(str, known))
