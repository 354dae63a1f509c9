"""Packages that models come from: imported when needed, and silent."""

from __future__ import annotations

import contextlib
import importlib
import logging
import warnings
from collections.abc import Iterator
from importlib import metadata
from types import ModuleType

from layerprobe.system.errors import EnvironmentFault, RecipeError, near_miss
from layerprobe.system.memory import memory_faults_told


def import_package(package: str, extra: str) -> ModuleType:
    """A package of one of layerprobe's extras."""
    fix = f"pip install 'layerprobe[{extra}]'"
    try:
        with quiet():
            return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name == package:
            raise EnvironmentFault(f"{package} is not installed", fix=fix) from error
        raise EnvironmentFault(f"{package} cannot be imported: {error}", fix=fix) from error
    except (ImportError, RuntimeError) as error:  # transformers wraps what its parts raise
        raise EnvironmentFault(f"{package} cannot be imported: {error}", fix=fix) from error


def version(distribution: str, extra: str) -> dict[str, str]:
    """The installed version of a package, by its name; the package is not imported."""
    try:
        return {distribution: metadata.version(distribution)}
    except metadata.PackageNotFoundError as error:
        fix = f"pip install 'layerprobe[{extra}]'"
        raise EnvironmentFault(f"{distribution} is not installed", fix=fix) from error


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hide what libraries log and their warnings; their errors are raised, a lack of memory as such."""
    root, before = logging.getLogger(), logging.root.manager.disable
    # `logging.warning`, which open_clip calls, gives the root logger a handler for good where it has none.
    nothing = logging.NullHandler()
    root.addHandler(nothing)
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"), memory_faults_told():
            yield
    finally:
        logging.disable(before)
        root.removeHandler(nothing)


def unknown_model(source: str, name: str, model_names: list[str], where: str) -> RecipeError:
    """The error of a model's name that its library does not know, with the near miss."""
    question = near_miss(name, model_names).partition("? ")
    near = f"{question[0]}? " if question[1] else ""
    return RecipeError(f"unknown model {source}{name}", fix=f"{near}{where} lists the names")
