from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe.data.listing import every_listed
from layerprobe.data.splits import Dataset
from layerprobe.errors import DataError
from tests.data import fabricated
from tests.data.spoiled import photo


def write(root: Path, *names: str) -> None:
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(photo(seed))


def listed(name: str, root: Path) -> Dataset:
    found = every_listed(name, {"root": root})
    assert found is not None
    return found


def sizes(found: Dataset) -> dict[str, tuple[int, int]]:
    return {name: (len(split), split.num_classes) for name, split in found.splits.items()}


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("cub200", fabricated.cub),
        ("sop", fabricated.sop),
        ("cars196", fabricated.cars_one_folder),
        ("cars196", fabricated.cars_devkit),
        ("cars196", fabricated.cars_named),
        ("inshop", lambda root: fabricated.inshop(root, root)),
    ],
)
def test_an_image_that_is_gone_is_still_listed(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    before = listed(name, tmp_path)
    split = before.splits["test"]
    (split.image.root / split.ids[0]).unlink()  # type: ignore[attr-defined] # Files
    after = listed(name, tmp_path)
    assert [split.ids for split in after.splits.values()] == [split.ids for split in before.splits.values()]
    assert sum(map(len, after.splits.values())) == 24


def test_a_benchmarks_queries_are_searched_in_its_gallery(tmp_path: Path) -> None:
    fabricated.inshop(tmp_path, tmp_path)
    assert listed("inshop", tmp_path).search_in == {"test": "gallery"}


def test_classes_are_called_by_their_names(tmp_path: Path) -> None:
    fabricated.cub(tmp_path)
    assert listed("cub200", tmp_path).class_names[:2] == ("001.Bird_1", "003.Bird_3")


def test_a_folder_of_three_classes_and_images_outside_them_is_listed(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "b/1.jpg", "c/1.jpg", "c/2.jpg", "stray.jpg")
    found = listed("folder", tmp_path)
    assert {name: split.ids for name, split in found.splits.items()} == {
        "train": ("stray.jpg", "a/1.jpg"),
        "test": ("b/1.jpg", "c/1.jpg", "c/2.jpg"),
    }


def test_a_tables_missing_images_are_listed_and_its_gallery_is_one(tmp_path: Path) -> None:
    rows = ["a.jpg,x,train,,", "b.jpg,y,test,true,false", "c.jpg,y,test,false,true"]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split,is_query,is_gallery", *rows]))
    found = listed("csv", tmp_path / "t.csv")
    assert sizes(found) == {"train": (1, 1), "test": (1, 1), "gallery": (1, 1)}
    assert found.search_in == {"test": "gallery"}


def test_an_image_that_is_listed_twice_is_one(tmp_path: Path) -> None:
    fabricated.sop(tmp_path)
    path = tmp_path / "Ebay_train.txt"
    path.write_text(path.read_text() + path.read_text().splitlines()[1])
    assert sizes(listed("sop", tmp_path))["train"] == (12, 4)


def test_a_path_that_leaves_the_folder_ends_it(tmp_path: Path) -> None:
    fabricated.sop(tmp_path)
    path = tmp_path / "Ebay_train.txt"
    path.write_text(path.read_text() + "99 1 1 ../secret.JPG\n")
    with pytest.raises(DataError, match="leaves the data folder"):
        every_listed("sop", {"root": tmp_path})


def test_what_only_its_loader_can_read_is_none() -> None:
    assert every_listed("glyphs", {}) is None
