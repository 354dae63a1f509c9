"""The power of the test suite: lines of the package broken at random, and how many of them a test notices.

    python benchmarks/broken_lines.py draw LINES.json --seed 45 --lines 30
    python benchmarks/broken_lines.py run LINES.json RESULT.json --copies 2

`draw` breaks lines inside functions of this checkout in one of these ways: a comparison, a boolean or arithmetic
operator, a number, a condition or a returned value is changed, or a call is left out. `run` runs the suite once on a
copy of this checkout that writes down which tests reach which of the lines, those in processes that tests start
included. Then it breaks one line at a time and runs the tests that reach it until one fails. A line of another checkout
is the one with the same text in a function of the same name; `run` says which lines this checkout has not.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

ROOT = Path(__file__).resolve().parent.parent
SWAPPED: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
}
REACHED = """
import os
_seen = set()

def reached(number):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" (")[0]
    if (number, test) not in _seen and os.environ.get("BROKEN_LINES"):
        _seen.add((number, test))
        with open(os.environ["BROKEN_LINES"], "a") as file:
            file.write(f"{number}\\t{test}\\n")
"""


@dataclass(frozen=True)
class Line:
    """A statement of the package, and the same one broken."""

    file: str
    function: str
    number: int
    text: str
    broken: str


def breakings(path: Path) -> Iterator[tuple[Line, ast.stmt, ast.stmt]]:
    """All ways to break the one-line statements of functions of a module."""
    tree, lines = ast.parse(path.read_text()), path.read_text().splitlines()

    def walk(node: ast.AST, name: str, inside: bool) -> Iterator[tuple[Line, ast.stmt, ast.stmt]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from walk(child, f"{name}.{child.name}".lstrip("."), isinstance(child, ast.FunctionDef))
                continue
            if inside and isinstance(child, ast.stmt):
                head = child.test if isinstance(child, ast.If | ast.While) else child
                text = lines[child.lineno - 1].strip()
                if head.end_lineno == child.lineno and not text.startswith(("elif", "@", "import", "from")):
                    for broken in broken_statements(child):
                        new = ast.unparse(broken).splitlines()[0]
                        yield Line(str(path.relative_to(ROOT)), name, child.lineno, text, new), child, broken
            yield from walk(child, name, inside)

    yield from walk(tree, "", inside=False)


def broken_statements(statement: ast.stmt) -> Iterator[ast.stmt]:
    """A statement, broken in each way; of a compound one its condition."""
    if isinstance(statement, ast.Expr):
        if isinstance(statement.value, ast.Call):
            yield ast.Pass()
        return
    if isinstance(statement, ast.Return) and statement.value is not None:
        yield ast.Return(ast.Constant(None))
    if isinstance(statement, ast.If):
        negated = copy.deepcopy(statement)
        negated.test = ast.UnaryOp(ast.Not(), negated.test)
        yield negated
    if not isinstance(statement, ast.If | ast.While | ast.Return | ast.Assign | ast.AugAssign | ast.AnnAssign):
        return
    part = "test" if isinstance(statement, ast.If | ast.While) else "value"
    expression = getattr(statement, part)
    for number, node in enumerate(ast.walk(expression) if expression is not None else ()):
        for new in broken_nodes(node):
            broken = copy.deepcopy(statement)
            place = list(ast.walk(getattr(broken, part)))[number]
            place.__dict__.clear()
            place.__class__ = type(new)  # the node stands in lists and fields of others, so it is changed where it is
            place.__dict__.update(copy.deepcopy(new).__dict__)
            yield broken


def broken_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """An expression with another operator or number."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield ast.Compare(node.left, [SWAPPED[type(node.ops[0])]()], node.comparators)  # type: ignore[list-item]
    elif isinstance(node, ast.BoolOp):
        yield ast.BoolOp(SWAPPED[type(node.op)](), node.values)  # type: ignore[arg-type]
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED:
        yield ast.BinOp(node.left, SWAPPED[type(node.op)](), node.right)  # type: ignore[arg-type]
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.operand


def draw(count: int, seed: int) -> list[Line]:
    """Lines, all equally likely, each broken in one way."""
    ways: dict[tuple[str, int], list[Line]] = {}
    for path in sorted((ROOT / "layerprobe").rglob("*.py")):
        for line, _, _ in breakings(path):
            ways.setdefault((line.file, line.number), []).append(line)
    generator = random.Random(seed)
    return [generator.choice(ways[place]) for place in generator.sample(sorted(ways), count)]


def here(line: Line, everything: list[tuple[Line, ast.stmt, ast.stmt]]) -> tuple[Line, ast.stmt, ast.stmt] | None:
    """A line of another checkout in this one."""
    equal = [
        item
        for item in everything
        if (item[0].function.split(".")[-1], item[0].text, item[0].broken)
        == (line.function.split(".")[-1], line.text, line.broken)
    ]
    return min(equal, key=lambda item: item[0].file != line.file, default=None)


