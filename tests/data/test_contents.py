from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import PIL.Image
import pytest

from layerprobe.data import contents, loading, tables
from layerprobe.data.contents import pending_reads, table_of, with_digests
from layerprobe.data.hash_table import RECORD, Records, append_records, last_of_each, read_records
from layerprobe.data.image_files import Files
from layerprobe.data.splits import Dataset, Split
from layerprobe.system.errors import DataError
from tests.data.spoiled import encoded, moving, transparent, turned
from tests.data.tabled import rows, write
from tests.launches import LEAD, run_launch
from tests.workflow.conftest import Silent

NAMES = ("a.png", "b.png")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root"
    folder.mkdir()
    (folder / "a.png").write_bytes(b"first")
    (folder / "b.png").write_bytes(b"other")
    return folder


def of_files(root: Path, names: tuple[str, ...] = NAMES) -> Dataset:
    return Dataset({"train": Split("train", np.zeros(len(names), np.int64), names, Files(root, names))}, ("one",))


def hashes(dataset: Dataset) -> list[str]:
    """Of the images of the one split, in hexadecimal digits."""
    (split,) = dataset.splits.values()
    assert split.digests is not None
    return [row.tobytes().hex() for row in split.digests]


def stored(table: Path) -> list[str]:
    """The hashes in a table, as they were written."""
    return [row.tobytes().hex() for row in read_records(table)["digest"]]


def pretend(table: Path, content: bytes, other: bytes) -> None:
    """Store the hash of another content for a file."""
    records = read_records(table)
    records = records[[row.tobytes().hex() == blake(content) for row in records["digest"]]].copy()
    records["digest"] = np.frombuffer(bytes.fromhex(blake(other)), np.int64)
    append_records(table, records)


def blake(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def test_a_files_hash_is_that_of_its_bytes(root: Path, tmp_path: Path) -> None:
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"first"), blake(b"other")]


def test_a_file_that_has_not_changed_is_not_read_again(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    pretend(table_of(root, tmp_path), b"first", b"kept")
    (root / "b.png").write_bytes(b"moved")
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"kept"), blake(b"moved")]


def test_a_file_of_the_same_size_and_time_is_read_again(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    before = (root / "a.png").stat()
    (root / "new.png").write_bytes(b"fresh")
    os.utime(root / "new.png", ns=(before.st_atime_ns, before.st_mtime_ns))
    (root / "new.png").replace(root / "a.png")
    assert hashes(with_digests(of_files(root), tmp_path, Silent()))[0] == blake(b"fresh")


@pytest.mark.parametrize("damaged", [b"", b"{", b"\0" * 640, bytes(range(256)) * 3])
def test_a_damaged_table_is_passed_over(root: Path, tmp_path: Path, damaged: bytes) -> None:
    table = table_of(root, tmp_path)
    table.write_bytes(damaged)
    for _ in range(2):
        assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"first"), blake(b"other")]
        assert stored(table) == [blake(b"first"), blake(b"other")]


@pytest.mark.parametrize("cut", [1, 63, 64])
def test_a_record_that_was_not_written_whole_is_read_again(root: Path, tmp_path: Path, cut: int) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    table.write_bytes(table.read_bytes()[:-cut])
    assert stored(table) == [blake(b"first")]
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"first"), blake(b"other")]
    assert table.stat().st_size == 128


