"""Sizes, times and names in words, for people."""

from __future__ import annotations

import time


def as_size(count: int) -> str:
    """Bytes as `1.8 GB`, below 1 GB as `350 MB`."""
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.0f} MB"


def as_duration(seconds: float) -> str:
    """Seconds as `3 min 20 s`."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def as_moment(seconds: float) -> str:
    """Seconds since 1970 as UTC to the second: `2026-11-22T01:30:00Z`."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def visible(text: str, *, keep: str = "") -> str:
    """The text with its control characters replaced: a file's name must not steer a terminal or break a figure.

    Args:
        text: any.
        keep: control characters that stay, such as a line feed.
    """
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)
