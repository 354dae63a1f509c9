import csv
import io
from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks import emoji
from benchmarks.emoji import Row, build, classes, code_points, corrupted, on_white, shift, shifted
from layerprobe.data import csv_file
from layerprobe.data.splits import require_retrieval

HOUSES = ("a", "b", "c", "d", "e", "held")
QUERIED = ("same", "house-same", "classes", "house")


def drawings(num_classes: int = 40) -> dict[str, dict[str, str]]:
    """Every fourth class has one known house fewer; classes 1 and 2 cannot be used."""
    found = {}
    for number in range(num_classes):
        houses: tuple[str, ...] = HOUSES[1:] if number % 4 == 0 else HOUSES
        houses = {1: HOUSES[:5], 2: HOUSES[3:]}.get(number, houses)  # 1 without the held-out house, 2 by two others
        found[f"{number:02}"] = {house: f"images/{number:02}/{house}.png" for house in houses}
    return found


@pytest.fixture(scope="module")
def tables() -> Mapping[str, list[Row]]:
    return shifted(drawings(), "held", seed=0, gallery=3)


def queries(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.split == "test" and row.is_query]


def gallery(rows: list[Row]) -> list[Row]:
    return [row for row in rows if row.split == "test" and row.is_gallery]


def trained(tables: Mapping[str, list[Row]]) -> list[Row]:
    return [row for row in tables["train"] if row.split == "train"]


def test_unusable_classes_are_in_no_table(tables: Mapping[str, list[Row]]) -> None:
    assert not {"01", "02"} & {row.label for rows in tables.values() for row in rows}


def test_classes_are_halved_and_a_fifth_of_the_first_half_validates(tables: Mapping[str, list[Row]]) -> None:
    labels = defaultdict(set)
    for row in tables["train"]:
        labels[row.split].add(row.label)
    assert {split: len(found) for split, found in labels.items()} == {"train": 15, "validation": 4, "test": 19}
    assert len(set.union(*labels.values())) == 38


def test_each_table_has_one_query_for_each_class_and_three_gallery_images(tables: Mapping[str, list[Row]]) -> None:
    for name in QUERIED:
        assert len(queries(tables[name])) == 15
        assert Counter(row.label for row in gallery(tables[name])) == dict.fromkeys(
            (row.label for row in queries(tables[name])), 3
        )


def test_every_table_trains_on_the_same_images(tables: Mapping[str, list[Row]]) -> None:
    for name in QUERIED:
        assert [row for row in tables[name] if row.split == "train"] == trained(tables)


def test_a_new_image_is_of_a_trained_class_and_was_not_trained_on(tables: Mapping[str, list[Row]]) -> None:
    images, labels = {row.path for row in trained(tables)}, {row.label for row in trained(tables)}
    asked = queries(tables["same"])
    assert {row.label for row in asked} == labels
    assert not {row.path for row in asked} & images
    assert {row.path for row in gallery(tables["same"])} <= images


def test_all_other_known_images_of_a_trained_class_are_trained_on(tables: Mapping[str, list[Row]]) -> None:
    found = drawings()
    expected = {label: len(found[label]) - 2 for label in {row.label for row in trained(tables)}}
    assert Counter(row.label for row in trained(tables)) == expected


def test_the_held_out_house_is_in_queries_alone(tables: Mapping[str, list[Row]]) -> None:
    for rows in tables.values():
        assert all(not row.is_gallery for row in rows if row.house == "held")
    for name in ("house", "house-same"):
        assert {row.house for row in queries(tables[name])} == {"held"}


@pytest.mark.parametrize(("table", "other"), [("house", "classes"), ("house-same", "same")])
def test_a_new_house_changes_the_queries_alone(table: str, other: str, tables: Mapping[str, list[Row]]) -> None:
    assert gallery(tables[table]) == gallery(tables[other])
    assert [row.label for row in queries(tables[table])] == [row.label for row in queries(tables[other])]


def test_the_seed_decides_the_halves() -> None:
    first, second = (
        {row.label for row in trained(shifted(drawings(), "held", seed=seed, gallery=3))} for seed in (1, 2)
    )
    assert first != second


