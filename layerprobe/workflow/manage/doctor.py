"""doctor: check the installed packages, devices, disk and pretrained weights."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

from layerprobe.nets.weights import weights_file
from layerprobe.registry import IMAGENET_WEIGHTS
from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.files import free_bytes, require_writable
from layerprobe.system.wording import as_size

_PACKAGES = ("layerprobe", "torch", "torchvision", "captum", "h5py", "numpy", "pillow")


@dataclass(frozen=True)
class Check:
    """The result of one check; `fix` is empty if nothing is wrong."""

    subject: str
    found: str
    fix: str = ""


def doctor(cache: Path) -> list[Check]:
    """Check the packages, devices, disk of the cache and pretrained weights."""
    return [
        Check("python", f"{platform.python_version()} on {platform.platform()}"),
        *(
            Check(name, _version(name) or "absent", "" if _version(name) else f"pip install {name}")
            for name in _PACKAGES
        ),
        _faiss(),
        *_devices(),
        Check("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores"),
        _disk(cache),
        *(_weights(name) for name in IMAGENET_WEIGHTS),
    ]


def _disk(cache: Path) -> Check:
    try:
        require_writable(cache)
    except EnvironmentFault as error:
        return Check("disk", f"{error.file} {error.message}", error.fix)
    return Check("disk", f"{as_size(free_bytes(cache))} free for {cache}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _faiss() -> Check:
    installed = {name: version for name in ("faiss-gpu", "faiss-cpu") if (version := _version(name))}
    text = ", ".join(f"{name} {version}" for name, version in installed.items())
    if len(installed) == 2:
        return Check(
            "faiss",
            f"{text}: both install the folder faiss/ and break each other",
            "pip uninstall -y faiss-cpu faiss-gpu; then pip install faiss-gpu",
        )
    return Check("faiss", text or "absent", "" if installed else "pip install faiss-gpu (Linux x86-64) or faiss-cpu")


def _devices() -> list[Check]:
    if not torch.cuda.is_available():
        built = f"with CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        return [Check("GPU", f"torch finds none (it is built {built})")]
    return [
        Check(f"cuda:{i}", f"{p.name}, {as_size(p.total_memory)}")
        for i in range(torch.cuda.device_count())
        for p in [torch.cuda.get_device_properties(i)]
    ]


def _weights(net: str) -> Check:
    path = weights_file(net)
    state = "there" if path.exists() else "absent; needed for net.weights = imagenet"
    return Check(f"{net} weights", f"{path}: {state}")
