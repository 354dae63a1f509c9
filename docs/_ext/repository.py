"""Links that leave docs/ for another file of the repository: to the site's page that includes it, or to its address."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sphinx.application import Sphinx

# Files outside docs/ that a page of the site includes.
INCLUDED = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_LINK = re.compile(r"(?<=\]\()(?!https?:|mailto:|#)([^()\s#]+)(#[^()\s]*)?(?=\))")


def rewrite(text: str, folder: Path, docs: Path, address: str) -> str:
    """The Markdown with its links as the site needs them.

    Args:
        folder: where the text lies, which its links are relative to.
        docs: the folder of the site.
        address: of a file of the repository, before its path.
    """

    def target(match: re.Match[str]) -> str:
        path, anchor = Path(folder, match[1]).resolve(), match[2] or ""
        root = docs.parent
        if not path.exists() or not path.is_relative_to(root):
            return match[0]  # Sphinx reports it
        name = path.relative_to(root).as_posix()
        if name in INCLUDED:
            return f"/{INCLUDED[name]}{anchor}"
        if path.is_relative_to(docs):
            return f"/{path.relative_to(docs).as_posix()}{anchor}"
        return f"{address}/{'tree' if path.is_dir() else 'blob'}/main/{name}{anchor}"

    return _LINK.sub(target, text)


def _read(app: Sphinx, page: str, source: list[str]) -> None:
    if app.env.doc2path(page).suffix == ".md":
        folder = Path(app.env.doc2path(page)).parent
        source[0] = rewrite(source[0], folder, Path(app.srcdir), app.config.html_theme_options["github_url"])


def _included(app: Sphinx, path: Path, page: str, source: list[str]) -> None:  # noqa: ARG001 - Sphinx's signature
    source[0] = rewrite(
        source[0], Path(app.srcdir, path).parent, Path(app.srcdir), app.config.html_theme_options["github_url"]
    )


def setup(app: Sphinx) -> dict[str, bool]:
    """Rewrite pages, and what they include, as they are read."""
    app.connect("source-read", _read)
    app.connect("include-read", _included)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
