"""README and the pages of docs: their examples run and print what they show, their links lead somewhere."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from layerprobe import registry
from layerprobe.cli import output
from tests.docs.pages import ROOT, Block, Command, blocks_of, commands_of, differences, name_of, pages
from tests.docs.resolving import resolve
from tests.docs.world import make_world, names_of_python, typed_apart
from tests.workflow.conftest import NARROW_VGG

PAGES = pages()
TERMINAL_WIDTH = 88
SHELL = ("console", "sh", "bash")
# A program whose words are handed to the shell, since they are more than a call of layerprobe.
_OPERATORS = re.compile(r"[|<>;&`]|\$\(|\*\s|^\w+=|^(?!layerprobe )")
_INSTALLS = re.compile(r"^(pip|uv|conda|git|docker|python3? -m venv) ")


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(registry.NETS, "narrow_vgg", NARROW_VGG)
        patch.setattr(output, "_PLAIN_INTERVAL", 1e9)
        make_world(folder, patch)
    return folder


@pytest.fixture
def here(world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the world, as the current folder, with a shell that knows layerprobe."""
    folder = tmp_path / "here"
    shutil.copytree(world, folder)
    record = folder / "cache" / "netA" / "run.json"
    record.write_text(record.read_text().replace(str(world), str(folder)))
    binaries = tmp_path / "bin"
    binaries.mkdir()
    (binaries / "layerprobe").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m layerprobe "$@"\n')
    (binaries / "layerprobe").chmod(0o755)
    (binaries / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(binaries), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("COLUMNS", str(TERMINAL_WIDTH))
    monkeypatch.setenv("TERM", "dumb")  # no colours
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(registry.NETS, "narrow_vgg", NARROW_VGG)
    monkeypatch.setattr(output, "_PLAIN_INTERVAL", 1e9)  # a slow machine would print lines of progress
    monkeypatch.chdir(folder)
    return folder


def blocks_to_run(page: Path) -> list[Block]:
    """The blocks that are run, in their order; none is both marked and run."""
    return [block for block in blocks_of(page) if block.language in (*SHELL, "python") and not block.mark]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks_to_run(page)], ids=name_of)
def test_the_examples_of_a_page_run(page: Path, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = names_of_python()
    for block in blocks_to_run(page):
        if block.language == "python":
            run_python_block(block, names)
            continue
        for command in commands_of(block):
            if _INSTALLS.search(command.line):
                resolve(command.words)
            else:
                run_command(command, block, monkeypatch)


def run_python_block(block: Block, names: dict[str, object]) -> None:
    """Execute it in the names of the page; a value in a comment is that of the expression before it."""
    lines = block.text.splitlines()
    tree = ast.parse(block.text)
    for node in tree.body:
        module = ast.Module([node], [])
        if not isinstance(node, ast.Expr):
            exec(compile(module, str(block), "exec"), names)
            continue
        value = eval(compile(ast.Expression(node.value), str(block), "eval"), names)
        if (stated := stated_value(lines[(node.end_lineno or 1) - 1][node.end_col_offset or 0 :])) is not None:
            assert value == pytest.approx(stated, abs=5e-4), f"{block}: {lines[node.lineno - 1]}"


def stated_value(comment: str) -> object:
    """The number or container at the beginning of a comment; None where it begins otherwise."""
    match = re.match(r"\s*#\s*(\{.*?\}|\[.*?\]|-?\d[\d.e-]*)(?:$|[;,. ])", comment)
    return ast.literal_eval(match[1]) if match else None


def run_command(command: Command, block: Block, patch: pytest.MonkeyPatch) -> None:
    """Run it, and compare what it prints with what the page shows."""
    if _OPERATORS.search(command.line):
        done = subprocess.run(["bash", "-c", command.line], capture_output=True, text=True, check=False, timeout=300)
        code, texts = done.returncode, [("stdout", done.stdout), ("stderr", done.stderr)]
    else:
        code, texts = typed_apart(command.words[1:], patch)
    shows_error = any(row.startswith("error: ") for row in command.shown or ())
    everything = "".join(text for _, text in texts)
    assert (code != 0) == shows_error, f"{block}: {command.line}: exit code {code}\n{everything}"
    require_shown(command, block, texts)


def require_shown(command: Command, block: Block, texts: list[tuple[str, str]]) -> None:
    """Check that a command prints what a page shows: of its result, or of all that it prints.

    Args:
        texts: name of the stream, text.
    """
    everything = "".join(text for _, text in texts)
    result = "".join(text for stream, text in texts if stream == "stdout")
    if command.shown and (missing := differences(command.shown, result)):
        missing = differences(command.shown, everything) and missing
        assert not missing, f"{block}: {command.line} prints otherwise: {missing}\n\n{everything}"


PARSED = [block for page in PAGES for block in blocks_of(page) if block.mark == "parsed"]


@pytest.mark.parametrize("block", PARSED, ids=str)
def test_a_command_that_is_not_run_here_names_what_there_is(block: Block, here: Path) -> None:
    for command in commands_of(block):
        for words in pieces(command.words):
            resolve(words)


def pieces(words: list[str]) -> list[list[str]]:
    """The commands that a line joins by `&&`, `|` or `;`."""
    commands: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "|", ";", "||", "&", ">"):
            commands.append([])
        else:
            commands[-1].append(word)
    return [command for command in commands if command]


LINK = re.compile(r"""(?:\]\(|(?:src|href)=")([^)"\s]+)[)"\s]""")
_FENCED = re.compile(r"^([ ]*)(```+)\w*\n.*?^\1\2[ ]*$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    text = _FENCED.sub("", page.read_text(encoding="utf-8"))
    assert [link for link in LINK.findall(text) if not leads_somewhere(link, page)] == []


def leads_somewhere(link: str, page: Path) -> bool:
    """Whether a link is to elsewhere, or to a file, and a heading of it, that is there."""
    if re.match(r"[a-z]+:", link):
        return True
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    if not target.exists():
        return False
    return not anchor or target.suffix != ".md" or anchor in anchors_of(target)


def anchors_of(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and MyST make them, and those set by hand."""
    text = page.read_text(encoding="utf-8")
    titles = re.findall(r"^#+ +(.*?) *$", _FENCED.sub("", text), re.MULTILINE)
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)|[`*]", r"\1", title).lower() for title in titles)
    by_title = {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}
    return by_title | set(re.findall(r"^\((.+?)\)=$", text, re.MULTILINE))


def test_a_mark_says_why() -> None:
    assert [str(block) for page in PAGES for block in blocks_of(page) if block.mark and len(block.reason) < 8] == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_line_of_code_fits_the_page(page: Path) -> None:
    blocks = [block for block in blocks_of(page) if block.language in (*SHELL, "python", "toml", "text", "")]
    assert [(str(b), line) for b in blocks for line in b.text.splitlines() if len(line) > TERMINAL_WIDTH] == []
