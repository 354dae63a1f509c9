"""layerprobe: which layer of an embedding network generalises?"""

from __future__ import annotations

__version__ = "0.1.0"
