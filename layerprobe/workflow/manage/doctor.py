"""doctor: check the installed packages, their size, devices, memory, disk and pretrained weights."""

from __future__ import annotations

import contextlib
import csv
import importlib
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from layerprobe.ranking.faiss_search import import_faiss
from layerprobe.registry import IMAGENET_WEIGHTS
from layerprobe.system.errors import EnvironmentFault
from layerprobe.system.files import free_bytes, require_writable
from layerprobe.system.requirements import install_line
from layerprobe.system.wording import as_size

_PACKAGES = (
    "layerprobe", "torch", "torchvision", "captum", "h5py", "numpy", "pillow", "scipy", "scikit-learn", "matplotlib",
    "safetensors", "pydantic", "jinja2", "threadpoolctl", "rich", "typer",
)  # fmt: skip
# What a user may install besides; the others are for tests and for the documentation.
_EXTRAS = ("timm", "hf", "open_clip", "umap", "optuna", "heif", "datasets", "export", "tensorboard", "wandb", "mlflow",
           "trackio")  # fmt: skip
# The builds of faiss; each installs the folder faiss/.
_FAISS = ("faiss-gpu", "faiss-gpu-cuvs", "faiss-cpu")


@dataclass(frozen=True)
class Check:
    """The result of one check; `fix` is empty if nothing is wrong."""

    subject: str
    found: str
    fix: str = ""


@dataclass(frozen=True)
class _Package:
    version: str
    size: int  # bytes
    requires: frozenset[str]


_Packages = Mapping[str, _Package]


def doctor(cache: Path, memory: str) -> list[Check]:
    """Check the packages, devices, disk of the cache and pretrained weights.

    Args:
        memory: what `keep_freed_memory` says.
    """
    packages = _installed()
    fault = _import_fault("torch") or _import_fault("torchvision")
    return [
        Check("python", f"{platform.python_version()} on {platform.platform()}"),
        *(
            Check(name, packages[name].version) if name in packages else Check(name, "absent", f"pip install {name}")
            for name in _PACKAGES
        ),
        _faiss([name for name in _FAISS if name in packages], packages, torch_works=not fault),
        *(Check(f"extra {extra}", _of_extra(extra, packages)) for extra in _EXTRAS if "layerprobe" in packages),
        *_sizes(packages),
        Check("memory", memory),
        _disk(cache),
        *(
            [Check("PyTorch", f"cannot be imported ({fault})", "pip install --force-reinstall torch torchvision")]
            if fault
            else _of_torch()
        ),
    ]


def _of_extra(extra: str, packages: _Packages) -> str:
    """The versions of an extra's packages, or how to install it; it is optional, so that nothing is wrong without."""
    names = [_normalised(re.split(r"[^\w.-]", word)[0]) for word in shlex.split(install_line(extra))[2:]]
    if all(name in packages for name in names):
        return ", ".join(f"{name} {packages[name].version}" for name in names)
    return f"absent; {install_line(extra)}"


def _installed() -> dict[str, _Package]:
    """Name -> package, of all that is installed here; a package without metadata is none."""
    packages: dict[str, _Package] = {}
    for distribution in metadata.distributions():
        if not (distribution.read_text("METADATA") or distribution.read_text("PKG-INFO")):
            continue
        headers = distribution.metadata
        name, version = ((headers.get_all(key) or [""])[0] for key in ("Name", "Version"))
        required = re.findall(r"(?m)^[\w.-]+", "\n".join(headers.get_all("Requires-Dist") or ()))
        package = _Package(version or "of unknown version", _bytes(distribution), frozenset(map(_normalised, required)))
        packages.setdefault(_normalised(name), package)
    return packages


def _bytes(distribution: metadata.Distribution) -> int:
    """Size of the files that a package installed; those of compiled modules are listed without it."""
    total = 0
    for row in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        with contextlib.suppress(OSError, ValueError):
            path, _, size = row
            total += int(size) if size else Path(str(distribution.locate_file(path))).stat().st_size
    return total


