"""What the wheel and the sdist contain, and what PyPI shows of them."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from email.message import Message
from pathlib import Path

import pytest
from typer.testing import CliRunner

from layerprobe import __version__, registry
from layerprobe.cli import command_line

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CITATION = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
LINK = re.compile(r"""\]\(([^)\s]+)\)|\b(?:href|src|srcset)="([^"]+)\"""")
SITE = PROJECT["urls"]["Documentation"] + "/"
FILES = f"{PROJECT['urls']['Source']}/blob/v{__version__}/"
PICTURES = f"https://raw.githubusercontent.com/layerprobe/layerprobe/v{__version__}/"


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    return folder


@pytest.fixture(scope="module")
def in_wheel(distributions: Path) -> set[str]:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.fixture(scope="module")
def metadata(distributions: Path) -> Message:
    (wheel,) = distributions.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return message_from_bytes(archive.read(f"layerprobe-{__version__}.dist-info/METADATA"))


def files_below(folder: str) -> set[str]:
    """Paths relative to the repository, without what Python and editors leave."""
    paths = (path.relative_to(ROOT) for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.as_posix() for path in paths if not re.search(r"(^|/)[._]_?[a-z]*cache", path.as_posix())}


def test_the_wheel_contains_every_file_of_the_package(in_wheel: set[str]) -> None:
    package = files_below("layerprobe") | {f"layerprobe/{path}" for path in files_below("recipes")}
    assert {"layerprobe/py.typed", "layerprobe/recipes/netA.toml", "layerprobe/report/page.html.j2"} <= package
    assert {name for name in in_wheel if name.startswith("layerprobe/")} == package


def test_the_wheel_contains_nothing_beside_the_package_and_its_licence(in_wheel: set[str]) -> None:
    beside = {name for name in in_wheel if not name.startswith("layerprobe/")}
    info = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert beside == {f"layerprobe-{__version__}.dist-info/{name}" for name in info}


def test_tests_and_pages_can_be_built_from_the_sdist(distributions: Path) -> None:
    (sdist,) = distributions.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"pyproject.toml", "CHANGELOG.md", "CITATION.cff", "SECURITY.md", "CODE_OF_CONDUCT.md", "RELEASING.md"}
    for folder in ("layerprobe", "recipes", "tests", "benchmarks", "docs"):
        needed |= {name for name in files_below(folder) if not name.startswith("docs/_build/")}
    assert needed - names == set()


def test_every_link_of_the_readme_on_pypi_leads_to_the_file_that_it_names(metadata: Message) -> None:
    links = {markdown or html for markdown, html in LINK.findall(str(metadata.get_payload()))}
    assert [link for link in links if not re.match(r"https://|#", link)] == []
    places = {PICTURES: "", FILES: "", SITE: "docs/"}
    named = {
        place + link.removeprefix(start).partition("#")[0].replace(".html", ".*")
        for link in links
        for start, place in places.items()
        if link.startswith(start)
    }
    assert len(named) > 5
    assert [pattern for pattern in named if not list(ROOT.glob(pattern))] == []


def test_one_sentence_says_what_layerprobe_is_for() -> None:
    shown = CliRunner().invoke(command_line(), ["--help"]).stdout
    (abstract,) = re.findall(r"^abstract: (.*)$", CITATION, re.MULTILINE)
    assert PROJECT["description"] == abstract
    assert PROJECT["description"] in " ".join(shown.split())


def test_the_citation_has_the_addresses_and_the_date_of_the_release() -> None:
    fields = dict(re.findall(r"^(url|repository-code|date-released): (.*)$", CITATION, re.MULTILINE))
    latest = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert fields["url"] == PROJECT["urls"]["Documentation"]
    assert fields["repository-code"] == PROJECT["urls"]["Source"]
    assert f"\n## {__version__} - {fields['date-released']}\n" in latest


def test_the_changelog_counts_what_there_is() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    recipes = len(list((ROOT / "recipes").glob("*.toml")))
    for count in (f"{recipes} recipes", f"{len(registry.LOSSES)} losses", f"{len(registry.PLOTS)} kinds of plots"):
        assert count in text


def test_the_workflow_tests_the_oldest_torch_and_every_python_that_the_package_states() -> None:
    text = (ROOT / ".github" / "workflows" / "tests.yml").read_text(encoding="utf-8")
    tested = dict(re.findall(r'\b(torch|torchvision): "([\d.]+)"', text))
    oldest = dict(re.findall(r"^(torch|torchvision)>=([\d.]+)$", "\n".join(PROJECT["dependencies"]), re.MULTILINE))
    stated = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert tested == oldest
    assert set(re.findall(r'\bpython: "(3\.\d+)"', text)) == set(stated)
