"""The Python interface: what `layerprobe` offers, and the classes that its functions return."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any

import layerprobe

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# Values that users are given inside others, and need not know.
_INTERNAL = {
    *("Run", "MemoryProbe", "UserFeatures", "Problem", "ParameterGroup", "PrintedTables", "SamplingUnits"),
    *("IntervalKind", "Subject", "IndexCost"),
}
# Annotations name these where a type checker alone imports them.
_MODULES = ("layerprobe.workflow.compare.comparison", "layerprobe.workflow.python.probed")
_CODE = re.compile(r"(`+[^`]+`+)")


def functions() -> list[str]:
    """The functions that `layerprobe` offers."""
    return [name for name in layerprobe.__all__ if inspect.isfunction(getattr(layerprobe, name))]


def offered_classes() -> list[type]:
    """The classes that `layerprobe` offers."""
    return [one for name in layerprobe.__all__ if inspect.isclass(one := getattr(layerprobe, name))]


def returned_classes() -> list[type]:
    """What the functions return, and what these values have: in the order of first mention."""
    for module in _MODULES:
        import_module(module)
    waiting = [getattr(layerprobe, name).__annotations__.get("return", "") for name in functions()]
    waiting += [text for one in offered_classes() for text in _annotations(one)]
    found: list[type] = []
    for text in waiting:  # it grows
        for name in re.findall(r"[A-Z]\w+", text if isinstance(text, str) else getattr(text, "__name__", "")):
            one = _class_named(name)
            if one is not None and one not in (*found, *offered_classes()) and name not in _INTERNAL:
                found.append(one)
                waiting += _annotations(one)
    return found


def _annotations(one: type) -> Iterator[str]:
    """Of the public fields, properties and methods."""
    yield from (text for name, text in inspect.get_annotations(one).items() if not name.startswith("_"))
    for name, member in vars(one).items():
        called = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(called):
            yield called.__annotations__.get("return", "")


def _class_named(name: str) -> type | None:
    modules = [module for key, module in sys.modules.items() if key.startswith("layerprobe.")]
    found = [getattr(module, name, None) for module in modules]
    return next((one for one in found if inspect.isclass(one) and one.__module__.startswith("layerprobe.")), None)


def page() -> str:
    """A section for functions, for classes to make, and for classes that are returned."""
    parts = ["## Functions", *(_function(name) for name in functions()), "## Classes"]
    parts += [_class(one, f"layerprobe.{one.__name__}") for one in offered_classes()]
    parts += ["## Classes that functions return"]
    parts += [_class(one, f"{one.__module__}.{one.__qualname__}") for one in returned_classes()]
    return "\n\n".join(parts)


def _function(name: str) -> str:
    return f"### {name}\n\n```{{eval-rst}}\n.. autofunction:: layerprobe.{name}\n```"


def _class(one: type, name: str) -> str:
    return f"### {one.__name__}\n\n```{{eval-rst}}\n.. autoclass:: {name}\n   :members:\n```"


def _without_arguments(*event: Any) -> tuple[str, None] | None:
    _, what, name, *_ = event
    # Nobody makes them: forty arguments would hide what a choice is.
    made = {f"layerprobe.{one.__name__}" for one in offered_classes()}
    return ("", None) if what in ("class", "exception") and name not in made else None


def as_rst(text: str) -> list[str]:
    """The lines of a docstring, which marks code and examples alone: what else RST reads as markup is text."""
    blocks = re.split(r"(\n\s*\n)", text)
    return "".join(block if block.lstrip().startswith(">>>") else _escaped(block) for block in blocks).splitlines()


def _escaped(block: str) -> str:
    parts = _CODE.split(block)
    parts[::2] = [re.sub(r"(?<!\\)([|*])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _before_napoleon(*event: Any) -> None:
    lines = event[-1]
    lines[:] = as_rst("\n".join(lines))


def _after_napoleon(*event: Any) -> None:
    _, what, _, thing, _, lines = event
    if what == "property":  # napoleon takes what stands before a colon in its first line for its type
        lines[:] = as_rst(inspect.getdoc(thing) or "")


def setup(app: Sphinx) -> dict[str, bool]:
    """Show classes that nobody makes without arguments, and docstrings as they are meant."""
    app.connect("autodoc-process-signature", _without_arguments)
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
