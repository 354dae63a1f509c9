from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.workflow.python.loaders import progress, read_batches, read_images, require_loaders

IMAGES = torch.zeros(2, 3, 4, 4)


@pytest.mark.parametrize("labels", [torch.tensor([3, 5]), np.array([3, 5], np.uint8), [3, 5], (3, 5)])
def test_labels_may_be_a_tensor_an_array_or_a_list(labels: Any) -> None:
    (batch,) = read_batches([(IMAGES, labels)], "test")
    assert batch.images is IMAGES
    assert batch.labels.dtype == np.int64
    assert batch.labels.tolist() == [3, 5]


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([], "the test loader gives no batch"),
        ([{"image": IMAGES}], "a batch of the test loader is a dict of image: there is none of labels, label, targets"),
        (
            [{"label": [0, 1], "x": IMAGES}],
            "a dict of label, x: there is none of pixel_values.*give batch=",
        ),
        ([{"image": IMAGES, "images": IMAGES, "label": [0, 1]}], r"a dict of image, images, label: image or images\?"),
        ([(IMAGES, [0, 1], 1, 2, 3)], "a batch of the test loader is a tuple of 5.*give batch="),
        ([(IMAGES,)], "a batch of the test loader is a tuple of 1"),
        ([(IMAGES.byte(), [0, 1])], "images of the test loader are uint8. Give floats"),
        ([(IMAGES[:, 0], [0, 1])], r"images of the test loader are float32 \(2, 4, 4\)"),
        ([(IMAGES.numpy(), [0, 1])], r"images of the test loader are a numpy array, float32 \(2, 3, 4, 4\)"),
        ([(IMAGES, [0, 1]), (IMAGES[..., :2, :2], [0, 1])], r"are \(3, 2, 2\) after others of \(3, 4, 4\)"),
        ([(IMAGES, [0, 1]), (IMAGES[:, :1], [0, 1])], r"are \(1, 4, 4\) after others of \(3, 4, 4\)"),
        ([(IMAGES, [0])], r"labels of the test loader are int64 \(1,\) for 2 images"),
        ([(IMAGES, torch.tensor([0.5, 1]))], r"labels of the test loader are float32 \(2,\) for 2 images"),
        ([(IMAGES, np.array([0, 2**63], np.uint64))], "labels of the test loader hold 9223372036854775808"),
        ([(IMAGES, [0, float("nan")])], r"labels of the test loader are float64 \(2,\) for 2 images"),
        ([(IMAGES, ["cat", 1])], r"labels of the test loader are <U21 \(2,\) for 2 images"),
        ([(IMAGES, [["cat", "dog"]])], r"labels of the test loader are <U3 \(1, 2\) for 2 images"),
        ([(IMAGES, ["cat", "dog"]), (IMAGES, [0, 1])], "labels of the test loader are numbers and texts"),
    ],
)
def test_batches_of_something_else_are_told(batches: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_batches(batches, "test"))


@pytest.mark.parametrize("labels", [("b", "a"), ["b", "a"], np.array(["b", "a"]), np.array(["b", "a"], object)])
def test_labels_may_be_texts(labels: Any) -> None:
    (batch,) = read_batches([(IMAGES, labels)], "test")
    assert batch.labels.dtype.kind == "U"
    assert batch.labels.tolist() == ["b", "a"]


@pytest.mark.parametrize("images", ["pixel_values", "image", "images"])
@pytest.mark.parametrize("labels", ["labels", "label", "targets"])
def test_a_batch_may_be_a_dict_with_one_of_the_usual_keys(images: str, labels: str) -> None:
    (batch,) = read_batches([UserDict({"idx": [7, 8], labels: [3, 5], images: IMAGES})], "test")
    assert batch.images is IMAGES
    assert batch.labels.tolist() == [3, 5]


@pytest.mark.parametrize("others", [(["a.jpg", "b.jpg"],), ([0, 1], ["a.jpg", "b.jpg"])])
def test_further_parts_of_a_tuple_are_ignored_with_a_line(others: tuple[Any, ...]) -> None:
    lines: list[str] = []
    (batch,) = read_batches([[IMAGES, [3, 5], *others]], "test", note=lines.append)
    assert batch.labels.tolist() == [3, 5]
    (line,) = lines
    assert line.startswith(f"of each batch of {2 + len(others)} parts the first two are read as images and labels")


