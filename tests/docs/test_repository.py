from __future__ import annotations

from pathlib import Path

from docs._ext.repository import rewrite

ADDRESS = "https://example.org/repository"


def test_links_lead_to_pages_of_the_site_or_to_the_repository(tmp_path: Path) -> None:
    docs = tmp_path / "docs"
    for name in ("docs/how-to/choose.md", "recipes/netA.toml", "CONTRIBUTING.md"):
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()

    def link(text: str, folder: Path) -> str:
        return rewrite(f"[x]({text})", folder, docs, ADDRESS)[4:-1]

    assert link("docs/how-to/choose.md#a", tmp_path) == "/how-to/choose.md#a"
    assert link("recipes/netA.toml", tmp_path) == f"{ADDRESS}/blob/main/recipes/netA.toml"
    assert link("../../recipes", docs / "how-to") == f"{ADDRESS}/tree/main/recipes"
    assert link("../CONTRIBUTING.md#tests", docs) == "/contributing.md#tests"
    assert link("missing.md", docs) == "missing.md"
    assert link("https://example.org/a", docs) == "https://example.org/a"
    assert link("#here", docs) == "#here"