def _normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _import_fault(module: str) -> str:
    """Why a module cannot be imported; empty where it can."""
    try:
        importlib.import_module(module)
    except (ImportError, OSError, RuntimeError) as fault:  # the latter where torchvision is of another torch
        return (str(fault).splitlines() or [type(fault).__name__])[0]
    return ""


def _sizes(packages: _Packages) -> list[Check]:
    """What the packages take on the disk, and which could go."""
    build = next((name for name in _FAISS if name in packages), None)
    alone = [] if build is None else _only_for(build, packages)
    cuda = [name for name in packages if name.startswith(("nvidia-", "cuda-")) and name not in alone]
    groups = {"PyTorch": ["torch"], "its CUDA libraries": cuda, "Triton": ["triton"]}
    groups |= {} if build is None else {build: [build], f"libraries for {build} alone": alone}
    sizes = {group: _size(names, packages) for group, names in groups.items()}
    total = _size(packages, packages)
    sizes["others"] = total - sum(sizes.values())
    text = ", ".join(f"{group} {as_size(size)}" for group, size in sizes.items() if size)
    checks = [Check("packages", f"{as_size(total)}: {text}")]
    if build is not None and alone:
        freed = as_size(_size([build, *alone], packages))
        names = " ".join([build, *alone])
        text = f"{freed} less: pip uninstall -y {names}; only indexes need faiss, and pip install faiss-cpu serves them"
        checks.append(Check("lighter", text))
    return checks


def _size(names: Iterable[str], packages: _Packages) -> int:
    return sum(packages[name].size for name in names if name in packages)


def _only_for(build: str, packages: _Packages) -> list[str]:
    """The installed packages that only one package requires, and those that only these require ..."""
    gone = {build}
    while True:
        required = {name for other, package in packages.items() if other not in gone for name in package.requires}
        dependencies = {name for other in gone for name in packages[other].requires if name in packages}
        unneeded = dependencies - required - gone
        if not unneeded:
            return sorted(gone - {build})
        gone |= unneeded


def _disk(cache: Path) -> Check:
    try:
        require_writable(cache)
    except EnvironmentFault as error:
        return Check("disk", f"{error.file} {error.message}", error.fix)
    return Check("disk", f"{as_size(free_bytes(cache))} free for {cache}")


def _faiss(builds: Sequence[str], packages: _Packages, *, torch_works: bool) -> Check:
    text = ", ".join(f"{name} {packages[name].version}" for name in builds)
    reinstall = f"pip uninstall -y {' '.join(builds)}; then pip install "
    if len(builds) > 1:
        return Check("faiss", f"{text}: all install the folder faiss/ and break each other", reinstall + builds[0])
    if not torch_works:
        return Check("faiss", text or "absent")
    try:
        version = import_faiss().__version__
    except EnvironmentFault as fault:
        if builds:
            return Check("faiss", f"{text}: {fault.message}", f"{reinstall}faiss-cpu")
        return Check("faiss", "absent: everything but indexes works without it; pip install faiss-cpu for indexes")
    return Check("faiss", text or version)


def _of_torch() -> list[Check]:
    """What torch knows of the machine; only where it can be imported."""
    import torch

    return [
        *_devices(),
        Check("threads", f"{torch.get_num_threads()} of {os.cpu_count()} cores"),
        *(_weights(name) for name in IMAGENET_WEIGHTS),
    ]


def _devices() -> list[Check]:
    import torch

    if not torch.cuda.is_available():
        built = f"with CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
        return [Check("GPU", f"torch finds none (it is built {built})")]
    return [
        Check(f"cuda:{i}", f"{p.name}, {as_size(p.total_memory)}")
        for i in range(torch.cuda.device_count())
        for p in [torch.cuda.get_device_properties(i)]
    ]


def _weights(net: str) -> Check:
    from layerprobe.nets.assembly import weights_file

    path = weights_file(net)
    state = "there" if path.exists() else "absent; needed for net.weights = imagenet"
    return Check(f"{net} weights", f"{path}: {state}")
