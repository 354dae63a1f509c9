"""Every key of a recipe: type, range, default and description, from the sections' fields."""

from __future__ import annotations

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs._ext.markdown import entry, escaped, parsed
from docs._ext.words import default_words, type_words
from layerprobe.values.sections import SECTIONS


def page() -> str:
    """A section of the page for each section of a recipe."""
    return "\n\n".join(section(name) for name in SECTIONS)


def section(name: str) -> str:
    """The keys of a section of a recipe."""
    model = SECTIONS[name]
    keys = [key(name, option, info) for option, info in model.model_fields.items()]
    return "\n\n".join([f"## \\[{name}\\]", parsed(model.__doc__ or "").markdown, *keys])


def key(section_name: str, option: str, info: FieldInfo) -> str:
    """An entry of a key, which links call `section.key`."""
    kind = type_words(info.annotation, info.metadata)
    default = "required" if info.default is PydanticUndefined else default_words(info.default)
    return entry(option, (kind, default), escaped(info.description or ""), target=f"{section_name}.{option}")
