from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from layerprobe import store
from layerprobe.store.features import FeatureArray
from layerprobe.system.errors import BusyError, DataError, EnvironmentFault
from layerprobe.values.layers import LayerKey

FC6 = LayerKey("fc6", "none")
POOL = LayerKey("pool5.3", "max")
A = LayerKey("a", "max")
B = LayerKey("b", "max")

KEY = store.FeatureKey("demo", 4, "test", weights_sha256="abc", transform='{"size": 32}', manifest_sha256="def")
COUNT = 1300  # two whole chunks and a part
ROWS = store.Rows(np.arange(COUNT) % 7, [f"ä/{index}.png" for index in range(COUNT)])
DIMS = {POOL: 6, FC6: 3}


def values(seed: int, dim: int, count: int = COUNT) -> FeatureArray:
    return np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)


FEATURES = {POOL: values(1, 6), FC6: values(2, 3)}


def batches(features: dict[LayerKey, FeatureArray], size: int = 96) -> Iterator[dict[LayerKey, FeatureArray]]:
    for start in range(0, len(next(iter(features.values()))), size):
        yield {layer: array[start : start + size] for layer, array in features.items()}


def write(path: Path, features: dict[LayerKey, FeatureArray] | None = None) -> None:
    features = FEATURES if features is None else features
    dims = {layer: array.shape[1] for layer, array in features.items()}
    store.write_features(path, KEY, ROWS, store.Columns(dims, "cpu", 96), batches(features))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "features" / "epoch-0004.test.h5"
    write(path)
    return path


# --- what is written


@pytest.mark.parametrize("size", [1, 96, 512, 600, COUNT])
def test_what_was_written_is_read_whatever_the_batches(tmp_path: Path, size: int) -> None:
    columns = store.Columns(DIMS, "cpu", size)
    store.write_features(tmp_path / "f.h5", KEY, ROWS, columns, batches(FEATURES, size))
    assert all(np.array_equal(store.read_features(tmp_path / "f.h5", layer), FEATURES[layer]) for layer in DIMS)


def test_the_file_is_laid_out_as_promised(path: Path) -> None:
    with h5py.File(path) as file:
        layer = file["features/pool5.3@max"]
        assert (layer.shape, layer.dtype, layer.chunks, layer.fletcher32) == ((COUNT, 6), np.float32, (512, 6), True)
        assert layer.compression is None
        assert dict(layer.attrs) == {
            "compute": b"float32", "device": b"cpu", "batch_size": 96,
        }  # fmt: skip
        assert (file["labels"].dtype, file["labels"].fletcher32) == (np.int32, True)
        assert h5py.check_string_dtype(file["ids"].dtype).encoding == "utf-8"
        assert set(file.attrs) == {
            "schema", "run", "epoch", "split", "weights_sha256", "transform", "manifest_sha256", "layerprobe", "torch",
            "torchvision", "rows_sha256",
        }  # fmt: skip
        assert (file.attrs["schema"], file.attrs["epoch"], file.attrs["transform"]) == (1, 4, b'{"size": 32}')


def test_nothing_but_the_file_lies_in_its_folder(path: Path) -> None:
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ({A: values(1, 2, COUNT - 1)}, "1299 rows, not the 1300 that the labels have"),
        ({A: values(1, 2, COUNT + 1)}, "more than the 1300 rows that the labels have"),
        ({A: values(1, 3)}, "a batch of {'a@max': (3,)} where {'a@max': (2,)} was announced"),
        ({B: values(1, 2)}, "a batch of {'b@max': (2,)} where {'a@max': (2,)} was announced"),
    ],
    ids=["short", "long", "wide", "other"],
)
def test_batches_that_are_not_what_was_announced_leave_the_old_file(
    path: Path, features: dict[LayerKey, FeatureArray], message: str
) -> None:
    old = path.read_bytes()
    with pytest.raises(ValueError, match=re.escape(message)):
        store.write_features(path, KEY, ROWS, store.Columns({A: 2}, "cpu", 96), batches(features))
    assert path.read_bytes() == old
    assert list(path.parent.iterdir()) == [path]


def test_layers_of_a_batch_have_one_length(path: Path) -> None:
    uneven = {A: values(1, 2, 5), B: values(1, 2, 4)}
    with pytest.raises(ValueError, match="a batch of"):
        store.write_features(path, KEY, ROWS, store.Columns({A: 2, B: 2}, "cpu", 96), [uneven])


