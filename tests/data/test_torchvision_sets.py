from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision import datasets

from layerprobe.data.check import examine
from layerprobe.data.images import read_image
from layerprobe.data.splits import Dataset, Split, require_retrieval
from layerprobe.data.torchvision_sets import SETS, SPEC, load, load_unchecked
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError

Patch = pytest.MonkeyPatch


def write_image(path: Path, value: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 3), (value, value, value)).save(path)


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


NAMES = ("apple", "baby", "bear", "cloud", "crab")


def cifar100(root: Path, monkeypatch: Patch, names: Sequence[str] = NAMES) -> None:
    """10 + 5 images of 5 classes, image i of train having the level i and the class 4 - i % 5."""
    folder = root / "cifar-100-python"
    folder.mkdir()
    for name, start, count in (("train", 0, 10), ("test", 100, 5)):
        pixels = np.repeat(np.arange(start, start + count, dtype=np.uint8)[:, None], 3 * 32 * 32, axis=1)
        pixels[:, :1024] = 200  # the red channel
        labels = [4 - i % 5 for i in range(count)]
        (folder / name).write_bytes(pickle.dumps({"data": pixels, "fine_labels": labels}))
        monkeypatch.setattr(datasets.CIFAR100, f"{name}_list", [[name, md5(folder / name)]])
    (folder / "meta").write_bytes(pickle.dumps({"fine_label_names": list(names)}))
    monkeypatch.setattr(
        datasets.CIFAR100, "meta", {"filename": "meta", "key": "fine_label_names", "md5": md5(folder / "meta")}
    )


def mnist(root: Path, monkeypatch: Patch) -> None:
    """Levels 0 to 9 of the digits 9 to 0 in train, and the same in test."""
    folder = root / "MNIST/raw"
    folder.mkdir(parents=True)
    for name in ("train", "t10k"):
        pixels = np.repeat(np.arange(10, dtype=np.uint8), 28 * 28)
        images = np.array([0x803, 10, 28, 28], ">i4").tobytes() + pixels.tobytes()
        (folder / f"{name}-images-idx3-ubyte").write_bytes(images)
        labels = np.array([0x801, 10], ">i4").tobytes() + np.arange(9, -1, -1, dtype=np.uint8).tobytes()
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)


def omniglot(root: Path, monkeypatch: Patch) -> None:
    """Two alphabets of two characters in the background and one of three in the evaluation, two drawings each."""
    md5s = {}
    for part, alphabets in {"background": {"Zulu": 2, "Maya": 2}, "evaluation": {"Bengali": 3}}.items():
        folder = root / "omniglot-py" / f"images_{part}"
        for alphabet, count in alphabets.items():
            for character in range(count, 0, -1):
                for drawing in (2, 1):
                    write_image(folder / alphabet / f"character{character:02}" / f"{character:04}_{drawing}.png", 7)
        archive = folder.with_suffix(".zip")
        archive.write_bytes(part.encode())
        md5s[folder.name] = md5(archive)
    monkeypatch.setattr(datasets.Omniglot, "zips_md5", md5s)
    # The order in which a disk gives its names is any.
    listed = os.listdir
    monkeypatch.setattr(os, "listdir", lambda *path: sorted(listed(*path), reverse=True))


def pets(root: Path, monkeypatch: Patch) -> None:
    """Four breeds, two images each in trainval, one in test."""
    folder = root / "oxford-iiit-pet"
    breeds = {"Abyssinian": 1, "american_bulldog": 2, "Bengal": 3, "yorkshire_terrier": 4}
    lines: dict[str, list[str]] = {"trainval": [], "test": []}
    for breed, number in reversed(breeds.items()):
        for image in (102, 11, 7):
            write_image(folder / f"images/{breed}_{image}.jpg", number)
            lines["test" if image == 11 else "trainval"].append(f"{breed}_{image} {number} 1 1\n")
    (folder / "annotations").mkdir()
    for name, rows in lines.items():
        (folder / f"annotations/{name}.txt").write_text("".join(rows))