def test_a_function_reads_batches_of_any_form() -> None:
    items = [{"x": IMAGES, "y": [3, 5]}]
    (batch,) = read_batches(items, "test", batch=lambda item: (item["x"], item["y"]))
    assert batch.labels.tolist() == [3, 5]
    with pytest.raises(TypeError, match=r"batch must return \(images, labels\), not float32 \(2, 3, 4, 4\)"):
        list(read_batches(items, "test", batch=lambda item: item["x"]))


def test_loaders_come_in_the_order_of_the_splits_and_val_is_validation() -> None:
    known = ("train", "validation", "test")
    assert list(require_loaders({"test": [], "val": [], "train": []}, known)) == ["train", "validation", "test"]
    with pytest.raises(RecipeError, match="val and validation are the same split"):
        require_loaders({"val": [], "validation": []}, known)
    with pytest.raises(UnknownNameError, match="unknown split 'tset'. Did you mean 'test'"):
        require_loaders({"tset": []}, known)


def test_a_dataset_is_read_in_batches_of_64() -> None:
    dataset = TensorDataset(torch.zeros(70, 3, 4, 4), torch.arange(70))
    (loader,) = require_loaders({"test": dataset}, ("test",)).values()
    batches = list(read_batches(loader, "test"))
    assert [len(batch.labels) for batch in batches] == [64, 6]
    assert np.concatenate([batch.labels for batch in batches]).tolist() == list(range(70))


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (IMAGES, 'splits must be loaders by the names of their splits, such as {"test": loader}, not Tensor'),
        (None, "splits must be .*, not None"),
        ({0: []}, "the name of a split must be text, not int"),
        ({"test": IMAGES}, r"the test loader must be a DataLoader, a Dataset, or batches of .*, not Tensor"),
        ({"test": "photos"}, "the test loader must be .*, not str"),
        ({"test": DataLoader}, "the test loader must be .*, not the class DataLoader"),
        ({"test": 3}, "the test loader must be .*, not int"),
    ],
)
def test_what_is_no_loader_is_told(splits: object, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        require_loaders(splits, ("test",))


class Stopping(TensorDataset):
    """A row of which raises StopIteration, as `next` of an empty iterator does."""

    def __getitem__(self, row: int) -> Any:
        if row == 5:
            raise StopIteration
        return IMAGES[0], row


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_ends_before_its_length_is_not_believed(workers: int) -> None:
    loader = DataLoader(Stopping(torch.zeros(8, 3, 4, 4), torch.arange(8)), 2, num_workers=workers)
    for batches in (read_batches(loader, "test"), read_batches(loader, "test", track=lambda items, _: iter(items))):
        with pytest.raises(DataError, match=r"the test loader ended after 2 of its 4 batches\. Its data set may raise"):
            list(batches)
    with pytest.raises(DataError, match="`images` ended after 2 of its 4 batches"):
        list(read_images(loader, 2))


class Stream(IterableDataset[Any]):
    """One that two workers divide, so that torch's length is an estimate."""

    def __len__(self) -> int:
        return 14

    def __iter__(self) -> Any:
        return iter([(torch.zeros(3, 4, 4), 0)] * 7)


def test_the_length_of_a_stream_is_an_estimate() -> None:
    assert len(list(read_batches(DataLoader(Stream(), 4, drop_last=True), "test"))) == 1


def test_images_may_come_as_one_tensor_or_in_batches() -> None:
    images = torch.arange(5.0)[:, None, None, None].expand(-1, 3, 2, 2)
    assert [len(batch) for batch in read_images(images, 2)] == [2, 2, 1]
    for batches in (images.split(3), [(part, [0] * len(part)) for part in images.split(3)]):
        assert torch.equal(torch.cat(list(read_images(batches, 2))), images)
    for others in (TensorDataset(images), [{"image": part, "label": None} for part in images.split(2)]):
        assert torch.equal(torch.cat(list(read_images(others, 2))), images)
    for wrong in (images.numpy(), {"test": images}, None):
        with pytest.raises(TypeError, match=r"images must be floats \(N, C, H, W\), a DataLoader, .*, not "):
            list(read_images(wrong, 2))
    with pytest.raises(DataError, match="`images` gives no batch"):
        list(read_images([], 2))


def test_nothing_is_shown_where_there_is_no_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with progress() as track:
        assert list(track(iter([1, 2]), "extracting test")) == [1, 2]
    assert capfd.readouterr() == ("", "")


def test_a_terminal_shows_how_far_it_is(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal then
    with progress() as track:
        assert list(track([1, 2], "extracting test")) == [1, 2]
    out, err = capfd.readouterr()
    assert out == ""
    assert "extracting test" in err
