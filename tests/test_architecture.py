"""Imports only go down the list of the architecture; a second test shows that the first can fail."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "layerprobe"
# The packages, from the ground up: a package imports those of the lines above its own, and none of its own line.
LEVELS = (
    "system",
    "registry",
    "values",
    "ranking",
    "data nets hooks losses store post_processing metrics statistics tables plots report",
    "sources training",
    "measure summary recipe encoder attribution papers trackers",
    "workflow.run",
    "workflow.probe",
    "workflow.train",
    "workflow.choose workflow.compare workflow.summary",
    "workflow.threshold workflow.classes",
    "workflow.plot workflow.export",
    "workflow.explain workflow.study workflow.features workflow.labels",
    "workflow.report",
    "workflow.python",
    "workflow.watch",
    "workflow.manage",
    "cli",
    "__main__",
)
LEVEL = {package: height for height, line in enumerate(LEVELS) for package in line.split()}
# Lists of names that users of the whole package see; they import nothing until asked.
LAZY = {"__init__"}
HEAVY = ("torch", "torchvision", "numpy", "h5py", "matplotlib", "faiss", "captum", "sklearn", "scipy")


def allowed(importer: str, imported: str) -> bool:
    """Whether a package may import another one; the package's own list of names imports nothing until asked."""
    if importer == imported or importer in LAZY or imported == "__init__":
        return True
    return LEVEL[imported] < LEVEL[importer]


def package_of(parts: tuple[str, ...]) -> str:
    """The package of a module, given by the parts of its name below the package."""
    if parts[0].startswith("__v"):
        return "__init__"
    return ".".join(parts[:2]) if parts[0] == "workflow" and len(parts) > 1 else parts[0]


def packages_imported(source: str) -> set[str]:
    """The packages that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names: Iterable[str] = ()
        if isinstance(node, ast.ImportFrom) and node.module in ("layerprobe", "layerprobe.workflow"):
            names = (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = (node.module or "",)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
        found |= {package_of(tuple(name.split(".")[1:])) for name in names if name.startswith("layerprobe.")}
    return found


def modules() -> dict[Path, str]:
    """Every module with its package; the `__init__` of a folder belongs to the folder."""
    names = {path: path.relative_to(PACKAGE).with_suffix("").parts for path in PACKAGE.rglob("*.py")}
    return {
        path: package_of(parts[:-1] if parts[-1] == "__init__" and parts[1:] else parts)
        for path, parts in names.items()
    }


def violations(importer: str, source: str) -> list[str]:
    return [
        f"{importer} -> {package}" for package in sorted(packages_imported(source)) if not allowed(importer, package)
    ]


def test_every_module_stands_in_a_known_package() -> None:
    assert set(modules().values()) <= LEVEL.keys() | LAZY | {"workflow"}


@pytest.mark.parametrize("folder", sorted({path.parent for path in PACKAGE.rglob("*.py")}), ids=lambda path: path.name)
def test_a_folder_says_which_question_it_answers(folder: Path) -> None:
    assert ast.get_docstring(ast.parse((folder / "__init__.py").read_text()))


def test_imports_only_go_down() -> None:
    assert [fault for path, package in modules().items() for fault in violations(package, path.read_text())] == []


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("store", "from layerprobe.metrics.recall import recall_name"),
        ("metrics", "import layerprobe.store"),
        ("data", "from layerprobe import nets"),
        ("system", "def f():\n    from layerprobe.hooks import Tap"),
        ("measure", "from layerprobe.workflow.run import runs"),
        ("workflow.run", "from layerprobe.workflow import probe"),
        ("workflow.compare", "from layerprobe.workflow.choose.choose import choose_runs"),
    ],
)
def test_the_import_test_can_fail(importer: str, line: str) -> None:
    assert len(violations(importer, line)) == 1


def types_of_packages() -> list[tuple[str, str]]:
    """Each package with each name after `Types and words:` in the docstring of its `__init__`."""
    pairs = []
    for path in sorted(PACKAGE.rglob("__init__.py")):
        _, _, names = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("Types and words:")
        pairs += [(path.parent.relative_to(PACKAGE).as_posix(), name) for name in re.findall("`([^`]+)`", names)]
    return pairs


def test_the_packages_name_most_types() -> None:
    assert len(types_of_packages()) > 100


@pytest.mark.parametrize(("package", "name"), types_of_packages())
def test_a_type_of_a_package_stands_in_it(package: str, name: str) -> None:
    sources = [path.read_text() for path in (PACKAGE / package).rglob("*.py")]
    assert any(re.search(rf"^(class {name}\b|{name}\b)", source, re.MULTILINE) for source in sources)


PAGE = (PACKAGE.parent / "docs" / "architecture.md").read_text()
STEPS = re.findall(r"^\| [^|]+ \| (`[^|]+) \| (`[^|]+) \|$", PAGE, re.MULTILINE)
FILES = [name for name in re.findall(r"`([\w/*.]+\.(?:py|j2))`", PAGE) if "*" not in name]


@pytest.mark.parametrize("name", [name for name in FILES if not name.startswith("tests/")])
def test_a_file_on_the_page_is_there(name: str) -> None:
    assert (PACKAGE / name).is_file() or (PACKAGE.parent / name).is_file() or name == "__init__.py"


@pytest.mark.parametrize(("files", "names"), STEPS)
def test_a_step_on_the_page_stands_in_its_files(files: str, names: str) -> None:
    source = "\n".join((PACKAGE / file).read_text() for file in re.findall("`([^`]+)`", files))
    for name in re.findall("`([^`]+)`", names):
        assert re.search(rf"\b(?:def|class) {name.split('.')[-1]}\b", source), name


def imported_modules(source: str) -> set[str]:
    """The modules that a module imports: at its top, inside functions and for types."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