def aircraft(root: Path, monkeypatch: Patch) -> None:
    """Five variants in no order of name, one with a slash, two images each, one of which is in test."""
    folder = root / "fgvc-aircraft-2013b/data"
    variants = ["747-100", "A300B4", "F/A-18", "Cessna 172", "DC-3"]
    lines: dict[str, list[str]] = {"trainval": [], "test": []}
    for number, variant in enumerate(variants):
        for part in lines:
            name = f"{number + 10 * (part == 'test'):07}"
            write_image(folder / f"images/{name}.jpg", number)
            lines[part].append(f"{name} {variant}\n")
    (folder / "variants.txt").write_text("".join(f"{variant}\n" for variant in variants))
    for part, rows in lines.items():
        (folder / f"images_variant_{part}.txt").write_text("".join(rows))


def flowers(root: Path, monkeypatch: Patch) -> None:
    """Six images of four of the classes, in three splits."""
    from scipy.io import savemat

    folder = root / "flowers-102"
    for number in range(1, 7):
        write_image(folder / f"jpg/image_{number:05}.jpg", number)
    savemat(folder / "imagelabels.mat", {"labels": np.array([[102, 1, 1, 2, 50, 102]])})
    savemat(folder / "setid.mat", {"trnid": [[1, 5]], "valid": [[2, 3]], "tstid": [[4, 6]]})
    md5s = {key: (name, md5(folder / name)) for key, name in (("label", "imagelabels.mat"), ("setid", "setid.mat"))}
    monkeypatch.setattr(datasets.Flowers102, "_file_dict", md5s)


def food(root: Path, monkeypatch: Patch) -> None:
    """Four dishes, one image in train, one in test."""
    folder = root / "food-101"
    (folder / "meta").mkdir(parents=True)
    dishes = ("waffles", "baklava", "ceviche", "donuts")
    for number, part in enumerate(("train", "test")):
        for dish in dishes:
            write_image(folder / f"images/{dish}/{9 - number}.jpg", number)
        (folder / f"meta/{part}.json").write_text(json.dumps({dish: [f"{dish}/{9 - number}"] for dish in dishes}))


def caltech(root: Path, monkeypatch: Patch) -> None:
    """Four categories of two images, and the background."""
    for category in ("Faces", "BACKGROUND_Google", "ant", "anchor", "yin_yang"):
        for number in (1, 2):
            write_image(root / f"caltech101/101_ObjectCategories/{category}/image_{number:04}.jpg", number)


def imagenette(root: Path, monkeypatch: Patch) -> None:
    for part in ("train", "val"):
        for wnid in ("n03888257", "n01440764", "n02102040", "n02979186"):
            write_image(root / f"imagenette2/{part}/{wnid}/{part}_1.JPEG", 1)


Make = Callable[[Path, Patch], None]
# Set -> its maker, classes of each split, and the first id of each.
MADE: Mapping[str, tuple[Make, Sequence[str], Sequence[str], str, str]] = {
    "CIFAR100": (
        cifar100,
        ["apple", "baby"],
        ["bear", "cloud", "crab"],
        "CIFAR100/test/000004",
        "CIFAR100/test/000002",
    ),
    "MNIST": (
        mnist,
        ["0 - zero", "1 - one", "2 - two", "3 - three", "4 - four"],
        ["5 - five", "6 - six", "7 - seven", "8 - eight", "9 - nine"],
        "MNIST/test/000009",
        "MNIST/test/000004",
    ),
    "Omniglot": (
        omniglot,
        ["Maya/character01", "Maya/character02", "Zulu/character01"],
        ["Zulu/character02", "Bengali/character01", "Bengali/character02", "Bengali/character03"],
        "omniglot-py/images_background/Maya/character01/0001_1.png",
        "omniglot-py/images_background/Zulu/character02/0002_1.png",
    ),
    "OxfordIIITPet": (
        pets,
        ["Abyssinian", "American Bulldog"],
        ["Bengal", "Yorkshire Terrier"],
        "oxford-iiit-pet/images/Abyssinian_102.jpg",
        "oxford-iiit-pet/images/Bengal_102.jpg",
    ),
    "FGVCAircraft": (
        aircraft,
        ["747-100", "A300B4"],
        ["F/A-18", "Cessna 172", "DC-3"],
        "fgvc-aircraft-2013b/data/images/0000000.jpg",
        "fgvc-aircraft-2013b/data/images/0000002.jpg",
    ),
    "Flowers102": (
        flowers,
        ["pink primrose", "hard-leaved pocket orchid"],
        ["common dandelion", "blackberry lily"],
        "flowers-102/jpg/image_00002.jpg",
        "flowers-102/jpg/image_00005.jpg",
    ),
    "Food101": (
        food,
        ["baklava", "ceviche"],
        ["donuts", "waffles"],
        "food-101/images/baklava/8.jpg",
        "food-101/images/donuts/8.jpg",
    ),
    "Caltech101": (
        caltech,
        ["Faces", "anchor"],
        ["ant", "yin_yang"],
        "caltech101/101_ObjectCategories/Faces/image_0001.jpg",
        "caltech101/101_ObjectCategories/ant/image_0001.jpg",
    ),
    "Imagenette": (
        imagenette,
        ["tench", "English springer"],
        ["cassette player", "parachute"],
        "imagenette2/train/n01440764/train_1.JPEG",
        "imagenette2/train/n02979186/train_1.JPEG",
    ),
}


