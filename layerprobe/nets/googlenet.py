"""GoogLeNet with batch normalisation: torchvision's trunk, a global pool (`avg`), fully connected layers.

It is ported from TensorFlow, like that of Zhang et al. 2018. The GoogLeNet of the other papers has no batch
normalisation (`googlenet_caffe`); do not expect their numbers of this one. Its input is normalised as for the other
networks. Layers inception3a ... inception5b, pool5, fc6 ... Vo & Hays 2019 define NetA to NetF for VGG16 alone; here
the same heads sit on the pooled `inception5b`, and NetB starts that block from scratch.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn
from torchvision.models import GoogLeNet

from layerprobe.nets.assembly import Backbone
from layerprobe.nets.inception import TransformInput

_BLOCKS = tuple(f"inception{block}" for block in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"))
_REPLACED = ("avgpool", "dropout", "fc")


def _trunk() -> Mapping[str, nn.Module]:
    # Without auxiliary heads: they hold half of the parameters and never run in evaluation.
    network = GoogLeNet(aux_logits=False, init_weights=True)
    children = {name: child for name, child in network.named_children() if name not in _REPLACED}
    return {"transform_input": TransformInput(), **children}


build = Backbone(
    name="googlenet",
    trunk=_trunk,
    layers={block: block for block in _BLOCKS},
    units={block: (block,) for block in _BLOCKS},
    channels=1024,
).build
