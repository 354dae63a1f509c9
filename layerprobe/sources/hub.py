"""Files of models: from the local caches of Hugging Face's hub and of torch, or fetched.

Without a network the error comes at once.
"""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from layerprobe.sources.libraries import quiet
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError
from layerprobe.system.files import sha256
from layerprobe.system.naming import user_named

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
