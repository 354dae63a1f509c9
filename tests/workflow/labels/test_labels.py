"""The images that `labels` compares, and how it names them; what it counts is tested in tests/measure."""

from __future__ import annotations

import csv
import re
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import layerprobe
from layerprobe import store
from layerprobe.system.errors import DataError, LayerprobeError, NumericError, RecipeError, UnknownNameError
from layerprobe.values.labels import LabelledImage, ReviewedLabels
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.labels.label_tables import divided_table, duplicate_table, suspect_table
from layerprobe.workflow.labels.labels import review_labels, verdict_text
from layerprobe.workflow.labels.request import LabelsRequest
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent
from tests.workflow.drawn_run import FC6, write_run

IMAGES = 6  # of a class; those of label 14 and above are in test
FLIPPED = {3: 9, 40: 20, 130: 2}  # image -> its wrong label; that of the last two is of the other split


TRUTH = np.repeat(np.arange(24), IMAGES)
LABELS = np.where(TRUTH == 16, 15, TRUTH)  # one label for two classes
LABELS[list(FLIPPED)] = list(FLIPPED.values())
ROWS = {"train": np.flatnonzero(LABELS < 14), "test": np.flatnonzero(LABELS >= 14)}  # of each split's images


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """24 classes in two splits, with three wrong labels, a duplicate, and two classes under one label."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(24, 10))[TRUTH] + 0.15 * rng.normal(size=(len(TRUTH), 10))
    values[133] = values[115]  # of classes 22 and 19
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(10, 8), torch.nn.Linear(8, 12))
    loaders = {
        split: [(torch.from_numpy(values[rows]).float().reshape(-1, 10, 1, 1), torch.from_numpy(LABELS[rows]))]
        for split, rows in ROWS.items()
    }
    cache = tmp_path_factory.mktemp("labels")
    return Run(cache / layerprobe.probe(model, loaders, ks=[1], cache=cache, pools="avg").name)


def review(run: Run, **options: object) -> ReviewedLabels:
    return review_labels(run, LabelsRequest(**options), Silent())  # type: ignore[arg-type] # one test's


def rows_of(reviewed: ReviewedLabels) -> dict[int, str]:
    """Image -> the suggested label of the suspects."""
    return {row_of(x.image): x.suggested for x in reviewed.suspects}


def row_of(image: LabelledImage) -> int:
    """Its place among all images, from that in its split, by which Python's images are named."""
    return int(ROWS[image.split][int(image.image.rpartition("/")[2])])


def test_wrong_labels_are_found_across_splits(planted: Run) -> None:
    reviewed = review(planted)
    assert rows_of(reviewed) == {row: str(row // IMAGES) for row in FLIPPED} | {133: "19"}  # a duplicate of 115
    assert {x.image.label for x in reviewed.suspects} == {"9", "20", "2", "22"}
    assert (reviewed.splits, reviewed.images) == (("train", "test"), 144)
    assert all(x.votes > 3 * x.layers - 1 for x in reviewed.suspects)


def test_a_duplicate_and_a_divided_class_are_named(planted: Run) -> None:
    reviewed = review(planted)
    (pair,) = reviewed.duplicates
    assert {(row_of(x), x.label) for x in pair.images} == {(115, "19"), (133, "22")}
    assert pair.is_same
    (divided,) = reviewed.divided
    assert (divided.label, divided.images, [len(group) for group in divided.groups]) == ("15", 12, [6, 6])
    assert [sorted(map(row_of, group)) for group in divided.groups] == [
        list(range(90, 96)), list(range(96, 102)),
    ]  # fmt: skip


def test_one_split_knows_its_classes_alone(planted: Run) -> None:
    reviewed = review(planted, splits=("train",))
    assert rows_of(reviewed) == {3: "0"}  # 130 has no image of its class there
    assert reviewed.images == 84


def test_the_best_layers_are_compared_and_named_ones_instead(planted: Run) -> None:
    assert review(planted).layers == ("1", "2")  # output is 2 by another name
    named = review(planted, layers=("output",))
    assert (named.layers, named.votes) == (("output",), 5)


def test_the_file_has_a_row_for_each_image_to_look_at(planted: Run, tmp_path: Path) -> None:
    reviewed = review(planted, csv=tmp_path / "t.csv")
    with (tmp_path / "t.csv").open() as file:
        rows = list(csv.DictReader(file))
    reasons = [row["reason"] for row in rows]
    assert reasons == ["neighbours"] * 4 + ["duplicate"] * 2 + ["divided class"] * 6
    assert [(row["image"], row["split"], row["label"], row["suggested"]) for row in rows[:4]] == [
        (x.image.image, x.image.split, x.image.label, x.suggested) for x in reviewed.suspects
    ]
    assert (rows[4]["other image"], rows[4]["suggested"]) == (rows[5]["image"], rows[5]["label"])


def test_tables_are_absent_where_nothing_is_wrong(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    labels = np.repeat(np.arange(20), 6)
    images = torch.from_numpy(3 * rng.normal(size=(20, 8))[labels] + 0.1 * rng.normal(size=(120, 8))).float()
    loader = [(images.reshape(-1, 8, 1, 1), torch.from_numpy(labels))]
    result = layerprobe.probe(torch.nn.Flatten(), {"test": loader}, ks=[1], cache=tmp_path, pools="avg")
    reviewed = review(Run(tmp_path / result.name))
    assert [table(reviewed) for table in (suspect_table, duplicate_table, divided_table)] == [None] * 3
    assert reviewed.verdict == (
        "0 of 120 labels look wrong; 0 pairs of equal images and 0 of nearly equal ones have different labels;"
        " 0 classes may be two."
    )


def test_an_image_of_the_queries_and_the_gallery_is_one(tmp_path: Path) -> None:
    run, layer = write_run(tmp_path), LayerKey("fc6", "none")
    labels, values = np.repeat(np.arange(20), 4), np.random.default_rng(2).normal(size=(80, 8)).astype(np.float32)
    for split, rows in (("test", np.arange(0, 80, 2)), ("gallery", np.arange(80))):
        index = store.Rows(labels[rows], [f"{row}.png" for row in rows])
        columns, key = store.Columns({layer: 8}, "cpu", 8), store.FeatureKey(run.name, 1, split, "w1", "resize", "m")
        path = run.feature_file(1, split)
        path.unlink(missing_ok=True)
        store.write_features(path, key, index, columns, [{layer: values[rows]}])
    reviewed = review(run, layers=("fc6",), splits=("test", "gallery"))
    assert reviewed.images == 80
    assert reviewed.duplicates == ()


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"splits": ("tset",)}, UnknownNameError, "split of drawn at epoch 1: 'tset'.*Did you mean 'test'"),
        ({"epoch": 7}, DataError, "no features of epoch 7 are stored"),
        ({"layers": ("fc7",)}, UnknownNameError, "layer 'fc7'"),
        ({"layers": ("fc6/l2",)}, RecipeError, "--layers fc6/l2: layers are compared by learned whitening.*Write fc6"),
        ({"csv": Path("t.txt")}, LayerprobeError, "t.txt"),
    ],
)
def test_bad_requests_are_refused(
    tmp_path: Path, options: dict[str, object], error: type[LayerprobeError], message: str
) -> None:
    with pytest.raises(error, match=message):
        review(write_run(tmp_path), **options)