def made(set: str, root: Path, monkeypatch: Patch, *, train_classes: int | None = None) -> Dataset:
    MADE[set][0](root, monkeypatch)
    return load(root, set=set, train_classes=train_classes)


def classes(dataset: Dataset, split: Split) -> list[str]:
    return [dataset.class_names[label] for label in dict.fromkeys(split.labels.tolist())]


@pytest.mark.parametrize("set", MADE)
def test_the_first_half_of_the_classes_trains_and_the_rest_tests(tmp_path: Path, monkeypatch: Patch, set: str) -> None:
    dataset = require_retrieval(made(set, tmp_path, monkeypatch), source=tmp_path)
    _, train, test, *first = MADE[set]
    assert classes(dataset, dataset.splits["train"]) == list(train)
    assert classes(dataset, dataset.splits["test"]) == list(test)
    assert [split.ids[0] for split in dataset.splits.values()] == first
    assert dataset.class_names == (*train, *test)


def test_a_class_seed_shuffles_the_classes_before_the_first_half_is_taken(tmp_path: Path, monkeypatch: Patch) -> None:
    MADE["CIFAR100"][0](tmp_path, monkeypatch)
    splits = load(tmp_path, set="CIFAR100", class_seed=1).splits
    order = np.random.default_rng(1).permutation(sum(split.num_classes for split in splits.values()))
    assert np.unique(splits["train"].labels).tolist() == sorted(order[: len(order) // 2])


@pytest.mark.parametrize("set", MADE)
def test_every_image_of_all_official_splits_is_there_once_and_can_be_read(
    tmp_path: Path, monkeypatch: Patch, set: str
) -> None:
    dataset = made(set, tmp_path, monkeypatch)
    own = [
        part[i] for arguments in SETS[set].splits.values()
        for part in [getattr(datasets, set)(tmp_path, **arguments)] for i in range(len(part))
    ]  # fmt: skip
    pixels = [split.image(i) for split in dataset.splits.values() for i in range(len(split))]
    assert sorted(image.tobytes() for image in pixels) == sorted(
        np.asarray(image.convert("RGB")).tobytes() for image, _ in own
    )
    assert {one.pixels is None for split in dataset.splits.values() for one in examine(split, workers=0)} == {False}


def test_an_array_keeps_its_pixels_and_its_label(tmp_path: Path, monkeypatch: Patch) -> None:
    dataset = made("CIFAR100", tmp_path, monkeypatch)
    train = dataset.splits["train"]
    at = train.ids.index("CIFAR100/train/000008")
    assert dataset.class_names[train.labels[at]] == "baby"  # 4 - 8 % 5 = 1
    assert np.unique(train.image(at).reshape(-1, 3), axis=0).tolist() == [[200, 8, 8]]


def test_two_classes_of_one_name_stay_two(tmp_path: Path, monkeypatch: Patch) -> None:
    cifar100(tmp_path, monkeypatch, ("apple", "twin", "twin", "cloud", "crab"))
    assert load(tmp_path, set="CIFAR100").class_names == ("apple", "twin (1)", "twin (2)", "cloud", "crab")


def test_grey_arrays_have_three_channels(tmp_path: Path, monkeypatch: Patch) -> None:
    train = made("MNIST", tmp_path, monkeypatch).splits["train"]
    assert train.image(0).shape == (28, 28, 3)
    assert [int(train.image(i)[0, 0, 2]) for i in range(len(train))] == [9, 9, 8, 8, 7, 7, 6, 6, 5, 5]


def test_files_are_read_as_all_others_are(tmp_path: Path, monkeypatch: Patch) -> None:
    train = made("OxfordIIITPet", tmp_path, monkeypatch).splits["train"]
    np.testing.assert_array_equal(train.image(0), read_image(tmp_path / train.ids[0]))


@pytest.mark.parametrize("set", ["CIFAR100", "FGVCAircraft"])
def test_a_worker_can_have_it(tmp_path: Path, monkeypatch: Patch, set: str) -> None:
    train = made(set, tmp_path, monkeypatch).splits["train"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(train)).image(1), train.image(1))


def test_another_number_of_classes_may_train(tmp_path: Path, monkeypatch: Patch) -> None:
    dataset = made("FGVCAircraft", tmp_path, monkeypatch, train_classes=3)
    assert classes(dataset, dataset.splits["train"]) == ["747-100", "A300B4", "F/A-18"]


def test_no_class_may_train(tmp_path: Path, monkeypatch: Patch) -> None:
    dataset = made("FGVCAircraft", tmp_path, monkeypatch, train_classes=0)
    assert list(dataset.splits) == ["test"]
    assert dataset.splits["test"].num_classes == 5


@pytest.mark.parametrize("count", [1, 4])
def test_two_classes_must_be_left_on_each_side(tmp_path: Path, monkeypatch: Patch, count: int) -> None:
    with pytest.raises(RecipeError, match=f"data.train_classes = {count}: of FGVCAircraft's 5 .* a number from 2 to 3"):
        made("FGVCAircraft", tmp_path, monkeypatch, train_classes=count)


def test_the_fingerprint_tells_changed_arrays_and_files(tmp_path: Path, monkeypatch: Patch) -> None:
    for set in ("CIFAR100", "FGVCAircraft"):
        before = made(set, tmp_path, monkeypatch).splits["train"].fingerprint
        assert load(tmp_path, set=set).splits["train"].fingerprint == before
        if set == "CIFAR100":
            path = tmp_path / "cifar-100-python/test"
            entry = pickle.loads(path.read_bytes())
            entry["data"][4] += 1
            path.write_bytes(pickle.dumps(entry))
            monkeypatch.setattr(datasets.CIFAR100, "test_list", [["test", md5(path)]])
        else:
            path = tmp_path / "fgvc-aircraft-2013b/data/images/0000000.jpg"
            path.write_bytes(path.read_bytes() + b"\0")
        assert load(tmp_path, set=set).splits["train"].fingerprint != before


@pytest.mark.parametrize("set", SETS)
def test_a_set_that_is_not_there_says_what_to_do_and_leaves_no_trace(tmp_path: Path, set: str) -> None:
    with pytest.raises(DataError, match=f"torchvision's {set} is not there.* by --set data.download=true"):
        load(tmp_path, set=set)
    with pytest.raises(DataError, match="is not there"):
        load(tmp_path / "absent", set=set)
    assert list(tmp_path.iterdir()) == []


def test_a_changed_archive_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    cifar100(tmp_path, monkeypatch)
    path = tmp_path / "cifar-100-python/test"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(DataError, match="not there, or not whole"):
        load(tmp_path, set="CIFAR100")


def test_bad_lists_are_named_in_one_line(tmp_path: Path, monkeypatch: Patch) -> None:
    food(tmp_path, monkeypatch)
    (tmp_path / "food-101/meta/test.json").write_text("{")
    with pytest.raises(DataError, match=r"torchvision's Food101 cannot be read \(JSONDecodeError: .*Get it again"):
        load(tmp_path, set="Food101")


def test_a_missing_image_ends_the_loader_and_not_the_listing(tmp_path: Path, monkeypatch: Patch) -> None:
    food(tmp_path, monkeypatch)
    (tmp_path / "food-101/images/donuts/8.jpg").unlink()
    message = "1 of 8 listed images are missing: food-101/images/donuts/8.jpg. Get the set again"
    with pytest.raises(DataError, match=message):
        load(tmp_path, set="Food101")
    assert load_unchecked(tmp_path, set="Food101").splits["test"].ids[0] == "food-101/images/donuts/8.jpg"


def test_missing_images_of_both_splits_are_counted_and_five_named(tmp_path: Path, monkeypatch: Patch) -> None:
    food(tmp_path, monkeypatch)
    dataset = load(tmp_path, set="Food101")
    absent = [name for split in dataset.splits.values() for name in split.ids[:3]]
    for name in absent:
        (tmp_path / name).unlink()
    with pytest.raises(DataError) as caught:
        load(tmp_path, set="Food101")
    assert f" 6 of 8 listed images are missing: {', '.join(absent[:5])} and 1 more. " in str(caught.value)


def test_a_list_that_leaves_the_folder_is_refused(tmp_path: Path, monkeypatch: Patch) -> None:
    food(tmp_path, monkeypatch)
    path = tmp_path / "food-101/meta/test.json"
    path.write_text(path.read_text().replace("donuts/8", "../../../secret"))
    with pytest.raises(DataError, match=r"leaves the data folder: '\.\./secret\.jpg'"):
        load(tmp_path, set="Food101")


def test_a_download_is_made_only_on_request_and_its_failure_is_one_line(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def refuse(*arguments: object, **options: object) -> None:
        asked.append(arguments)
        print("torchvision talks")
        raise OSError("no network")

    monkeypatch.setattr(datasets.cifar, "download_and_extract_archive", refuse)
    with pytest.raises(DataError, match="not there"):
        load(tmp_path, set="CIFAR100")
    assert asked == []
    with pytest.raises(DataError, match=r"torchvision could not get CIFAR100 \(no network\)"):
        load(tmp_path, set="CIFAR100", download=True)
    assert len(asked) == 1
    assert capsys.readouterr().out == ""


def test_an_unknown_set_has_the_near_miss(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown set of torchvision 'cifar100'. Did you mean 'CIFAR100'?"):
        load(tmp_path, set="cifar100")


def test_every_set_is_one_of_torchvisions() -> None:
    assert [name for name in SETS if not hasattr(datasets, name)] == []


def test_the_default_root_is_absolute_and_beside_torchs_weights() -> None:
    assert str(SPEC.defaults["root"]).startswith("/")
    code = "from layerprobe.data.torchvision_sets import SPEC; print(SPEC.defaults['root'])"
    found = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "TORCH_HOME": "/x"}, capture_output=True, text=True, check=True
    )
    assert found.stdout == "/x/datasets\n"


def test_torchvision_is_imported_only_when_a_set_is_read() -> None:
    code = "import sys, layerprobe.data.torchvision_sets; print('torchvision' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False\n"


def test_classification_trains_on_the_first_official_split_and_tests_on_the_last(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    cifar100(tmp_path, monkeypatch)
    dataset = load(tmp_path, set="CIFAR100", protocol="classification")
    assert dataset.classification
    assert {name: np.bincount(split.labels).tolist() for name, split in dataset.splits.items()} == {
        "train": [2] * 5, "test": [1] * 5
    }  # fmt: skip
    assert all(name.startswith("CIFAR100/train/") for name in dataset.splits["train"].ids)
    require_retrieval(dataset, source="CIFAR100")


def test_classification_needs_an_official_split_of_the_same_classes(tmp_path: Path, monkeypatch: Patch) -> None:
    omniglot(tmp_path, monkeypatch)
    with pytest.raises(RecipeError, match="Omniglot has no official split with every class on both sides"):
        load(tmp_path, set="Omniglot", protocol="classification")
    with pytest.raises(RecipeError, match="data.class_seed = 1: with data.protocol = classification every class is on"):
        load(tmp_path, set="Omniglot", protocol="classification", class_seed=1)
