from __future__ import annotations

import sys

import pytest

from layerprobe.data.formats import reads_heif
from layerprobe.data.unread_files import UnreadFiles, unread_among


def notes(*names: str) -> tuple[str, ...]:
    return UnreadFiles({"c.0": names}).notes()


def test_files_are_counted_by_ending_the_most_first_and_one_of_each_is_named() -> None:
    assert notes("b.tga", "A.TGA", "noending", "x.psd", "y.psd", "z.psd") == (
        "files that are not read: 3 .psd (c.0/x.psd), 2 .tga (c.0/A.TGA), 1 without an ending (c.0/noending)",
    )


def test_an_ending_that_goes_on_behind_an_images_is_to_be_cut() -> None:
    assert notes("a.jpg?1528", "b.jpg?1528") == (
        "files that are not read: 2 .jpg?1528 (c.0/a.jpg?1528; rename to end in .jpg)",
    )


def test_such_endings_are_counted_together() -> None:
    assert notes("a.jpg?1", "b.JPG?22", "c.png~", "d.x?1") == (
        "files that are not read: 2 .jpg?... (c.0/a.jpg?1; rename to end in .jpg), 1 .png~ (c.0/c.png~; rename to end"
        " in .png), 1 .x?1 (c.0/d.x?1)",
    )


def test_heic_names_the_package_that_reads_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    reads_heif.cache_clear()
    assert unread_among(["a.HEIC"]) == ["a.HEIC"]
    reads_heif.cache_clear()
    assert notes("a.HEIC") == ("files that are not read: 1 .heic (c.0/a.HEIC; pip install pillow-heif)",)


def test_folders_without_an_image_are_named() -> None:
    unread = UnreadFiles({"b": ["x.tga"], "a": ["x.tga"], "c": ["x.tga"]}, frozenset("ba"))
    assert unread.notes()[1] == "2 folders have no image that is read, and so no class: a, b"


def test_where_every_file_is_read_nothing_is_said() -> None:
    assert UnreadFiles().notes() == ()


@pytest.mark.parametrize("name", ["x.png", ".hidden.tga", "list.TXT", "x.json", "Thumbs.db", "desktop.ini", "README"])
def test_images_hidden_files_and_text_are_passed_over(name: str) -> None:
    assert unread_among([name, "x.tga"]) == ["x.tga"]


def test_a_name_cannot_break_the_line() -> None:
    assert "\n" not in notes("a.t\nga")[0]
