from __future__ import annotations

import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest
from pyarrow import ipc

from layerprobe.data import table_images
from layerprobe.data.table_images import TableImage, TarImage
from layerprobe.system.errors import DataError, EnvironmentFault
from tests.data.tabled import rows, write

USED = ("O_RDONLY", "close", "pread")  # of os, beside open
CONTENTS = [bytes([i]) * (i + 1) for i in range(50)]


def structs(contents: list[bytes]) -> list[dict[str, bytes | str]]:
    return [{"bytes": content, "path": "x.png"} for content in contents]


def read(table: Path, row: int, column: str = "image") -> bytes:
    return TableImage(table, column, row).open("rb").read()


@pytest.mark.parametrize("row_group", [7, 50])
@pytest.mark.parametrize("as_struct", [False, True])
def test_rows_are_read_in_any_order(tmp_path: Path, row_group: int, as_struct: bool) -> None:
    column = structs(CONTENTS) if as_struct else CONTENTS
    table = write(tmp_path / "t.parquet", rows(image=column, label=["x"] * 50), row_group=row_group)
    for row in np.random.default_rng(0).permutation(50).tolist():
        assert read(table, row) == CONTENTS[row]


def test_only_some_rows_of_a_large_row_group_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_images, "_KEPT", 100)
    table = write(tmp_path / "t.parquet", {"image": [bytes(60)] * 64})
    reader = table_images._ParquetRows(table, "image")
    assert [reader[row] for row in (*range(64), 3, 0)] == [bytes(60)] * 66
    # The rows of one step, and one more: after the first 60 bytes the rest is not above 100 yet.
    assert len(reader._kept) <= 16 + 1


def test_a_tar_file_is_opened_once_for_its_images_and_again_when_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, opened, open_file = tmp_path / "a.tar", [], os.open

    def counted(path: Path, flags: int) -> int:
        opened.append(path)
        return open_file(path, flags)

    monkeypatch.setattr(table_images, "os", SimpleNamespace(open=counted, **{name: getattr(os, name) for name in USED}))
    shard.write_bytes(b"onetwo")
    images = [TarImage(shard, 0, 3), TarImage(shard, 3, 3)]
    assert [image.open().read() for image in images] == [b"one", b"two"]
    assert opened == [shard]
    (tmp_path / "b.tar").write_bytes(b"TWOone")
    (tmp_path / "b.tar").replace(shard)
    assert [image.open().read() for image in images] == [b"TWO", b"one"]
    assert opened == [shard, shard]


def test_arrow_files_are_read_where_they_lie(tmp_path: Path) -> None:
    table = tmp_path / "t.arrow"
    columns = pyarrow.table({"image": structs(CONTENTS)})
    with ipc.new_stream(table, columns.schema) as stream:
        stream.write_table(columns, max_chunksize=9)
    assert [read(table, row) for row in (49, 0, 17)] == [CONTENTS[row] for row in (49, 0, 17)]


def test_a_file_that_was_replaced_is_read_again(tmp_path: Path) -> None:
    table = write(tmp_path / "t.parquet", rows())
    assert read(table, 0) == rows()["image"][0]
    write(table, rows(image=[b"new"] * 8))
    assert read(table, 0) == b"new"


def test_a_row_without_an_image_is_named(tmp_path: Path) -> None:
    table = write(tmp_path / "t.parquet", rows(image=[*rows()["image"][:7], None]))
    with pytest.raises(DataError, match=r"t\.parquet: row 7: has no image\. Remove the row\."):
        read(table, 7)


def test_a_damaged_page_is_the_files_fault(tmp_path: Path) -> None:
    table = write(tmp_path / "t.parquet", rows())
    content = bytearray(table.read_bytes())
    content[4:60] = bytes(56)
    table.write_bytes(content)
    with pytest.raises(DataError, match=r"t\.parquet: cannot be read as parquet"):
        read(table, 0)


def test_a_worker_is_sent_the_place_alone(tmp_path: Path) -> None:
    image = TableImage(write(tmp_path / "t.parquet", rows()), "image", 1)
    image.open()
    sent = pickle.dumps(image)
    assert len(sent) < 500
    assert pickle.loads(sent).open().read() == rows()["image"][1]


def test_without_pyarrow_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(EnvironmentFault, match=r"pyarrow is not installed\. pip install 'datasets>="):
        table_images.arrow()
