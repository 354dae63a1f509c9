"""The external models and data sets that the user has named: no other file is imported, nothing else is fetched.

A model in the run.json of a received run is not named by the user. Names hold for this process and its children, by an
environment variable; Python files are also stored in the user's state folder, with the hashes of their modules.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from layerprobe.system.errors import RecipeError

PYTHON = "python:"
HF_DATASET = "hf-dataset"
_ON_THE_HUB = re.compile(r"[\w.-]+(/[\w.-]+){1,2}")
_VARIABLE = "LAYERPROBE_NAMED_MODELS"


@dataclass(frozen=True)
class NamedFile:
    """A Python file or Hugging Face folder that the user named.

    Args:
        function: builds the model; empty for a folder.
        modules: resolved path -> SHA-256 of the file and of each module that it imports from its folder tree; of a
            folder, of its settings.
    """

    file: str
    function: str
    modules: Mapping[str, str]


def name_model(model: str) -> None:
    """Record that the user named a model, such as `timm:resnet50`, for this process and its children."""
    name, model_names = _resolved(model), _read_model_names()
    if name not in model_names:
        os.environ[_VARIABLE] = json.dumps([*model_names, name])


def user_named(model: str) -> bool:
    """Whether the user named a model in this process or a parent."""
    return _resolved(model) in _read_model_names()


def is_on_the_hub(root: object) -> bool:
    """Whether the root of a data set is `ORG/NAME` or `ORG/NAME/CONFIG` of the Hub, and no folder."""
    return isinstance(root, str) and bool(_ON_THE_HUB.fullmatch(root)) and not Path(root).exists()


def require_device_name(name: str) -> None:
    """Check that a text is auto, cpu, cuda, cuda:i or mps; whether there is such a device is not looked at."""
    if not re.fullmatch("auto|mps|(cpu|cuda)(:[0-9]*)?", name):
        raise RecipeError(f"unknown device {name!r}", fix="Known: auto, cpu, cuda, cuda:0, mps")


def device_names(text: str) -> tuple[str, ...]:
    """The devices of a list with commas; whether there are such devices is not looked at."""
    names = tuple(text.split(","))
    for name in names:
        require_device_name(name)
    return names


def split_python(name: str) -> tuple[Path, str]:
    """File and function of `FILE.py:FUNCTION`; the file need not exist."""
    file, _, function = name.rpartition(":")
    return _expanded(file), function


def _expanded(path: str) -> Path:
    with contextlib.suppress(RuntimeError):  # ~ of a user without a home
        return Path(path).expanduser()
    return Path(path)


def _resolved(model: str) -> str:
    """The model, with its file or folder resolved."""
    if model.startswith(PYTHON):
        path, function = split_python(model.removeprefix(PYTHON))
        return f"{PYTHON}{os.path.realpath(path)}:{function}"
    source, colon, name = model.partition(":")
    folder = _expanded(name)
    return f"{source}{colon}{os.path.realpath(folder)}" if source == "hf" and folder.is_dir() else model


def _read_model_names() -> list[str]:
    names: list[str] = json.loads(os.environ.get(_VARIABLE, "[]"))  # written by `name_model` alone
    return names


def run_folder_of(path: Path) -> Path | None:
    """The run folder that a file lies in; None outside of runs."""
    return next((folder for folder in Path(os.path.realpath(path)).parents if (folder / "run.json").exists()), None)


def named_before(path: Path, function: str) -> list[NamedFile]:
    """The entries of a file and function in the user's list, latest first; none if it is missing or not private."""
    with _opened(os.O_RDONLY) as stream:
        entries = [] if stream is None else list(_entries(stream))
    return [entry for entry in reversed(entries) if (entry.file, entry.function) == (str(path), function)]


def keep_named(entry: NamedFile) -> None:
    """Append a file to the user's list, if it is writable."""
    import fcntl

    with contextlib.suppress(OSError), _opened(os.O_RDWR | os.O_APPEND | os.O_CREAT) as stream:
        if stream is None:
            return
        fcntl.flock(stream, fcntl.LOCK_EX)
        if entry in _entries(stream):
            return
        # The leading line feed ends a line that a kill cut short.
        os.write(stream, f"\n{json.dumps(asdict(entry))}\n".encode())


def list_fault() -> str:
    """Why the user's list cannot be used; empty if it can."""
    path = _list_file()
    if path is None:
        return "there is no home folder to keep a list in"
    descriptor = _open(path, os.O_RDWR | os.O_CREAT)
    if descriptor is None:
        return f"{path} cannot be written to"
    try:
        return "" if _is_private(descriptor) else f"{path} is not yours alone: chmod 600 it, or delete it"
    finally:
        os.close(descriptor)


def _list_file() -> Path | None:
    folder = Path(os.environ.get("XDG_STATE_HOME", ""))
    if not folder.is_absolute():
        try:
            folder = Path.home() / ".local" / "state"
        except RuntimeError:  # no home
            return None
    return folder / "layerprobe" / "python-files.jsonl"


@contextlib.contextmanager
def _opened(flags: int) -> Iterator[int | None]:
    """The open user's list; None if it is missing or writable by others."""
    path = _list_file()
    descriptor = None if path is None else _open(path, flags)
    try:
        yield descriptor if descriptor is not None and _is_private(descriptor) else None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(path: Path, flags: int) -> int | None:
    with contextlib.suppress(OSError):
        if flags & os.O_CREAT:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600)
    return None


def _is_private(descriptor: int) -> bool:
    status = os.fstat(descriptor)
    return stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _entries(descriptor: int) -> Iterator[NamedFile]:
    with open(descriptor, "rb", closefd=False) as stream:
        stream.seek(0)
        lines = stream.read().splitlines()
    for line in lines:
        with contextlib.suppress(ValueError, TypeError):  # a line that a kill cut short
            entry = NamedFile(**json.loads(line))
            if isinstance(entry.modules, dict):
                yield entry
