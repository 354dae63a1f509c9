"""Files that hold weights otherwise than by names in torch's or safetensors' format, or none: what each is."""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file

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
    elif start.lstrip()[:1] in (b"{", b"[") and _is_json(path):
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


def _is_json(path: Path) -> bool:
    try:
        json.loads(path.read_bytes()[: 2**24])
    except (ValueError, RecursionError):
        return False
    return True
