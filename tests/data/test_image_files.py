from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from layerprobe.data.image_files import file_sizes, fingerprint, leaves_folder, missing, require_inside, sizes_of
from layerprobe.system.errors import DataError


def test_the_fingerprint_is_a_hash_of_the_sizes_in_order(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "b").write_bytes(b"1")
    assert file_sizes(tmp_path, ("a", "b")) == fingerprint([3, 1]) == hashlib.sha256(b"[3, 1]").hexdigest()


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.jpg: cannot be read \(No such file or directory\). Check"):
        file_sizes(tmp_path, ("gone.jpg",))


def test_only_a_file_has_a_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "b").mkdir()
    assert sizes_of(tmp_path, ("a", "b", "c", "a/d")) == [3, None, None, None]


def test_a_message_names_the_first_five_missing_images() -> None:
    assert missing(list("abcdefg"), 1200) == "7 of 1,200 listed images are missing: a, b, c, d, e and 2 more"


@pytest.mark.parametrize("name", ["../a", "a/../b", "..", "/a", "a\\b", "a\0"])
def test_a_path_that_may_leave_its_folder_is_known_by_its_text(name: str, tmp_path: Path) -> None:
    assert leaves_folder(name)
    with pytest.raises(DataError, match="a listed path leaves the data folder"):
        require_inside(tmp_path, ["a", name])


def test_dots_in_a_name_leave_no_folder(tmp_path: Path) -> None:
    assert not leaves_folder("a..b/c...jpg")
    require_inside(tmp_path, ["a..b/c...jpg"])


def test_a_link_to_a_folder_outside_is_refused_and_one_to_a_file_is_not(tmp_path: Path) -> None:
    root = tmp_path / "set"
    (root / "in").mkdir(parents=True)
    (root / "out").symlink_to(tmp_path)
    (tmp_path / "far.jpg").touch()
    (root / "in/far.jpg").symlink_to(tmp_path / "far.jpg")
    require_inside(root, ["in/far.jpg"])
    with pytest.raises(DataError, match="a link takes 'out' out of the data folder. Put the images there instead"):
        require_inside(root, ["in/far.jpg", "out/far.jpg"])