def in_circles(sources: Mapping[str, str]) -> list[str]:
    """Which modules import themselves, by way of others."""
    graph = {name: imported_modules(source) & sources.keys() - {name} for name, source in sources.items()}

    def reached(start: str) -> set[str]:
        found: set[str] = set()
        waiting = [start]
        while waiting:
            new = graph[waiting.pop()] - found
            found |= new
            waiting += new
        return found

    return sorted(name for name in graph if name in reached(name))


def test_no_modules_import_each_other_in_a_circle() -> None:
    sources = {
        ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
        for path, package in modules().items()
        if package not in LAZY
    }
    assert in_circles(sources) == []


CIRCLE = ["layerprobe.losses.a", "layerprobe.losses.b"]


@pytest.mark.parametrize(
    ("line", "circle"),
    [
        ("from layerprobe.losses.a import A", CIRCLE),
        ("from layerprobe.losses import a", CIRCLE),
        ("if TYPE_CHECKING:\n    import layerprobe.losses.a", CIRCLE),
        (
            "def f():\n    if True:\n        from layerprobe.losses.a import A",
            CIRCLE,
        ),
        (
            "class B:\n    def f(self):\n        import layerprobe.losses.a",
            CIRCLE,
        ),
        ("from layerprobe.losses.c import C", []),
    ],
)
def test_the_circle_test_can_fail(line: str, circle: list[str]) -> None:
    sources = {"layerprobe.losses.a": "from layerprobe.losses.b import B", "layerprobe.losses.b": line}
    assert in_circles(sources) == circle


@pytest.mark.parametrize("importer", ["metrics", "statistics"])
def test_metrics_and_statistics_may_import_ranking(importer: str) -> None:
    assert violations(importer, "from layerprobe.ranking import recall_at_k") == []


def heavy_after(code: str) -> set[str]:
    """The heavy packages that a fresh interpreter has imported after running some code."""
    shown = f"import sys\n{code}\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split())


def test_the_package_test_can_fail() -> None:
    assert heavy_after("import layerprobe.losses.loss") >= {"torch"}


@pytest.mark.parametrize(
    "package", [path.parent.relative_to(PACKAGE.parent) for path in sorted(PACKAGE.rglob("__init__.py"))], ids=str
)
def test_a_package_imports_nothing_heavy(package: Path) -> None:
    assert heavy_after(f"import {'.'.join(package.parts)}") == set()


def test_only_a_run_opens_its_feature_and_rank_files() -> None:
    readers = re.compile(r"\b(open_feature_file|read_feature_head|read_features|read_rank_file)\b")
    opening = {
        path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py") if readers.search(path.read_text())
    }
    opening = {name for name in opening if not name.startswith("store/")}
    assert opening == {"workflow/run/runs.py", "workflow/choose/feature_files.py"}  # the latter: files without a run


READ_BACK = re.compile(
    r"""["'] in \w*\.?\w*notes?\b|\b[A-Z][A-Z_]{2,} in (?:\w+\.)*\w*notes?\b"""
    r"""|\bnotes?(?:\[\w+\])?\.(?:startswith|endswith|partition|removeprefix|removesuffix)\("""
)


def test_no_note_is_read_back() -> None:
    lines = (
        f"{path.relative_to(PACKAGE)}: {line.strip()}"
        for path in PACKAGE.rglob("*.py")
        for line in path.read_text().splitlines()
        if READ_BACK.search(line)
    )
    assert list(lines) == []  # notes are for people: what a program asks for is a field


@pytest.mark.parametrize(
    "line",
    [
        "if WITHIN_FOLDS in score.notes:",
        'sorted(notes, key=lambda note: ", every layer: " in note)',
        "kept = [note for note in notes if UNLIKE in note]",
        'kind = note.partition(": ")',
        'note.startswith("95 %")',
    ],
)
def test_the_test_of_notes_can_fail(line: str) -> None:
    assert READ_BACK.search(line)
