"""ResNet18: torchvision's trunk, a global pool (`avg`), fully connected layers.

Layers layer1.0 ... layer4.1, pool5, fc6 ... Fehervari et al. 2019 use it for their ensembles on CUB200 (table 2).
"""

from __future__ import annotations

from torchvision import models

from layerprobe.nets.resnet import resnet

build = resnet("resnet18", models.resnet18, (2, 2, 2, 2), 512).build
