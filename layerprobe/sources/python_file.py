"""A model that a user's own Python builds, `python:FILE.py:FUNCTION`, imported from bytes with known hashes.

Nothing of the folder tree of the file is ever read from a .pyc.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import os
import shlex
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, get_args

from layerprobe.sources.hub import NO_OWN_SIZE, Foreign, require_outside_runs
from layerprobe.sources.source import Source, take_off
from layerprobe.system.computing import require_numbers
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.system.files import require_file, sha256
from layerprobe.system.naming import (
    PYTHON,
    NamedFile,
    keep_named,
    list_fault,
    named_before,
    split_python,
    user_named,
)
from layerprobe.values.network_input import DEVIATION, MEAN, Filter, ImageSize, OwnInput, as_size

if TYPE_CHECKING:
    from torch import nn


def known_modules(path: Path, function: str) -> Mapping[str, str] | None:
    """The hashes that a file and its modules must have to be imported; None where the user names it now: any."""
    require_outside_runs(path)
    name = f"{PYTHON}{path}:{function}"
    if user_named(name):
        return None
    entries = named_before(path, function)
    for entry in entries:
        if all(_sha256(module) == digest for module, digest in entry.modules.items()):
            return entry.modules
    now = (_sha256(str(path)) or "")[:12]
    reason = "has changed since you named it" if entries else "is a Python file that you have not named"
    typed = shlex.quote(name)
    fault = list_fault()
    once = f" each time ({fault})" if fault else f", or once for all by layerprobe layers {typed}"
    raise RecipeError(
        f"{name} (sha256 {now}) {reason}", fix=f"Read it. If you trust it, name it by --model {typed}{once}"
    )


@contextlib.contextmanager
def import_file(path: Path, function: str) -> Iterator[tuple[ModuleType, Mapping[str, str]]]:
    """Import a file; its imports from its own folder tree are checked from now on, also after the block.

    When the block ends without an error, and the user names the file now, it is put on the user's list.

    Yields:
        The module, and the SHA-256 of each file of the folder tree that was taken, by its path from the folder, the
        file itself under the empty path. It grows with later imports of the code.
    """
    tree = _Tree(NamedFile(str(path), function, {}), known_modules(path, function))
    _forget_imports()
    # A name of its own, so that the file hides no package; dataclasses look their module up by name.
    name = f"_layerprobe_{path.stem}"
    spec, loader = tree.checked(name, path)
    module = sys.modules[name] = module_from_spec(spec)
    folder = str(path.parent)
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, tree)  # it stays: a model's forward may import, too
    try:
        loader.exec_module(module)
        yield module, tree.files
    except Exception:
        # The file's code may have turned a refusal into an error of its own.
        if tree.refusal is not None:
            raise tree.refusal from None
        raise
    finally:
        sys.path.remove(folder)
    if tree.refusal is not None:
        raise tree.refusal
    tree.keep()


class _Checked(SourceFileLoader):
    """Runs a module's source, which was read and hashed before."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002 - that of the base class
        """Never that of a .pyc."""
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Tree(MetaPathFinder):
    """Finds modules as Python does, and hashes those in a file's folder tree.

    Args:
        named: the file and the function, for the user's list.
        known: path -> SHA-256 of what may be taken from the folder tree; None: anything.
    """

    def __init__(self, named_file: NamedFile, known_hashes: Mapping[str, str] | None) -> None:
        self.folder, self.file = Path(named_file.file).parent, named_file
        self.known = known_hashes
        self.taken: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.names: list[str] = []
        self.refusal: LayerprobeError | None = None
        self._kept = False

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module as another finder finds it; of the folder tree, with its source hashed."""
        if fullname.partition(".")[0] == "layerprobe":
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        specs = (finder.find_spec(fullname, path, target) for finder in finders)  # type: ignore[arg-type] # as it came
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is None or spec.origin is None or not spec.has_location:
            return spec
        # A link may lead out of the tree.
        places = [Path(os.path.normpath(Path(spec.origin).absolute())), Path(spec.origin).resolve()]
        if any(location.is_relative_to(folder) for location in places for folder in _installed_folders()):
            return spec
        try:
            require_outside_runs(places[1])
            if not any(location.is_relative_to(self.folder) for location in places):
                return spec
            self.names.append(fullname)
            if isinstance(spec.loader, ExtensionFileLoader):
                self._read(places[1])
                return spec
            if not isinstance(spec.loader, SourceFileLoader):
                problem = "neither Python source nor an extension module"
                raise RecipeError(problem, file=places[1], fix="Put the module's source in its place")
            checked, _ = self.checked(fullname, places[1])
            checked.submodule_search_locations = spec.submodule_search_locations
            if self._kept:
                self.keep()
            return checked
        except LayerprobeError as refusal:
            self.refusal = refusal
            raise

    def checked(self, name: str, path: Path) -> tuple[ModuleSpec, _Checked]:
        """A module's specification, whose source is the file's content now, and what runs it."""
        loader = _Checked(name, path, self._read(path))
        module_spec = spec_from_file_location(name, path, loader=loader)
        if module_spec is None:
            raise RecipeError("cannot be imported", file=path, fix="Give a Python file")
        return module_spec, loader

    def keep(self) -> None:
        """Add the imported files to the user's list, if the user names the file now."""
        self._kept = True
        if self.known is None:
            keep_named(NamedFile(self.file.file, self.file.function, dict(self.taken)))

    def _read(self, path: Path) -> bytes:
        """The content of a file, checked to be the one that the user named."""
        try:
            require_file(path)
            content = path.read_bytes()
        except OSError as error:
            raise DataError.unreadable(error, file=path) from error
        digest = hashlib.sha256(content).hexdigest()
        if self.known is not None and self.known.get(str(path)) != digest:
            reason = "has changed since" if str(path) in self.known else "was not imported when"
            raise RecipeError(
                f"{reason} you named the model that imports it",
                file=path,
                fix="Read it. If you trust it, name the model again by --model",
            )
        self.taken[str(path)] = digest
        self.files["" if str(path) == self.file.file else os.path.relpath(path, self.folder)] = digest
        return content


