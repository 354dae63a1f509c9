"""Which files hold a network's weights: by text, folder, shards and what a file is."""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, sha256

AGAIN = "Download it again"
GIVE_WEIGHTS = "Give a file of torch.save or of safetensors"
# torch.load with weights_only=False runs the code of a file, so it is the user who calls it, where the code is theirs.
STATE_OF_OBJECT = (
    "Where its code can be imported: torch.save(torch.load(FILE, weights_only=False).state_dict(), OUT), and name OUT"
)
# Modules of the classes in which FSDP keeps the piece of a tensor that one process has.
PIECES = ("torch.distributed.tensor", "torch.distributed._tensor", "torch.distributed._shard")
_ALTERNATIVES = "--set net.weights=none, or --set net.weights=PATH"
_UNPACK = "Unpack it and name the file inside"
_TORCH = "Use the model's weights for PyTorch"
_SAVE = "torch.save({}.state_dict(), OUT)"
# First bytes -> what the file is, and what to do.
_STARTS = {
    b"version https://git-lfs": ("this is a git-lfs pointer, not weights", "Fetch the file: git lfs pull"),
    b"\x89HDF": ("an HDF5 file, as Keras saves weights", _TORCH),
    b"\x93NUMPY": ("an array of NumPy (.npy)", "Save the network's state_dict() by torch.save"),
    b"GGUF": (
        "a GGUF file",
        "Convert it by transformers: AutoModel.from_pretrained(FOLDER, gguf_file=FILE).save_pretrained(OUT)",
    ),
    b"\x1f\x8b": ("compressed by gzip", _UNPACK),
    b"BZh": ("compressed by bzip2", _UNPACK),
    b"\xfd7zXZ": ("compressed by xz", _UNPACK),
    b"\x28\xb5\x2f\xfd": ("compressed by zstd", _UNPACK),
    b"7z\xbc\xaf": ("a 7z archive", _UNPACK),
}
# Endings of names, of formats that no first byte tells.
_ENDINGS = {
    r"\.onnx": ("an ONNX graph", _TORCH),
    r"\.msgpack": ("weights of Flax (.msgpack)", _TORCH),
    r"\.ckpt\.(index|meta|data-\d+-of-\d+)": ("a part of TensorFlow's checkpoint", _TORCH),
    r"\.distcp": (
        "a part of a folder of torch.distributed.checkpoint, whose .metadata is not beside it",
        "Copy the whole folder",
    ),
}
# DeepSpeed's, one for each process.
_ZERO = r".*zero.*_model_states\.pt|.*_optim_states\.pt"
# Entries of a zip archive, likewise; torch.save's has data.pkl and no constants.pkl.
_ENTRIES = {
    r".*\.npy": (
        "arrays of NumPy (.npz), not torch's tensors",
        f"timm reads those of its models: model.load_pretrained(FILE), then {_SAVE.format('model')}",
    ),
    r"[^/]*/constants\.pkl": (
        "holds a TorchScript program",
        f"Convert it by torch: {_SAVE.format('torch.jit.load(FILE)')}",
    ),
    r"([^/]*/archive_format|serialized_exported_program\.json)": (
        "holds a program of torch.export (.pt2)",
        "Convert it by torch: torch.save(dict(torch.export.load(FILE).state_dict), OUT)",
    ),
}


def require_weights_format(path: Path) -> None:
    """Refuse an empty file and, by what it is, a file whose weights have no names for torch."""
    try:
        require_file(path)
        with path.open("rb") as stream:
            start = stream.read(512)
    except OSError as error:
        raise DataError(f"no readable weights file: {error.strerror}", file=path, fix=f"Use {_ALTERNATIVES}") from error
    if not start:
        raise DataError("the file is empty", file=path, fix=AGAIN)
    if start.lstrip().lower().startswith((b"<!doctype", b"<html")):
        raise DataError("this is an HTML page, not weights", file=path, fix=AGAIN)
    other = next((refusal for magic, refusal in _STARTS.items() if start.startswith(magic)), None)
    other = other or next((refusal for name, refusal in _ENDINGS.items() if re.search(f"{name}$", path.name)), None)
    if other is None and start.startswith(b"PK\x03\x04"):
        other = _zip(path)
    if other is None and path.suffix == ".safetensors" and start[:1] in (b"P", b"\x80") and start[8:9] != b"{":
        other = ("a file of torch.save, not of safetensors", "Change its name to end in .pt")
    elif start[257:262] == b"ustar":
        other = ("a tar archive", _UNPACK)
    elif start.lstrip()[:1] in (b"{", b"["):
        with contextlib.suppress(ValueError, RecursionError):
            json.loads(path.read_bytes()[: 2**24])
            other = ("this is JSON, not weights", "Name the weights themselves")
    if other is not None:
        raise DataError(other[0], file=path, fix=other[1])
    if re.fullmatch(_ZERO, path.name):
        raise of_zero(path)


