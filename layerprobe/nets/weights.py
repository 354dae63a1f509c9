"""Pretrained weights: torchvision's, or a file's; read without running code in them."""

from __future__ import annotations

import pickle
import re
import struct
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from layerprobe.errors import DataError, EnvironmentFault, NumericError
from layerprobe.files import require_file, sha256
from layerprobe.registry import IMAGENET_WEIGHTS, load

_ALTERNATIVES = "--set net.weights=none, or --set net.weights=PATH"
# Prefixes that wrappers put before every name: several devices, torch.compile.
_WRAPPERS = ("module.", "_orig_mod.")
# Exceptions that torch.load may raise on bytes that are no checkpoint.
_UNREADABLE = (
    pickle.UnpicklingError, RuntimeError, EOFError, ValueError, LookupError, TypeError, AttributeError, AssertionError,
    OverflowError, struct.error, zipfile.BadZipFile,
)  # fmt: skip
# Keys under which training scripts keep the weights beside the optimiser's state.
_NESTED = ("state_dict", "model")


def weights_file(name: str) -> Path:
    """Where torchvision's ImageNet weights of a network lie, or would: below TORCH_HOME.

    Raises:
        UnknownNameError: there are none for this network.
    """
    return Path(str(torch.hub.get_dir()), "checkpoints", Path(_url(name)).name)


def _url(name: str) -> str:
    # By version: torchvision's DEFAULT changes with its releases.
    published = load("network with ImageNet weights", IMAGENET_WEIGHTS, name).IMAGENET1K_V1
    return str(published.url)


def imagenet_weights(name: str) -> dict[str, Tensor]:
    """ImageNet weights of torchvision, version IMAGENET1K_V1, from TORCH_HOME; fetched where absent.

    Args:
        name: of a network in `registry.IMAGENET_WEIGHTS`.

    Returns:
        torchvision's names -> tensors.

    Raises:
        EnvironmentFault: the file is absent and cannot be fetched.
        DataError: its sha256 is not the one in its name.
    """
    path = weights_file(name)
    digest = path.stem.rpartition("-")[2]
    if not path.exists():
        _fetch(_url(name), path, digest)
    # torchvision compares the hash only on download, and would take any file that lies there.
    if not sha256(path).startswith(digest):
        raise DataError("sha256 differs from the one in its name", file=path, fix="Delete it")
    return file_weights(path).tensors


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


@dataclass(frozen=True, eq=False)
class FileWeights:
    """A network's weights as a file holds them.

    Args:
        tensors: names -> tensors on the CPU.
        notes: which prefixes were taken off their names.
    """

    tensors: dict[str, Tensor]
    notes: tuple[str, ...]


def file_weights(path: Path) -> FileWeights:
    """A network's weights from a safetensors file or a torch file; code in it is never run.

    `module.`, `_orig_mod.` and a layerprobe checkpoint's `net.` are taken off the names; its `loss.` stays out.

    Raises:
        DataError: absent, empty, truncated, no weights file, or one that holds code.
        NumericError: a tensor is not finite.
    """
    _require_weights_file(path)
    tensors = _read_safetensors(path) if path.suffix == ".safetensors" else _read_torch(path)
    notes = tuple(
        f"{path.name}: {prefix!r} is taken off the names of {count:,} tensors"
        for prefix, count in Counter(name.removesuffix(_bare(name)) for name in tensors).items()
        if prefix
    )
    tensors = {_bare(name): tensor for name, tensor in tensors.items()}
    if any(name.startswith("net.") for name in tensors):
        tensors = {name.removeprefix("net."): value for name, value in tensors.items() if name.startswith("net.")}
    for name, tensor in tensors.items():
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            raise DataError(
                f"the file holds fewer numbers than {name} has by its shape", file=path, fix="Download it again"
            )
        if not tensor.isfinite().all():
            kind = "NaN" if tensor.isnan().any() else "infinite"
            raise NumericError(f"{name} has {kind} values", file=path, fix="Use weights from an earlier epoch")
    return FileWeights(tensors, notes)


def _bare(name: str) -> str:
    while name.startswith(_WRAPPERS):
        name = name.partition(".")[2]
    return name


def _require_weights_file(path: Path) -> None:
    """Refuse an empty file, and name what is often saved in the place of weights."""
    try:
        require_file(path)
        with path.open("rb") as stream:
            start = stream.read(512).lstrip().lower()
    except OSError as error:
        raise DataError(f"no readable weights file: {error.strerror}", file=path, fix=f"Use {_ALTERNATIVES}") from error
    found = ""
    if path.stat().st_size == 0:
        found = "the file is empty"
    elif start.startswith((b"<!doctype", b"<html")):
        found = "this is an HTML page, not weights"
    elif start.startswith(b"version https://git-lfs"):
        found = "this is a git-lfs pointer, not weights"
    if found:
        raise DataError(found, file=path, fix="Download it again")


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return dict(safetensors.torch.load_file(path))
    except safetensors.SafetensorError as error:
        raise DataError(f"truncated, or no safetensors file ({error})", file=path, fix="Download it again") from error


def _read_torch(path: Path) -> dict[str, Tensor]:
    try:
        _require_uncompressed(path)
        with warnings.catch_warnings(action="ignore"):  # on the pickle's version, before it is refused
            content = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        # torch's own message recommends switching the protection off.
        code = re.search(r"GLOBAL ([\w.]+)", str(error))
        if code is None:
            raise DataError("truncated, or no weights file", file=path, fix="Download it again") from error
        what = f"holds Python code ({code[1]}); layerprobe does not run it"
        raise DataError(what, file=path, fix="Ask for a safetensors file") from error
    if isinstance(content, Mapping):
        content = next((content[key] for key in _NESTED if isinstance(content.get(key), Mapping)), content)
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise DataError("does not hold tensors by their names", file=path, fix="Save the network's state_dict() alone")
    return dict(content)


def _require_uncompressed(path: Path) -> None:
    """A small compressed file could unfold to any size."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if any(part.compress_type != zipfile.ZIP_STORED for part in archive.infolist()):
                raise DataError("compressed, which torch.save never does", file=path, fix="Save the weights again")
