from __future__ import annotations

import pytest
import torch

from layerprobe.nets.pooling import GlobalPool
from layerprobe.system.errors import UnknownNameError

# One image, two channels of 2 x 2.
MAPS = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]], [[-1.0, -2.0], [-3.0, -4.0]]]])


def test_max_takes_each_channels_largest_value() -> None:
    assert GlobalPool("max")(MAPS).tolist() == [[6.0, -1.0]]


def test_avg_takes_each_channels_mean() -> None:
    assert GlobalPool("avg")(MAPS).tolist() == [[3.0, -2.5]]


def test_gem_is_the_cube_root_of_the_mean_cube_with_negatives_as_a_millionth() -> None:
    # (1 + 8 + 27 + 216) / 4 = 63
    expected = torch.tensor([[63 ** (1 / 3), 1e-6]])
    torch.testing.assert_close(GlobalPool("gem")(MAPS), expected)


def test_gem_has_finite_gradients_where_a_channel_is_dead() -> None:
    maps = torch.zeros(1, 1, 2, 2, requires_grad=True)
    GlobalPool("gem")(maps).sum().backward()
    assert maps.grad is not None
    assert maps.grad.isfinite().all()


def test_an_unknown_pool_names_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown pool 'mean'\. Known: max, avg, gem\."):
        GlobalPool("mean")
