from __future__ import annotations

import pytest

from docs._ext import keys
from layerprobe.values.sections import SECTIONS

KEYS = [(section, key) for section, model in SECTIONS.items() for key in model.model_fields]


def test_every_key_stands_on_the_page_and_can_be_linked() -> None:
    text = keys.page()
    assert [f"{section}.{key}" for section, key in KEYS if f"({section}.{key})=\n\n`{key}` (" not in text] == []


def test_a_key_has_type_range_and_default() -> None:
    assert "`learning_rate` (number, above 0; default `0.01`)" in keys.page()


@pytest.mark.parametrize(("section", "key"), KEYS)
def test_every_key_has_a_description(section: str, key: str) -> None:
    assert SECTIONS[section].model_fields[key].description