@pytest.mark.parametrize("name", ["../labels", "a/b", ""])
def test_a_layer_cannot_be_a_path(path: Path, name: str) -> None:
    layer = LayerKey(name, "max")
    with pytest.raises(ValueError, match=re.escape(f"layer name {name!r}")):
        store.read_features(path, layer)
    with pytest.raises(ValueError, match=re.escape(f"layer name {name!r}")):
        store.write_features(path, KEY, ROWS, store.Columns({layer: 6}, "cpu", 96), [])


HALF = replace(KEY, dtype="float16")


def test_a_file_of_float16_has_half_the_numbers_bytes_and_is_read_as_float32(tmp_path: Path) -> None:
    sizes = {}
    for key in (KEY, HALF):
        path = tmp_path / f"{key.dtype}.h5"
        store.write_features(path, key, ROWS, store.Columns(DIMS, "cpu", 96), batches(FEATURES))
        with h5py.File(path) as file:
            sizes[key.dtype] = file["features/pool5.3@max"].id.get_storage_size()
        with store.open_feature_file(path) as files:
            rounded = FEATURES[POOL].astype(key.dtype or np.float32).astype(np.float32)
            for found in (files.read(POOL), files.table(POOL)[:]):
                assert found.dtype == np.float32
                assert np.array_equal(found, rounded)
    checksums = 4 * 3  # of three chunks
    assert sizes["float16"] - checksums == (sizes[""] - checksums) / 2


def test_features_of_one_type_do_not_serve_the_other(tmp_path: Path) -> None:
    for key, other in ((KEY, HALF), (HALF, KEY)):
        path = tmp_path / f"{key.dtype}.h5"
        store.write_features(path, key, ROWS, store.Columns(DIMS, "cpu", 96), batches(FEATURES))
        head = store.read_feature_head(path)
        assert (head.made_from(key), head.made_from(other)) == ({*DIMS}, set())
        assert (store.stored_layers(path, key), store.stored_layers(path, other)) == ({*DIMS}, set())
        assert store.stale_note(path, other) == "dtype is not what it was"


def test_a_number_beyond_float16_is_refused_and_inf_and_nan_are_kept(tmp_path: Path) -> None:
    path, columns = tmp_path / "f.h5", store.Columns({FC6: 3}, "cpu", 96)
    rows = store.Rows(np.zeros(1, int), ["a"])
    message = "fc6 has features beyond 65,504, the largest number of float16. Probe it with --store float32"
    with pytest.raises(DataError, match=message):
        store.write_features(path, HALF, rows, columns, [{FC6: np.array([[1, -65600, 2]], np.float32)}])
    kept = np.array([[np.nan, np.inf, 65504]], np.float32)
    store.write_features(path, HALF, rows, columns, [{FC6: kept}])
    np.testing.assert_array_equal(store.read_features(path, FC6), kept)


# --- interruption


KILLED = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import test_features as t
def batches():
    for number, batch in enumerate(t.batches({{t.FC6: t.values(9, 3)}})):
        if number == 7:
            os.kill(os.getpid(), signal.SIGKILL)
        yield batch
t.store.write_features(Path({path!r}), t.KEY, t.ROWS, t.store.Columns({{t.FC6: 3}}, "cpu", 96), batches())
"""


def test_a_kill_in_mid_write_leaves_the_old_file(path: Path) -> None:
    old = path.read_bytes()
    code = KILLED.format(folder=str(Path(__file__).parent), path=str(path))
    result = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert result.returncode == -signal.SIGKILL, result.stderr
    assert path.read_bytes() == old
    assert [left.suffix for left in path.parent.iterdir() if left != path] == [".tmp"]


FULL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, {folder!r})
import test_features as t
path, unlimited = Path({path!r}), resource.getrlimit(resource.RLIMIT_FSIZE)
for limit in range(0, 160_000, 1777):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, unlimited[1]))
    try:
        t.write(path, {{t.FC6: t.values(9, 30)}})
    except t.EnvironmentFault as error:
        message = error
    else:
        raise SystemExit(f"{{limit}} bytes were enough")
print(message)
"""


