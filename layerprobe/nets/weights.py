"""torchvision's ImageNet weights: their files and tensors."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from layerprobe.nets.checkpoint_files import FileWeights, read_checkpoint
from layerprobe.registry import IMAGENET_WEIGHTS, load
from layerprobe.system.errors import DataError, EnvironmentFault
from layerprobe.system.files import sha256

_ALTERNATIVES = "--set net.weights=none, or --set net.weights=PATH"


def weights_file(name: str) -> Path:
    """Where torchvision's ImageNet weights of a network lie, or would: below TORCH_HOME."""
    return Path(str(torch.hub.get_dir()), "checkpoints", Path(_url(name)).name)


def _url(name: str) -> str:
    # By version: torchvision's DEFAULT changes with its releases.
    published = load("network with ImageNet weights", IMAGENET_WEIGHTS, name).IMAGENET1K_V1
    return str(published.url)


def imagenet_weights(name: str) -> FileWeights:
    """ImageNet weights of torchvision, version IMAGENET1K_V1, from TORCH_HOME; fetched where absent.

    Returns:
        The file's tensors, by torchvision's names.
    """
    path = weights_file(name)
    digest = path.stem.rpartition("-")[2]
    if not path.exists():
        _fetch(_url(name), path, digest)
    # torchvision compares the hash only on download, and would take any file that lies there.
    if not sha256(path).startswith(digest):
        raise DataError("sha256 differs from the one in its name", file=path, fix="Delete it")
    return read_checkpoint(path)


def _fetch(url: str, path: Path, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, str(path), hash_prefix=digest, progress=sys.stderr.isatty())
    except (OSError, RuntimeError) as error:
        raise EnvironmentFault(
            f"{path.name} is not there and {url} cannot be fetched: {error}",
            file=path.parent,
            fix=f"Put the file there, or use {_ALTERNATIVES}",
        ) from error
