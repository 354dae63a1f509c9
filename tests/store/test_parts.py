from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe import store
from layerprobe.store.features import FeatureArray
from layerprobe.system.errors import DataError
from layerprobe.values.layers import LayerKey

FC6, POOL, CONV = LayerKey("fc6", "none"), LayerKey("pool5.3", "max"), LayerKey("conv1", "avg")
COUNT = 23
KEY = store.FeatureKey("demo", 0, "test", weights_sha256="abc", transform="{}", manifest_sha256="def")
ROWS = store.Rows(np.arange(COUNT) % 7, [f"{index}.png" for index in range(COUNT)], [f"c{i}" for i in range(7)])
DIMS = {FC6: 3, POOL: 5, CONV: 2}
FEATURES = {
    layer: np.random.default_rng(dim).standard_normal((COUNT, dim)).astype(np.float32) for layer, dim in DIMS.items()
}
ALL = store.row_ranges(COUNT, COUNT)
SHARDS = store.row_ranges(COUNT, 8)


def plan(path: Path, *layers: LayerKey, ranges: tuple[range, ...] = ALL, key: store.FeatureKey = KEY) -> store.Plan:
    def intact(file: Path, stored: frozenset[LayerKey]) -> set[LayerKey]:
        return store.stored_layers(file, key, layers=stored)

    return store.plan_parts(path, key, layers, ranges, intact=intact)


def write_part(part: store.Part, key: store.FeatureKey = KEY) -> None:
    rows = slice(part.rows.start, part.rows.stop)
    batch = {layer: FEATURES[layer][rows] for layer in DIMS if layer in part.layers}
    columns = store.Columns({layer: DIMS[layer] for layer in batch}, "cpu", 8)
    store.write_features(part.path, key, ROWS.part(part.rows), columns, [batch])


def write(path: Path, *layers: LayerKey, ranges: tuple[range, ...] = ALL, key: store.FeatureKey = KEY) -> list[Path]:
    planned = plan(path, *layers, ranges=ranges, key=key)
    planned.remove_stale()
    for part in planned.parts:
        write_part(part, key)
    return [part.path for part in planned.parts]


def names(path: Path) -> list[str]:
    return sorted(file.relative_to(path.parent).as_posix() for file in path.parent.rglob("*") if file.is_file())


def damage(file: Path, values: FeatureArray) -> None:
    content = bytearray(file.read_bytes())
    assert content.count(values.tobytes()) == 1
    content[content.index(values.tobytes())] ^= 1
    file.write_bytes(content)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "features" / "epoch-0000.test.h5"


def test_ranges_have_so_many_rows_and_the_last_one_the_rest() -> None:
    assert (range(8), range(8, 16), range(16, 23)) == SHARDS
    assert store.row_ranges(16, 8) == (range(8), range(8, 16))
    assert store.row_ranges(8, 8) == (range(8),)


def test_a_further_layer_is_a_file_beside_and_the_first_is_not_touched(path: Path) -> None:
    write(path, FC6)
    before, touched = path.read_bytes(), path.stat().st_mtime_ns
    assert write(path, POOL, FC6) == [path.with_name("epoch-0000.test.1.h5")]
    assert (path.read_bytes(), path.stat().st_mtime_ns) == (before, touched)
    assert write(path, FC6, CONV, POOL) == [path.with_name("epoch-0000.test.2.h5")]


@pytest.mark.parametrize("ranges", [ALL, SHARDS], ids=["file", "shards"])
def test_whichever_way_they_lie_layers_are_read_as_they_were(path: Path, ranges: tuple[range, ...]) -> None:
    write(path, FC6, ranges=ranges)
    write(path, CONV, POOL, ranges=ranges)
    head = store.read_feature_head(path)
    assert (head.rows[0].tolist(), head.rows[1]) == (ROWS.labels.tolist(), tuple(ROWS.ids))
    assert head.class_names == tuple(ROWS.class_names)
    assert [*head.dims.items()] == [(CONV, 2), (FC6, 3), (POOL, 5)]  # by name, as in one file
    with store.open_feature_file(path) as files:
        assert files.layers == (CONV, FC6, POOL)
        for layer, values in FEATURES.items():
            assert np.array_equal(files.read(layer), values)
            table = files.table(layer)
            assert (table.shape, table.dtype, len(table)) == (values.shape, np.float32, COUNT)
            for rows in (slice(None), slice(3, 7), slice(7, 17), slice(20, 99), slice(9, 9)):
                assert np.array_equal(table[rows], values[rows])


def test_files_of_ranges_lie_in_a_folder(path: Path) -> None:
    write(path, FC6, ranges=SHARDS)
    assert names(path) == [f"epoch-0000.test/{number:05d}-of-00003.h5" for number in range(3)]