def test_a_disk_that_fills_up_at_any_byte_is_said_and_leaves_the_old_file(path: Path) -> None:
    old = path.read_bytes()
    code = FULL.format(folder=str(Path(__file__).parent), path=str(path))
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert f"{path}: the file is larger than the 159,930 bytes that `ulimit -f` allows;" in result.stdout
    assert path.read_bytes() == old
    assert list(path.parent.iterdir()) == [path]
    assert EnvironmentFault.exit_code == 5


def test_a_full_disk_ends_the_extraction_with_the_batch_that_met_it(path: Path) -> None:
    drawn: list[int] = []

    def counted() -> Iterator[dict[LayerKey, FeatureArray]]:
        for number, batch in enumerate(batches({A: values(1, 2000)}, 64)):
            drawn.append(number)
            yield batch

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        with pytest.raises(EnvironmentFault, match="larger than the 1,000,000 bytes"):
            store.write_features(path, KEY, ROWS, store.Columns({A: 2000}, "cpu", 64), counted())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(drawn) == 9  # the chunk of 512 rows fails with the eighth; 21 were to come


def test_an_error_of_the_images_passes_through_and_leaves_the_old_file(path: Path) -> None:
    def failing() -> Iterator[dict[LayerKey, FeatureArray]]:
        yield from list(batches({FC6: values(9, 3)}))[:3]
        raise RuntimeError("out of memory")

    old = path.read_bytes()
    with pytest.raises(RuntimeError, match="out of memory"):
        store.write_features(path, KEY, ROWS, store.Columns({FC6: 3}, "cpu", 96), failing())
    assert path.read_bytes() == old


# --- what counts as stored


def test_what_was_written_with_a_key_is_stored_for_it(path: Path) -> None:
    assert store.stored_layers(path, KEY) == set(DIMS)
    assert store.stale_note(path, KEY) == ""


@pytest.mark.parametrize("field", ["run", "epoch", "split", "weights_sha256", "transform", "manifest_sha256"])
def test_any_difference_in_the_key_makes_the_file_stale(path: Path, field: str) -> None:
    other = store.FeatureKey(**{**asdict(KEY), field: 5 if field == "epoch" else "other"})
    assert store.stored_layers(path, other) == set()
    assert store.stale_note(path, other) == f"{field} is not what it was"


@pytest.mark.parametrize("library", ["torch", "torchvision"])
def test_another_librarys_version_makes_the_file_stale(path: Path, library: str) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs[library] = np.bytes_("1.0")
    assert store.stored_layers(path, KEY) == set()
    assert store.stale_note(path, KEY) == f"{library} is not what it was"


