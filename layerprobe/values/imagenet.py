"""Mean and standard deviation of ImageNet's training images (RGB, 0 to 1), as in torchvision."""

from __future__ import annotations

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