def _forget_imports() -> None:
    """Forget earlier imports from folder trees, theirs or the same: a module in memory is not searched again."""
    trees = [finder for finder in sys.meta_path if isinstance(finder, _Tree)]
    names = {name for tree in trees for name in tree.names}
    packages = {name.rpartition(".")[0] for name in names}
    while packages - {""}:
        name = packages.pop()
        packages.add(name.rpartition(".")[0])
        if getattr(sys.modules.get(name), "__file__", None) is None:  # a namespace, without a source
            names.add(name)
    for name in names:
        sys.modules.pop(name, None)
    for tree in trees:
        sys.meta_path.remove(tree)


def _installed_folders() -> set[Path]:
    """The folders of installed packages, which may lie below the folder of a user's file."""
    library_paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    folders = [Path(folder) for folder in (*library_paths, *site.getsitepackages(), site.getusersitepackages())]
    return {*folders, *(folder.resolve() for folder in folders)}


def _sha256(path: str) -> str | None:
    """The hash of a file; None where it cannot be read."""
    try:
        require_file(Path(path))
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, ValueError, DataError):
        return None


_KEYS = ("size", "filter", "crop", "mean", "std")
_SHAPE = "FILE.py:FUNCTION"


def _parse_name(name: str) -> tuple[Path, str]:
    """The file, its links and `..` resolved, and the function."""
    file, colon, _ = name.rpartition(":")
    path, function = split_python(name)
    if not (colon and file.endswith(".py") and function.isidentifier()):
        raise RecipeError(f"python:{name} is not of the form python:{_SHAPE}", fix="For example python:mine.py:build")
    try:
        is_file = path.is_file()
    except (OSError, ValueError):  # too long a name, or one that no file can have
        is_file = False
    if not is_file:
        fix = f"Give python:{_SHAPE}, from the folder that you are in; to a run whose file has moved, by --model"
        raise DataError("no such file", file=file, fix=fix)
    return path.resolve(), function


def _versions(name: str) -> dict[str, str]:  # noqa: ARG001 - the same of all models
    return {}


def _files(name: str) -> dict[str, str]:
    path, _ = _parse_name(name)
    return {split_python(name)[0].name: sha256(path)[:12]}


