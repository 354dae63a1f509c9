"""cache: list and remove the decoded images that runs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe.data.cache import FOLDER, Entry, entries
from layerprobe.system.errors import BusyError, UnknownNameError
from layerprobe.system.files import require_target
from layerprobe.system.wording import as_moment


@dataclass(frozen=True)
class Kept:
    """The decoded images of one split; `size` is in bytes on disk."""

    id: str
    data: str
    split: str
    images: int
    size: int
    used: str
    complete: bool


def list_images(cache: Path) -> list[Kept]:
    """All decoded images in a cache, last used first."""
    require_target(cache)
    return [_kept(entry) for entry in entries(cache / FOLDER)]


def clean_images(cache: Path, ids: Sequence[str] = ()) -> list[Kept]:
    """Remove decoded images, by default all that no process uses, and return what was removed."""
    known = {entry.folder.name: entry for entry in entries(cache / FOLDER)}
    for name in ids:
        if name not in known:
            raise UnknownNameError("entry", name, known, file=cache / FOLDER)
    removed = []
    for name in ids or known:
        kept = _kept(known[name])
        try:
            known[name].remove()
        except BlockingIOError as error:
            if ids:
                fix = "Wait until that process ends"
                raise BusyError("in use by another process", file=known[name].folder, fix=fix) from error
            continue
        removed.append(kept)
    return removed


def _kept(entry: Entry) -> Kept:
    about = entry.about()
    return Kept(
        id=entry.folder.name,
        data=str(about.get("data", "")),
        split=str(about.get("split", "")),
        images=int(about.get("images", 0)),
        size=entry.bytes_on_disk(),
        used=as_moment(entry.used()),
        complete=entry.is_complete(),
    )
