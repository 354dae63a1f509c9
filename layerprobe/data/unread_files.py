"""Files of a folder of images that are not read, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from layerprobe.data.formats import HEIF_EXTENSIONS, HEIF_FIX, ending_of, is_image_name
from layerprobe.system.wording import first_named, one_line

# What is passed over in silence, as hidden files are: text beside images, and what systems leave in folders.
_TEXT = frozenset(
    (".txt", ".md", ".csv", ".tsv", ".json", ".jsonl", ".xml", ".yaml", ".yml", ".toml", ".html", ".htm", ".ini")
)
_TEXT_NAMES = frozenset(("thumbs.db", "readme", "license"))
# What download managers leave behind an image's ending: `.jpg?1528`, `.JPG~`.
_LONGER = re.compile(r"(\.[a-z0-9]+)[^a-z0-9].*", re.DOTALL)


@dataclass(frozen=True)
class UnreadFiles:
    """Files that are not read.

    Args:
        by_folder: a path below the root -> names; `.` is the root.
        without_images: folders of these that hold neither an image nor a folder, and may be meant as classes.
    """

    by_folder: Mapping[str, Sequence[str]] = field(default_factory=dict)
    without_images: frozenset[str] = frozenset()

    def notes(self) -> tuple[str, ...]:
        """One line on all files, and one on the folders that are no classes; none where every file is read."""
        if not self.by_folder:
            return ()
        lines = [f"files that are not read: {self._counted()}"]
        if folders := sorted(self.without_images):
            only = "1 folder has" if len(folders) == 1 else f"{len(folders):,} folders have"
            lines.append(f"{only} no image that is read, and so no class: {first_named(list(map(one_line, folders)))}")
        return tuple(lines)

    def _counted(self) -> str:
        """`8 .heic (c00/r.heic; pip install pillow-heif), 4 without an ending (c00/x)`."""
        files: dict[tuple[str, str], list[str]] = {}
        for folder, names in sorted(self.by_folder.items()):
            for name in sorted(names):
                files.setdefault(_kind_and_fix(name), []).append(name if folder == "." else f"{folder}/{name}")
        counts = []
        for (kind, fix), paths in sorted(files.items(), key=lambda item: -len(item[1])):
            endings = {ending_of(path.rpartition("/")[2]) for path in paths}
            ending = f"{kind}..." if len(endings) > 1 else endings.pop() or "without an ending"
            counts.append(f"{len(paths):,} {one_line(ending)} ({one_line(paths[0])}{fix and f'; {fix}'})")
        return first_named(counts)


def unread_among(names: Iterable[str]) -> list[str]:
    """Those of some files that are neither images, nor hidden, nor text."""
    return [
        name
        for name in names
        if not (name.startswith(".") or is_image_name(name))
        and ending_of(name) not in _TEXT
        and name.lower() not in _TEXT_NAMES
    ]


def _kind_and_fix(name: str) -> tuple[str, str]:
    """What a file is counted by, its ending or the beginning of that, and what lets it be read."""
    ending = ending_of(name)
    if ending in HEIF_EXTENSIONS:
        return ending, HEIF_FIX
    longer = _LONGER.fullmatch(ending)
    if longer and is_image_name(f"x{longer[1]}"):
        return ending[: len(longer[1]) + 1], f"rename to end in {longer[1]}"
    return ending, ""