def _call_build(name: str) -> tuple[nn.Module, OwnInput | None, Mapping[str, str]]:
    """What the user's function gives, called without arguments: a module, or a module and what its input is.

    The third is as for `Foreign.files`.
    """
    from torch import nn

    path, function = _parse_name(name)
    returned, files = _call_function(path, function)
    module, facts = returned if isinstance(returned, tuple) and len(returned) == 2 else (returned, None)
    if not isinstance(module, nn.Module):
        raise RecipeError(
            f"python:{name} gives {type(module).__name__}", fix="Return a torch.nn.Module, or (module, {size, ...})"
        )
    require_numbers(module, name=f"python:{name}")
    return module, None if facts is None else _as_input(name, facts), files


def _call_function(path: Path, function: str) -> tuple[object, Mapping[str, str]]:
    """The return value of a function of a file, and the hashes of the imported files, as for `Foreign.files`."""
    try:
        with import_file(path, function) as (module, files):
            build = getattr(module, function, None)
            if not callable(build):
                functions = [key for key, value in vars(module).items() if callable(value) and not key.startswith("_")]
                raise UnknownNameError("function", function, functions, file=path)
            returned = build()
    except LayerprobeError:
        raise
    except (Exception, SystemExit) as error:  # whatever the user's code raises
        where = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
        line = error.lineno if isinstance(error, SyntaxError) and error.filename == str(path) else (where or [None])[-1]
        at = f"line {line}: " if line else ""
        problem = f"{at}{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        raise RecipeError(problem, file=path, fix="Correct the file") from error
    return returned, files


def _as_input(name: str, facts: object) -> OwnInput:
    """The input that a user states: {size, filter, crop, mean, std}; all but the size are optional.

    As in timm, `crop` is the share of each side that the crop keeps; without it the image is squeezed.
    """
    if not isinstance(facts, Mapping) or not set(facts) <= set(_KEYS) or "size" not in facts:
        problem = f"python:{name} states its input as {facts!r}"
        raise RecipeError(problem, fix=f"Give a dict with size and, if it has them, {', '.join(_KEYS[1:])}")
    size, crop, resampling = facts["size"], facts.get("crop"), facts.get("filter", "bilinear")
    sides = list(size) if isinstance(size, list | tuple) else [size, size]
    statistics = {key: facts[key] for key in ("mean", "std") if key in facts}
    statistics = {key: [x] if isinstance(x, int | float) else x for key, x in statistics.items()}
    if (
        len(sides) != 2
        or not all(type(side) is int and side > 0 for side in sides)
        or not (crop is None or (isinstance(crop, int | float) and 0 < crop <= 1))
        or resampling not in get_args(Filter)
        or not all(_are_numbers(values) for values in statistics.values())
    ):
        raise RecipeError(
            f"python:{name} states its input as {dict(facts)!r}",
            fix="size is a number of pixels or (height, width), crop the share of each side that is kept (above 0, at"
            f" most 1), filter one of {', '.join(get_args(Filter))}, mean and std are three numbers each, or one",
        )
    resized = None if crop is None else as_size(*(math.floor(side / crop) for side in sides))
    mean, std = (tuple(statistics.get(key, value)) for key, value in (("mean", MEAN), ("std", DEVIATION)))
    if len(mean) != len(std):  # one of them is not stated, or one number for all channels
        mean, std = (values * 3 if len(values) == 1 else values for values in (mean, std))
    return OwnInput(as_size(*sides), resized, resampling, mean, std, kept=crop)


def _are_numbers(values: object) -> bool:
    numbers = values if isinstance(values, list | tuple) else ()
    return len(numbers) in (1, 3) and all(isinstance(x, int | float) for x in numbers)


def _own_input(name: str) -> OwnInput | None:
    import torch

    with torch.random.fork_rng(devices=[]):
        return _call_build(name)[1]


def _model(name: str, *, pretrained: bool, image_size: ImageSize | None) -> Foreign:  # noqa: ARG001 - the file's own weights
    from layerprobe.hooks import find_classifier

    module, own_input, files = _call_build(name)
    classifier = find_classifier(module, image_size or (own_input.size if own_input else NO_OWN_SIZE))
    if classifier is not None:
        take_off(module, classifier)
    return Foreign(module, own_input, image_size, ("norm", "fc_norm"), classifier=classifier or "", files=files)


SOURCE = Source(prefix="python:", model=_model, own_input=_own_input, versions=_versions, files=_files)
