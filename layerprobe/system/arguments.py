"""A Python function's argument of a wrong type -> a TypeError in a sentence."""

from __future__ import annotations

from collections.abc import Iterable


def require_type(argument: str, value: object, types: type | tuple[type, ...], expected: str) -> None:
    """Check the type of an argument.

    Args:
        expected: after "must be": `a torch.nn.Module`.
    """
    if not isinstance(value, types):
        raise wrong_type(argument, value, expected)


def names_of(argument: str, value: object) -> list[str]:
    """Names from a sequence or a comma-separated string."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    if not isinstance(value, Iterable):
        raise wrong_type(argument, value, "a name or a sequence of names")
    names = list(value)
    for name in names:
        require_type(f"a name in {argument}", name, str, "text")
    return names


def wrong_type(argument: str, value: object, expected: str) -> TypeError:
    """`image_size must be a whole number, not Tensor`."""
    kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return TypeError(f"{argument} must be {expected}, not {'None' if value is None else kind}")
