"""cache: list and remove the decoded images that runs share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from layerprobe.data.pixel_cache import FOLDER, Entry, entries
from layerprobe.system.errors import BusyError, UnknownNameError
from layerprobe.system.files import require_target
from layerprobe.system.wording import as_moment


@dataclass(frozen=True)
class DecodedImages:
    """The decoded images of one split; `size` is in bytes on disk."""

    id: str
    data: str
    split: str
    images: int
    size: int
    used: str
    complete: bool


def list_images(cache: Path) -> list[DecodedImages]:
    """All decoded images in a cache, last used first."""
    require_target(cache)
    return [_images_of(entry) for entry in entries(cache / FOLDER)]


def clean_images(cache: Path, ids: Sequence[str] = ()) -> list[DecodedImages]:
    """Remove decoded images, by default all that no process uses, and return what was removed."""
    entries_by_id = {entry.folder.name: entry for entry in entries(cache / FOLDER)}
    for name in ids:
        if name not in entries_by_id:
            raise UnknownNameError("entry", name, entries_by_id, file=cache / FOLDER)
    removed = []
    for name in ids or entries_by_id:
        images = _images_of(entries_by_id[name])
        try:
            entries_by_id[name].remove()
        except BlockingIOError as error:
            if ids:
                fix = "Wait until that process ends"
                raise BusyError("in use by another process", file=entries_by_id[name].folder, fix=fix) from error
            continue
        removed.append(images)
    return removed


def _images_of(entry: Entry) -> DecodedImages:
    about = entry.about()
    return DecodedImages(
        id=entry.folder.name,
        data=str(about.get("data", "")),
        split=str(about.get("split", "")),
        images=int(about.get("images", 0)),
        size=entry.bytes_on_disk(),
        used=as_moment(entry.used()),
        complete=entry.is_complete(),
    )
