from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.data.csv_text import read_text, rows_of, separator_of
from layerprobe.system.errors import DataError


def text_of(folder: Path, content: bytes) -> str:
    (folder / "t.csv").write_bytes(content)
    return read_text(folder / "t.csv")


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_utf8_and_marked_utf16_are_read(tmp_path: Path, encoding: str) -> None:
    assert text_of(tmp_path, "\u00e4;\u6f22\r\n".encode(encoding)) == "\u00e4;\u6f22\r\n"


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"a\n\xe4\n", 2),
        ("a\nb\nc".encode("utf-16") + b"\0", 3),
        ("a,b\n".encode("utf-16-le"), 1),
    ],
    ids=["cp1252", "UTF-16 that is cut off", "UTF-16 without mark"],
)
def test_another_encoding_is_named_by_its_line(tmp_path: Path, content: bytes, line: int) -> None:
    with pytest.raises(DataError, match=f"t.csv:{line}: not UTF-8. Save the file as UTF-8"):
        text_of(tmp_path, content)


@pytest.mark.parametrize(
    ("header", "separator"),
    [
        ("b,a", ","),
        ("A; b", ";"),
        ("a\tb", "\t"),
        ("x;y,a,b", ","),
        ("a;b;x,y", ";"),
        ("x;y;z,u", ";"),
        ("a|b", ","),
        ("", ","),
        ('"x' + "y" * 200_000 + ";a;b", ","),
    ],
)
def test_the_separator_is_that_of_the_needed_columns(header: str, separator: str) -> None:
    assert separator_of(f"{header}\n1,2;3\t4", ("a", "b")) == separator


def test_a_separator_in_quotes_is_text() -> None:
    assert list(rows_of('"a;b"; c\n', ";")) == [["a;b", "c"]]
