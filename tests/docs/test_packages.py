from __future__ import annotations

from pathlib import Path

from docs._ext import packages

ROOT = Path(packages.ROOT)


def test_every_package_is_in_the_table_with_its_question() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in ROOT.rglob("__init__.py")} - {"."}
    assert [name for name, question, _ in packages.rows() if not question] == []
    assert {name.strip("`") for name, *_ in packages.rows()} == folders


def test_the_words_of_a_package_stand_beside_it() -> None:
    (row,) = (row for row in packages.rows() if row[0] == "`papers`")
    assert row[2] == "`PaperTable`, `PaperRow`, `PaperColumn`, `PaperCell`"
