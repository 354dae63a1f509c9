"""The Python of docs/how-to/other-tools.md reads a table that `layerprobe features` writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from layerprobe.workflow.features.feature_table import FeatureTable, LayerColumns, encode_table
from tests.docs.pages import blocks_of

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "other-tools.md"
_TEXTS = [block.text for block in blocks_of(PAGE) if block.language == "python"]
BLOCKS = {text.split("import ")[1].split()[0]: text for text in _TEXTS if text.startswith("import ")}


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FeatureTable:
    """A table of 40 images, 10 of a class, whose last image is found in place of another class."""
    rng = np.random.default_rng(0)
    ids = [f"{label}/{i}.png" for label in "abcd" for i in range(10)]
    for name in ids:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (4, 4)).save(tmp_path / name)
    vectors = rng.normal(size=(40, 8)).astype(np.float32)
    layer = LayerColumns("output", vectors, vectors.shape[1], [*ids[1:], "a/0.png"], np.arange(40) < 39)
    table = FeatureTable(0, ids, [str(tmp_path / name) for name in ids], [name[0] for name in ids], [layer])
    (tmp_path / "test.parquet").write_bytes(encode_table(table, "parquet"))
    monkeypatch.chdir(tmp_path)
    return table


def run(package: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(BLOCKS[package], str(PAGE), "exec"), names)
    return names


def test_a_reading_takes_ten_lines() -> None:
    assert max(len([line for line in block.splitlines() if line]) for block in BLOCKS.values()) <= 10


def test_pandas_reads_the_table(table: FeatureTable, capsys: pytest.CaptureFixture[str]) -> None:
    names = run("numpy")
    assert np.array_equal(names["vectors"], table.layers[0].vectors)
    assert "d    0.9" in capsys.readouterr().out
    assert names["wrong"][["id_x", "id_y"]].to_numpy().tolist() == [["d/9.png", "a/0.png"]]


def test_fiftyone_reads_the_table(table: FeatureTable) -> None:
    pytest.importorskip("fiftyone")
    samples = run("fiftyone")["samples"]
    assert [sample.filepath for sample in samples] == list(table.paths)
    assert samples[3].label.label == "a"
    assert np.array_equal(samples[3].vector, table.layers[0].vectors[3])
    assert samples[39].right is False


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_embedding_atlas_reads_the_table(table: FeatureTable) -> None:
    pytest.importorskip("embedding_atlas")
    names = run("pandas")
    assert names["table"]["projection_x"].notna().all()
    assert Path("atlas.parquet").stat().st_size > 1000
