"""What a class of stored features is called."""

from __future__ import annotations

from collections.abc import Sequence


def class_name(names: Sequence[str], label: int) -> str:
    """The name of a class; its number where it has none.

    Args:
        names: of class 0, 1 ...; empty where none are stored.
    """
    return names[label] if 0 <= label < len(names) else str(label)
