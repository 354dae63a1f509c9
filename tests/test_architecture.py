"""Imports only go down the list of the architecture; a second test shows that the first can fail."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "layerprobe"
GROUND = {
    "best", "choice", "errors", "facts", "few", "files", "imagenet", "intervals", "keys", "label_free", "memory",
    "naming", "numerics", "overrides", "own_input", "pooling", "progress", "recipe_files", "records", "registry",
    "retrieval", "scores", "sections", "seeds", "views", "wording",
}  # fmt: skip
ROOMS = {
    "data", "nets", "sources", "losses", "taps", "layouts", "store", "runs", "reductions", "ranking", "metrics",
    "statistics", "attribution", "plots", "report", "papers", "tables", "formats",
}  # fmt: skip
CHECKS = {"validation"}
STAGES = {
    "recipe",
    "training",
    "extraction",
    "analysis",
    "choosing",
    "choosing_folds",
    "redraw",
    "joint",
    "cka",
    "pair_similarities",
    "spectrum",
    "summary",
}
TOP = {"__main__", "cli", "workflow"}
# Rooms of one level that know each other: importer -> imported.
NEIGHBOURS = {
    "metrics": {"ranking"},
    "statistics": {"ranking"},
    "sources": {"nets", "taps", "layouts"},
    "taps": {"layouts"},
    "formats": {"tables"},
}
# Lists of names that users of the whole package see; they import nothing until asked.
LAZY = {"__init__"}
HEAVY = ("torch", "torchvision", "numpy", "h5py", "matplotlib", "faiss", "captum", "sklearn", "scipy")


LEVELS = (GROUND, ROOMS, CHECKS, STAGES, {"workflow"}, {"cli"}, {"__main__"})


def level(room: str) -> int:
    return next(i for i, rooms in enumerate(LEVELS) if room in rooms)


def allowed(importer: str, imported: str) -> bool:
    if importer == imported or importer in LAZY or imported == "__init__":
        return True
    if imported in NEIGHBOURS.get(importer, ()):
        return True
    return level(imported) < level(importer) or {importer, imported} <= GROUND


def rooms_imported(source: str) -> set[str]:
    """The rooms that a module imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        names: Iterable[str] = ()
        if isinstance(node, ast.ImportFrom) and node.module == "layerprobe":
            names = (f"layerprobe.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = (node.module or "",)
        elif isinstance(node, ast.Import):
            names = (alias.name for alias in node.names)
        for name in names:
            if name.startswith("layerprobe."):
                room = name.split(".")[1]
                found.add("__init__" if room.startswith("__v") else room)
    return found


def modules() -> dict[Path, str]:
    return {path: path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")}


def violations(importer: str, source: str) -> list[str]:
    return [f"{importer} -> {room}" for room in sorted(rooms_imported(source)) if not allowed(importer, room)]


def test_every_module_stands_in_a_known_room() -> None:
    known = GROUND | ROOMS | CHECKS | STAGES | TOP | LAZY
    assert set(modules().values()) <= known


def test_imports_only_go_down() -> None:
    assert [fault for path, room in modules().items() for fault in violations(room, path.read_text())] == []


@pytest.mark.parametrize(
    ("importer", "line"),
    [
        ("store", "from layerprobe.metrics.recall import recall_name"),
        ("metrics", "import layerprobe.store"),
        ("training", "from layerprobe import extraction"),
        ("errors", "def f():\n    from layerprobe.taps import Tap"),
        ("extraction", "from layerprobe.workflow import parts"),
    ],
)
def test_the_import_test_can_fail(importer: str, line: str) -> None:
    assert len(violations(importer, line)) == 1


def imports_at_top(source: str) -> set[str]:
    """The modules that a module may need to be imported itself: not those inside functions, but those for types."""
    found: set[str] = set()
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.ImportFrom):
            found |= {node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += ast.iter_child_nodes(node)
    return found


def in_circles(sources: Mapping[str, str]) -> list[str]:
    """Which modules import themselves, by way of others."""
    graph = {name: imports_at_top(source) & sources.keys() - {name} for name, source in sources.items()}

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
        for path, room in modules().items()
        if room not in LAZY
    }
    assert in_circles(sources) == []


@pytest.mark.parametrize(
    ("line", "circle"),
    [
        ("from layerprobe.losses.a import A", ["layerprobe.losses.a", "layerprobe.losses.b"]),
        ("from layerprobe.losses import a", ["layerprobe.losses.a", "layerprobe.losses.b"]),
        ("if TYPE_CHECKING:\n    import layerprobe.losses.a", ["layerprobe.losses.a", "layerprobe.losses.b"]),
        ("def f():\n    if True:\n        from layerprobe.losses.a import A", []),
        ("class B:\n    def f(self):\n        import layerprobe.losses.a", []),
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
