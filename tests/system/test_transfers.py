from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layerprobe.system.transfers import fetch, send

CPU = torch.device("cpu")


def numbers() -> Tensor:
    return torch.arange(600_000.0).view(2, 3, -1)


def test_a_tensor_in_main_memory_stays_there() -> None:
    values = numbers()
    assert send(values, CPU) is values
    assert fetch(values)() is values


@pytest.mark.gpu
@pytest.mark.parametrize(
    "values",
    [
        numbers(),
        numbers().transpose(0, 2),
        numbers()[:, :1].expand(-1, 3, -1),
        numbers()[:, :, ::2],
        torch.arange(120.0).view(2, 3, 4, 5).to(memory_format=torch.channels_last),
    ],
)
def test_a_gpu_gives_back_what_it_was_sent_in_the_layout_of_a_plain_copy(values: Tensor) -> None:
    gpu = torch.device("cuda")
    there = send(values, gpu)
    back = fetch(there)()
    assert there.device.type == "cuda"
    assert there.stride() == values.to(gpu).stride()
    assert back.device == CPU
    assert torch.equal(back, values)


@pytest.mark.gpu
def test_neither_way_waits_for_a_gpu() -> None:
    gpu, busy = torch.device("cuda"), torch.cuda.Event()
    fetch(send(numbers(), gpu))()  # to allocate pinned memory may wait
    torch.cuda.synchronize()
    torch.cuda._sleep(2 * 10**9)  # about a second
    busy.record()
    fetch(send(numbers(), gpu))
    assert not busy.query()


@pytest.mark.gpu
def test_a_callers_pinned_memory_may_be_filled_again_at_once() -> None:
    values = numbers().pin_memory()
    torch.cuda._sleep(2 * 10**8)
    there = send(values, torch.device("cuda"))
    values.zero_()
    assert torch.equal(there.cpu(), numbers())
