"""How to install what an extra of layerprobe needs."""

from __future__ import annotations

import shlex
from importlib import metadata


def install_line(extra: str) -> str:
    """`pip install 'timm>=1.0.15'`: it names the packages, so that it works beside a clone as beside a release."""
    name = extra.replace("_", "-")  # as metadata has it
    markers = {f"extra == '{name}'", f'extra == "{name}"'}
    required = [requirement.partition(";") for requirement in metadata.requires("layerprobe") or ()]
    packages = [package.strip() for package, _, marker in required if marker.strip() in markers]
    return shlex.join(["pip", "install", *packages])
