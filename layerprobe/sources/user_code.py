"""A Python file of the user's and its imports from its folder tree, imported from bytes with known hashes.

Nothing of that tree is ever read from a .pyc.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.abc import MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from layerprobe.system.errors import DataError, LayerprobeError, RecipeError
from layerprobe.system.files import require_file
from layerprobe.system.naming import PYTHON, NamedFile, keep_named, list_fault, named_before, run_folder_of, user_named


def require_outside_runs(path: Path) -> None:
    """Refuse a file that lies in a run folder: of these nothing is imported, whoever names it."""
    if (run := run_folder_of(path)) is not None:
        raise RecipeError(
            f"lies in the run folder {run} (by its run.json), of which nothing is imported",
            file=path,
            fix="Read it. If you trust it, copy it to a folder of yours and name the copy by --model",
        )


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
