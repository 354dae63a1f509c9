from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from layerprobe import registry
from layerprobe.cli import main
from layerprobe.data import check
from tests.data.spoiled import photo

Outcome = tuple[int, str, str]
Command = Callable[..., Outcome]


@pytest.fixture
def layerprobe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a command line in this process: exit code, stdout, stderr."""

    def run(*words: str) -> Outcome:
        monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
        with pytest.raises(SystemExit) as caught:
            main()
        out, err = capsys.readouterr()
        return int(str(caught.value.code)), out, err

    return run


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Four classes of three sound photos."""
    for c in range(4):
        (tmp_path / f"c{c}").mkdir()
        for i in range(3):
            (tmp_path / f"c{c}" / f"{i}.jpg").write_bytes(photo(10 * c + i))
    return tmp_path


def test_a_sound_folder_is_0_and_its_counts_a_table(layerprobe: Command, images: Path) -> None:
    code, out, _ = layerprobe("data", "check", f"folder:{images}", "--workers", "0")
    assert code == 0
    assert ["train", "6", "2", "3-3", "0"] in [line.split() for line in out.splitlines()]
    assert out.splitlines()[0] == "12 images were read; errors: 0, remarks: 0"


def test_remarks_alone_are_0_and_are_grouped_by_kind(layerprobe: Command, images: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (images / f"c0/{name}.jpg").write_bytes(photo(0))
    code, out, _ = layerprobe("data", "check", f"folder:{images}", "--workers", "0")
    assert code == 0
    assert [name in out for name in ("c0/a.jpg", "c0/c.jpg", "c0/d.jpg")] == [True, True, False]
    assert "and 2 more, which --json names" in out
    assert "errors: 0, remarks: 5" in out


def test_notes_are_lines_below_the_summary_and_a_list_in_json(layerprobe: Command, images: Path) -> None:
    (images / "c0/a.tga").write_bytes(b"")
    note = "files that are not read: 1 .tga (c0/a.tga)"
    code, out, _ = layerprobe("data", "check", f"folder:{images}", "--workers", "0")
    assert (code, out.splitlines()[1]) == (0, f"note: {note}")
    _, out, _ = layerprobe("data", "check", f"folder:{images}", "--workers", "0", "--json")
    assert json.loads(out)["notes"] == [note]


def test_errors_are_3_each_kind_in_a_row_with_its_fix(layerprobe: Command, images: Path) -> None:
    (images / "c0/a.jpg").write_bytes(b"<html>")
    (images / "c3/b.jpg").write_bytes(photo(0))
    code, out, _ = layerprobe("data", "check", f"folder:{images}", "--workers", "0")
    assert code == 3
    rows = [line.split() for line in out.splitlines()]
    message = "this is an HTML page, not an image. Get it again or remove it"
    assert ["HTML", "page", "1", *message.split(), "train:", "c0/a.jpg"] in rows
    assert any(row[:3] == ["in", "two", "splits"] for row in rows)


def test_thousands_of_equal_errors_are_one_row_below_the_summary(layerprobe: Command, tmp_path: Path) -> None:
    names = [f"c{c}/{i}.jpg,c{c},{'train' if c < 2 else 'test'}" for c in range(4) for i in range(1000)]
    (tmp_path / "all.csv").write_text("\n".join(["path,label,split", *names]))
    code, out, _ = layerprobe("data", "check", f"csv:{tmp_path / 'all.csv'}", "--workers", "0")
    assert code == 3
    assert out.splitlines()[0] == "4,000 images were read; errors: 4,001, remarks: 0"
    assert len(out.splitlines()) < 20
    assert "missing   4,000  " in out
    assert "and 3,997 more, which --json names" in out
    assert out.count("4,000 of 4,000 listed images are missing") == 1


def test_a_table_of_several_labels_is_checked_by_its_separator(layerprobe: Command, images: Path) -> None:
    labels = ("a|b", "a", "b|a", "c")
    rows = [f"c{c}/{i}.jpg,{label},{'train' if c < 2 else 'test'}" for c, label in enumerate(labels) for i in range(3)]
    (images / "all.csv").write_text("\n".join(["path,label,split", *rows]))
    words = ("data", "check", f"csv:{images / 'all.csv'}", "--workers", "0")
    code, out, _ = layerprobe(*words)
    assert code == 0
    assert "labels such as 'a' hold" not in out
    assert "labels such as 'a|b' hold a separator and are taken as classes of their own" in out
    code, out, _ = layerprobe(*words, "--set", "data.label_separator='|'")
    assert code == 0  # a|b is in train and test
    assert "labels of test images that training images have too: 2 of 3" in " ".join(out.split())
    (images / "c3/0.jpg").unlink()
    _, out, _ = layerprobe(*words, "--set", "data.label_separator='|'", "--json")
    assert len(json.loads(out)["errors"]) == 2  # the missing image, of the table and of itself: no class in two splits
    code, _, err = layerprobe(*words, "--set", "data.label_seperator='|'")
    assert code == 2
    assert "unknown key 'label_seperator'. Did you mean 'label_separator'?" in err


def test_json_is_one_object_that_names_every_finding(layerprobe: Command, images: Path) -> None:
    (images / "c0/a.jpg").write_bytes(b"")
    (images / "c0/b.jpg").write_bytes(photo(0))
    code, out, _ = layerprobe("data", "check", f"folder:{images}", "--workers", "0", "--json")
    values = json.loads(out)
    assert code == 3
    assert {key: values[key] for key in ("schema", "complete", "images", "read")} == {
        "schema": 2,
        "complete": True,
        "images": 14,
        "read": 14,
    }
    assert values["splits"][0] == {
        "split": "train", "images": 8, "classes": 2, "fewest": 3, "most": 5, "singletons": 0,
    }  # fmt: skip
    assert values["errors"] == [
        {
            "kind": "empty",
            "message": "the file is empty",
            "fix": "Get it again or remove it",
            "split": "train",
            "id": "c0/a.jpg",
        }
    ]
    assert [remark["id"] for remark in values["remarks"]] == ["c0/b.jpg"]


def test_a_name_cannot_steer_the_terminal(layerprobe: Command, images: Path) -> None:
    (images / "c0/[red]\33[2J\u202e.jpg").write_bytes(b"")
    _, out, _ = layerprobe("data", "check", f"folder:{images}", "--workers", "0")
    assert "c0/[red]\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}.jpg" in out


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_signal_shows_what_was_found_as_incomplete(
    monkeypatch: pytest.MonkeyPatch,
    layerprobe: Command,
    images: Path,
    number: int,
    code: int,
    words: tuple[str, ...],
) -> None:
    (images / "c0/0.jpg").write_bytes(b"")
    read, done = check._examine, []

    def stopping(*arguments: object) -> check.Examined:
        done.append(1)
        if len(done) == 5:
            signal.raise_signal(number)
        return read(*arguments)  # type: ignore[arg-type] # as it was called

    monkeypatch.setattr(check, "_examine", stopping)
    found, out, _ = layerprobe("data", "check", f"folder:{images}", "--workers", "0", *words)
    assert found == code
    if words:
        values = json.loads(out)
        assert (values["complete"], values["read"], len(values["errors"])) == (False, 4, 1)
    else:
        assert "incomplete: 4 of 12 images were read when it was stopped; errors: 1, remarks: 0" in out


def test_data_alone_is_a_usage_error(layerprobe: Command) -> None:
    assert layerprobe("data") == (2, "", "error: Missing command. layerprobe data --help shows what there is.\n")


def test_the_list_says_what_each_set_needs_and_where_to_get_it(layerprobe: Command) -> None:
    code, out, _ = layerprobe("data", "list")
    assert code == 0
    for text in ("sop:ROOT", "train: 59,551 of 11,318 classes", "Ebay_train.txt", "netA-sop", "cvgl.stanford.edu"):
        assert text in out


def test_the_list_as_json_has_counts_as_numbers(layerprobe: Command) -> None:
    _, out, _ = layerprobe("data", "list", "--json")
    found = {entry["name"]: entry for entry in json.loads(out)["data"]}
    assert found["cub200"]["counts"]["test"] == {"images": 5924, "classes": 100}
    assert found["torchvision"]["usage"] == "torchvision:SET[:ROOT]"
    assert found["csv"]["recipes"] == []


def test_a_data_set_that_says_nothing_of_itself_does_not_break_the_list(
    layerprobe: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(registry.DATASETS, "birds", "tests.workflow.a_new_set:SPEC")
    code, out, _ = layerprobe("data", "list")
    assert (code, out.splitlines()[-1].split()) == (0, ["birds:ROOT"])
    entry = json.loads(layerprobe("data", "list", "--json")[1])["data"][-1]
    assert entry == {
        "name": "birds", "usage": "birds:ROOT", "holds": "", "layout": "", "where": "", "counts": {}, "recipes": [],
    }  # fmt: skip


def test_the_list_imports_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['layerprobe', 'data', 'list']\n"
        "from layerprobe.cli import main\n"
        "try: main()\n"
        "except SystemExit: print('torch' in sys.modules)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "False"
