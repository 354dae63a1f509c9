from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.figure import Figure

from layerprobe.errors import EnvironmentFault, LayerprobeError
from layerprobe.plots.saving import csv_text, save

SIGNATURES = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}


@pytest.mark.parametrize("suffix", SIGNATURES)
def test_a_figure_is_written_as_its_suffix_says(suffix: str, tmp_path: Path) -> None:
    figure = Figure()
    path = tmp_path / "new" / f"plot.{suffix}"
    save(figure, path)
    assert path.read_bytes().startswith(SIGNATURES[suffix])
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_a_suffix_in_capitals_is_known(tmp_path: Path) -> None:
    save(Figure(), tmp_path / "PLOT.PNG")
    assert (tmp_path / "PLOT.PNG").read_bytes().startswith(SIGNATURES["png"])


@pytest.mark.parametrize(("name", "shown"), [("plot.jpg", "'.jpg'"), ("plot", "a file without a suffix")])
def test_another_suffix_is_an_error_that_names_the_three(name: str, shown: str, tmp_path: Path) -> None:
    with pytest.raises(
        LayerprobeError, match=rf"{name}: cannot write a plot as {shown}\. Name it \.png, \.pdf or \.svg"
    ):
        save(Figure(), tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plot.png"
    path.write_bytes(b"old")
    figure = Figure()

    def fail(target: Path, **_: object) -> None:
        Path(target).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "savefig", fail)
    with pytest.raises(EnvironmentFault, match="disk full"):
        save(figure, path)
    assert path.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["plot.png"]


def test_no_name_in_a_table_is_a_formula() -> None:
    assert (
        csv_text([["run", "value"], ["=1+1", -0.5], ["a,b", None], ["@x", 2]])
        == "run,value\n'=1+1,-0.5\n\"a,b\",\n'@x,2\n"
    )
