from __future__ import annotations

import numpy as np
import pytest
import torch

from layerprobe.system.errors import DataError
from layerprobe.values.layers import LayerKey
from layerprobe.workflow.choose.user_features import check_features

LABELS = np.array([0, 0, 1, 1])
GOOD = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_numbers_that_a_float_cannot_tell_apart_are_no_labels() -> None:
    # float64 has every whole number up to 2**53, float32 up to 2**24: the next one becomes that
    for kind, most in ((np.float64, 2**53), (np.float32, 2**24)):
        whole = np.array([0, 0, most - 1, most - 1], kind)
        assert check_features({"a": GOOD}, whole).labels.tolist() == [0, 0, 1, 1]
        with pytest.raises(DataError, match=r"labels\[2\] is .*, not an integer below"):
            check_features({"a": GOOD}, np.array([0, 0, most, most + 1], kind))


def test_whole_numbers_of_64_bits_stay_apart_as_labels() -> None:
    labels = np.array([0, 2**63, 2**64 - 1, 2**64 - 1], np.uint64)
    assert check_features({"a": GOOD}, labels).labels.tolist() == [0, 1, 2, 2]


def test_an_empty_group_is_shared_with_none() -> None:
    given = check_features({"a": GOOD}, LABELS, groups=["x", "", "", "x"])
    assert given.groups is not None
    assert given.groups[0] == given.groups[3]
    assert len(set(given.groups.tolist())) == 3


def test_tensors_are_taken_as_arrays_are() -> None:
    given = check_features({"a": torch.from_numpy(GOOD).requires_grad_()}, torch.from_numpy(LABELS))
    assert given.features[LayerKey("a", "none")].tolist() == GOOD.tolist()
