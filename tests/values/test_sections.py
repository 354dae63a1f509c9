from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from layerprobe.values.sections import Section
from layerprobe.workflow.study.search_space import Search
from layerprobe.workflow.study.study_file import About, End, Runs, Variant

LONGEST = 200


def described_sections(model: type[Section] = Section) -> Iterator[type[Section]]:
    """The sections that a module defines; those that are made for one loss, network or data set are none of them."""
    for section in model.__subclasses__():
        if getattr(sys.modules[section.__module__], section.__name__, None) is section:
            yield section
        yield from described_sections(section)


KEYS = [
    pytest.param(field.description, id=f"{section.__name__}.{name}")
    for section in dict.fromkeys(described_sections())
    for name, field in section.model_fields.items()
]


@pytest.mark.parametrize("description", KEYS)
def test_every_key_is_described_in_one_short_sentence(description: str | None) -> None:
    assert description is not None
    assert description.endswith(".")
    assert len(description) <= LONGEST
    assert description[0].isupper()
    assert ". " not in description.replace("...", "")


def test_the_sections_of_studies_are_among_them() -> None:
    assert {About, Runs, Variant, End, Search} <= {*described_sections()}