def is_safetensors(path: Path) -> bool:
    """Whether a file begins as safetensors do, with a length and the start of a JSON object, or is named as one."""
    with path.open("rb") as stream:
        start = stream.read(9)
    length = int.from_bytes(start[:8], "little")
    return path.suffix == ".safetensors" or (start[8:] == b"{" and length < path.stat().st_size)


def of_adapter(detail: str, path: Path | None) -> DataError:
    """The error of an adapter that is not merged here."""
    folder = path.parent if path and path.is_file() else path or "FOLDER"
    fix = (
        f"Merge it by PEFT: PeftModel.from_pretrained(MODEL, '{folder}').merge_and_unload().save_pretrained('OUT'), "
        "then --weights OUT"
    )
    return DataError(f"an adapter of PEFT {detail}", file=path, fix=fix)


def of_fsdp(detail: str, path: Path) -> DataError:
    """The error of the part of FSDP's weights that one process has."""
    fix = (
        "Save the whole state by torch.distributed.checkpoint.state_dict: get_model_state_dict(model, "
        "options=StateDictOptions(full_state_dict=True))"
    )
    return DataError(f"the part of FSDP's weights that one process has: {detail}", file=path, fix=fix)


def of_zero(path: Path) -> DataError:
    """The error of DeepSpeed's ZeRO, whose processes each wrote a piece of every tensor."""
    folder = path if path.is_dir() else path.parent
    folder = folder if (folder / "latest").is_file() else folder.parent
    problem = "DeepSpeed's ZeRO, of which each process wrote a piece of every tensor"
    fix = f"Convert it by DeepSpeed: python {folder}/zero_to_fp32.py {folder} OUT, then --weights OUT"
    return DataError(problem, file=path, fix=fix)


