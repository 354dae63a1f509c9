"""Where recipes lie: names, files, and the line that says what one trains."""

from __future__ import annotations

from pathlib import Path

from layerprobe.system.errors import RecipeError, UnknownNameError


def find_recipe(reference: str) -> Path:
    """The file of a recipe: a path, else ./recipes/NAME.toml, else the packaged one."""
    if reference.endswith(".toml"):
        if not Path(reference).is_file():
            raise RecipeError("no such recipe", file=reference, fix="layerprobe recipes lists the known ones")
        return Path(reference)
    known = list_recipes()
    if reference not in known:
        raise UnknownNameError("recipe", reference, known)
    return known[reference]


def list_recipes() -> dict[str, Path]:
    """Name -> file of every recipe; one in ./recipes hides the packaged one of its name."""
    folders = [_packaged_folder(), Path("recipes")]
    found = {path.stem: path for folder in folders for path in sorted(folder.glob("*.toml")) if path.is_file()}
    return dict(sorted(found.items()))


def packaged_recipe(name: str) -> Path:
    """The file of a packaged recipe, also where one in ./recipes hides it."""
    return _packaged_folder() / f"{name}.toml"


def _packaged_folder() -> Path:
    packaged = Path(__file__).parents[1] / "recipes"
    # An editable install runs from the repository, where the recipes lie beside the package.
    return packaged if packaged.is_dir() else Path(__file__).parents[2] / "recipes"


def summary(path: Path) -> str:
    """A recipe's description: its first comment line, without its name."""
    first = path.read_text(encoding="utf-8", errors="replace").partition("\n")[0]
    said = first.removeprefix("#").strip() if first.startswith("#") else ""
    name, _, rest = said.partition(": ")
    return rest if name.casefold() == path.stem.casefold() else said
