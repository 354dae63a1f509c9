"""LeNet-5, for figures of an embedding in two or three dimensions.

LeCun et al., Gradient-based learning applied to document recognition, 1998: convolutions of 5 x 5 with 6, 16 and 120
outputs, each of the first two followed by a pool; here with ReLUs, maxima and all connections, as is usual now. The
papers name the network and give no sizes: Horiguchi et al. 2019 (figure 1) and Zhang et al. 2018 (section 4). With fc =
[84, 2] the head is LeNet's F6 and the bottleneck; the output layer belongs to the loss. Grey images come as three equal
channels. With images of 28 pixels, padded by 2 as usual, `c5` has a single position; with larger ones `pool5` is the
mean of its positions; smaller ones do not fit.

Layers c1, c3, c5 (a convolution after its ReLU), pool5, fc6 ...
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from layerprobe.nets.assembly import Backbone

_CONVOLUTIONS = ("c1", "c3", "c5")


def _trunk() -> Mapping[str, nn.Module]:
    return {
        "c1": nn.Sequential(nn.Conv2d(3, 6, 5, padding=2), nn.ReLU(inplace=True)),
        "s2": nn.MaxPool2d(2),
        "c3": nn.Sequential(nn.Conv2d(6, 16, 5), nn.ReLU(inplace=True)),
        "s4": nn.MaxPool2d(2),
        "c5": nn.Sequential(nn.Conv2d(16, 120, 5), nn.ReLU(inplace=True)),
    }


build = Backbone(
    name="lenet",
    trunk=_trunk,
    layers={name: name for name in _CONVOLUTIONS},
    units={name: (name,) for name in _CONVOLUTIONS},
    channels=120,
).build