def test_another_version_of_layerprobe_does_not(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["layerprobe"] = np.bytes_("0.0.1")
    assert store.stored_layers(path, KEY) == set(DIMS)


def test_features_computed_in_another_type_are_not_stored(path: Path) -> None:
    half = replace(KEY, precision="bfloat16")
    assert store.stored_layers(path, half) == set()
    assert store.stale_note(path, half) == "precision is not what it was"


def test_of_an_absent_file_nothing_is_stored_and_nothing_noted(tmp_path: Path) -> None:
    assert store.stored_layers(tmp_path / "f.h5", KEY) == set()
    assert store.stale_note(tmp_path / "f.h5", KEY) == ""


# --- damage and malice


def flip(path: Path, part: bytes) -> None:
    """One bit of the file's copy of some bytes."""
    content = bytearray(path.read_bytes())
    assert content.count(part) == 1
    content[content.index(part)] ^= 1
    path.write_bytes(content)


def test_a_flipped_bit_in_a_layer_is_refused_with_the_way_out(path: Path) -> None:
    flip(path, FEATURES[POOL][700].tobytes())
    command = f"layerprobe probe {path.parents[1].name} --epochs 4 --cache {path.parents[2]}"
    message = f"{path}: checksum of layer pool5.3@max fails. Delete it; {command} computes it again."
    with pytest.raises(DataError, match=re.escape(message)):
        store.read_features(path, POOL)


def test_a_damaged_layer_is_not_stored_and_the_others_are(path: Path) -> None:
    flip(path, FEATURES[POOL][700].tobytes())
    assert store.stored_layers(path, KEY) == {FC6}
    assert store.stored_layers(path, KEY, layers={POOL}) == set()


def test_a_flipped_bit_in_the_labels_or_ids_is_refused(path: Path) -> None:
    whole = path.read_bytes()
    for part in (ROWS.labels[:512].astype(np.int32).tobytes(), "ä/700.png".encode()):
        path.write_bytes(whole)
        flip(path, part)
        with pytest.raises(DataError, match=r"not a readable feature file: truncated or damaged\. Delete it"):
            _ = store.read_feature_head(path).rows


def test_no_flipped_bit_goes_unnoticed_or_is_more_than_one_line(tmp_path: Path) -> None:
    path, rows = tmp_path / "f.h5", store.Rows(np.arange(3), ["a", "b", "c"])
    features = values(1, 2, 3)
    store.write_features(path, KEY, rows, store.Columns({FC6: 2}, "cpu", 3), [{FC6: features}])
    whole = path.read_bytes()
    unread = 0
    for place in range(0, len(whole), 7):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        store.stored_layers(path, KEY)
        try:
            found = store.read_features(path, FC6), store.read_feature_head(path).rows
        except DataError:
            unread += 1
        else:
            assert np.array_equal(found[0], features)
            assert (found[1][0].tolist(), found[1][1]) == ([0, 1, 2], ("a", "b", "c"))
    assert unread > 100


@pytest.mark.parametrize("keep", [0, 100, 5000, -1])
def test_a_truncated_file_is_refused(path: Path, keep: int) -> None:
    path.write_bytes(path.read_bytes()[:keep])
    assert store.stored_layers(path, KEY) == set()
    assert store.stale_note(path, KEY) == "not a readable feature file: truncated or damaged"
    with pytest.raises(DataError, match="not a readable feature file: truncated or damaged") as caught:
        store.read_features(path, FC6)
    assert caught.value.exit_code == 3


def test_a_layer_that_is_not_in_the_file_says_so(path: Path) -> None:
    with pytest.raises(
        DataError, match=r"no features of pool1\.1@max\. Run layerprobe probe .* --layers pool1\.1@max "
    ):
        store.read_features(path, LayerKey("pool1.1", "max"))


def external_link(file: h5py.File, aside: Path) -> None:
    with h5py.File(aside, "w") as other:
        other["secret"] = FEATURES[FC6]
    file["features/fc6@none"] = h5py.ExternalLink(str(aside), "secret")


def soft_link(file: h5py.File, aside: Path) -> None:
    file["features/fc6@none"] = h5py.SoftLink("/features/pool5.3@max")


def virtual(file: h5py.File, aside: Path) -> None:
    with h5py.File(aside, "w") as other:
        other["secret"] = FEATURES[FC6]
    layout = h5py.VirtualLayout((COUNT, 3), np.float32)
    layout[:] = h5py.VirtualSource(str(aside), "secret", (COUNT, 3))
    file.create_virtual_dataset("features/fc6@none", layout)


def external_storage(file: h5py.File, aside: Path) -> None:
    aside.write_bytes(FEATURES[FC6].tobytes())
    file.create_dataset("features/fc6@none", (COUNT, 3), np.float32, external=[(str(aside), 0, h5py.h5f.UNLIMITED)])


def group(file: h5py.File, aside: Path) -> None:
    file.create_group("features/fc6@none")


@pytest.mark.parametrize("lead_out", [external_link, soft_link, virtual, external_storage, group])
def test_what_is_not_a_dataset_of_the_file_is_refused(
    path: Path, tmp_path: Path, lead_out: Callable[[h5py.File, Path], None]
) -> None:
    with h5py.File(path, "r+") as file:
        del file["features/fc6@none"]
        lead_out(file, tmp_path / "secret")
    with pytest.raises(
        DataError,
        match=r"refused: features.* is a link, absent, or stored in another file\. Delete it; layerprobe probe",
    ):
        store.read_features(path, FC6)
    assert store.stored_layers(path, KEY) == {POOL}


def test_a_features_group_that_lies_elsewhere_is_refused(path: Path, tmp_path: Path) -> None:
    (tmp_path / "other.h5").write_bytes(path.read_bytes())
    with h5py.File(path, "r+") as file:
        del file["features"]
        file["features"] = h5py.ExternalLink(str(tmp_path / "other.h5"), "features")
    with pytest.raises(
        DataError,
        match=r"refused: features.* is a link, absent, or stored in another file\. Delete it; layerprobe probe",
    ):
        store.read_features(path, FC6)
    assert store.stored_layers(path, KEY) == set()


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((COUNT, 10**8), {"chunks": (512, 10**6), "fletcher32": True}, "is not stored as layerprobe stores it"),
        ((COUNT, 3), {"chunks": (512, 3), "fletcher32": True, "compression": "gzip"}, "is not stored as layerprobe"),
        ((COUNT, 3), {"chunks": (512, 3), "shuffle": True, "fill": True}, "is not stored as layerprobe stores it"),
        ((COUNT, 3), {"fill": True}, "is not stored as layerprobe stores it"),
        ((COUNT - 1, 3), {"chunks": (512, 3), "fletcher32": True, "fill": True}, "has 1299 rows, the labels 1300"),
        ((COUNT,), {"chunks": (512,), "fletcher32": True, "fill": True}, "is not a float32 matrix"),
        (
            (COUNT, 3),
            {"chunks": (512, 3), "fletcher32": True, "fill": True, "dtype": np.float64},
            "is not a float32 matrix",
        ),
    ],
    ids=["claims", "compressed", "filtered", "no-checksum", "rows", "vector", "float64"],
)
def test_a_dataset_that_layerprobe_does_not_write_is_refused(
    path: Path, shape: tuple[int, ...], options: dict[str, object], message: str
) -> None:
    created = {name: value for name, value in options.items() if name != "fill"}
    with h5py.File(path, "r+") as file:
        del file["features/fc6@none"]
        dataset = file.create_dataset("features/fc6@none", shape, **({"dtype": np.float32} | created))
        if "fill" in options:
            dataset[...] = 1
    with pytest.raises(DataError, match=f"fc6(@none)? {message}"):
        store.read_features(path, FC6)


