from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from layerprobe import registry
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.system.progress import Task
from layerprobe.workflow.manage.data import Checked, check_data, list_data
from layerprobe.workflow.run import from_recipe
from tests.data import fabricated
from tests.data.spoiled import mode, photo, spoil


class Listening:
    """Counts the steps; a signal may come at one of them."""

    def __init__(self, signal_at: int = 0, number: int = signal.SIGINT) -> None:
        self.total = self.done = 0
        self.signal_at, self.number = signal_at, number

    def say(self, text: str) -> None:
        raise AssertionError(text)

    @contextlib.contextmanager
    def task(self, name: str, total: int, unit: str) -> Iterator[Task]:
        self.total = total
        yield self

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.done += steps
        if self.done == self.signal_at:
            signal.raise_signal(self.number)


def sound(root: Path, classes: int = 4) -> Path:
    for c in range(classes):
        (root / f"c{c}").mkdir(parents=True)
        for i in range(3):
            (root / f"c{c}" / f"{i}.jpg").write_bytes(photo(10 * c + i))
    return root


def check(data: str, listener: Listening | None = None) -> Checked:
    return check_data(data, listener or Listening(), workers=0)


def found(checked: Checked) -> list[tuple[str, str, str]]:
    return [(finding.kind, finding.split, finding.id) for finding in checked.findings]


def test_a_sound_folder_has_no_findings(tmp_path: Path) -> None:
    listener = Listening()
    checked = check(f"folder:{sound(tmp_path)}", listener)
    assert checked.findings == ()
    assert (checked.images, checked.read, checked.signal_number) == (12, 12, None)
    assert (listener.total, listener.done) == (12, 12)
    assert [(s.split, s.images, s.classes, s.singletons) for s in checked.splits] == [
        ("train", 6, 2, 0),
        ("test", 6, 2, 0),
    ]


def test_queries_and_gallery_may_show_the_same_image(tmp_path: Path) -> None:
    sound(tmp_path / "query", 2)
    (sound(tmp_path / "gallery", 3) / "c2/0.jpg").write_bytes(photo(99))
    checked = check(f"folder:{tmp_path}")
    assert [(s.split, s.images, s.classes) for s in checked.splits] == [("test", 6, 2), ("gallery", 9, 3)]
    assert checked.errors == []
    assert found(checked) == [("duplicate", "gallery", f"gallery/c{c}/{i}.jpg") for c in range(2) for i in range(3)]


def test_a_badly_divided_folder_is_one_error_and_every_image_is_read(tmp_path: Path) -> None:
    sound(tmp_path / "query", 2)
    sound(tmp_path / "train", 2)
    checked = check(f"folder:{tmp_path}")
    assert [(finding.kind, finding.message) for finding in checked.errors] == [
        ("data set", f"{tmp_path}: query/ has class folders, gallery/ has none")
    ]
    assert checked.read == 12


def test_a_folder_of_too_few_classes_is_one_split_with_one_error(tmp_path: Path) -> None:
    checked = check(f"folder:{sound(tmp_path, 3)}")
    assert [(s.split, s.classes) for s in checked.splits] == [("test", 3)]
    (error,) = checked.errors
    assert "3 classes with images; 2 to train and 2 to test are needed" in error.message
    assert error.fix.endswith("or put all into test by --set data.train_classes=0")


def test_the_generated_images_are_sound() -> None:
    assert check("glyphs").findings == ()


def test_one_pass_over_a_spoiled_folder_names_every_kind(tmp_path: Path) -> None:
    kinds = spoil(sound(tmp_path) / "c1")
    checked = check_data(f"folder:{tmp_path}", Listening(), workers=2)
    named = {(finding.id, finding.kind) for finding in checked.findings}
    assert {(f"c1/{name}", kind) for name, kind in kinds.items()} <= named
    assert checked.read == checked.images == 12 + len(kinds)


def test_errors_come_before_remarks_and_each_in_the_order_of_the_images(tmp_path: Path) -> None:
    sound(tmp_path)
    (tmp_path / "c0/9.jpg").write_bytes(photo(0))
    (tmp_path / "c2/9.jpg").write_bytes(b"")
    (tmp_path / "c0/4.jpg").write_bytes(mode("L", 4, "JPEG"))
    (tmp_path / "c0/5.jpg").write_bytes(b"text")
    assert found(check(f"folder:{tmp_path}")) == [
        ("not an image", "train", "c0/5.jpg"),
        ("empty", "test", "c2/9.jpg"),
        ("grey", "train", "c0/4.jpg"),
        ("duplicate", "train", "c0/9.jpg"),
    ]


