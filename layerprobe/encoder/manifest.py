"""export.json: what an export is, and the size and hash of each of its files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from layerprobe.encoder.example import GRAPH, MAP, ONNX
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, sha256
from layerprobe.system.wording import encoded

EXPORT = "export.json"
SCHEMA = 2
AGAIN = "Get the folder again, or export it again with --force"
_Size = Annotated[int, Field(ge=1, le=2**24)]
_Side = Annotated[int, Field(ge=1, le=2**13)]  # 200 MB of pixels at most


class _File(BaseModel, strict=True):
    bytes: Annotated[int, Field(ge=0)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _ImageInput(BaseModel, strict=True):
    """The images that the encoder takes; how a file becomes one is read by example.py alone."""

    size: tuple[_Side, _Side]
    channels: Literal[1, 3]


class _Map(BaseModel, strict=True):
    dim: _Size
    steps: list[Literal["l2", "l2 of parts", "projection", "layernorm", "relu", "first", "binary", "float16", "int8"]]


class _Manifest(BaseModel):
    """What `load_encoder` reads of export.json."""

    model_config = ConfigDict(strict=True, extra="allow")
    name: str
    dim: _Size
    input: _ImageInput | None
    map: _Map | None
    files: dict[str, _File]


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
        DataError: there is no export, another version wrote it, a key is missing or has another type, or a file is
            missing, changed or outside the folder.
    """
    path = folder / EXPORT
    values = _read(path)
    files = values["files"]
    if not {MAP, GRAPH, ONNX} & files.keys() or any(name != Path(name).name for name in files):
        raise DataError("names no file of an encoder, or one outside its folder", file=path, fix=AGAIN)
    for key, needed in (("map", [MAP]), ("input", [GRAPH, ONNX])):
        if values[key] is None and set(needed) & files.keys():
            problem = f"{key} is null, expected what {' or '.join(sorted(set(needed) & files.keys()))} takes"
            raise DataError(problem, file=path, fix=AGAIN)
    for name, facts in files.items():
        file = folder / name
        if not file.is_file():
            raise DataError("is missing", file=file, fix=AGAIN)
        if sha256(file) != facts["sha256"]:
            raise DataError("has changed since it was exported", file=file, fix=AGAIN)
    return values


def is_export(folder: Path) -> bool:
    """Whether a folder holds an export and nothing else but what Python keeps of its example.py."""
    try:
        expected = {EXPORT, "__pycache__", *_read(folder / EXPORT)["files"]}
    except DataError:
        return False
    return {path.name for path in folder.iterdir()} <= expected


def _read(path: Path) -> Mapping[str, Any]:
    """export.json, after its own hash and the types of its values are checked."""
    try:
        require_file(path)
        text = path.read_bytes().decode("utf-8")
        values = json.loads(text)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise DataError("there is no export", file=path, fix="Name a folder that layerprobe export wrote") from error
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    except (ValueError, RecursionError) as error:
        raise DataError("has changed since it was exported", file=path, fix=AGAIN) from error
    digest = values.get("sha256") if isinstance(values, dict) else None
    if (
        not digest
        or not isinstance(digest, str)
        or _digest(text.replace(f'"sha256": "{digest}"', '"sha256": ""')) != digest
    ):
        raise DataError("has changed since it was exported", file=path, fix=AGAIN)
    if values.get("schema") != SCHEMA:
        raise DataError("another version of layerprobe wrote it", file=path, fix="Export it again by this one")
    try:
        _Manifest.model_validate_json(text)
    except ValidationError as error:
        first_error = error.errors()[0]
        key = ".".join(map(str, first_error["loc"]))
        raise DataError(
            f"{key}: {first_error['msg'][:1].lower()}{first_error['msg'][1:]}", file=path, fix=AGAIN
        ) from error
    return dict(values)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
