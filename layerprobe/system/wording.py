"""Numbers, times and names -> text for people; values -> types of JSON."""

from __future__ import annotations

import os
import re
import shlex
import textwrap
import time
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

# Python's surrogates for the bytes of a path that is not UTF-8, without those that 8-bit terminals read as controls.
BYTES = "".join(map(chr, range(0xDCA0, 0xDD00)))
_LONG_WORD = re.compile(r"[^\s/]{256,}")  # longer than a file's name can be
_LONG_LINE = 10_000
_NAMED = 5  # names in a line
DEFAULT_CACHE = Path("cache")


def as_size(count: int) -> str:
    """Bytes as `1.8 GB`, below 1 GB as `350 MB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def as_duration(seconds: float) -> str:
    """Seconds as `3 min 20 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, remaining = divmod(round(seconds), 60)
    return f"{minutes} min {remaining} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def as_moment(seconds: float) -> str:
    """Seconds since 1970 as UTC to the second: `2026-11-22T01:30:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def first_named(names: Sequence[str]) -> str:
    """`a, b, c, d, e and 7 more`."""
    suffix = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + suffix


def command_text(*words: str, cache: Path) -> str:
    """`layerprobe probe netA --cache DIR`, quoted for a shell; without --cache where the runs lie there anyway."""
    usual = Path(os.environ.get("LAYERPROBE_CACHE") or DEFAULT_CACHE)
    return shlex.join(["layerprobe", *words, *([] if cache == usual else ["--cache", str(cache)])])


def visible(text: str, *, keep: str = "") -> str:
    """The text with its control characters, direction overrides and bytes that are not UTF-8 replaced.

    A file's name must not steer a terminal or break a figure.

    Args:
        keep: characters that stay, such as a line feed.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)


def one_line(text: str, *, keep: str = "") -> str:
    """The visible text, with words longer than a file's name, and a line over 10,000 characters, cut in the middle."""
    text = _LONG_WORD.sub(lambda word: _cut(word[0], 255), visible(text, keep=keep))
    return _cut(text, _LONG_LINE) if len(text) > _LONG_LINE else text


def wrapped(text: str) -> list[str]:
    """The lines of a text at 80 columns, the later ones indented; none of an empty text."""
    text = visible(text, keep=BYTES)  # a line feed in a name would else be taken for a space, where a line may begin
    joined = text.replace(" %", "\0%")  # a number stays with its unit
    lines = textwrap.wrap(joined, 80, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return [line.replace("\0", " ") for line in lines]


def _cut(text: str, length: int) -> str:
    half = (length - 1) // 2
    return f"{text[:half]}\N{HORIZONTAL ELLIPSIS}{text[-half:]}"


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