def test_five_images_are_too_few(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="5 images at epoch 1: each is compared with 5 others"):
        review(write_run(tmp_path, sizes={"test": [3, 2]}))


def test_the_sentence_counts_and_names_its_assumption() -> None:
    assert verdict_text(2720, 13, 5.2, (1, 4), 1) == (
        "13 of 2,720 labels look wrong, and about 5 of these are, if a wrong label is any other class with the same"
        " chance (one given for a similar class is not counted); 1 pair of equal images and 4 of nearly equal ones have"
        " different labels; 1 class may be two."
    )
    assert "1 of 9 labels looks wrong (how many are cannot" in verdict_text(9, 1, None, (0, 0), 0)


def test_a_layer_that_is_not_finite_or_collapsed_is_left_out(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    labels = np.repeat(np.arange(20), 4)
    images = torch.from_numpy(rng.normal(size=(20, 8))[labels] + 0.1 * rng.normal(size=(80, 8))).float()

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.few, self.flat, self.root, self.zero, self.out = (torch.nn.Identity() for _ in range(5))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            flat: torch.Tensor = self.flat(x.flatten(1))
            self.few(flat[:, :2])
            self.zero(0 * flat + 1)
            out: torch.Tensor = self.out(flat) + 0 * self.root((flat + 5).sqrt())
            return out

    loaders = {}
    for split, rows in (("train", slice(40)), ("test", slice(40, None))):
        pixels = images[rows].clone()
        if split == "train":
            pixels[0, 0] = -6
        loaders[split] = [(pixels.reshape(-1, 8, 1, 1), torch.from_numpy(labels[rows]))]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = layerprobe.probe(
            Net(), loaders, layers=["few", "flat", "root", "zero"], ks=[1], cache=tmp_path, pools="avg"
        )
    run = Run(tmp_path / result.name)
    reviewed = review(run)
    assert reviewed.layers == ("flat", "few")  # the best before others
    left_out = [note for note in reviewed.notes if "is left out" in note]
    assert len(left_out) == 2
    assert "zero is left out: all images have the same features" in left_out
    assert any(re.match("root is left out: .* hold NaN or Inf", note) for note in left_out)
    with pytest.raises(NumericError, match="root: .* hold NaN or Inf"):
        review(run, layers=("root", "flat"))
    with pytest.raises(NumericError, match="zero is left out: all images have the same features. Choose other layers"):
        review(run, layers=("zero",))


def test_labels_of_several_names_are_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    record = run.read()
    data = {"name": "csv", "label_separator": "|"}
    run.write(replace(record, recipe={**record.recipe, "data": data}))
    with pytest.raises(RecipeError, match="drawn: images have several labels"):
        review(run)


def test_what_the_numbers_are_conditional_on_is_told_whatever_is_listed(tmp_path: Path) -> None:
    run = write_run(tmp_path)
    (note,) = [note for note in review(run, layers=("fc6",)).notes if "as they are" in note]
    assert (
        note == "some layers are compared as they are: learned whitening needs more classes, or features that vary more"
    )
    record = run.read()
    run.write(replace(record, recipe={**record.recipe, "train": {"epochs": 1}}))
    assert any("trained on the labels of train" in note for note in review(run, layers=("fc6",)).notes)
    assert not any("labels of train" in note for note in review(run, layers=("fc6",), splits=("test",)).notes)


def test_a_run_without_plain_layers_names_those_that_can_be_named(tmp_path: Path) -> None:
    run = write_run(tmp_path, layers=(replace(FC6, post_processing="l2"),))
    with pytest.raises(RecipeError, match="no layer is ranked as it is, .* Name some: --layers fc6"):
        review(run)
