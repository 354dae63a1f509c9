"""Values -> types of JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class HasJson(Protocol):
    """A value whose JSON is not that of its fields."""

    def as_json(self) -> Mapping[str, Any]:
        """The value as a dict."""


def encoded(value: Any) -> Any:
    """A value with each dataclass in it as a dict, of its fields or from `as_json`, and each path as text."""
    if isinstance(value, HasJson):
        return encoded(value.as_json())
    if is_dataclass(value):
        return {field.name: encoded(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: encoded(element) for key, element in value.items()}
    if isinstance(value, tuple | list):
        return [encoded(element) for element in value]
    return str(value) if isinstance(value, Path) else value
