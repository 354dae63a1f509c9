"""Mean and standard deviation of ImageNet's training images, of red, green and blue in 0 ... 1.

torchvision's weights were trained on images that were normalised with these.
"""

from __future__ import annotations

MEAN = (0.485, 0.456, 0.406)
DEVIATION = (0.229, 0.224, 0.225)
