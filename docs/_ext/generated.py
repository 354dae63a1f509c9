"""The line ```` ```{generated} NAME ```` of a page, replaced by Markdown before the page is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.autodoc.mock import mock

from docs._ext import classes, commands, keys, packages, parts, printed, tables

GENERATORS: Mapping[str, Callable[[], str]] = {
    "commands": commands.page,
    "shared-options": commands.shared,
    "classes": classes.page,
    "keys": keys.page,
    "losses": parts.losses,
    "metrics": parts.metrics,
    "post-processing": parts.post_processing,
    "data-sets": parts.data_sets,
    "networks": parts.networks,
    "plots": parts.plots,
    "packages": packages.table_of_packages,
    "printed": printed.page,
    "findings": tables.findings,
    "maps": tables.maps,
}
_DIRECTIVE = re.compile(r"^```\{generated\} ([\w-]+)\n```$", re.MULTILINE)


def filled(text: str) -> str:
    """A page with what its directives stand for."""
    return _DIRECTIVE.sub(lambda match: GENERATORS[match[1]](), text)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if _DIRECTIVE.search(source[0]) and app.env.doc2path(page).suffix == ".md":
        with mock(app.config.autodoc_mock_imports):
            source[0] = filled(source[0])


def _outdated(app: Sphinx, env: BuildEnvironment, *_: object) -> list[str]:  # noqa: ARG001 - Sphinx's signature
    # What they are generated from may have changed though the page has not.
    return [
        page
        for page in env.all_docs
        if page.startswith("reference/") or page in ("architecture", "papers/rows", "results/tables")
    ]


def setup(app: Sphinx) -> dict[str, bool]:
    """Fill pages as they are read."""
    app.connect("source-read", _read, priority=400)  # before links are rewritten
    app.connect("env-get-outdated", _outdated)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
