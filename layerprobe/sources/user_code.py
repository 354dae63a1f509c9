"""A Python file of the user's, imported from bytes whose hashes are known: it, and what it takes from its folder tree.

Nothing of that tree is ever read from a .pyc.
"""

from __future__ import annotations

import contextlib
import hashlib
import shlex
import site
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ExtensionFileLoader, ModuleSpec, SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

from layerprobe.errors import DataError, LayerprobeError, RecipeError
from layerprobe.files import require_file
from layerprobe.naming import PYTHON, NamedFile, is_named, keep_named, named_before, run_folder_of


def known_modules(path: Path, function: str) -> Mapping[str, str] | None:
    """The hashes that a file and its modules must have to be imported; None where the user names it now: any.

    Args:
        path: of the file, resolved.
        function: of the file.

    Raises:
        RecipeError: it lies in a run folder, or the user has not named it, or not as it is now.
    """
    _require_no_run(path)
    name = f"{PYTHON}{path}:{function}"
    if is_named(name):
        return None
    entries = named_before(path, function)
    for entry in entries:
        if all(_sha256(module) == digest for module, digest in entry.modules.items()):
            return entry.modules
    now = (_sha256(str(path)) or "")[:12]
    what = "has changed since you named it" if entries else "is a Python file that you have not named"
    typed = shlex.quote(name)
    raise RecipeError(
        f"{name} (sha256 {now}) {what}",
        fix=f"Read it. If you trust it, name it by --model {typed}, or once for all by layerprobe layers {typed}",
    )


@contextlib.contextmanager
def imported_file(path: Path, function: str) -> Iterator[tuple[ModuleType, Mapping[str, str]]]:
    """Import a file; while the block lasts, what else it imports of its own folder tree is checked.

    When the block ends without an error, and the user names the file now, it is put on the user's list.

    Args:
        path: of the file, resolved.
        function: of the file, for which the user names it.

    Yields:
        The module, and path -> SHA-256 of what was taken, which grows as long as the block lasts.

    Raises:
        RecipeError: as for `known_modules`, or a module that was not there when the user named the file.
        BaseException: whatever the file's code raises.
    """
    tree = _Tree(path.parent, known_modules(path, function))
    _forget_modules()
    # A name of its own, so that the file hides no package; dataclasses look their module up by name.
    name = f"_layerprobe_{path.stem}"
    spec = tree.spec(name, path)
    module = sys.modules[name] = module_from_spec(spec)
    folder = str(path.parent)
    sys.path.insert(0, folder)
    sys.meta_path.insert(0, tree)
    try:
        _Checked.exec_module(spec.loader, module)  # type: ignore[arg-type] # it is one
        yield module, tree.taken
    except Exception:
        # The file's code may have turned a refusal into an error of its own.
        if tree.refusal is not None:
            raise tree.refusal from None
        raise
    finally:
        sys.meta_path.remove(tree)
        sys.path.remove(folder)
    if tree.refusal is not None:
        raise tree.refusal
    if tree.known is None:
        keep_named(NamedFile(str(path), function, tree.taken))


class _Checked(Loader):
    """Runs a module's source, which was read and hashed before."""

    def __init__(self, path: Path, source: bytes) -> None:
        self.path, self.source = path, source

    def exec_module(self, module: ModuleType) -> None:
        exec(compile(self.source, str(self.path), "exec", dont_inherit=True), module.__dict__)


class _Tree(MetaPathFinder):
    """Finds modules as Python does, and hashes those in a folder tree.

    Args:
        folder: resolved.
        known: path -> SHA-256 of the modules that may be taken from it; None: any.
    """

    def __init__(self, folder: Path, known: Mapping[str, str] | None) -> None:
        self.folder, self.known = folder, known
        self.taken: dict[str, str] = {}
        self.refusal: LayerprobeError | None = None

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module as another finder finds it; of the folder tree, with its source hashed."""
        if fullname.partition(".")[0] == "layerprobe":
            return None
        finders = (finder for finder in sys.meta_path if finder is not self)
        found = (finder.find_spec(fullname, path, target) for finder in finders)  # type: ignore[arg-type] # as it came
        spec = next((spec for spec in found if spec is not None), None)
        if spec is None or spec.origin is None or not spec.has_location:
            return spec
        origin = Path(spec.origin).resolve()
        if not origin.is_relative_to(self.folder) or any(map(origin.is_relative_to, _installed())):
            return spec
        try:
            return self._checked(spec, fullname, origin)
        except LayerprobeError as refusal:
            self.refusal = refusal
            raise

    def spec(self, name: str, path: Path) -> ModuleSpec:
        """A module's specification, whose source is the file's content now."""
        found = spec_from_file_location(name, path, loader=_Checked(path, self._read(path)))
        if found is None:
            raise RecipeError("cannot be imported", file=path, fix="Give a Python file")
        return found

    def _checked(self, spec: ModuleSpec, name: str, path: Path) -> ModuleSpec:
        _require_no_run(path)
        if isinstance(spec.loader, ExtensionFileLoader):
            self._read(path)
            return spec
        if not isinstance(spec.loader, SourceFileLoader):
            what = "neither Python source nor an extension module"
            raise RecipeError(what, file=path, fix="Put the module's source in its place")
        found = self.spec(name, path)
        found.submodule_search_locations = spec.submodule_search_locations
        return found

    def _read(self, path: Path) -> bytes:
        """A file's content, which is what the user named."""
        try:
            require_file(path)
            content = path.read_bytes()
        except OSError as error:
            raise DataError.unreadable(error, file=path) from error
        digest = hashlib.sha256(content).hexdigest()
        if self.known is not None and self.known.get(str(path)) != digest:
            what = "has changed since" if str(path) in self.known else "was not imported when"
            raise RecipeError(
                f"{what} you named the model that imports it",
                file=path,
                fix="Read it. If you trust it, name the model again by --model",
            )
        self.taken[str(path)] = digest
        return content


def _forget_modules() -> None:
    """Forget what earlier imports took from folder trees, theirs or the same: a module in memory is not looked for."""
    taken = [name for name, module in sys.modules.items() if isinstance(_loader_of(module), _Checked)]
    packages = {name.rpartition(".")[0] for name in taken}
    while packages - {""}:
        name = packages.pop()
        packages.add(name.rpartition(".")[0])
        if getattr(sys.modules.get(name), "__file__", None) is None:  # a namespace, without a source
            taken.append(name)
    for name in taken:
        sys.modules.pop(name, None)


def _loader_of(module: object) -> object:
    return getattr(getattr(module, "__spec__", None), "loader", None)


def _require_no_run(path: Path) -> None:
    if (run := run_folder_of(path)) is not None:
        raise RecipeError(
            f"lies in the run folder {run}, of which nothing is imported",
            file=path,
            fix=f"Read it. If you trust it, copy it to a folder of yours and name the copy by --model {PYTHON}COPY.py:"
            "FUNCTION",
        )


def _installed() -> set[Path]:
    """The folders of installed packages, which may lie below the folder of a user's file."""
    found = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return {Path(folder).resolve() for folder in (*found, *site.getsitepackages(), site.getusersitepackages())}


def _sha256(path: str) -> str | None:
    """The hash of a file; None where it cannot be read."""
    try:
        require_file(Path(path))
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except (OSError, DataError):
        return None
