"""Types, ranges and defaults in words."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from docs._ext.markdown import code

_NAMES = {int: "whole number", float: "number", str: "text", bool: "`true` or `false`"}
_BOUNDS = {"ge": "at least {}", "gt": "above {}", "le": "at most {}", "lt": "below {}"}


def type_words(hint: Any, metadata: Iterable[object] = ()) -> str:
    """A type, with the bounds that pydantic or annotated-types set it."""
    return ", ".join(filter(None, [_type(hint), bounds(metadata)]))


def _type(hint: Any) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return type_words(arguments[0], arguments[1:])
    if origin is Literal:
        return " or ".join(code(toml(value)) for value in arguments)
    if origin in (Union, types.UnionType):
        kinds = [_type(kind) for kind in arguments if kind is not type(None)]
        return " or ".join(dict.fromkeys(kinds))
    if origin in (tuple, list):
        if (len(arguments) == 2 and arguments[1] is Ellipsis) or origin is list:
            return f"list of {plural(type_words(arguments[0]))}"
        return f"list of {len(arguments)} {plural(_type(arguments[0]))}"
    return _NAMES.get(hint, code(getattr(hint, "__name__", str(hint))))


def plural(kind: str) -> str:
    """Of a type in words: `whole numbers above 0`."""
    first, comma, rest = kind.partition(", ")
    return f"{first if first.startswith('`') else f'{first}s'}{comma}{rest}"


def bounds(metadata: Iterable[object]) -> str:
    """The range that constraints leave: `above 0, below 1`."""
    found = []
    for item in metadata:
        items = item.metadata if isinstance(item, FieldInfo) else [item]
        for one in items:
            found += [text.format(f"{getattr(one, name):,}") for name, text in _BOUNDS.items() if hasattr(one, name)]
    return ", ".join(found)


def toml(value: object) -> str:
    """A value as a recipe has it."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)


def default_words(value: object) -> str:
    """A default: `default 0.1`; nothing for None."""
    return "" if value is None else f"default {code(toml(value))}"
