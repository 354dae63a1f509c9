"""FeatureKey: what stored features are made from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata


@dataclass(frozen=True)
class FeatureKey:
    """What features are made from. Stored features are used only if all of it is the same.

    Args:
        epoch: 0 = before any step.
        transform: every step from an image file to the network's input, as text.
        manifest_sha256: hash of the split's ids, classes and pixels.
        network: the package that the model comes from, with its version; empty for layerprobe's own networks.
    """

    run: str
    epoch: int
    split: str
    weights_sha256: str
    transform: str
    manifest_sha256: str
    network: str = ""


def key_attributes(key: FeatureKey) -> dict[str, str | int]:
    """The attributes that a usable file has: the key, and the versions that may change a feature's last bits."""
    made_from = asdict(key)
    if not key.network:
        del made_from["network"]  # files of layerprobe's own networks have no such attribute
    return {**made_from, **_versions()}


@cache
def _versions() -> dict[str, str]:
    # Looking them up takes a millisecond, and every stored layer asks.
    return {name: metadata.version(name) for name in ("torch", "torchvision")}