def test_layerprobe_reads_what_is_written(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for paths in drawings(12).values():
        for path in paths.values():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8)).save(tmp_path / path)
    shift(tmp_path / "images", "held", seed=0, gallery=3)
    train = csv_file.load(tmp_path / "held-0-train.csv")
    assert set(train.splits) == {"train", "validation", "test"}
    assert not train.search_in
    for table in (*QUERIED, *emoji.CORRUPTIONS):
        read = csv_file.load(tmp_path / f"held-0-{table}.csv")
        require_retrieval(read)
        assert set(read.splits) == {"train", "test", "gallery"}
        assert read.splits["train"].ids == train.splits["train"].ids
    noisy = csv_file.load(tmp_path / "held-0-noise.csv")
    clean = csv_file.load(tmp_path / "held-0-classes.csv")
    assert noisy.splits["gallery"].ids == clean.splits["gallery"].ids
    assert noisy.splits["test"].columns == clean.splits["test"].columns
    assert all(path.startswith("held-0-noise/") for path in noisy.splits["test"].ids)
    for path in csv_file.load(tmp_path / "held-0-same.csv").splits["gallery"].ids:
        label, house = Path(path).stem.split("-")
        assert f"images/{label}/{house}.png" in train.splits["train"].ids
        assert (tmp_path / path).read_bytes() == (tmp_path / f"images/{label}/{house}.png").read_bytes()


def test_a_house_that_drew_nothing_is_an_error_that_names_the_houses(tmp_path: Path) -> None:
    (tmp_path / "images/one").mkdir(parents=True)
    (tmp_path / "images/one/a.png").touch()
    with pytest.raises(SystemExit, match="too few classes by nobody and 4 others; found: a"):
        shift(tmp_path / "images", "nobody", seed=0, gallery=3)


def test_noise_has_the_standard_deviation_of_severity_3() -> None:
    grey = Image.new("RGB", (96, 96), (128, 128, 128))
    changed = np.asarray(corrupted(grey, "noise", np.random.default_rng(0))) / 255
    assert changed.std() == pytest.approx(0.18, rel=0.02)  # 128 is 2.8 standard deviations from black and white


def test_blur_spreads_a_line_by_3_of_224_pixels() -> None:
    pixels = np.zeros((224, 224, 3), np.uint8)
    pixels[:, 112] = 255
    row = np.asarray(corrupted(Image.fromarray(pixels), "blur", np.random.default_rng(0)))[50, :, 0].astype(float)
    assert row[112] == pytest.approx(255 / (3 * np.sqrt(2 * np.pi)), abs=1)
    assert row[115] == pytest.approx(row[112] * np.exp(-1 / 2), abs=1)


def test_contrast_keeps_the_mean_and_a_fifth_of_the_differences() -> None:
    pixels = np.zeros((2, 2, 3), np.uint8)
    pixels[0] = 200
    changed = np.asarray(corrupted(Image.fromarray(pixels), "contrast", np.random.default_rng(0)))
    assert changed[:, 0, 0].tolist() == [120, 80]


def test_jpeg_is_what_pillow_makes_at_quality_10() -> None:
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (16, 16, 3), np.uint8))
    image.save(file := io.BytesIO(), "JPEG", quality=10)
    changed = np.asarray(corrupted(image, "jpeg", np.random.default_rng(0)))
    assert np.array_equal(changed, np.asarray(Image.open(file)))


@pytest.mark.parametrize("name", ["1F468-200D-2764-FE0F-200D-1F468", "1f468-2764-1f468"])
def test_houses_spell_one_sequence_of_code_points_differently(name: str) -> None:
    assert code_points(name) == "1f468-2764-1f468"


def test_flags_hours_and_letters_are_no_classes() -> None:
    listed = [
        ("1F600", "grinning", "Smileys & Emotion", "face-smiling"),
        ("23F0", "alarm_clock", "Travel & Places", "time"),
        ("1F550", "clock1", "Travel & Places", "time"),
        ("1F1E9-1F1EA", "de", "Flags", "country-flag"),
        ("1F170-FE0F", "a", "Symbols", "alphanum"),
        ("1F3FB", "skin-tone-2", "Component", "skin-tone"),
    ]
    keys = ("unified", "short_name", "category", "subcategory")
    found = classes(dict(zip(keys, each, strict=True)) for each in listed)
    assert {code: name.partition("-")[2] for code, name in found.items()} == {
        "1f600": "grinning",
        "23f0": "alarm_clock",
    }


def test_transparent_pixels_become_white() -> None:
    drawn = on_white(Image.new("RGBA", (64, 64), (255, 0, 0, 0)))
    assert (drawn.size, drawn.mode, drawn.getextrema()) == ((96, 96), "RGB", ((255, 255),) * 3)


def test_missing_npm_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit, match=r"^emoji.py: npm is missing; it comes with Node.js$"):
        build(tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_columns(tmp_path: Path) -> None:
    emoji._write(tmp_path / "plain.csv", [Row("images/x/a.png", "x", "train", "a")])
    with (tmp_path / "plain.csv").open(encoding="utf-8", newline="") as text:
        assert list(csv.reader(text)) == [["path", "label", "split", "house"], ["images/x/a.png", "x", "train", "a"]]