@pytest.mark.parametrize("schema", [0, 3])
def test_another_format_names_both_versions(path: Path, schema: int) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["schema"] = schema
        file.attrs["layerprobe"] = np.bytes_("9.0")
    message = (
        rf"written by layerprobe 9\.0 \(format {schema}\); this is \S+ \(format 1\)\. Install layerprobe 9\.0, or move"
    )
    with pytest.raises(DataError, match=message):
        store.read_features(path, FC6)
    # It is not passed over as if it were absent: it would be replaced.
    with pytest.raises(DataError, match=message):
        store.stored_layers(path, KEY)


HOLDER = """
import sys, time
import h5py
with h5py.File(sys.argv[1], "r+"):
    print("held", flush=True)
    time.sleep(60)
"""


def test_a_file_that_another_program_writes_to_is_busy_and_not_damaged(path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDER, path], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        busy = pytest.raises(BusyError, match=re.escape(f"{path}: is open for writing in another program. Close it"))
        with busy:
            _ = store.read_feature_head(path).rows
        with busy:
            store.read_features(path, FC6)
        with busy:
            store.stored_layers(path, KEY)
        holder.kill()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_not_called_damaged(path: Path) -> None:
    path.chmod(0)
    with pytest.raises(DataError, match=r"cannot be read \(Permission denied\)"):
        _ = store.read_feature_head(path).rows


