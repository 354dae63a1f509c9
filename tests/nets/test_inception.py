from __future__ import annotations

import pytest
import torch

from layerprobe.nets.inception import CaffeInput, TransformInput

MEAN = torch.tensor([0.485, 0.456, 0.406])[:, None, None]
DEVIATION = torch.tensor([0.229, 0.224, 0.225])[:, None, None]
RED = torch.tensor([255.0, 51.0, 0.0])[:, None, None].expand(3, 2, 2)  # RGB of one colour, from 0 to 255


def normalised(pixels: torch.Tensor) -> torch.Tensor:
    return ((pixels / 255 - MEAN) / DEVIATION)[None]


def test_caffe_gets_blue_green_red_less_its_mean() -> None:
    image = CaffeInput((104.0, 117.0, 128.0))(normalised(RED))
    assert image.shape == (1, 3, 2, 2)
    assert image[0, :, 1, 0].tolist() == pytest.approx([0 - 104, 51 - 117, 255 - 128], abs=1e-4)


def test_tensorflow_gets_minus_one_to_one() -> None:
    assert TransformInput()(normalised(RED))[0, :, 0, 1].tolist() == pytest.approx([1, -0.6, -1], abs=1e-6)


@pytest.mark.parametrize("module", [CaffeInput((1.0, 2.0, 3.0)), TransformInput()])
def test_the_constants_are_not_in_the_state(module: torch.nn.Module) -> None:
    assert not module.state_dict()
