"""VGG16 with batch normalisation, as Vo & Hays 2019 use it: the convolutions, a global pool, fully connected layers.

Sections 3.1 and 3.2 there: the convolutions, a global max pool, then fully connected layers of 512; section 4.3: NetA
is fc = [512], NetD [], NetE [512, 512], NetF [512, 512, 512]. Layers pool1.1 ... pool5.3, fc6 ...: `poolB.L` is the
pooled ReLU output of convolution B.L; `pool5` is reachable as a module path. What may start from scratch is `convB.L`
with its batch normalisation (NetB: conv5.3).
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torchvision.models.vgg import cfgs, make_layers

from layerprobe.nets.assembly import Backbone

_CONVOLUTIONS = ("1.1", "1.2", "2.1", "2.2", "3.1", "3.2", "3.3", "4.1", "4.2", "4.3", "5.1", "5.2", "5.3")
# In `features` a convolution is followed by its BN and its ReLU, and each of the first four stages by a max pool.
_INDEX = {name: 3 * place + int(name[0]) - 1 for place, name in enumerate(_CONVOLUTIONS)}


def _trunk() -> Mapping[str, nn.Module]:
    # Without the last max pool: followed by a global one it changes nothing, and alone it would lose the rows and
    # columns that a map of odd size has left over.
    features: nn.Sequential = make_layers(cfgs["D"], batch_norm=True)[:-1]
    for module in features:
        if isinstance(module, nn.Conv2d):  # as torchvision's VGG does; BN's own start is the same
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    return {"features": features}


build = Backbone(
    name="vgg16_bn",
    trunk=_trunk,
    layers={f"pool{name}": f"features.{index + 2}" for name, index in _INDEX.items()},
    units={f"conv{name}": (f"features.{index}", f"features.{index + 1}") for name, index in _INDEX.items()},
    channels=512,
    pool="max",
    lists_pool=False,
).build
