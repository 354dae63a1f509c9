"""Markdown of docstrings and of lists of options."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

_SECTION = re.compile(r"^(Args|Returns|Raises|Yields|Attributes):$", re.MULTILINE)
_ENTRY = re.compile(r"^    (?=\S)", re.MULTILINE)
_CODE = re.compile(r"(`+[^`]+`+)")


@dataclass(frozen=True)
class Docstring:
    """A docstring in Google's style.

    Args:
        summary: its first paragraph.
        body: its further paragraphs and blocks, before the sections.
        entries: section -> name -> text.
    """

    summary: str
    body: tuple[str, ...] = ()
    entries: dict[str, dict[str, str]] = field(default_factory=dict)

    @property
    def markdown(self) -> str:
        """Summary and body."""
        return "\n\n".join(_block(block) for block in (self.summary, *self.body) if block)


def parsed(thing: object) -> Docstring:
    """The docstring of an object, or a docstring itself."""
    text = inspect.cleandoc(thing) if isinstance(thing, str) else inspect.getdoc(thing) or ""
    first, *pieces = _SECTION.split(text)
    blocks = [block.rstrip() for block in re.split(r"\n\s*\n", first.strip())]
    sections = {name: _entries(block) for name, block in zip(pieces[::2], pieces[1::2], strict=True)}
    return Docstring(blocks[0], tuple(blocks[1:]), sections)


def _entries(block: str) -> dict[str, str]:
    entries: dict[str, str] = {}
    for entry in _ENTRY.split(block.strip("\n"))[1:]:
        names, _, text = entry.partition(":")
        entries |= {name.strip(): " ".join(text.split()) for name in names.split(",")}
    return entries


def _block(block: str) -> str:
    if block.startswith(">>>"):
        return f"```python\n{block}\n```"
    if block.startswith("    "):
        return f"```text\n{inspect.cleandoc(block)}\n```"
    lines: list[str] = []
    for line in block.splitlines():
        # A minus sign at the start of a line of a paragraph begins no list.
        is_item = line.startswith("- ") and (not lines or lines[-1].startswith(("- ", "  ")) or lines[-1].endswith(":"))
        if is_item:
            lines.append(f"- {escaped(line[2:])}")
        elif line[:1] == " ":
            lines.append(f"  {escaped(line.strip())}")
        else:
            lines.append(re.sub(r"^([-+]) ", r"\\\1 ", escaped(line)))
    return "\n".join(lines)


def escaped(text: str) -> str:
    """Text without Markdown but for code in backticks."""
    parts = _CODE.split(text)
    parts[::2] = [re.sub(r"([\\*_\[\]<>|$#{}~])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def code(text: str) -> str:
    """Text as code; nothing for no text."""
    fence = "``" if "`" in text else "`"
    return f"{fence}{text}{fence}" if text else ""


def table(rows: Sequence[Sequence[str]]) -> str:
    """A table, whose first row is its head."""
    lines = ["| " + " | ".join(cell.replace("\n", " ") for cell in row) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def entry(name: str, facts: Iterable[str], text: str, *, target: str = "") -> str:
    """An option: its name, facts such as type and default, and what it means.

    Args:
        text: Markdown.
        target: what links call it; empty for none.
    """
    head = "; ".join(filter(None, facts))
    label = f"({target})=\n\n" if target else ""
    return f"{label}{code(name)}{f' ({head})' if head else ''}\n: {text or '&nbsp;'}\n"