def test_another_hdf5_file_is_not_a_feature_file(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["x"] = [1, 2]
    with pytest.raises(DataError, match=r"not a feature file of layerprobe\. Move it away"):
        _ = store.read_feature_head(tmp_path / "f.h5").rows


def test_too_little_memory_to_read_a_layer_is_no_damage(tmp_path: Path) -> None:
    # the array of 41 MB fits below the limit; the chunk that HDF5 reads besides does not
    path = tmp_path / "f.h5"
    columns = store.Columns({A: 20_000}, "cpu", 512)
    store.write_features(path, KEY, replace(ROWS, labels=np.arange(512), ids=list(map(str, range(512)))), columns, [
        {A: np.ones((512, 20_000), np.float32)}
    ])  # fmt: skip
    program = f"""
import resource
from pathlib import Path
from layerprobe import store
from layerprobe.system.errors import LayerprobeError
from layerprobe.values.layers import LayerKey
path, layer = Path({str(path)!r}), LayerKey("a", "max")
store.read_feature_head(path)
taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (taken + 60_000_000, taken + 60_000_000))
try:
    store.read_features(path, layer)
except LayerprobeError as error:
    print(error.exit_code, error)
"""
    told = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert told == f"5 {path}: out of memory. Free memory, or run it where there is more.\n"


# --- rows and keys


@pytest.mark.parametrize("ids", [(), tuple(str(9 * index) for index in range(700))])
def test_the_names_and_ids_of_the_classes_are_read_as_they_were(tmp_path: Path, ids: tuple[str, ...]) -> None:
    names = tuple(f"Citroën {index}" for index in range(700))
    rows = store.Rows(np.array([0, 699]), ["a", "b"], names, ids)
    columns = store.Columns({LayerKey("a", "max"): 1}, "cpu", 1)
    store.write_features(tmp_path / "f.h5", KEY, rows, columns, [{LayerKey("a", "max"): values(1, 1, 2)}])
    assert store.read_feature_head(tmp_path / "f.h5").class_names == names
    with h5py.File(tmp_path / "f.h5") as file:
        assert file["class_names"].fletcher32


def test_a_file_without_the_names_of_its_classes_is_whole(path: Path) -> None:
    assert store.read_feature_head(path).class_names == ()
    assert store.stored_layers(path, KEY) == set(DIMS)


def test_names_of_classes_that_are_no_texts_are_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.create_dataset("class_names", data=np.arange(7), chunks=(7,), fletcher32=True)
    with pytest.raises(DataError, match="its labels, ids or classes are not those that layerprobe wrote"):
        _ = store.read_feature_head(path).rows


def test_labels_and_ids_are_read_in_the_order_of_the_rows(path: Path) -> None:
    labels, ids = store.read_feature_head(path).rows
    assert labels.dtype == np.int32
    assert labels.tolist() == ROWS.labels.tolist()
    assert ids == tuple(ROWS.ids)


@pytest.mark.parametrize("name", ["labels", "ids", "class_names", "class_ids"])
def test_rows_that_a_program_changed_are_refused_though_their_checksums_are_right(tmp_path: Path, name: str) -> None:
    path = tmp_path / "f.h5"
    rows = replace(ROWS, class_names=[f"c{i}" for i in range(7)], class_ids=[f"{i}" for i in range(7)])
    layer = LayerKey("a", "max")
    store.write_features(path, KEY, rows, store.Columns({layer: 2}, "cpu", 96), [{layer: values(1, 2)}])
    with h5py.File(path, "r+") as file:
        file[name][:] = file[name][:][::-1]
    with pytest.raises(DataError, match="its labels, ids or classes are not those that layerprobe wrote"):
        _ = store.read_feature_head(path).rows
    assert store.stored_layers(path, KEY) == set()
    assert store.stale_note(path, KEY) == "its labels, ids or classes are not those that layerprobe wrote"


def test_a_file_without_the_hash_of_its_rows_is_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file.attrs["rows_sha256"]
    with pytest.raises(DataError, match="its labels, ids or classes are not those that layerprobe wrote"):
        _ = store.read_feature_head(path).rows
    assert store.stored_layers(path, KEY) == set()


def test_an_id_that_is_not_utf8_comes_back_as_it_was(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    columns = store.Columns({LayerKey("a", "max"): 1}, "cpu", 1)
    store.write_features(
        tmp_path / "f.h5", KEY, store.Rows(np.zeros(1, int), [name]), columns, [{LayerKey("a", "max"): values(1, 1, 1)}]
    )
    assert store.read_feature_head(tmp_path / "f.h5").rows[1] == (name,)


def test_an_absent_file_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"f\.h5: no such feature file\. Run layerprobe probe first\."):
        _ = store.read_feature_head(tmp_path / "f.h5").rows


def test_labels_and_ids_of_different_length_are_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        del file["labels"]
        file.create_dataset("labels", data=np.zeros(3, np.int32), chunks=(3,), fletcher32=True)
    with pytest.raises(DataError, match="labels and ids are not two lists of one length"):
        _ = store.read_feature_head(path).rows


def test_the_layers_of_a_file_are_listed(path: Path) -> None:
    assert set(store.read_feature_head(path).columns) == set(DIMS)


FEATURE_KEY = store.FeatureKey("netA", 3, "test", "a1", "{}", "b2")


def test_the_key_of_a_network_of_layerprobes_own_names_no_package() -> None:
    assert "network" not in store.key_attributes(FEATURE_KEY)
    assert store.key_attributes(replace(FEATURE_KEY, network="timm 1.0.15"))["network"] == "timm 1.0.15"


def test_a_head_that_is_kept_has_its_ids_as_they_are_stored(path: Path) -> None:
    head = store.read_feature_head(path)
    width = max(len(name.encode()) for name in ROWS.ids)
    assert head.nbytes == len(ROWS.ids) * (4 + width)
    assert head.rows[1] == tuple(ROWS.ids)
