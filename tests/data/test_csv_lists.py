from __future__ import annotations

import unicodedata
from pathlib import Path

import pytest

from layerprobe.data.csv_lists import below, read_text, rows_of, separator_of
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


NFC, NFD = (unicodedata.normalize(form, "\u00d6l/\u00e9.png") for form in ("NFC", "NFD"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder with one image, and a link to it from elsewhere."""
    (tmp_path / "set/im").mkdir(parents=True)
    (tmp_path / "set/im/1.png").touch()
    (tmp_path / "link").symlink_to(tmp_path / "set")
    return tmp_path / "set"


def path_of(root: Path, text: str) -> str:
    (name,) = below(root / "t.csv", [(7, text)])
    return name


@pytest.mark.parametrize(
    "text", ["im/1.png", "./im//1.png", "im\\1.png", ".\\im/1.png", "{root}/im/1.png", "{root}\\im\\1.png"]
)
def test_spellings_of_the_same_file(root: Path, text: str) -> None:
    assert path_of(root, text.format(root=root)) == "im/1.png"


def test_an_absolute_path_through_a_link_to_the_folder_is_inside(root: Path) -> None:
    link = root.parent / "link"
    assert path_of(root, f"{link}/im/1.png") == path_of(link, f"{root}/im/1.png") == "im/1.png"
    assert path_of(link, f"{link}/im/1.png") == "im/1.png"


@pytest.mark.parametrize("text", ["C:\\data\\im\\1.png", "d:/im/1.png", "\\\\server\\im\\1.png"])
def test_a_path_of_a_windows_machine_is_refused(root: Path, text: str) -> None:
    with pytest.raises(DataError, match=r"t.csv:7: an absolute path of Windows: .* relative to the folder of the csv"):
        path_of(root, text)


def test_a_folder_may_be_called_like_a_drive(root: Path) -> None:
    (root / "c:").symlink_to(root / "im")
    assert path_of(root, "c:/1.png") == "c:/1.png"


def test_a_file_with_a_backslash_in_its_name_is_refused(root: Path) -> None:
    (root / "im\\1.png").touch()
    with pytest.raises(DataError, match=r"t.csv:7: a backslash in a file's name: 'im.*1.png'. Rename the file"):
        path_of(root, "im\\1.png")


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "{root}x/1.png", "out/1.png", "out.png", "/a\0/b", "im\0", "im\\..\\..\\x"]
)
def test_a_path_that_leaves_the_folder_is_refused(root: Path, text: str) -> None:
    (root / "out").symlink_to(root.parent)
    (root.parent / "out.png").touch()
    (root / "out.png").symlink_to(root.parent / "out.png")
    with pytest.raises(DataError, match="t.csv:7: path leaves the data folder: .* relative to the folder of the csv"):
        path_of(root, text.format(root=root))


@pytest.mark.parametrize(("listed", "there"), [(NFC, NFD), (NFD, NFC), (NFC, NFC), (NFD, NFD)])
def test_names_in_another_composition_are_those_on_the_disk(root: Path, listed: str, there: str) -> None:
    (root / there).parent.mkdir()
    (root / there).touch()
    assert path_of(root, listed) == there


def test_of_two_folders_that_differ_in_composition_the_one_with_the_file_counts(root: Path) -> None:
    for name in (NFC, NFD):
        (root / name).parent.mkdir()
    (root / NFD).touch()
    assert path_of(root, NFC) == NFD


def test_two_names_that_differ_in_composition_are_named(root: Path) -> None:
    for name in (NFC, NFD):
        (root / name).parent.mkdir()
        (root / name).touch()
    assert path_of(root, NFC) == NFC
    mixed = f"{NFC.split('/')[0]}/{NFD.split('/')[1]}"
    with pytest.raises(DataError) as caught:
        path_of(root, mixed)
    message = str(caught.value)
    assert f"t.csv:7: no file {mixed!a}, but " in message
    assert f"{NFC!a}" in message
    assert f"{NFD!a}" in message


def test_a_folder_in_another_composition_may_not_lead_out(root: Path) -> None:
    (root.parent / "far").mkdir()
    (root.parent / "far/1.png").touch()
    (root / NFD.split("/")[0]).symlink_to(root.parent / "far")
    with pytest.raises(DataError, match="t.csv:7: path leaves the data folder"):
        path_of(root, f"{NFC.split('/')[0]}/1.png")