def with_statement(path: Path, statement: ast.stmt, new: ast.stmt | str) -> str:
    """The module's text with another statement, or with one before it."""
    lines = path.read_text().splitlines()
    indent = " " * statement.col_offset
    if isinstance(new, str):
        lines.insert(statement.lineno - 1, indent + new)
    else:
        end = statement.lineno if isinstance(statement, ast.If | ast.While) else statement.end_lineno
        lines[statement.lineno - 1 : end] = [indent + ast.unparse(new).splitlines()[0]]
    return "\n".join(lines) + "\n"


def pytest(tree: Path, arguments: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    """Run tests of a copy."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def copy_tree(folder: Path) -> Path:
    """A copy of what git tracks."""
    for name in subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    return folder


def tests_by_line(lines: list[tuple[Line, ast.stmt, ast.stmt]]) -> list[list[str]]:
    """Which tests reach each of the lines."""
    with tempfile.TemporaryDirectory() as folder:
        tree, log = copy_tree(Path(folder) / "tree"), Path(folder) / "reached"
        (tree / "layerprobe" / "_reached.py").write_text(REACHED)
        numbered = sorted(enumerate(lines), key=lambda item: -item[1][1].lineno)  # later lines of a file come first
        for number, (line, statement, _) in numbered:
            call = f'__import__("layerprobe._reached", fromlist=["x"]).reached({number})'
            (tree / line.file).write_text(with_statement(tree / line.file, statement, call))
        log.touch()
        print(pytest(tree, ["-n", "auto"], BROKEN_LINES=str(log)).stdout.splitlines()[-1], flush=True)
        reached: list[list[str]] = [[] for _ in lines]
        for entry in dict.fromkeys(log.read_text().splitlines()):
            place, _, test = entry.partition("\t")
            if test:
                reached[int(place)].append(test)
        return reached


def noticed(tree: Path, item: tuple[Line, ast.stmt, ast.stmt], tests: list[str], most: int) -> str:
    """The test that fails when a line is broken, or nothing."""
    line, statement, broken = item
    module = tree / line.file
    before = module.read_text()
    try:
        module.write_text(with_statement(module, statement, broken))
        mirrored = line.file.removeprefix("layerprobe/").removesuffix(".py").rpartition("/")
        place = f"tests/{mirrored[0]}/test_{mirrored[2]}"
        ordered = sorted(tests, key=lambda test: not test.startswith(place))[:most]
        if not ordered:
            return ""
        result = pytest(tree, ["-n", "0", "-x", *ordered])
        failures = [text for text in result.stdout.splitlines() if text.startswith(("FAILED", "ERROR"))]
        return failures[0] if failures else f"exit {result.returncode}" if result.returncode else ""
    finally:
        module.write_text(before)


def run(lines: list[Line], copies: int, most: int) -> list[dict[str, object]]:
    """Break one line after the other; the rows of the result."""
    everything = [item for path in sorted((ROOT / "layerprobe").rglob("*.py")) for item in breakings(path)]
    present = [item for line in lines if (item := here(line, everything))]
    print(f"{len(present)} of {len(lines)} lines are in this checkout", flush=True)
    reached = tests_by_line(present)
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(copies) as pool:
        trees: Queue[Path] = Queue()
        for number in range(copies):
            trees.put(copy_tree(Path(folder) / str(number)))

        def break_line(item: tuple[Line, ast.stmt, ast.stmt], tests: list[str]) -> dict[str, object]:
            tree = trees.get()
            try:
                by = noticed(tree, item, tests, most)
            finally:
                trees.put(tree)
            line = item[0]
            change = f"{line.file}:{line.number} {line.text} -> {line.broken}"
            print(f"{change}: {len(tests)} tests, {by or 'unnoticed'}", flush=True)
            return {**asdict(line), "tests": len(tests), "noticed": by}

        rows = list(pool.map(break_line, present, reached))
    print(f"noticed: {sum(bool(row['noticed']) for row in rows)} of {len(rows)}")
    return rows


def main() -> None:
    """Draw lines, or break them."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing = commands.add_parser("draw")
    drawing.add_argument("file", type=Path)
    drawing.add_argument("--seed", type=int, default=45)
    drawing.add_argument("--lines", type=int, default=30)
    running = commands.add_parser("run")
    running.add_argument("file", type=Path)
    running.add_argument("result", type=Path)
    running.add_argument("--copies", type=int, default=2)
    running.add_argument("--most", type=int, default=600, help="tests of a line that are run at most")
    arguments = parser.parse_args()
    if arguments.command == "draw":
        arguments.file.write_text(json.dumps([asdict(x) for x in draw(arguments.lines, arguments.seed)], indent=1))
    else:
        lines = [Line(**row) for row in json.loads(arguments.file.read_text())]
        arguments.result.write_text(json.dumps(run(lines, arguments.copies, arguments.most), indent=1))


if __name__ == "__main__":
    main()