def test_every_missing_image_of_a_benchmark_is_named_after_its_loaders_word(tmp_path: Path) -> None:
    fabricated.sop(tmp_path)
    for name in (tmp_path / "chair_final").glob("11108[13]_*"):
        name.unlink()
    checked = check(f"sop:{tmp_path}")
    assert checked.findings[0].kind == "data set"
    assert "6 of 24 listed images are missing" in checked.findings[0].message
    assert "train has 6 images of 2 classes (3-3 each), expected 59,551 images" in checked.findings[0].message
    assert [f.id for f in checked.errors[1:]] == [f"chair_final/11108{c}_{i}.JPG" for c in (1, 3) for i in (3, 2, 1)]
    assert {f.kind for f in checked.errors[1:]} == {"missing"}


def test_every_missing_image_of_a_table_is_named(tmp_path: Path) -> None:
    sound(tmp_path, 2)
    rows = [f"c{c}/{i}.jpg,{c},{split}" for c, split in enumerate(("train", "test")) for i in range(8)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    checked = check(f"csv:{tmp_path}/t.csv")
    missing = [f.id for f in checked.errors if f.kind == "missing"]
    assert missing == [f"c{c}/{i}.jpg" for c in (0, 1) for i in range(3, 8)]


def test_splits_that_cannot_be_searched_are_an_error(tmp_path: Path) -> None:
    sound(tmp_path, 2)
    rows = [f"c{c}/{i}.jpg,{c},{split}" for c, split in enumerate(("train", "test")) for i in range(3)]
    (tmp_path / "t.csv").write_text("\n".join(["path,label,split", *rows]))
    assert [f.message for f in check(f"csv:{tmp_path}/t.csv").errors] == [
        f"{tmp_path}/t.csv: train split has 3 images of 1 class; Recall@K needs 2 classes"
    ]


def test_a_name_that_is_not_utf8_is_found_and_the_rest_is_read(tmp_path: Path) -> None:
    sound(tmp_path)
    (tmp_path / "c0" / os.fsdecode(b"\xe9.jpg")).write_bytes(b"")
    checked = check(f"folder:{tmp_path}")
    assert found(checked) == [("data set", "", ""), ("empty", "train", "c0/\N{REPLACEMENT CHARACTER}.jpg")]
    assert "a file name that is not UTF-8" in checked.findings[0].message


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_signal_ends_it_with_what_was_found_so_far(tmp_path: Path, number: int, workers: int) -> None:
    sound(tmp_path)
    for c in range(4):
        for i in range(3):
            (tmp_path / f"c{c}/{i}.jpg").write_bytes(b"")
    checked = check_data(f"folder:{tmp_path}", Listening(5, number), workers=workers)
    assert (checked.read, checked.images, checked.signal_number) == (5, 12, number)
    assert [f.kind for f in checked.findings] == ["empty"] * 5


def test_a_root_that_is_needed_is_asked_for() -> None:
    with pytest.raises(RecipeError, match="cub200 needs a root. layerprobe data check cub200:PATH"):
        check("cub200")


def test_an_unknown_data_set_has_the_near_miss() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'folder'"):
        check("folders:x")


def test_where_no_image_can_be_found_the_loaders_own_error_stands(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no known layout"):
        check(f"cub200:{tmp_path}")


def test_a_set_of_torchvisions_is_checked_and_its_missing_image_named(tmp_path: Path) -> None:
    sound(tmp_path / "caltech101/101_ObjectCategories")
    (tmp_path / "caltech101/101_ObjectCategories/BACKGROUND_Google").mkdir()
    for path in (tmp_path / "caltech101").rglob("*.jpg"):
        path.rename(path.with_name(f"image_{int(path.stem) + 1:04}.jpg"))
    data = f"torchvision:Caltech101:{tmp_path}"
    assert check(data).findings == ()
    first = tmp_path / "caltech101/101_ObjectCategories/c0/image_0001.jpg"
    first.rename(first.with_name("image_9.jpg"))
    assert found(check(data))[1:] == [("missing", "train", "caltech101/101_ObjectCategories/c0/image_0001.jpg")]


def test_a_set_that_is_not_named_has_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown set of torchvision ''. Known: CIFAR10, CIFAR100"):
        check("torchvision")


def test_a_data_set_is_listed_with_its_recipes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/mine.toml").write_text('[data]\nname = "inshop"\n')
    (tmp_path / "recipes/other.toml").write_text('data = "inshop"\n')
    (tmp_path / "recipes/broken.toml").write_text("[data")
    listed = list_data()
    assert listed["inshop"][1] == ["heated-hbn-inshop", "mine", "normsoftmax-r50-inshop"]
    own = {f"{name}-cub200" for name in ("netA", "netE", "fcr1", "heated-hbn", "normsoftmax-r50", "unbiased")}
    assert set(listed["cub200"][1]) == own | {"netA-cub200-code", "netE-cub200-code"}


@pytest.fixture
def new_set(monkeypatch: pytest.MonkeyPatch) -> str:
    """A registered data set of which nothing but a loader is known."""
    monkeypatch.setitem(registry.DATASETS, "birds", "tests.workflow.a_new_set:SPEC")
    return "birds"


def test_a_new_data_set_with_a_loader_alone_is_listed(new_set: str) -> None:
    spec, recipes = list_data()[new_set]
    assert (spec.usage(new_set), spec.holds, recipes) == ("birds:ROOT", "", [])


def test_a_new_data_set_with_a_loader_alone_is_trained_on(new_set: str, tmp_path: Path) -> None:
    data = f"{new_set}:{sound(tmp_path)}"
    recipe = load_recipe("netA", Overrides(data=data, settings=("data.train_classes=2",)))
    assert [len(split) for split in from_recipe.build_dataset(recipe).splits.values()] == [6, 6]
    with pytest.raises(RecipeError, match="birds needs a root"):
        load_recipe("netA", Overrides(data=new_set))
    with pytest.raises(RecipeError, match="unknown key 'test_classes'. Did you mean 'train_classes'"):
        load_recipe("netA", Overrides(data=data, settings=("data.test_classes=2",)))


def test_a_new_data_set_with_a_loader_alone_is_checked(new_set: str, tmp_path: Path) -> None:
    checked = check(f"{new_set}:{sound(tmp_path / 'a')}")
    assert (checked.findings, checked.read) == ((), 12)
    sound(tmp_path / "b", 3)
    with pytest.raises(DataError, match="3 classes with images"):  # the loader's own error
        check(f"{new_set}:{tmp_path / 'b'}")


def test_what_a_run_would_note_is_told(tmp_path: Path) -> None:
    root = sound(tmp_path)
    (root / "c0" / "x.tga").write_bytes(b"")
    for name, largest in (("c0/deep.tif", 700), ("c1/deep.tif", 4080)):
        PIL.Image.fromarray(np.array([[3, largest]], np.uint16)).save(root / name)
    assert check(f"folder:{root}").notes == (
        "files that are not read: 1 .tga (c0/x.tga)",
        "16-bit grey images have values up to 4080 of 65535, and become dark: --set data.white=4095 makes 4095 white",
    )


def test_a_folder_without_classes_tells_its_files_too(tmp_path: Path) -> None:
    (tmp_path / "c0").mkdir()
    (tmp_path / "c0" / "x.tga").write_bytes(b"")
    checked = check(f"folder:{tmp_path}")
    assert checked.notes[0] == "files that are not read: 1 .tga (c0/x.tga)"
    assert "0 classes with images" in checked.errors[0].message


def test_processes_read_heic(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    root = sound(tmp_path)
    image = PIL.Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8))
    pillow_heif.from_pillow(image).save(root / "c0" / "x.heic")
    checked = check_data(f"folder:{root}", Listening(), workers=1)
    assert (checked.images, checked.findings) == (13, ())


def test_keys_that_decide_how_images_are_read_hold_for_the_check(tmp_path: Path) -> None:
    grey = np.random.default_rng(0).integers(0, 256, (16, 8, 8)).astype(np.uint16)
    for place, pixels in enumerate(grey):
        (tmp_path / f"c{place // 4}").mkdir(exist_ok=True)
        PIL.Image.fromarray(pixels).save(tmp_path / f"c{place // 4}" / f"{place}.png")
    dark = check_data(f"folder:{tmp_path}", Listening(), workers=0)
    assert any("--set data.white=255" in note for note in dark.notes)
    bright = check_data(f"folder:{tmp_path}", Listening(), settings=["data.white=255"], workers=0)
    assert (list(bright.notes), list(bright.errors)) == ([], [])
    assert {finding.kind for finding in bright.remarks} == {"16-bit grey"}


def test_a_refused_data_set_with_keys_is_checked_all_the_same(tmp_path: Path) -> None:
    sound(tmp_path, classes=2)
    checked = check_data(f"folder:{tmp_path}", Listening(), settings=["data.class_seed=3"], workers=0)
    assert ["2 classes with images" in finding.message for finding in checked.errors] == [True]