def _zip(path: Path) -> tuple[str, str] | None:
    """What a zip archive is that torch.save did not write; None for torch.save's, and for one that is damaged."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile:
        return None
    for pattern, refusal in _ENTRIES.items():
        if any(re.fullmatch(pattern, name) for name in names):
            return refusal
    return None if any(name.endswith("data.pkl") for name in names) else ("a zip archive", _UNPACK)


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
    if shard is None or not 0 < int(shard[2]) <= int(shard[3]):
        return (path,)
    stem, number, count, suffix = shard.groups()
    names = [f"{stem}-{str(index).zfill(len(number))}-of-{count}{suffix}" for index in range(1, int(count) + 1)]
    return _present([path.with_name(name) for name in names])


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


def _present(shards: Sequence[Path]) -> tuple[Path, ...]:
    for shard in shards:
        if not shard.is_file():
            problem = f"not there, and it is one of {len(shards):,} shards of these weights"
            raise DataError(problem, file=shard, fix="Put all shards into one folder")
    return tuple(shards)


# `epoch_05`, `epoch=12`, `ep7`; a number of more digits counts something else, such as seconds.
_EPOCH = re.compile(r"(?<![a-z])ep(?:och)?[^a-z0-9]{0,2}([0-9]{1,9})(?![0-9])", re.IGNORECASE)
_NUMBER = re.compile(r"[0-9]+")
_VERSION = re.compile(r"-v[0-9]+$")  # of a file that Lightning would have overwritten
_DIGITS = 9


def split_part(text: str) -> tuple[Path, str | None]:
    """`FILE#PART` -> the file and the part; a file or folder of the whole name is taken literally."""
    file, mark, part_name = text.rpartition("#")
    if not mark or Path(text).exists():
        return Path(text), None
    return Path(file), part_name


def natural_order(paths: Iterable[Path]) -> list[Path]:
    """Sort by name with numbers by their size: epoch2 before epoch10; of equal numbers the shorter text first."""

    def pieces(text: str) -> list[tuple[int, str]]:
        """Text and numbers by turns, so that a number is only compared with a number."""
        texts = re.split(r"([0-9]+)", text)
        return [(int(piece), "") if index % 2 else (0, piece) for index, piece in enumerate(texts)]

    return sorted(paths, key=lambda path: (pieces(str(path)), len(str(path)), str(path)))


def expand(pattern: str) -> list[tuple[Path, str | None]]:
    """`ckpt/*.pt` or `ckpt/*.pt#teacher` -> the files in natural order, each with the part.

    A file or folder that exists under the name is taken literally, whatever characters it has. Without `*`, `?` and `[`
    the result is that one, also where it does not exist; a folder of `checkpoint-*/` stands for these. Of the shards of
    one model, the first stands for all.
    """
    path, part_name = split_part(pattern)
    if path.is_dir():
        folders = [] if holds_weights(path) else natural_order(checkpoint_folders(path))
        return [(folder, part_name) for folder in folders or [path]]
    if path.is_file() or not glob.has_magic(str(path)):
        return [(path, part_name)]
    matches = list(map(Path, glob.glob(str(path), recursive=True)))  # noqa: PTH207 - Path.glob takes no absolute pattern
    files = [match for match in matches if match.is_file()] or list(filter(holds_weights, matches))
    if not files:
        fix = "Name at least one weights file"
        if "[" in str(path):
            fix += f"; in a pattern [ begins a set of characters: write {str(path).replace('[', '[[]')} for itself"
        raise DataError("no file has such a name", file=path, fix=fix)
    networks: dict[tuple[Path, ...], Path] = {}
    for match in natural_order(files):
        networks.setdefault(parts_of(match), match)
    return [(match, part_name) for match in networks.values()]


def expand_epochs(pattern: str) -> dict[int, tuple[Path, str | None]]:
    """Epoch -> file and part, in the order of `expand`.

    The epoch of a file that a pattern matches is the number in its name. Beside files that have one, such as
    `epoch=9.ckpt`, those without, such as `last.ckpt`, and later versions of an epoch, `epoch=9-v1.ckpt`, are left out.
    Where the numbers are not clear, the epoch is the file's place.
    """
    files = expand(pattern)
    if files == [split_part(pattern)]:
        return {0: files[0]}
    epochs = _epoch_numbers([path for path, _ in files])
    return {epoch: file for epoch, file in zip(epochs, files, strict=True) if epoch is not None}


def renumber_epoch(file: Path, epoch: int, other: int) -> str:
    """The name of a file of an epoch with the number of another: `epoch=9.ckpt` -> `epoch=10.ckpt`."""
    return re.sub(rf"(?<![0-9])0*{epoch}(?![0-9])", str(other), file.name, count=1)


def _epoch_numbers(paths: Sequence[Path]) -> Sequence[int | None]:
    """The number after `epoch` in each name, else the only number in which the paths differ, else their places."""
    for epochs in (_after_epoch(paths), _differing_numbers(paths)):
        numbered = [epoch for epoch in epochs if epoch is not None]
        if numbered and len(set(numbered)) == len(numbered):
            return epochs
    return range(len(paths))


def _after_epoch(paths: Sequence[Path]) -> list[int | None]:
    """The number after `epoch` in each name; None where there is none, and for later versions of a file of the same."""
    numbers = [_epoch(_EPOCH.findall(path.stem)) for path in paths]
    plain = {number for number, path in zip(numbers, paths, strict=True) if not _VERSION.search(path.stem)}
    return [
        None if number in plain and _VERSION.search(path.stem) else number
        for number, path in zip(numbers, paths, strict=True)
    ]


def _differing_numbers(paths: Sequence[Path]) -> list[int | None]:
    """The only number in which most paths differ; None for paths of another form. Of a single path its only number."""
    if len(paths) == 1:
        return [_epoch(_NUMBER.findall(paths[0].stem))]
    forms = [_NUMBER.sub("0", str(path.with_suffix(""))) for path in paths]
    form, count = Counter(forms).most_common(1)[0]
    numbers = [_NUMBER.findall(str(path.with_suffix(""))) for path in paths]
    rows = [row for row, path_form in zip(numbers, forms, strict=True) if path_form == form]
    columns = [column_index for column_index, column in enumerate(zip(*rows, strict=True)) if len(set(column)) > 1]
    if len(columns) != 1 or 2 * count < len(paths):
        return [None] * len(paths)
    return [
        _epoch([row[columns[0]]]) if path_form == form else None for row, path_form in zip(numbers, forms, strict=True)
    ]


def _epoch(numbers: Sequence[str]) -> int | None:
    return int(numbers[0]) if len(numbers) == 1 and len(numbers[0]) <= _DIGITS else None
