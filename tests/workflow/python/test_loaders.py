from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from layerprobe.system.errors import DataError
from layerprobe.workflow.python.loaders import in_batches, progress, read_batches

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
        ([{"image": IMAGES}], "a batch of the test loader is a dict. Let the loader give .images, labels."),
        ([(IMAGES, [0, 1], [7, 8])], "a batch of the test loader is a tuple of 3"),
        ([(IMAGES.byte(), [0, 1])], "images of the test loader are uint8. Give floats"),
        ([(IMAGES[:, 0], [0, 1])], r"images of the test loader are float32 \(2, 4, 4\)"),
        ([(IMAGES.numpy(), [0, 1])], r"images of the test loader are a numpy array, float32 \(2, 3, 4, 4\)"),
        ([(IMAGES, [0, 1]), (IMAGES[..., :2, :2], [0, 1])], r"are \(3, 2, 2\) after others of \(3, 4, 4\)"),
        ([(IMAGES, [0, 1]), (IMAGES[:, :1], [0, 1])], r"are \(1, 4, 4\) after others of \(3, 4, 4\)"),
        ([(IMAGES, [0])], r"labels of the test loader are int64 \(1,\) for 2 images"),
        ([(IMAGES, torch.tensor([0.5, 1]))], r"labels of the test loader are float32 \(2,\) for 2 images"),
        ([(IMAGES, np.array([0, 2**63], np.uint64))], "labels of the test loader hold 9223372036854775808"),
        ([(IMAGES, [0, float("nan")])], r"labels of the test loader are float64 \(2,\) for 2 images"),
        ([(IMAGES, ["cat", "dog"])], r"labels of the test loader are <U3 \(2,\) for 2 images"),
    ],
)
def test_batches_of_something_else_are_told(batches: list[Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        list(read_batches(batches, "test"))


def test_images_may_come_as_one_tensor_or_in_batches() -> None:
    images = torch.arange(5.0)[:, None, None, None].expand(-1, 3, 2, 2)
    assert [len(batch) for batch in in_batches(images, 2)] == [2, 2, 1]
    for batches in (images.split(3), [(part, [0] * len(part)) for part in images.split(3)]):
        assert torch.equal(torch.cat(list(in_batches(batches, 2))), images)
    with pytest.raises(DataError, match="`images` gives no batch"):
        list(in_batches([], 2))


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
