"""The code blocks of the pages, as values: what is typed, what is printed, what keeps a block from being run."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
# What Sphinx and git leave beside the pages.
_NO_PAGES = {"_build", ".ipynb_checkpoints"}
_BLOCK = re.compile(
    r"(?:^[ ]*<!-- (?P<mark>parsed|not run): (?P<reason>[^>]+?) -->\n)?"
    r"^(?P<indent>[ ]*)(?P<fence>```+|:::+)(?P<language>[\w{}-]*)[^\n]*\n(?P<text>.*?)^(?P=indent)(?P=fence)[ ]*$",
    re.MULTILINE | re.DOTALL,
)
_ELISION = "..."


def pages() -> list[Path]:
    """README and the pages of the site that are written by hand."""
    written = (path for path in (ROOT / "docs").rglob("*.md") if not _NO_PAGES.intersection(path.parts))
    return [README, *sorted(written)]


def name_of(page: Path) -> str:
    """The page as tests name it: `docs/how-to/choose.md`."""
    return str(page.relative_to(ROOT))


@dataclass(frozen=True)
class Block:
    """A code block of a page.

    Args:
        line: of its first fence, from 1.
        mark: `parsed` or `not run`, of the comment on the line before; empty without one.
        reason: what that comment says.
    """

    page: Path
    line: int
    language: str
    text: str
    mark: str = ""
    reason: str = ""

    def __str__(self) -> str:
        return f"{name_of(self.page)}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """The blocks of a page, in its order."""
    text = page.read_text(encoding="utf-8")
    blocks = []
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("indent")) + 1
        indent = match["indent"]
        code = "".join(row.removeprefix(indent) for row in match["text"].splitlines(keepends=True))
        blocks.append(Block(page, line, match["language"], code, match["mark"] or "", match["reason"] or ""))
    return blocks


@dataclass(frozen=True)
class Command:
    """A command line of a block, and the lines that the page shows below it; None in a block without outputs."""

    line: str
    shown: tuple[str, ...] | None = None

    @property
    def words(self) -> list[str]:
        """Its words, without a comment at its end."""
        return shlex.split(re.sub(r"(^|\s)#.*", "", self.line))  # `netA#0:fc6` has none


def commands_of(block: Block) -> list[Command]:
    """The commands of a `console` or `sh` block."""
    if block.language == "console":
        commands: list[Command] = []
        for row in _joined(block.text):
            if row.startswith("$ "):
                commands.append(Command(row.removeprefix("$ "), ()))
            elif commands and row.strip():
                last = commands.pop()
                commands.append(Command(last.line, (*(last.shown or ()), row)))
        return commands
    return [Command(row) for row in _joined(block.text) if row.strip() and not row.lstrip().startswith("#")]


def _joined(text: str) -> list[str]:
    """The lines of a text, those that end in a backslash joined with the next one."""
    return re.sub(r"\\\n\s*", "", text).splitlines()


def differences(shown: tuple[str, ...], printed: str) -> str:
    """What a page shows of an output and the command does not print; empty where it agrees.

    Words are compared, not lines, as a terminal of another width wraps elsewhere. A line `...` stands for any
    lines, and what a machine decides is masked in both.
    """
    parts: list[list[str]] = [[]]
    for row in shown:
        if row.strip() == _ELISION:
            parts.append([])
        else:
            parts[-1] += masked(row).split()
    words, start = masked(printed).split(), 0
    for number, part in enumerate(parts):
        first, last = number == 0, number == len(parts) - 1
        found_at = _position(part, words, start, anchored=first)
        if last and part and not first:
            found_at = len(words) - len(part) if words[len(words) - len(part) :] == part else None
        if found_at is None or found_at < start:
            return " ".join(part)
        start = found_at + len(part)
    return "" if shown[-1:] == (_ELISION,) or start == len(words) else " ".join(words[start:])


def _position(part: list[str], words: list[str], start: int, *, anchored: bool) -> int | None:
    if anchored:
        return start if words[start : start + len(part)] == part else None
    starts = range(start, len(words) - len(part) + 1)
    return next((place for place in starts if words[place : place + len(part)] == part), None)


# What the machine, the date or the version of a package decides -> what stands for it.
_MASKS = {
    r"about .*? of memory, .*? on disk \(.*? free\)": "about TIME, SIZE of memory, SIZE on disk (SIZE free)",
    r"\b[\d.,]+ ?(images|queries|steps|layers)/s\b": "N images/s",
    r"\b[\d.,]+ ?(ms|s|seconds?|min|minutes?|h|hours?|days?)\b(?!/)": "TIME",
    r"\b[\d.,]+ ?(kB|MB|GB|KiB|MiB|GiB)\b": "SIZE",
    r"\b20\d\d-\d\d-\d\d([T ]\d\d:\d\d(:\d\d)?)?": "DATE",
    r"(?<=-)[0-9a-f]{6}\b": "HASH",
    r"\d\.\de[+-]\d\d": "X",
    r"[─━═]+": "─",
    # Search indexes: CPU times of the last three columns, and the processor.
    r"(?m)^((?:exact|flat|ivfpq|hnsw) .* [\d,]+)(?: +\d+\.\d+){3} *$": r"\1 TIMES",
    r"(?<=1 thread of ).*?;": "PROCESSOR;",
}


def masked(text: str) -> str:
    """A text without what a machine decides."""
    for pattern, name in _MASKS.items():
        text = re.sub(pattern, name, text)
    return text
