"""Which parquet or Arrow files a data set has, and the split of each, as Hugging Face `datasets` writes and names them.

Where `datasets` keeps data sets: https://huggingface.co/docs/datasets/cache.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerprobe.data.image_files import leaves_folder
from layerprobe.data.table_images import EXTRA
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError
from layerprobe.system.files import require_file
from layerprobe.system.naming import HF_DATASET, is_on_the_hub, user_named

EXPECTED = (
    "Expected a parquet file or a folder of such files, or a folder that Dataset.save_to_disk has written; for"
    f" {HF_DATASET} also ORG/NAME or ORG/NAME/CONFIG of the Hub"
)
_AGAIN = "Save it again by save_to_disk"
# What a file or folder is called -> its split.
_WORDS = ("train", "validation", "valid", "val", "dev", "test", "query", "gallery")


@dataclass(frozen=True)
class TableFile:
    """A file of a data set, and the name of its split; empty where it has none."""

    path: Path
    split: str


@dataclass(frozen=True)
class TableFiles:
    """The files of a data set, all below one folder, in the order of their rows."""

    folder: Path
    files: Sequence[TableFile]

    @property
    def splits(self) -> list[str]:
        """The names of their splits."""
        return list(dict.fromkeys(file.split for file in self.files))


def table_files(root: Path) -> TableFiles:
    """The files of a file, a folder, a glob or a name on the Hub.

    The data set of a name is read from the cache of `datasets`, into which it is fetched only if the user has named it.
    """
    try:
        if root.is_dir():
            return _in_folder(root)
        if root.exists():
            require_file(root)
            return TableFiles(root.parent, [TableFile(root, "")])
    except OSError as error:
        raise DataError.unreadable(error, file=root) from error
    if glob.has_magic(str(root)):
        paths = [Path(path) for path in sorted(glob.glob(str(root), recursive=True))]  # noqa: PTH207 - it is absolute
        if not paths:
            raise DataError("no file has such a name", file=root, fix=EXPECTED)
        folder = Path(os.path.commonpath([path.parent for path in paths]))
        return TableFiles(folder, _split_by_name(folder, paths))
    if is_on_the_hub(str(root)):
        return _in_folder(_cache_files(str(root)))
    raise DataError("no such file or folder", file=root, fix=EXPECTED)


def _in_folder(folder: Path) -> TableFiles:
    if (folder / "dataset_dict.json").exists():
        with _as_written(folder / "dataset_dict.json") as content:
            splits = [_inside(split) for split in content["splits"]]
        return TableFiles(folder, [file for split in splits for file in _saved_files(folder / split, split)])
    if (folder / "state.json").exists():
        return TableFiles(folder, _saved_files(folder, ""))
    if (folder / "dataset_info.json").exists():
        return TableFiles(folder, _in_cache(folder))
    paths = [path for path in sorted(folder.rglob("*.parquet")) if not _is_hidden(path.relative_to(folder))]
    if not paths:
        raise DataError("no parquet file and no saved data set lies there", file=folder, fix=EXPECTED)
    return TableFiles(folder, _split_by_name(folder, paths))


def _saved_files(folder: Path, split: str) -> list[TableFile]:
    """The files of one data set that `Dataset.save_to_disk` has written."""
    state = folder / "state.json"
    with _as_written(state) as content:
        if content.get("_indices_data_files"):
            raise DataError("an old version of datasets has saved an index of rows", file=state, fix=_AGAIN)
        return [TableFile(folder / _inside(entry["filename"]), split) for entry in content["_data_files"]]


def _in_cache(folder: Path) -> list[TableFile]:
    """The files of all splits in a folder of the cache, beside which those of `Dataset.map` may lie."""
    files = []
    with _as_written(folder / "dataset_info.json") as content:
        for split, info in content["splits"].items():
            stem = glob.escape(_inside(f"{info['dataset_name']}-{split}"))
            paths = sorted([*folder.glob(f"{stem}.arrow"), *folder.glob(f"{stem}-[0-9]*-of-[0-9]*.arrow")])
            if not paths:
                problem = f"no file of the split {split} lies there"
                raise DataError(problem, file=folder, fix="Load it again by load_dataset")
            files += [TableFile(path, split) for path in paths]
    return files


@contextlib.contextmanager
def _as_written(file: Path) -> Iterator[Any]:
    """The content of a JSON file, and the error of one that is not as `datasets` writes it."""
    try:
        yield json.loads(file.read_bytes())
    except OSError as error:
        raise DataError.unreadable(error, file=file) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError("not as datasets writes it", file=file, fix=_AGAIN) from error


def _inside(name: str) -> str:
    """The name of a file or folder in its folder."""
    if leaves_folder(name):
        raise ValueError(name)
    return name


def _is_hidden(path: Path) -> bool:
    return any(segment.startswith(".") for segment in path.parts)


def _split_by_name(folder: Path, paths: Iterable[Path]) -> list[TableFile]:
    """The files with the splits that their names, or else their folders in this one, begin with, as on the Hub."""
    places = [(path, path.relative_to(folder).parent.name) for path in paths]
    files = [TableFile(path, _word(path.name) or _word(above)) for path, above in places]
    unnamed = [file.path.name for file in files if not file.split]
    if unnamed and len(unnamed) < len(files):
        split_file = next(file.path.name for file in files if file.split)
        raise DataError(
            f"{split_file} is called like a split, {unnamed[0]} is not",
            file=folder,
            fix=f"Rename it like train-{unnamed[0]}, or name the files that belong together, such as 'train*.parquet'",
        )
    return files


def _word(name: str) -> str:
    prefix = re.split(r"[-_.]", name.lower())[0]
    return prefix if prefix in _WORDS else ""


def _cache_files(name: str) -> Path:
    """The folder of a data set of the Hub in the cache of `datasets`."""
    identity, config = "/".join(name.split("/")[:2]), "".join(name.split("/")[2:])
    folder = _newest(identity, config)
    if folder is None:
        _fetch(name, identity, config)
        folder = _newest(identity, config)
    if folder is None:
        raise DataError(
            f"is not in {_cache_folder()}", file=f"{HF_DATASET}:{name}", fix="Name its configuration after it"
        )
    return folder


def _newest(identity: str, config: str) -> Path | None:
    """The folder of a data set that was written last; None where there is none."""
    organisation, _, name = identity.partition("/")
    # As `datasets.naming.camelcase_to_snakecase` has it.
    for pattern in (r"([A-Z]+)([A-Z][a-z])", r"([a-z\d])([A-Z])"):
        name = re.sub(pattern, r"\1_\2", name)
    above = _cache_folder() / f"{organisation}___{name.lower()}"
    folders = [path.parent for path in above.glob(f"{glob.escape(config) or '*'}/*/*/dataset_info.json")]
    configs = sorted({folder.relative_to(above).parts[0] for folder in folders})
    if len(configs) > 1:
        problem = f"{HF_DATASET}:{identity} has several configurations: {', '.join(configs)}"
        raise RecipeError(problem, fix=f"Name one, such as {HF_DATASET}:{identity}/{configs[0]}")
    return max(folders, key=lambda folder: folder.stat().st_mtime, default=None)


def _cache_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    home = os.environ.get("HF_HOME") or str(Path(cache) / "huggingface")
    return Path(os.environ.get("HF_DATASETS_CACHE") or str(Path(home) / "datasets")).expanduser()


def _fetch(name: str, identity: str, config: str) -> None:
    """Have `datasets`, which runs no code of a data set since version 4, load a data set into its cache."""
    full = f"{HF_DATASET}:{name}"
    if not user_named(full):
        problem = f"{full} is not in {_cache_folder()}; it would be fetched, and you have not named it"
        raise RecipeError(problem, fix=f"To fetch it, add --data {full}")
    try:
        import datasets
    except ImportError as error:
        raise EnvironmentFault(f"datasets is needed to fetch {full} ({error})", fix=EXTRA) from error
    try:
        datasets.load_dataset(identity, config or None)
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError, LookupError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise EnvironmentFault(
            f"{full} is not in {_cache_folder()} and cannot be fetched: {reason}",
            fix="Correct the name or folder, or load it by datasets.load_dataset where there is a network and bring"
            " that cache here",
        ) from error
