"""Where recipes and studies lie: names, files, and the line that says what a recipe trains."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from layerprobe.system.errors import RecipeError, UnknownNameError


def find_recipe(reference: str) -> Path:
    """The file of a recipe: a path, else ./recipes/NAME.toml, else the packaged one."""
    return _find_file("recipe", reference, list_recipes(), "layerprobe recipes")


def list_recipes() -> dict[str, Path]:
    """Name -> file of every recipe; one in ./recipes hides the packaged one of its name."""
    return _list_files("")


def find_study(reference: str) -> Path:
    """The file of a study: a path, else ./recipes/studies/NAME.toml, else the packaged one."""
    return _find_file("study", reference, list_studies(), "layerprobe study --list")


def list_studies() -> dict[str, Path]:
    """Name -> file of every study; one in ./recipes/studies hides the packaged one of its name."""
    return _list_files("studies")


def _find_file(kind: str, reference: str, paths: dict[str, Path], listing: str) -> Path:
    if reference.endswith(".toml"):
        if not Path(reference).is_file():
            raise RecipeError(f"no such {kind}", file=reference, fix=f"{listing} lists the known ones")
        return Path(reference)
    if reference not in paths:
        raise UnknownNameError(kind, reference, paths)
    return paths[reference]


def _list_files(below: str) -> dict[str, Path]:
    folders = [_packaged_folder(), Path("recipes")]
    files = [path for folder in folders for path in sorted((folder / below).glob("*.toml")) if path.is_file()]
    return dict(sorted({path.stem: path for path in files}.items()))


def read_toml(path: Path) -> dict[str, Any]:
    """The sections of a recipe or study."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise RecipeError(f"not UTF-8: {error}", file=path, fix="Save the file as UTF-8") from error
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"not a TOML file: {error}", file=path, fix="Correct that place") from error
    except RecursionError as error:
        raise RecipeError("nested too deep", file=path, fix="Correct its brackets") from error


def packaged_recipe(name: str) -> Path:
    """The file of a packaged recipe, also where one in ./recipes hides it."""
    return _packaged_folder() / f"{name}.toml"


def _packaged_folder() -> Path:
    packaged = Path(__file__).parents[1] / "recipes"
    # An editable install runs from the repository, where the recipes lie beside the package.
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "recipes"


def summary(path: Path) -> str:
    """A recipe's description: its first comment line, without its name."""
    first_line = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    comment = first_line.removeprefix("#").strip() if first_line.startswith("#") else ""
    name, _, description = comment.partition(": ")
    return description if name.casefold() == path.stem.casefold() else comment
