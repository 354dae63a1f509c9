from __future__ import annotations

from typing import Any

import pytest
import torch

from layerprobe import recall_at_k
from layerprobe.system.errors import DataError
from layerprobe.system.numerics import full_precision, require_numbers

SWITCHES: dict[str, Any] = {
    "mkldnn": torch.backends.mkldnn.matmul,  # type: ignore[attr-defined] # made at import
    "cuda": torch.backends.cuda.matmul,
    "cudnn": torch.backends.cudnn.conv,  # type: ignore[attr-defined] # made at import
}


@pytest.mark.parametrize(("name", "fast"), [("mkldnn", "bf16"), ("cuda", "tf32"), ("cudnn", "tf32")])
def test_a_callers_faster_float32_is_off_inside_and_back_afterwards(name: str, fast: str) -> None:
    before = SWITCHES[name].fp32_precision
    SWITCHES[name].fp32_precision = fast
    try:
        with full_precision(torch.device("cpu")):
            assert SWITCHES[name].fp32_precision == "ieee"
        assert SWITCHES[name].fp32_precision == fast
    finally:
        SWITCHES[name].fp32_precision = before


@pytest.mark.parametrize(
    "name",
    [
        "allow_bf16_reduced_precision_reduction",
        "allow_fp16_reduced_precision_reduction",
        "allow_fp16_accumulation",
    ],
)
def test_sums_in_16_bits_are_off_inside_and_back_after_an_error(name: str) -> None:
    matmul = torch.backends.cuda.matmul
    before = getattr(matmul, name)
    setattr(matmul, name, True)

    def fail() -> None:
        with full_precision(torch.device("cpu")):
            assert not getattr(matmul, name)
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert getattr(matmul, name)
    finally:
        setattr(matmul, name, before)


def test_splits_of_a_sum_are_as_they_were() -> None:
    matmul, name = torch.backends.cuda.matmul, "allow_fp16_reduced_precision_reduction"
    if not hasattr(matmul, f"{name}_split_k"):
        pytest.skip("torch has no such setting")
    before = getattr(matmul, name), getattr(matmul, f"{name}_split_k")
    setattr(matmul, name, (False, False))
    try:
        with full_precision(torch.device("cpu")):
            pass
        assert not getattr(matmul, f"{name}_split_k")
    finally:
        setattr(matmul, name, before)


def test_autocast_is_off_inside() -> None:
    ones = torch.ones(2, 2)
    with torch.autocast("cpu", torch.bfloat16):
        assert (ones @ ones).dtype == torch.bfloat16
        with full_precision(torch.device("cpu")):
            assert (ones @ ones).dtype == torch.float32


def test_the_default_device_meta_is_refused_before_anything_is_computed() -> None:
    with torch.device("meta"), pytest.raises(DataError, match="default device is meta, whose tensors hold no numbers"):
        recall_at_k([[1.0], [2.0]], [0, 0], ks=[1])


def test_a_module_without_numbers_is_named() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    require_numbers(module)
    module[1].running_mean = torch.zeros(3, device="meta")
    with pytest.raises(DataError, match=r"^1\.running_mean of mine is on the device meta, and holds no numbers"):
        require_numbers(module, name="mine")
