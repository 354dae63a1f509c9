"""Inception with batch normalisation (Inception-BN, BNInception).

The network of Zhai & Wu 2019 and Fehervari et al. 2019: Ioffe and Szegedy, Batch Normalization, ICML 2015, in the
layout of the Caffe network that the common PyTorch port was converted from; not torchvision's `googlenet`, whose blocks
are those of 2014. Layers inception3a, 3b, 3c, 4a ... 4e, 5a, 5b (a block's output), pool5, fc6 ...; pooled by `avg`.

Weights come from a file with the port's names (`bn_inception-52deb4733.pth`, its older `-239d2248`): `conv1_7x7_s2`,
`conv2_3x3_reduce`, `conv2_3x3`, and `inception_XY_` followed by `1x1`, `3x3_reduce`, `3x3`, `double_3x3_reduce`,
`double_3x3_1`, `double_3x3_2` or `pool_proj`, each with `.weight` and `.bias`, and each again with `_bn` and
`.weight`, `.bias`, `.running_mean`, `.running_var`, of (C,) or (1, C). `last_linear` stays out. Those weights want BGR
from 0 to 255 less 104, 117, 128: the network converts its input, which is normalised as for the others.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.nets.assembly import Backbone
from layerprobe.nets.inception import CaffeInput, Inception, Stages, convolution, from_caffe

_BGR_MEAN = (104.0, 117.0, 128.0)
# torch's momentum of 0.1 is the port's: Caffe's 0.9 weighs the past, torch's 0.1 the present.
_convolution = partial(convolution, batch_norm=True)
_Widths = tuple[int, tuple[int, int], tuple[int, int], str, int]
# Outputs of 1x1; of 3x3's reduction and itself; of the double 3x3's reduction and both itself; the pool's kind and the
# outputs of its projection. Without 1x1 and projection a block halves the map, and its pool passes all channels on.
_BLOCKS: dict[str, _Widths] = {
    "inception3a": (64, (64, 64), (64, 96), "avg", 32),
    "inception3b": (64, (64, 96), (64, 96), "avg", 64),
    "inception3c": (0, (128, 160), (64, 96), "max", 0),
    "inception4a": (224, (64, 96), (96, 128), "avg", 128),
    "inception4b": (192, (96, 128), (96, 128), "avg", 128),
    "inception4c": (160, (128, 160), (128, 160), "avg", 128),
    "inception4d": (96, (128, 192), (160, 192), "avg", 128),
    "inception4e": (0, (128, 192), (192, 256), "max", 0),
    "inception5a": (352, (192, 320), (160, 224), "avg", 128),
    "inception5b": (352, (192, 320), (192, 224), "max", 128),
}


class HalvingPool(nn.Module):
    """Maxima of 3 x 3 that halve a map, rounding up, as the convolutions beside it do.

    For even sizes it is the port's pool; for odd ones the port's would be a row short and fit nothing.
    """

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, ceil(H/2), ceil(W/2)); windows start at every second row and column."""
        height, width = maps.shape[2:]
        if height % 2 or width % 2:
            maps = F.pad(maps, (0, width % 2, 0, height % 2), value=float("-inf"))
        return F.max_pool2d(maps, 3, 2, ceil_mode=True)


def _block(inputs: int, widths: _Widths) -> Inception:
    single, triple, double, pool, projection = widths
    stride, doubled = 1 if single else 2, double[1]
    branches: list[Stages] = [_convolution("1x1", (inputs, single), 1)] if single else []
    branches += [
        [
            *_convolution("3x3_reduce", (inputs, triple[0]), 1),
            *_convolution("3x3", triple, 3, stride=stride),
        ],
        [
            *_convolution("double_3x3_reduce", (inputs, double[0]), 1),
            *_convolution("double_3x3_1", double, 3),
            *_convolution("double_3x3_2", (doubled, doubled), 3, stride=stride),
        ],
    ]
    if not projection:
        return Inception([*branches, [("pool", HalvingPool())]])
    kind = nn.AvgPool2d(3, 1, 1) if pool == "avg" else nn.MaxPool2d(3, 1, 1)
    return Inception([*branches, [("pool", kind), *_convolution("pool_proj", (inputs, projection), 1)]])


def _trunk() -> Mapping[str, nn.Module]:
    children: dict[str, nn.Module] = {
        "transform_input": CaffeInput(_BGR_MEAN),
        **dict(_convolution("conv1_7x7_s2", (3, 64), 7, stride=2)),
        "pool1_3x3_s2": nn.MaxPool2d(3, 2, ceil_mode=True),
        **dict(_convolution("conv2_3x3_reduce", (64, 64), 1)),
        **dict(_convolution("conv2_3x3", (64, 192), 3)),
        "pool2_3x3_s2": nn.MaxPool2d(3, 2, ceil_mode=True),
    }
    channels = 192
    for name, widths in _BLOCKS.items():
        children[name] = _block(channels, widths)
        single, triple, double, _, projection = widths
        channels = single + triple[1] + double[1] + (projection or channels)
    return children


build = Backbone(
    name="bn_inception",
    trunk=_trunk,
    layers={block: block for block in _BLOCKS},
    units={block: (block,) for block in _BLOCKS},
    channels=1024,
    translate=from_caffe,
).build
