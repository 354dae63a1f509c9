"""export.json: what an export is, and the size and hash of each of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from layerprobe.encoder.example import GRAPH, MAP, ONNX
from layerprobe.system.encoding import encoded
from layerprobe.system.errors import DataError
from layerprobe.system.files import sha256

EXPORT = "export.json"
SCHEMA = 1
_AGAIN = "Get the folder again, or export it again with --force"


def write_manifest(folder: Path, facts: Mapping[str, Any], names: Sequence[str]) -> Mapping[str, Any]:
    """Write export.json, whose own hash is that of its text with an empty hash, and return its content."""
    files = {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}
    values = {"schema": SCHEMA, **encoded(facts), "files": files, "sha256": ""}
    text = json.dumps(values, indent=1) + "\n"
    values["sha256"] = _digest(text)
    (folder / EXPORT).write_text(text.replace('"sha256": ""', f'"sha256": "{values["sha256"]}"'), encoding="utf-8")
    return values


def read_manifest(folder: Path) -> Mapping[str, Any]:
    """export.json, after the hash of every file is checked.

    Raises:
        DataError: there is no export, a later version wrote it, or a file is missing, changed or outside the folder.
    """
    path = folder / EXPORT
    values = _read(path)
    if values["schema"] > SCHEMA:
        raise DataError("a later version of layerprobe wrote it", file=path, fix="Update layerprobe")
    files = values["files"]
    if not {MAP, GRAPH, ONNX} & files.keys() or any(name != Path(name).name for name in files):
        raise DataError("names no file of an encoder, or one outside its folder", file=path, fix=_AGAIN)
    for name, facts in files.items():
        file = folder / name
        if not file.is_file():
            raise DataError("is missing", file=file, fix=_AGAIN)
        if sha256(file) != facts["sha256"]:
            raise DataError("has changed since it was exported", file=file, fix=_AGAIN)
    return values


def is_export(folder: Path) -> bool:
    """Whether a folder holds an export and nothing else but what Python keeps of its example.py."""
    try:
        known = {EXPORT, "__pycache__", *_read(folder / EXPORT)["files"]}
    except DataError:
        return False
    return {path.name for path in folder.iterdir()} <= known


def _read(path: Path) -> Mapping[str, Any]:
    """export.json, after its own hash is checked."""
    try:
        text = path.read_bytes().decode("utf-8")
        values = json.loads(text)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError("there is no export", file=path, fix="Name a folder that layerprobe export wrote") from error
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    except ValueError as error:
        raise DataError("has changed since it was exported", file=path, fix=_AGAIN) from error
    own = values.get("sha256") if isinstance(values, dict) else None
    if not own or not isinstance(own, str) or _digest(text.replace(f'"sha256": "{own}"', '"sha256": ""')) != own:
        raise DataError("has changed since it was exported", file=path, fix=_AGAIN)
    return dict(values)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
