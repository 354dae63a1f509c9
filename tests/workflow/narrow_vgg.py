"""VGG16-BN at an eighth of its width: the same layers, names and rules; a checkpoint has 1 MB."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from unittest.mock import patch

from torch import nn
from torchvision.models.vgg import cfgs

from layerprobe.nets import vgg16_bn
from layerprobe.nets.assembly import Backbone

_VGG: Backbone = vgg16_bn.build.__self__  # type: ignore[attr-defined] # mypy takes a bound method for a function
_WIDTHS = [width if isinstance(width, str) else width // 8 for width in cfgs["D"]]


def _trunk() -> Mapping[str, nn.Module]:
    with patch.dict(cfgs, D=_WIDTHS):
        return _VGG.trunk()


build = replace(_VGG, name="narrow_vgg", trunk=_trunk, channels=64).build
