"""Formulas as MathML, which browsers draw without a script: `html_math_renderer = "mathml"`."""

from __future__ import annotations

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.writers.html5 import HTML5Translator


def formula(text: str, *, block: bool) -> str:
    """HTML of a formula in LaTeX, on a line of its own or within a sentence."""
    shown: str = tex2mathml(text, as_block=block)
    return f'<div class="math">{shown}</div>\n' if block else shown


def _inline(translator: HTML5Translator, node: nodes.math) -> None:
    translator.body.append(formula(node.astext(), block=False))
    raise nodes.SkipNode


def _block(translator: HTML5Translator, node: nodes.math_block) -> None:
    translator.body.append(formula(node.astext(), block=True))
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer."""
    app.add_html_math_renderer("mathml", inline_renderers=(_inline, None), block_renderers=(_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
