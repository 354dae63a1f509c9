from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layerprobe import registry
from layerprobe.data.glyphs import load as glyphs
from layerprobe.data.spec import Count, DatasetSpec, count, differences, partial_notes
from layerprobe.data.splits import Dataset
from layerprobe.registry import DATASETS
from layerprobe.values.sections import Data
from tests.data import fabricated
from tests.data.spoiled import photo


def spec_of(name: str) -> DatasetSpec:
    found = registry.load("data set", DATASETS, name)
    assert isinstance(found, DatasetSpec)
    return found


def every(name: str, root: Path) -> Dataset:
    unchecked = spec_of(name).unchecked
    assert unchecked is not None
    return unchecked(root)


def write(root: Path, *names: str) -> None:
    for seed, name in enumerate(names):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(photo(seed))


def sizes(found: Dataset) -> dict[str, tuple[int, int]]:
    return {name: (len(split), split.num_classes) for name, split in found.splits.items()}


def at(root: Path) -> Dataset:
    raise NotImplementedError


def made(*, seed: int = 0) -> Dataset:
    raise NotImplementedError


def test_a_spec_needs_its_loader_alone() -> None:
    in_a_folder, made_by_code = DatasetSpec(at), DatasetSpec(made)
    assert (in_a_folder.takes_root, made_by_code.takes_root) == (True, False)
    assert (in_a_folder.usage("birds"), made_by_code.usage("birds")) == ("birds:ROOT", "birds")
    assert (in_a_folder.counts, in_a_folder.defaults, in_a_folder.unchecked) == ({}, {}, None)


def test_a_loader_is_given_only_what_it_takes() -> None:
    assert DatasetSpec(at).taken({"root": Path("x"), "image_size": 32}) == {"root": Path("x")}


@pytest.mark.parametrize("name", DATASETS)
def test_every_data_set_says_what_it_is_and_what_it_needs(name: str) -> None:
    spec = spec_of(name)
    assert spec.holds
    assert spec.layout
    assert spec.usage(name).partition(":")[0] == name


@pytest.mark.parametrize("name", DATASETS)
def test_no_default_that_all_data_sets_share_is_repeated(name: str) -> None:
    common = {key: field.default for key, field in Data.model_fields.items()}
    assert [key for key, value in spec_of(name).defaults.items() if common[key] == value] == []


def test_the_counts_of_the_generated_set_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    # Every image is a blank: drawing takes half a millisecond each.
    monkeypatch.setattr("layerprobe.data.glyphs.draw", lambda *_, image_size: np.zeros((image_size,) * 2, np.uint8))
    published = {name: (size.images, size.classes) for name, size in spec_of("glyphs").counts.items()}
    assert published == sizes(glyphs())


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
def test_an_image_that_is_gone_is_still_named(tmp_path: Path, name: str, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    before = every(name, tmp_path)
    split = before.splits["test"]
    (split.image.root / split.ids[0]).unlink()  # type: ignore[attr-defined] # Files
    after = every(name, tmp_path)
    assert [split.ids for split in after.splits.values()] == [split.ids for split in before.splits.values()]
    assert sum(map(len, after.splits.values())) == 24


def test_a_benchmarks_queries_are_searched_in_its_gallery(tmp_path: Path) -> None:
    fabricated.inshop(tmp_path, tmp_path)
    assert every("inshop", tmp_path).search_in == {"test": "gallery"}


def test_classes_are_called_by_their_names(tmp_path: Path) -> None:
    fabricated.cub(tmp_path)
    assert every("cub200", tmp_path).class_names[:2] == ("001.Bird_1", "003.Bird_3")


def test_a_folder_of_three_classes_and_images_outside_them_are_all_named(tmp_path: Path) -> None:
    write(tmp_path, "a/1.jpg", "b/1.jpg", "c/1.jpg", "c/2.jpg", "stray.jpg")
    assert {name: split.ids for name, split in every("folder", tmp_path).splits.items()} == {
        "train": ("stray.jpg", "a/1.jpg"),
        "test": ("b/1.jpg", "c/1.jpg", "c/2.jpg"),
    }


def test_a_csv_files_missing_images_are_named_and_its_gallery_is_one(tmp_path: Path) -> None:
    rows = ["a.jpg,x,train,,", "b.jpg,y,test,true,false", "c.jpg,y,test,false,true"]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split,is_query,is_gallery", *rows]))
    found = every("csv", tmp_path / "t.csv")
    assert sizes(found) == {"train": (1, 1), "test": (1, 1), "gallery": (1, 1)}
    assert found.search_in == {"test": "gallery"}


def test_what_only_its_loader_can_read_has_nothing_unchecked() -> None:
    assert spec_of("glyphs").unchecked is None


WHOLE = {"train": Count(12, 4, (3, 3)), "test": Count(12, 4)}


def test_a_split_is_counted_by_its_classes() -> None:
    assert count([7, 9, 7, 7]) == Count(4, 2, (1, 3))
    assert count([]) == Count(0, 0)
    assert str(count([7, 9, 7, 7])) == "4 images of 2 classes (1-3 each)"


def test_where_all_splits_are_as_published_there_is_nothing_to_say() -> None:
    found = {"train": Count(12, 4, (3, 3)), "test": Count(12, 4, (1, 9))}
    assert differences(found, WHOLE) == []
    assert partial_notes(found, WHOLE) == ()


def test_where_one_split_differs_both_sizes_of_every_split_are_named() -> None:
    found = {"train": Count(12, 4, (2, 4)), "test": Count(12, 4, (3, 3))}
    assert differences(found, WHOLE) == [
        "train has 12 images of 4 classes (2-4 each), expected 12 images of 4 classes (3-3 each)",
        "test has 12 images of 4 classes (3-3 each), expected 12 images of 4 classes",
    ]


def test_a_note_names_the_classes_only_where_some_are_missing() -> None:
    found = {"train": Count(1100, 4, (3, 3)), "test": Count(9, 3, (3, 3))}
    published = {"train": Count(1200, 4), "test": Count(12, 4)}
    assert partial_notes(found, published) == (
        "partial: 1,100 of 1,200 train images",
        "partial: 9 of 12 test images of 3 of 4 classes",
    )
