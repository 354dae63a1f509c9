"""Which parquet or Arrow files a data set has, and which columns have images, labels and the rest.

Where `datasets` keeps data sets: https://huggingface.co/docs/datasets/cache.
"""

from __future__ import annotations

import contextlib
import glob
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.image_files import leaves_folder
from layerprobe.data.table_images import ARROW, ARROW_ERRORS, arrow, read_arrow, unreadable_table
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.system.files import require_file
from layerprobe.system.naming import HF_DATASET, is_on_the_hub, user_named
from layerprobe.system.requirements import install_line

_Fact = TypeVar("_Fact")
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
        return TableFiles(folder, split_by_name(folder, paths))
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
    paths = [
        path
        for path in sorted(folder.rglob("*.parquet"))
        if not any(segment.startswith(".") for segment in path.relative_to(folder).parts)
    ]
    if not paths:
        raise DataError("no parquet file and no saved data set lies there", file=folder, fix=EXPECTED)
    return TableFiles(folder, split_by_name(folder, paths))


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
        require_file(file)
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


def split_by_name(folder: Path, paths: Iterable[Path]) -> list[TableFile]:
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
        raise EnvironmentFault(f"datasets is needed to fetch {full} ({error})", fix=install_line("datasets")) from error
    try:
        datasets.load_dataset(identity, config or None)
    except (datasets.exceptions.DatasetsError, OSError, ValueError, RuntimeError, LookupError) as error:
        reason = str(error).strip().partition("\n")[0].rstrip(".")
        raise EnvironmentFault(
            f"{full} is not in {_cache_folder()} and cannot be fetched: {reason}",
            fix="Correct the name or folder, or load it by datasets.load_dataset where there is a network and bring"
            " that cache here",
        ) from error


# What columns are called, where their types do not say what they have.
_LABELS = ("label", "labels")
_PATHS = ("image", "path", "image_path", "file", "file_path", "file_name", "filename")


@dataclass(frozen=True, eq=False)
class ImageTable:
    """The rows of some files that have the same columns.

    Args:
        files: in the order of the rows.
        counts: number of rows of each file.
        image: the column of images.
        label: the column of labels.
        class_names: of labels that are numbers of names; else empty.
        cells: column -> the value of each row, of all columns of plain values; of images the paths, where they have
            any.
        of_structs: whether an image is a struct, as `datasets` has it.
        embedded: whether the files have the images' bytes; else the images are at the paths.
        places: (N, 2) the first byte and the size of each image in its file; None: they lie in the rows of tables.
    """

    files: Sequence[TableFile]
    counts: Sequence[int]
    image: str
    label: str
    class_names: Sequence[str]
    cells: Mapping[str, Sequence[Any]]
    of_structs: bool
    embedded: bool
    places: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return sum(self.counts)

    def of_each_row(self, of_files: Sequence[_Fact]) -> list[_Fact]:
        """What each file has, once for each of its rows."""
        return [fact for fact, count in zip(of_files, self.counts, strict=True) for _ in range(count)]

    def where(self, row_index: int) -> str:
        """The file of a row and the row in it, as text for people."""
        ends = list(itertools.accumulate(self.counts))
        file = next(file for file, end in enumerate(ends) if row_index < end)
        return f"{self.files[file].path}: row {row_index - ends[file] + self.counts[file]}"


def read_table(root: Path, files: Sequence[TableFile], *, image: str, label: str) -> ImageTable:
    """The table of some files; no image is read.

    Args:
        root: what the user named, for errors.
        image: name of the column of images; empty: the only one.
        label: name of the column of labels; empty: the only one.
    """
    try:
        for file in files:
            require_file(file.path)
    except OSError as error:
        raise DataError.unreadable(error) from error
    schema = _schema(files[0].path)
    features = _features(schema)
    typed = [name for name in schema.names if features.get(name, {}).get("_type") == "Image"]
    with_bytes = [field.name for field in schema if _is_bytes(field.type) or _has_bytes(field.type)]
    paths = [field.name for field in schema if field.name in _PATHS and _is_text(field.type)]
    image = _choose_column(root, schema, "image", image, typed or with_bytes or paths)
    labels = [name for name in schema.names if name in _LABELS or features.get(name, {}).get("_type") == "ClassLabel"]
    label = _choose_column(root, schema, "label", label, labels)
    of_images, of_labels = schema.field(image).type, schema.field(label).type
    if not (_is_text(of_images) or _is_bytes(of_images) or _has_bytes(of_images)):
        problem = f"the column {image} is {_short(of_images)}; an image is bytes, a path, or a struct of bytes and path"
        raise DataError(problem, file=root, fix="Name another by --set data.image_column=COLUMN")
    if not _is_label(of_labels):
        problem = f"the column {label} is {_short(of_labels)}; a label is one text or whole number"
        raise DataError(problem, file=root, fix="Name another by --set data.label_column=COLUMN, or change it")
    plain = [field.name for field in schema if field.name != image and _is_plain(field.type)]
    parts = [_cells(file.path, schema, plain, image) for file in files]
    has_bytes = image not in parts[0] or (
        not _is_text(of_images) and any(_some_bytes(file.path, image) for file in files)
    )
    return ImageTable(
        files,
        counts=[len(file_cells[label]) for file_cells in parts],
        image=image,
        label=label,
        class_names=features.get(label, {}).get("names") or (),
        cells={name: [cell for file_cells in parts for cell in file_cells[name]] for name in parts[0]},
        of_structs=_has_bytes(of_images),
        embedded=has_bytes,
    )


