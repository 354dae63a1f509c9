"""GoogLeNet without batch normalisation: Caffe's, used by Zhai & Wu 2019 and Horiguchi et al. 2019.

Szegedy et al., Going Deeper with Convolutions, CVPR 2015, as BVLC's `bvlc_googlenet` defines it: biases, local response
normalisation, 5 x 5 branches, no auxiliary classifiers. Layers inception3a ... inception5b (a block's output), pool5,
fc6 ...; pooled by `avg`; images of at least 32 pixels.

The papers start from Caffe's ImageNet weights, which no package ships; with other weights, or none, their rows can only
be approximated. A file must have Caffe's names as converters write them, `conv1/7x7_s2`, `conv2/3x3_reduce`,
`conv2/3x3`, and `inception_XY/` followed by `1x1`, `3x3_reduce`, `3x3`, `5x5_reduce`, `5x5` or `pool_proj`, each with
`.weight` and `.bias`; `_` may stand for `/`. Classifiers (`loss1` ... `loss3`) stay out. Those weights want BGR from 0
to 255 less 104, 117, 123: the network converts its input, which is normalised as for the others. Without weights it
starts as Caffe's does: weights uniform with variance 1 / inputs, biases 0.2.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from layerprobe.nets.assembly import Backbone
from layerprobe.nets.inception import CaffeInput, Inception, convolution, from_caffe

_BGR_MEAN = (104.0, 117.0, 123.0)
# Outputs of 1x1; of 3x3's reduction and itself; of 5x5's reduction and itself; of the pool's projection.
_BLOCKS = {
    "inception3a": (64, (96, 128), (16, 32), 32),
    "inception3b": (128, (128, 192), (32, 96), 64),
    "inception4a": (192, (96, 208), (16, 48), 64),
    "inception4b": (160, (112, 224), (24, 64), 64),
    "inception4c": (128, (128, 256), (24, 64), 64),
    "inception4d": (112, (144, 288), (32, 64), 64),
    "inception4e": (256, (160, 320), (32, 128), 128),
    "inception5a": (256, (160, 320), (32, 128), 128),
    "inception5b": (384, (192, 384), (48, 128), 128),
}
_POOL_AFTER = {"inception3b": "pool3_3x3_s2", "inception4e": "pool4_3x3_s2"}


def _block(inputs: int, single: int, triple: tuple[int, int], five: tuple[int, int], projection: int) -> Inception:
    return Inception(
        [
            convolution("1x1", (inputs, single), 1),
            [*convolution("3x3_reduce", (inputs, triple[0]), 1), *convolution("3x3", triple, 3)],
            [*convolution("5x5_reduce", (inputs, five[0]), 1), *convolution("5x5", five, 5)],
            [("pool", nn.MaxPool2d(3, 1, 1)), *convolution("pool_proj", (inputs, projection), 1)],
        ]
    )


def _trunk() -> Mapping[str, nn.Module]:
    children: dict[str, nn.Module] = {
        "transform_input": CaffeInput(_BGR_MEAN),
        **dict(convolution("conv1_7x7_s2", (3, 64), 7, stride=2)),
        "pool1_3x3_s2": _pool(),
        "pool1_norm1": _normalisation(),
        **dict(convolution("conv2_3x3_reduce", (64, 64), 1)),
        **dict(convolution("conv2_3x3", (64, 192), 3)),
        "conv2_norm2": _normalisation(),
        "pool2_3x3_s2": _pool(),
    }
    channels = 192
    for name, (single, triple, five, projection) in _BLOCKS.items():
        children[name] = _block(channels, single, triple, five, projection)
        channels = single + triple[1] + five[1] + projection
        if name in _POOL_AFTER:
            children[_POOL_AFTER[name]] = _pool()
    for child in children.values():
        for module in child.modules():
            if isinstance(module, nn.Conv2d) and module.bias is not None:
                nn.init.kaiming_uniform_(module.weight, nonlinearity="linear")
                nn.init.constant_(module.bias, 0.2)
    return children


def _pool() -> nn.Module:
    return nn.MaxPool2d(3, 2, ceil_mode=True)


def _normalisation() -> nn.Module:
    return nn.LocalResponseNorm(5, alpha=1e-4, beta=0.75)


build = Backbone(
    name="googlenet_caffe",
    trunk=_trunk,
    layers={block: block for block in _BLOCKS},
    units={block: (block,) for block in _BLOCKS},
    channels=1024,
    translate=from_caffe,
).build
