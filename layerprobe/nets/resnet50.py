"""ResNet50: torchvision's trunk, a global pool (`avg`), fully connected layers.

Layers layer1.0 ... layer4.2, pool5, fc6 ... Vo & Hays 2019 define NetA to NetF for VGG16 alone; here the same heads sit
on the pooled `layer4.2`, and NetB starts that block from scratch.
"""

from __future__ import annotations

from torchvision import models

from layerprobe.nets.resnet import resnet

build = resnet("resnet50", models.resnet50, (3, 4, 6, 3), 2048).build