def test_a_flipped_bit_of_a_record_is_seen(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    content = table.read_bytes()
    for place in range(128):
        table.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        assert len(stored(table)) == 1


def test_a_table_of_an_earlier_version_is_removed(root: Path, tmp_path: Path) -> None:
    old = table_of(root, tmp_path).with_suffix(".json")
    old.write_text("{}")
    with_digests(of_files(root), tmp_path, Silent())
    assert not old.exists()


def test_nothing_is_written_where_nothing_is_read(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    table.chmod(0o400)
    before = table.stat()
    with_digests(of_files(root), tmp_path, Silent())
    # Reading it may change its time of access, and nothing else.
    assert (table.stat().st_ino, table.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_replaced_records_leave_the_table_once_they_are_more_than_half(root: Path, tmp_path: Path) -> None:
    (root / "c.png").write_bytes(b"third")  # of another data set below the root
    for names in (NAMES, ("c.png",)):
        with_digests(of_files(root, names), tmp_path, Silent())
    table, sizes = table_of(root, tmp_path), list[int]()
    for number in range(5):
        (root / "a.png").write_bytes(b"%d" % number)
        dataset = with_digests(of_files(root), tmp_path, Silent())
        sizes.append(len(stored(table)))
        assert hashes(dataset) == [blake(b"%d" % number), blake(b"other")]
    assert sizes == [4, 5, 6, 3, 4]
    assert {blake(b"other"), blake(b"third")} < set(stored(table))


def append_some(table: Path, first: int) -> None:
    for number in range(first, first + 50):
        record = np.zeros(1, RECORD)
        record["digest"] = number
        append_records(table, record)


def test_processes_may_append_at_once(tmp_path: Path) -> None:
    table, context = tmp_path / "a.bin", multiprocessing.get_context("fork")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12: of a fork with threads
        processes = [context.Process(target=append_some, args=(table, 50 * part)) for part in range(4)]
        for process in processes:
            process.start()
    for process in processes:
        process.join()
    assert sorted(read_records(table)["digest"][:, 0].tolist()) == list(range(200))


def test_worker_processes_give_the_same_hashes(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_ALONE", 100)
    names = tuple(f"{i}.png" for i in range(150))
    for name in names:
        (root / name).write_bytes(name.encode())
    task = Silent()
    steps: list[int] = []
    monkeypatch.setattr(task, "advance", lambda count=1: steps.append(count))
    found = hashes(with_digests(of_files(root, names), tmp_path, task, workers=2))
    assert found == [blake(name.encode()) for name in names]
    assert steps == [64, 64, 22]
    assert sorted(stored(table_of(root, tmp_path))) == sorted(found)


# Each process prints the names of the files that it reads, without workers.
BY_HOSTS = f"""{LEAD}
from pathlib import Path
import numpy as np
from layerprobe.data import contents, loading
from layerprobe.data.image_files import Files
from layerprobe.data.splits import Dataset, Split
from layerprobe.system.progress import Silent

class Shown(Silent):
    def advance(self, steps):
        print(f"+{{steps}}", end=" ")

def in_order(read, keys, workers):
    yield from map(read, keys)

def read_here(path, of_file=contents._of_file):
    print(path.stem, end=" ", flush=True)
    return of_file(path)

def hashed(launch):
    root = Path("root")
    names = tuple(sorted(path.name for path in root.iterdir()))
    dataset = Dataset({{"train": Split("train", np.zeros(len(names), np.int64), names, Files(root, names))}}, ("one",))
    (split,) = contents.with_digests(dataset, Path("tables"), Shown(), workers=1, launch=launch).splits.values()
    return split.digests.tobytes().hex()

contents._ALONE, contents._BATCH, contents._CALL = 1, 2, 6
contents._of_file, loading.in_order = read_here, in_order
main(hashed)
"""


def test_the_first_process_of_each_host_reads_batches_in_turn(root: Path, tmp_path: Path) -> None:
    for number in range(9):
        (root / f"{number}.png").write_bytes(b"%d" % number)
    ended = run_launch(BY_HOSTS, size=4, hosts=2, folder=tmp_path)
    # 11 files: batches 0 1, 2 3, 4 5 in one call, then 6 7, 8 a, b
    assert [process.stdout for process in ended[1:]] == ["", "2 3 8 a ", ""]
    names = tuple(sorted(path.name for path in root.iterdir()))
    digests = hashes(with_digests(of_files(root, names), tmp_path / "alone", Silent()))
    assert ended[0].stdout == f"0 1 +2 +2 4 5 +2 6 7 +2 +2 b +1 {''.join(digests)}\n"
    (table,) = (tmp_path / "tables").glob("*.bin")
    assert table.read_bytes() == table_of(root, tmp_path / "alone").read_bytes()


def test_the_first_of_the_images_that_hosts_cannot_read_is_told(root: Path, tmp_path: Path) -> None:
    for name in ("3.png", "4.png"):  # a batch of the second host, and one of the first
        os.mkfifo(root / name)
    for name in ("0.png", "1.png", "2.png", "5.png"):
        (root / name).write_bytes(b"")
    ended = run_launch(BY_HOSTS, size=2, hosts=2, folder=tmp_path)
    assert ended[0].stdout.startswith("0 1 +2 2 3 root/3.png: a pipe, socket or device, not a file")
    assert [process.returncode for process in ended] == [3, 3]


def test_workers_get_the_names_of_their_batches_alone(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    batches, sent = list[list[str]](), list[bytes]()

    def here(
        read: Callable[[Sequence[str]], Records], keys: Iterable[Sequence[str]], workers: int
    ) -> Iterator[Records]:
        assert workers == 2
        sent.append(pickle.dumps(read))
        for names in keys:
            batches.append([*names])
            yield read(names)

    monkeypatch.setattr(contents, "_ALONE", 1)
    monkeypatch.setattr(contents, "_BATCH", 1)
    monkeypatch.setattr(loading, "in_order", here)
    with_digests(of_files(root), tmp_path, Silent(), workers=2)
    assert batches == [["a.png"], ["b.png"]]
    assert not any(name.encode() in sent[0] for name in NAMES)


def test_a_process_reads_a_longer_run_of_images_in_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []

    def read_here(read: Callable[[Sequence[str]], Records], batches: Iterable[Sequence[str]], _: int) -> list[Records]:
        named = list(batches)
        lengths.extend(map(len, named))
        return list(map(read, named))

    for name, value in {"_ALONE": 1, "_BATCH": 1, "_ROWS": 3}.items():
        monkeypatch.setattr(contents, name, value)
    monkeypatch.setattr(loading, "in_order", read_here)
    with_digests(tables.load(write(tmp_path / "t.parquet", rows())), tmp_path / "tables", Silent(), workers=2)
    assert lengths == [3, 3, 2]


@pytest.mark.parametrize("seed", range(3))
def test_of_a_name_the_last_record_counts(seed: int) -> None:
    rng = np.random.default_rng(seed)
    names = rng.integers(0, 3, (60, 2)).astype(np.uint64)  # many share the first number alone
    records = np.zeros(40, RECORD)
    records["name"] = names[rng.integers(0, 40, 40)]
    written = {tuple(record["name"].tolist()): row for row, record in enumerate(records)}
    expected = [written.get(tuple(name), -1) for name in names.tolist()]
    found = last_of_each(records, names).tolist()
    assert all(place in (row, -1) for place, row in zip(found, expected, strict=True))
    alone = [row for row, name in enumerate(names[:, 0]) if len(np.unique(names[names[:, 0] == name], axis=0)) == 1]
    assert [found[row] for row in alone] == [expected[row] for row in alone]


def test_a_pipe_in_the_place_of_the_table_is_replaced(root: Path, tmp_path: Path) -> None:
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    table.unlink()
    os.mkfifo(table)
    assert hashes(with_digests(of_files(root), tmp_path, Silent())) == [blake(b"first"), blake(b"other")]
    assert table.is_file()


def test_data_sets_below_one_root_keep_each_others_hashes(root: Path, tmp_path: Path) -> None:
    for name in NAMES:
        with_digests(of_files(root, (name,)), tmp_path, Silent())
    assert stored(table_of(root, tmp_path)) == [blake(b"first"), blake(b"other")]


def test_nothing_is_kept_where_nobody_listens(root: Path, tmp_path: Path) -> None:
    assert hashes(with_digests(of_files(root), tmp_path, None)) == [blake(b"first"), blake(b"other")]
    assert not table_of(root, tmp_path).exists()


def test_what_was_read_before_an_interruption_is_kept(root: Path, tmp_path: Path) -> None:
    class Interrupted(Silent):
        def advance(self, steps: int = 1, **figures: float) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        with_digests(of_files(root), tmp_path, Interrupted())
    assert stored(table_of(root, tmp_path)) == [blake(b"first")]


def test_what_a_killed_process_left_beside_the_table_is_removed(root: Path, tmp_path: Path) -> None:
    left = tmp_path / f".{table_of(root, tmp_path).name}.123.tmp"
    left.write_text("{")
    with_digests(of_files(root), tmp_path, Silent())
    assert not left.exists()
    assert table_of(root, tmp_path).exists()


def test_a_pipe_is_not_opened(root: Path, tmp_path: Path) -> None:
    (root / "a.png").unlink()
    os.mkfifo(root / "a.png")
    with pytest.raises(DataError, match="a.png: a pipe, socket or device, not a file"):
        with_digests(of_files(root), tmp_path, Silent())


def test_a_file_that_went_away_is_named(root: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"gone.jpg: cannot be read \(No such file or directory\). Check"):
        with_digests(of_files(root, ("gone.jpg",)), tmp_path, Silent())


def test_images_that_are_no_files_are_hashed_by_pixels_and_shape(tmp_path: Path) -> None:
    images = [np.zeros(shape, np.uint8) for shape in ((2, 4, 3), (4, 2, 3), (2, 4, 3))]
    split = Split("train", np.zeros(3, np.int64), ("a", "b", "c"), images.__getitem__)
    first, other, again = hashes(with_digests(Dataset({"train": split}, ("one",)), tmp_path, Silent()))
    assert (first == again, first == other) == (True, False)


def test_what_reading_does_to_images_is_counted_by_file(root: Path, tmp_path: Path) -> None:
    contents = {"a.png": transparent(1), "b.png": moving("GIF", 2), "c.jpg": turned(3), "d.png": b"no image"}
    for name, content in contents.items():
        (root / name).write_bytes(content)
    both = {name: replace(of_files(root, tuple(contents)).splits["train"], name=name) for name in ("test", "gallery")}
    for _ in range(2):  # read, then known
        dataset = with_digests(Dataset(both, ("one",)), tmp_path, Silent())
        assert dataset.rules == {
            "transparency": 1, "animated": 1, "palette": 1, "wrong ending": 1, "EXIF rotation": 1,
        }  # fmt: skip


def test_boxes_of_a_file_are_contents_of_their_own_and_the_file_is_read_once(root: Path, tmp_path: Path) -> None:
    def of_boxes(*boxes: tuple[int, int, int, int] | None) -> list[str]:
        files = Files(root, ("a.png",) * len(boxes), boxes=boxes)
        split = Split("train", np.zeros(len(boxes), np.int64), files.ids, files)
        assert len(pending_reads(Dataset({"train": split}, ("one",)), tmp_path)) == (
            not table_of(root, tmp_path).exists()
        )
        return hashes(with_digests(Dataset({"train": split}, ("one",)), tmp_path, Silent()))

    one, other, whole = of_boxes((0, 0, 4, 5), (0, 0, 5, 4), None)
    assert len({one, other, whole}) == 3
    assert whole == blake(b"first")
    assert of_boxes((0, 0, 5, 4)) == [other]
    (root / "a.png").write_bytes(b"moved")
    with_digests(of_files(root), tmp_path, Silent())
    assert of_boxes((0, 0, 5, 4)) != [other]


def deep(*values: int) -> bytes:
    """A PNG of 16-bit grey."""
    return encoded(PIL.Image.fromarray(np.array([values], np.uint16)), "PNG")


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose largest value is read."""
    names: list[str] = []
    largest = contents._largest

    def counted(path: Path) -> int:
        names.append(path.name)
        return largest(path)

    monkeypatch.setattr(contents, "_largest", counted)
    return names


def test_the_largest_value_of_16_bit_grey_is_read_once(root: Path, tmp_path: Path, measured: list[str]) -> None:
    (root / "a.png").write_bytes(deep(7, 1020))
    (root / "b.png").write_bytes(deep(900, 3))
    for _ in range(2):
        assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 1020
    assert measured == ["a.png", "b.png"]
    (root / "b.png").write_bytes(deep(4080))
    assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 4080
    assert measured == ["a.png", "b.png", "b.png"]


def test_a_value_of_the_full_range_ends_the_search(root: Path, tmp_path: Path, measured: list[str]) -> None:
    (root / "a.png").write_bytes(deep(2**14))
    (root / "b.png").write_bytes(deep(900))
    for _ in range(2):
        assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 2**14
    assert measured == ["a.png"]


def test_a_table_without_largest_values_gets_them_and_keeps_its_hashes(
    root: Path, tmp_path: Path, measured: list[str]
) -> None:
    (root / "a.png").write_bytes(deep(7, 1020))
    with_digests(of_files(root), tmp_path, Silent())
    table = table_of(root, tmp_path)
    records = read_records(table)[:1].copy()
    records["largest"], records["rules"] = 0, records["rules"] & 0x7FFF
    append_records(table, records)
    pretend(table, b"other", b"kept")
    dataset = with_digests(of_files(root), tmp_path, Silent())
    assert (dataset.largest_grey, hashes(dataset)[1]) == (1020, blake(b"kept"))
    assert measured == ["a.png", "a.png"]


def test_a_broken_image_of_16_bits_has_no_value_and_stops_nothing(root: Path, tmp_path: Path) -> None:
    (root / "a.png").write_bytes(deep(*range(2000))[:-60])
    (root / "b.png").write_bytes(deep(900))
    assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 900


def test_other_images_are_not_measured(root: Path, tmp_path: Path, measured: list[str]) -> None:
    (root / "a.png").write_bytes(transparent(1))
    assert with_digests(of_files(root), tmp_path, Silent()).largest_grey == 0
    assert measured == []
