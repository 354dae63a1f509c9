"""What libraries give: their packages, a model without classifier, and files, cached or fetched.

Without a network, a file that would be fetched is an error at once.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import re
import shlex
import socket
import sys
import urllib.parse
import urllib.request
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, near_miss
from layerprobe.system.files import sha256
from layerprobe.system.memory import memory_faults_told
from layerprobe.system.naming import run_folder_of, user_named
from layerprobe.system.requirements import install_line
from layerprobe.values.network_input import ImageSize, OwnInput

if TYPE_CHECKING:
    from torch import Tensor, nn

NO_OWN_SIZE = 224  # of a model that does not state its input


@dataclass(frozen=True, eq=False)
class Foreign:
    """A model as its library builds it.

    Args:
        module: images (B, C, H, W) -> the model's output without classifier.
        image_size: of the images that it was built for; None for its own.
        final_norms: paths of modules that may be the norm after its last block; the first that is one counts.
        prefix_tokens: how many tokens before the patches it says it has, if it says so.
        classifier: path at which the model had one, whose input its output now is; empty where it had none.
        files: of a user's own code, path from the file's folder -> SHA-256 of all that was imported from there; the
            file itself under the empty path.
        convert: as in `nets.conversion.fit_or_convert`.
    """

    module: nn.Module
    own_input: OwnInput | None = None
    image_size: ImageSize | None = None
    final_norms: tuple[str, ...] = ()
    prefix_tokens: int | None = None
    notes: tuple[str, ...] = ()
    classifier: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None


def import_package(package: str, extra: str) -> ModuleType:
    """A package of one of layerprobe's extras."""
    fix = install_line(extra)
    try:
        with quiet():
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise EnvironmentFault(f"{package} is not installed", fix=fix) from error
        raise EnvironmentFault(f"{package} cannot be imported: {error}", fix=fix) from error
    except (ImportError, RuntimeError) as error:  # transformers wraps what its parts raise
        raise EnvironmentFault(f"{package} cannot be imported: {error}", fix=fix) from error


def version(distribution: str, extra: str) -> dict[str, str]:
    """The installed version of a package, by its name; the package is not imported."""
    try:
        return {distribution: metadata.version(distribution)}
    except metadata.PackageNotFoundError as error:
        raise EnvironmentFault(f"{distribution} is not installed", fix=install_line(extra)) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what libraries log and their warnings; their errors are raised, a lack of memory as such."""
    root, before = logging.getLogger(), logging.root.manager.disable
    # `logging.warning`, which open_clip calls, gives the root logger a handler for good where it has none.
    nothing = logging.NullHandler()
    root.addHandler(nothing)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), memory_faults_told():
            yield
    finally:
        logging.disable(before)
        root.removeHandler(nothing)


def unknown_model(source: str, name: str, model_names: list[str], where: str) -> RecipeError:
    """The error of a model's name that its library does not know, with the near miss."""
    question = near_miss(name, model_names).partition("? ")
    near = f"{question[0]}? " if question[1] else ""
    return RecipeError(f"unknown model {source}{name}", fix=f"{near}{where} lists the names")


OTHER_WEIGHTS = "--weights none or --weights FILE (in a recipe, net.weights)"
_SECONDS = 5  # that a connection may take


def hub_file(model: str, repository: str, names: Iterable[str]) -> Path:
    """A file of a repository."""
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    identity, _, revision = repository.partition("@")
    names = list(names)
    for name in names:
        cached = huggingface_hub.try_to_load_from_cache(identity, name, revision=revision or None)
        if isinstance(cached, str):
            return Path(cached)
    require_named(model, names[0], identity)
    reason = unreachable()
    if not reason:
        for name in names:
            try:
                with quiet():
                    return Path(huggingface_hub.hf_hub_download(identity, name, revision=revision or None))
            except LocalEntryNotFoundError as error:
                reason = first_line(error)
            except EntryNotFoundError as error:
                reason = first_line(error)
                continue  # the repository has not this file; perhaps the next
            except (OSError, ValueError, RuntimeError) as error:  # the hub's and the connection's
                reason = first_line(error)
            break
    raise absent(model, " or ".join(names), identity, reason)


def url_file(model: str, url: str) -> Path:
    """A file from torch's local cache, or fetched into it; the hash in its name, if it has one, is compared."""
    import torch

    path = Path(str(torch.hub.get_dir()), "checkpoints", Path(urllib.parse.urlsplit(url).path).name)
    digest = re.search("-([a-f0-9]{8,})$", path.stem)
    expected = digest[1] if digest else ""
    if not path.exists():
        require_named(model, path.name, url)
        if reason := unreachable(url):
            raise absent(model, path.name, url, reason, path.parent)
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            torch.hub.download_url_to_file(url, str(path), hash_prefix=expected, progress=sys.stderr.isatty())
        except (OSError, RuntimeError) as error:
            raise absent(model, path.name, url, first_line(error), path.parent) from error
    # torch compares the hash only of files that it fetches.
    if not sha256(path).startswith(expected):
        raise DataError("sha256 differs from the one in its name", file=path, fix="Delete it")
    return path


def require_named(model: str, name: str, origin: str) -> None:
    """Refuse to fetch a file of a model that only a run's record names."""
    if not user_named(model):
        problem = f"{model} needs {name}, which would be fetched from {origin}, and you have not named this model"
        raise RecipeError(problem, fix=f"To fetch it, add --model {shlex.quote(model)}")


def require_outside_runs(path: Path) -> None:
    """Refuse a file that lies in a run folder: of these nothing is imported, whoever names it."""
    if (run := run_folder_of(path)) is not None:
        raise RecipeError(
            f"lies in the run folder {run} (by its run.json), of which nothing is imported",
            file=path,
            fix="Read it. If you trust it, copy it to a folder of yours and name the copy by --model",
        )


def absent(model: str, name: str, origin: str, reason: str, cache: Path | None = None) -> EnvironmentFault:
    """The error of a model's file that is not in the local cache and cannot be fetched.

    Args:
        cache: the folder where it is wanted; None for the hub's.
    """
    return EnvironmentFault(
        f"{model} needs {name} of {origin}, which is not in {cache or cache_folder()} and cannot be fetched: {reason}",
        fix=f"Fetch it where there is a network and bring that cache here, or use {OTHER_WEIGHTS}",
    )


def cache_folder() -> Path:
    """Where the hub's files are kept."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE)


def unreachable(url: str = "") -> str:
    """Why a URL's host cannot be reached; empty where it may be.

    Args:
        url: by default of the hub, whose own client would try again for half a minute.
    """
    if not url:
        from huggingface_hub import constants

        url = constants.ENDPOINT
        if constants.HF_HUB_OFFLINE:
            return "HF_HUB_OFFLINE is set"
    if urllib.request.getproxies():
        return ""  # it is the proxy that connects
    address = urllib.parse.urlsplit(url)
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        with contextlib.closing(socket.create_connection((address.hostname, port), timeout=_SECONDS)):
            return ""
    except OSError as error:
        return f"no connection to {address.hostname} ({error.strerror or error})"


def first_line(error: Exception) -> str:
    """What an error says first."""
    return str(error).strip().partition("\n")[0].rstrip(".") or type(error).__name__
