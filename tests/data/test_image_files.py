from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from layerprobe.data.image_files import (
    Files,
    RowNames,
    fingerprint,
    leaves_folder,
    missing_message,
    require_inside,
    sizes_of,
    stamps_of,
)
from layerprobe.system.errors import DataError
from tests.data.spoiled import colours


def test_the_fingerprint_is_a_hash_of_the_sizes_in_order(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "b").write_bytes(b"1")
    assert stamps_of(tmp_path, ("a", "b"))[:, 0].tolist() == [3, 1]
    assert fingerprint([3, 1]) == hashlib.sha256(b"[3, 1]").hexdigest()


def test_a_file_that_went_away_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.jpg: cannot be read \(No such file or directory\). Check"):
        stamps_of(tmp_path, ("gone.jpg",))


def test_only_a_file_has_a_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"123")
    (tmp_path / "b").mkdir()
    assert sizes_of(tmp_path, ("a", "b", "c", "a/d")) == [3, None, None, None]


def test_a_message_names_the_first_five_missing_images() -> None:
    assert missing_message(list("abcdefg"), 1200) == "7 of 1,200 listed images are missing: a, b, c, d, e and 2 more"


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


def test_two_boxes_of_a_photo_are_two_images_and_no_box_is_all_of_it(tmp_path: Path) -> None:
    photo = colours(0)
    PIL.Image.fromarray(photo).save(tmp_path / "a.png")
    files = Files(tmp_path, ("a.png",) * 3, boxes=[(1, 2, 5, 9), None, (0, 2, 5, 9)])
    for image, expected in zip(map(files, range(3)), (photo[2:9, 1:5], photo, photo[2:9, :5]), strict=True):
        np.testing.assert_array_equal(image, expected)
    assert files.ids == ("a.png#1-2-5-9", "a.png", "a.png#0-2-5-9")


def test_a_box_is_one_of_the_image_as_it_is_rotated(tmp_path: Path) -> None:
    exif = PIL.Image.Exif()
    exif[0x0112] = 6  # turn by 90 degrees clockwise
    PIL.Image.fromarray(colours(0)).save(tmp_path / "a.png", exif=exif)
    box = (1, 2, 5, 9)
    stored, rotated = (Files(tmp_path, ("a.png",), on, boxes=[box])(0) for on in (False, True))
    np.testing.assert_array_equal(stored, colours(0)[2:9, 1:5])
    np.testing.assert_array_equal(rotated, np.rot90(colours(0), -1)[2:9, 1:5])


def test_boxes_tell_files_apart_and_none_changes_nothing(tmp_path: Path) -> None:
    def paths(boxes: list[tuple[int, int, int, int] | None] | None) -> str:
        return Files(tmp_path, ("a", "b"), boxes=boxes).paths

    assert paths(None) == f"{tmp_path.resolve()}\0a\0b"
    assert (
        len({paths(None), paths([(0, 0, 1, 2), None]), paths([None, (0, 0, 1, 2)]), paths([(0, 0, 2, 2), None])}) == 4
    )


def test_some_files_keep_their_boxes() -> None:
    files = Files(Path(), tuple("abc"), exif_rotation=True, boxes=[(0, 0, 1, 1), None, (0, 0, 3, 3)])
    some = files.some([2, 0])
    assert (some.ids, some.exif_rotation) == (("c#0-0-3-3", "a#0-0-1-1"), True)
    assert Files(Path(), tuple("abc")).some([1]).ids == ("b",)


@pytest.mark.parametrize(
    ("places", "names"),
    [([7, 8], ["a:000000007", "b:000000008"]), ([[512, 9], [0, 1]], ["a:0000000000512+9", "b:0000000000000+1"])],
)
def test_names_in_tables_are_made_of_file_and_place(places: list[int], names: list[str]) -> None:
    made = RowNames(["a", "b"], np.array([0, 1]), np.array(places))
    assert list(made) == [made[0], made[1]] == names
    assert list(made.some([1])) == names[1:]