def _schema(path: Path) -> Any:
    try:
        if path.suffix == ARROW:
            return arrow("pyarrow.ipc").open_stream(str(path)).schema
        return arrow("pyarrow.parquet").read_schema(path)
    except ARROW_ERRORS as error:
        raise unreadable_table(path, error) from error


def _features(schema: Any) -> Mapping[str, Mapping[str, Any]]:
    """Column -> its type as `datasets` notes it in the files that it writes; empty in others."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return {name: feature for name, feature in features.items() if isinstance(feature, dict)}
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}


def _choose_column(root: Path, schema: Any, role: str, column: str, candidates: Sequence[str]) -> str:
    if column:
        if column not in schema.names:
            raise UnknownNameError(f"column in data.{role}_column:", column, schema.names, file=root)
        return column
    if len(candidates) == 1:
        return candidates[0]
    problem = f"{' and '.join(candidates)} may all be the {role}s" if candidates else f"no column of {role}s"
    columns = ", ".join(f"{field.name} ({_short(field.type)})" for field in schema)
    fix = f"Name one by --set data.{role}_column=COLUMN"
    raise DataError(f"{problem}; the columns are {columns}", file=root, fix=fix)


def _cells(path: Path, schema: Any, plain: Sequence[str], image: str) -> dict[str, list[Any]]:
    """The values of the columns of plain values, and the paths of the images if they have any."""
    kind = schema.field(image).type
    has_path = _has_bytes(kind) and kind.get_field_index("path") >= 0
    paths = [image] if _is_text(kind) else [f"{image}.path"] * has_path
    try:
        if path.suffix == ARROW:
            table = read_arrow(path).select([*plain, *[image] * len(paths)])
        else:
            table = arrow("pyarrow.parquet").ParquetFile(path).read(columns=[*plain, *paths])
        cells = {name: table.column(name).to_pylist() for name in plain}
        if paths:
            column = table.column(image)
            cells[image] = (arrow("pyarrow.compute").struct_field(column, "path") if has_path else column).to_pylist()
    except ARROW_ERRORS as error:
        if isinstance(error, LookupError):
            fix = "Name the files that belong together"
            raise DataError("has other columns than the first file of its data set", file=path, fix=fix) from error
        raise unreadable_table(path, error) from error
    return cells


def _some_bytes(path: Path, image: str) -> bool:
    """Whether a column of bytes has any; in parquet files its statistics say so."""
    if path.suffix == ARROW:
        column = read_arrow(path).column(image)
        in_struct = arrow().types.is_struct(column.type)
        column = arrow("pyarrow.compute").struct_field(column, "bytes") if in_struct else column
        return bool(column.null_count < len(column))
    metadata = arrow("pyarrow.parquet").read_metadata(path)
    groups = [metadata.row_group(group) for group in range(metadata.num_row_groups)]
    columns = [group.column(index) for group in groups for index in range(group.num_columns)]
    of_images = [column for column in columns if column.path_in_schema in (image, f"{image}.bytes")]
    # A column of nulls alone is of another type, without statistics.
    content = [column.statistics for column in of_images if column.physical_type == "BYTE_ARRAY"]
    return any(statistics is None or statistics.num_values > 0 for statistics in content)


def _is_text(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind))


def _has_bytes(kind: Any) -> bool:
    """Whether it is a struct that may have an image's bytes."""
    types = arrow().types
    if not types.is_struct(kind) or kind.get_field_index("bytes") < 0:
        return False
    content = kind.field("bytes").type
    return _is_bytes(content) or bool(types.is_null(content))


def _is_label(kind: Any) -> bool:
    types = arrow().types
    if types.is_dictionary(kind):
        return _is_label(kind.value_type)
    return bool(_is_text(kind) or types.is_integer(kind) or types.is_boolean(kind))


def _is_plain(kind: Any) -> bool:
    types = arrow().types
    if types.is_dictionary(kind):
        return _is_plain(kind.value_type)
    return bool(_is_text(kind) or types.is_primitive(kind) or types.is_decimal(kind))


def _short(kind: Any) -> str:
    text = " ".join(str(kind).split())
    return text if len(text) < 60 else f"{text[:56]} ..."
