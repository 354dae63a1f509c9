"""Where the weights of one network lie: in a file, in shards, or in a folder that a library's trainer wrote."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path

from layerprobe.nets.file_formats import of_zero
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, sha256

ADAPTER_CONFIG = "adapter_config.json"  # of PEFT
_ADAPTER_FILES = ("adapter_model.safetensors", "adapter_model.bin")
METADATA = ".metadata"  # of torch.distributed.checkpoint
_SHARDED = "pytorch_model_fsdp_0"  # its folder in accelerate's
_INDEX = ".index.json"
# In the order in which transformers and timm look for them.
_MODEL_FILES = (
    "model.safetensors", f"model.safetensors{_INDEX}", "pytorch_model.bin", f"pytorch_model.bin{_INDEX}",
    "open_clip_model.safetensors", "open_clip_pytorch_model.bin", "mp_rank_00_model_states.pt",
)  # fmt: skip
_NO_WEIGHTS = "a folder without model.safetensors, pytorch_model.bin, an index of shards, .metadata or checkpoint-*/"
_SHARD = re.compile(r"(.+)-(\d+)-of-(\d+)(\.safetensors|\.bin)")


def parts_of(path: Path) -> tuple[Path, ...]:
    """The files that hold the weights of a path; the path alone where it is a file of no known layout, or absent.

    A shard, its index or its folder stands for all shards; a file of `torch.distributed.checkpoint` or of PEFT for its
    folder, whose `.metadata` or `adapter_config.json` comes first; DeepSpeed's `latest` for the folder that it names.

    Raises:
        DataError: a shard that is not there, an index that names none, a folder without weights, or one of ZeRO-3.
    """
    if path.is_dir():
        parts = _parts_of_folder(path)
        if not parts:
            raise DataError(_NO_WEIGHTS, file=path, fix="Name the files in it, such as 'FOLDER/*.pth'")
        return parts
    if path.name.endswith(_INDEX):
        return _shards_of_index(path)
    if path.name == METADATA or (path.suffix == ".distcp" and path.with_name(METADATA).is_file()):
        return _parts_of_folder(path.parent) or (path,)
    if path.name in (*_ADAPTER_FILES, ADAPTER_CONFIG) and path.with_name(ADAPTER_CONFIG).is_file():
        return _parts_of_folder(path.parent)
    if path.name == "latest" and (tagged := _tag_folder(path.parent)):
        return _parts_of_folder(tagged) or (path,)
    shard = _SHARD.fullmatch(path.name)
    return (path,) if shard is None else _shards(path, shard)


def holds_weights(path: Path) -> bool:
    """Whether a path is a file, or a folder whose weights lie in files of known names."""
    return path.is_file() or (path.is_dir() and bool(_parts_of_folder(path)))


def size_of_weights(path: Path) -> int:
    """Bytes of the files that hold the weights of a path."""
    return sum(file.stat().st_size for file in parts_of(path))


def sha256_of_weights(path: Path) -> str:
    """The SHA-256 of the file that holds the weights of a path; of several, that of a list of names and SHA-256s."""
    parts = parts_of(path)
    if len(parts) == 1:
        return sha256(parts[0])
    listed = "".join(f"{file.name} {sha256(file)}\n" for file in parts)
    return hashlib.sha256(listed.encode()).hexdigest()


def checkpoint_folders(folder: Path) -> list[Path]:
    """The folders `checkpoint-STEP` of transformers' Trainer, in no order."""
    return [path for path in folder.glob("checkpoint-*") if path.is_dir() and holds_weights(path)]


def _parts_of_folder(folder: Path) -> tuple[Path, ...]:
    if (folder / METADATA).is_file():
        return (folder / METADATA, *sorted(folder.glob("*.distcp")))
    if (folder / ADAPTER_CONFIG).is_file() and (adapter := _existing_file(folder, _ADAPTER_FILES)):
        return (folder / ADAPTER_CONFIG, adapter)
    if weights := _existing_file(folder, _MODEL_FILES):
        return parts_of(weights)
    if shards := sorted(path for path in folder.glob("*model-*-of-*") if _SHARD.fullmatch(path.name)):
        return parts_of(shards[0])  # without an index
    if (folder / _SHARDED / METADATA).is_file():
        return _parts_of_folder(folder / _SHARDED)
    if tagged := _tag_folder(folder):
        return _parts_of_folder(tagged)
    if any(folder.glob("*zero*_model_states.pt")):
        raise of_zero(folder)
    return ()


def _existing_file(folder: Path, names: Sequence[str]) -> Path | None:
    return next((folder / name for name in names if (folder / name).is_file()), None)


def _tag_folder(folder: Path) -> Path | None:
    """The folder of DeepSpeed's last checkpoint, which its file `latest` names."""
    latest = folder / "latest"
    if not latest.is_file() or latest.stat().st_size > 255:  # no longer name of a folder
        return None
    tag = folder / latest.read_text(encoding="utf-8", errors="replace").strip()
    return tag if tag.parent == folder and tag.name != ".." and tag.is_dir() else None


def _shards_of_index(index: Path) -> tuple[Path, ...]:
    try:
        require_file(index)
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise DataError("no index of shards", file=index, fix="Give the folder of the shards") from error
    if not names or not all(isinstance(name, str) and Path(name).name == name not in ("", "..") for name in names):
        raise DataError("its weight_map names no files beside it", file=index, fix="Give the shards themselves")
    return _present([index.with_name(name) for name in sorted(names)])


def _shards(path: Path, shard: re.Match[str]) -> tuple[Path, ...]:
    stem, number, count, suffix = shard.groups()
    if not 0 < int(number) <= int(count):
        return (path,)
    names = [f"{stem}-{str(index).zfill(len(number))}-of-{count}{suffix}" for index in range(1, int(count) + 1)]
    return _present([path.with_name(name) for name in names])


def _present(shards: Sequence[Path]) -> tuple[Path, ...]:
    for shard in shards:
        if not shard.is_file():
            problem = f"not there, and it is one of {len(shards):,} shards of these weights"
            raise DataError(problem, file=shard, fix="Put all shards into one folder")
    return tuple(shards)
