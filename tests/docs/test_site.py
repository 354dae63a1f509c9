from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="the site needs layerprobe[docs]")
from docs._ext import mathml
from docs._ext.generated import GENERATORS, filled

DOCS = Path(__file__).parents[2] / "docs"


def test_a_directive_is_replaced_by_what_it_names() -> None:
    text = filled("# A\n\n```{generated} packages\n```\n\nB\n")
    assert text.startswith("# A\n\n| package | question |")
    assert text.endswith("|\n\nB\n")


def test_every_generator_is_used_by_a_page() -> None:
    text = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    assert [name for name in GENERATORS if f"```{{generated}} {name}\n```" not in text] == []


def test_a_formula_needs_no_script() -> None:
    assert mathml.formula(r"m \pm t \sqrt{s^2 / S}", block=True).startswith('<div class="math"><math')
    assert "<msqrt>" in mathml.formula(r"\sqrt{2}", block=False)