def test_what_is_stored_is_not_planned_again(path: Path) -> None:
    write(path, FC6, POOL, ranges=SHARDS)
    for ranges in (SHARDS, ALL, store.row_ranges(COUNT, 10)):  # whatever the ranges are now
        assert plan(path, POOL, ranges=ranges) == store.Plan()


def test_files_that_were_begun_are_completed_by_the_same_layers(path: Path) -> None:
    first, *others = plan(path, FC6, POOL, ranges=SHARDS).parts
    write_part(first)
    assert not store.has_feature_files(path)  # nothing can be read before all are there
    assert plan(path, POOL, FC6, ranges=SHARDS) == store.Plan(tuple(others))


def test_files_that_were_begun_for_other_layers_or_ranges_go(path: Path) -> None:
    first, *_ = plan(path, FC6, POOL, ranges=SHARDS).parts
    write_part(first)
    for planned in (plan(path, FC6, ranges=SHARDS), plan(path, FC6, POOL, ranges=store.row_ranges(COUNT, 9))):
        assert planned.stale == (first.path,)
        assert len(planned.parts) == 3
    write(path, FC6)
    assert names(path) == ["epoch-0000.test.1.h5"]


def test_of_a_damaged_range_its_file_alone_is_written_again(path: Path) -> None:
    files = write(path, FC6, POOL, ranges=SHARDS)
    damage(files[1], FEATURES[POOL][9])
    (part,) = plan(path, FC6, POOL, ranges=SHARDS).parts
    assert part == store.Part(files[1], range(8, 16), frozenset({FC6, POOL}))
    assert plan(path, FC6, ranges=SHARDS) == store.Plan()  # which is intact
    write_part(part)
    assert np.array_equal(store.read_features(path, POOL), FEATURES[POOL])


def test_a_damaged_layer_beside_others_is_written_into_a_file_of_its_own(path: Path) -> None:
    write(path, FC6, POOL)
    damage(path, FEATURES[POOL][9])
    assert write(path, POOL) == [path.with_name("epoch-0000.test.1.h5")]
    for layer in (FC6, POOL):
        assert np.array_equal(store.read_features(path, layer), FEATURES[layer])


@pytest.mark.parametrize("ranges", [ALL, SHARDS], ids=["file", "shards"])
def test_of_another_key_every_file_goes_or_is_replaced(path: Path, ranges: tuple[range, ...]) -> None:
    write(path, FC6, ranges=ranges)
    write(path, POOL, ranges=ranges)
    newer = replace(KEY, weights_sha256="new")
    planned = plan(path, FC6, ranges=ranges, key=newer)
    assert [part.rows for part in planned.parts] == [*ranges]
    assert len(planned.stale) == 2 * len(ranges) - (ranges is ALL)  # one file stays until it is replaced
    write(path, FC6, ranges=ranges, key=newer)
    assert list(store.read_feature_head(path).columns) == [FC6]
    assert plan(path, FC6, ranges=ranges, key=newer) == store.Plan()


def test_a_file_of_another_key_beside_is_passed_over(path: Path) -> None:
    write(path, FC6)
    part = store.Part(path.with_name("epoch-0000.test.1.h5"), range(COUNT), frozenset({POOL}))
    write_part(part, replace(KEY, weights_sha256="old"))
    assert list(store.read_feature_head(path).columns) == [FC6]
    with store.open_feature_file(path) as files:
        assert files.layers == (FC6,)


def test_files_of_ranges_in_another_order_are_refused(path: Path) -> None:
    first, second, _ = write(path, FC6, ranges=SHARDS)
    aside = first.rename(path.with_name("aside"))
    second.rename(first)
    aside.rename(second)
    for read in (store.read_feature_head, lambda path: store.read_features(path, FC6)):
        with pytest.raises(DataError, match="has the images 8 to 23 of 23, which are not all in their order"):
            read(path)
    write(path, FC6, ranges=SHARDS)
    assert np.array_equal(store.read_features(path, FC6), FEATURES[FC6])


def test_a_file_of_a_range_is_not_taken_for_a_whole_split(path: Path) -> None:
    *_, last = write(path, FC6, ranges=SHARDS)
    with pytest.raises(DataError, match="has the images 16 to 23 of 23, which are not all"):
        store.read_feature_head(last)


def test_all_files_of_an_epoch_and_split_are_removed_and_no_other(path: Path) -> None:
    other = path.with_name("epoch-0000.train.h5")
    write(other, FC6)
    write(path, FC6)
    write(path, POOL, ranges=SHARDS)
    store.remove_feature_files(path)
    assert names(path) == ["epoch-0000.train.h5"]
    assert not path.with_name("epoch-0000.test.1").exists()


def test_a_layer_is_that_of_the_file_written_last(path: Path) -> None:
    write(path, FC6)
    shutil.copy(path, path.with_name("epoch-0000.test.1.h5"))
    damage(path, FEATURES[FC6][2])
    assert np.array_equal(store.read_features(path, FC6), FEATURES[FC6])
