"""Class names shortened, or wrapped, to a width."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import takewhile

from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import LoadFlags

from layerprobe.system.wording import visible

_ELLIPSIS = "…"
_TAIL = 3  # characters at the end of a shortened name
_SIGNS = "/_-. "  # after which a line may end
_UNIT = 100.0  # points, at which a character is measured


def shorten(name: str, width: float, size: float) -> str:
    """A name shortened to a width by an ellipsis before its last characters.

    Args:
        size: of the font, in points.
    """
    name = replace_missing_glyphs(name)
    if _width(name, size) <= width:
        return name
    for length in range(min(_TAIL, len(name) - 1), -1, -1):
        tail = name[len(name) - length :]
        room, head = width - _width(_ELLIPSIS + tail, size), 0
        while (room := room - _width(name[head], size)) >= 0:
            head += 1
        if head:
            return f"{name[:head]}{_ELLIPSIS}{tail}"
    return _ELLIPSIS


def shorten_distinctly(names: Iterable[str], width: float, size: float) -> dict[str, str]:
    """Name -> the name shortened to a width so that it differs from the others, as far as the width permits.

    Names that `shorten` would make the same begin, after an ellipsis, where they differ.

    Args:
        size: of the font, in points.
    """
    begins = dict.fromkeys(names, 0)
    while True:
        texts = {name: _shorten_from(name, begin, width, size) for name, begin in begins.items()}
        groups: dict[str, list[str]] = {}
        for name, text in texts.items():
            groups.setdefault(text, []).append(name)
        # Of a name that begins another one, the last character is left.
        differ = {
            name: min(_common_prefix_length(group), min(map(len, group)) - 1)
            for group in groups.values()
            if len(group) > 1
            for name in group
        }
        further = {name: difference for name, difference in differ.items() if difference > begins[name]}
        if not further:
            return texts
        begins |= further


def _common_prefix_length(names: Iterable[str]) -> int:
    """Number of characters with which all names begin."""
    return sum(1 for _ in takewhile(lambda letters: len(set(letters)) == 1, zip(*names, strict=False)))


def _shorten_from(name: str, begin: int, width: float, size: float) -> str:
    if not begin:
        return shorten(name, width, size)
    return _ELLIPSIS + shorten(name[begin:], width - _width(_ELLIPSIS, size), size)


def wrap_name(name: str, width: float, size: float, count: int) -> list[str]:
    """A name wrapped to a width in at most `count` lines; the rest is shortened.

    Args:
        size: of the font, in points.
    """
    name, lines = replace_missing_glyphs(name), list[str]()
    while name and len(lines) < count - 1:
        end, room = 0, width
        while end < len(name) and (room := room - _width(name[end], size)) >= 0:
            end += 1
        end = max(end, 1)
        if end < len(name):
            end = max((i + 1 for i in range(end // 3, end) if name[i] in _SIGNS), default=end)
        lines.append(name[:end])
        name = name[end:]
    return [*lines, shorten(name, width, size)] if name and count > 0 else lines


def replace_missing_glyphs(name: str) -> str:
    """A name with a square in place of each character that the font lacks."""
    font = get_font(findfont(FontProperties()))
    return "".join(c if font.get_char_index(ord(c)) else "\N{WHITE SQUARE}" for c in visible(name))


def _width(text: str, size: float) -> float:
    """Width of a text in inches."""
    return sum(map(_advance, text)) * size / _UNIT / 72


@functools.cache
def _advance(character: str) -> float:
    """Width of a character in points, at the size `_UNIT`."""
    font = get_font(findfont(FontProperties()))
    font.set_size(_UNIT, 72)  # whoever draws with this font sets the size too
    return float(font.load_char(ord(character), flags=LoadFlags.NO_HINTING).linearHoriAdvance) / 65536
