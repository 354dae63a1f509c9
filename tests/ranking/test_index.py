from __future__ import annotations

import errno
import json
import random
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.ranking import index, load_index, nearest_neighbours, write_index
from layerprobe.ranking.index import build_index, ivfpq_parameters
from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError, NumericError
from layerprobe.system.files import sha256
from layerprobe.values.costs import IndexKind
from tests.no_files import NO_FILES, identity
from tests.ranking.test_levels import OnDisk

IDS = ["bird/ä.jpg", "bird/b.jpg", "car/c d.jpg"]
FEATURES = np.array([[3.0, 4], [0, 2], [1, 0]])

pytestmark = pytest.mark.usefixtures("faiss")


def listing(folder: Path) -> Any:
    return json.loads((folder / "index.json").read_text(encoding="utf-8"))


def test_a_user_reads_the_index_and_the_ids_of_its_neighbours(tmp_path: Path, faiss: Any) -> None:
    folder = tmp_path / "made"
    assert write_index(folder, FEATURES, IDS) == (folder / "index.faiss", folder / "index.json")
    index = faiss.read_index(str(folder / "index.faiss"))
    ids = listing(folder)["ids"]
    found, places = index.search(np.array([[0.0, 1]], np.float32), 3)
    assert [ids[i] for i in places[0]] == ["bird/b.jpg", "bird/ä.jpg", "car/c d.jpg"]
    np.testing.assert_allclose(found[0], [1, 0.8, 0], rtol=1e-6)


@pytest.mark.parametrize(
    ("similarity", "query", "best", "values"),
    [("dot", [1, 1], [0, 1, 2], [7, 2, 1]), ("euclidean", [0, 1], [1, 2, 0], [1, 2, 18])],
)
def test_the_other_similarities_keep_the_features_as_they_are(
    similarity: Literal["dot", "euclidean"],
    query: list[float],
    best: list[int],
    values: list[float],
    tmp_path: Path,
    faiss: Any,
) -> None:
    write_index(tmp_path, torch.from_numpy(FEATURES), IDS, similarity=similarity)
    found, places = faiss.read_index(str(tmp_path / "index.faiss")).search(np.array([query], np.float32), 3)
    assert (places[0].tolist(), found[0].tolist()) == (best, values)


@pytest.mark.parametrize("kind", ["flat", "ivfpq", "hnsw"])
def test_features_on_disk_give_the_same_index(kind: IndexKind, faiss: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "BLOCK_ROWS", 32)
    monkeypatch.setattr(index, "_ADDED", 64)
    features = np.random.default_rng(0).normal(size=(200, 8))
    made = [build_index(rows, kind, training=features) for rows in (features, OnDisk(features))]
    assert len(made[1]) == 200
    assert len({faiss.serialize_index(each.faiss).tobytes() for each in made}) == 1


def test_packed_bits_are_a_binary_index(tmp_path: Path, faiss: Any) -> None:
    codes = np.array([[255, 0], [0, 0], [3, 0]], np.uint8)
    write_index(tmp_path, codes, IDS, similarity="hamming")
    found, places = faiss.read_index_binary(str(tmp_path / "index.faiss")).search(np.array([[1, 0]], np.uint8), 3)
    assert (places[0].tolist(), found[0].tolist()) == ([1, 2, 0], [1, 1, 7])
    assert listing(tmp_path)["dimensions"] == 16


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_the_index_finds_what_nearest_neighbours_finds(
    similarity: Literal["cosine", "dot", "euclidean"], tmp_path: Path, faiss: Any
) -> None:
    features = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    path, _ = write_index(tmp_path, features, [str(i) for i in range(200)], similarity=similarity)
    queries = features[:9] / np.linalg.norm(features[:9], axis=1, keepdims=True)
    _, places = faiss.read_index(str(path)).search(queries, 5)
    assert (places == nearest_neighbours(queries, 5, features, similarity=similarity).indices).all()


def test_the_listing_says_what_the_index_is(tmp_path: Path) -> None:
    path, _ = write_index(tmp_path, FEATURES, IDS, facts={"layer": "fc6", "epoch": 3})
    assert listing(tmp_path) == {
        "schema": 1,
        "index": "index.faiss",
        "sha256": sha256(path),
        "kind": "flat",
        "parameters": {},
        "rows": 3,
        "dimensions": 2,
        "similarity": "cosine",
        "vectors": "float32, divided by their length",
        "facts": {"layer": "fc6", "epoch": 3},
        "ids": IDS,
    }


def test_a_zero_vector_stays_zero(tmp_path: Path, faiss: Any) -> None:
    path, _ = write_index(tmp_path, np.eye(2) * [0, 1], ["a", "b"])
    assert faiss.read_index(str(path)).reconstruct(0).tolist() == [0, 0]


@pytest.mark.parametrize(("ids", "got"), [(IDS[:2], "2, 2"), (["a", "a", "b"], "3, 2")])
def test_every_row_has_an_id_of_its_own(ids: list[str], got: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"expected 3 different ids, got {got} of them different"):
        write_index(tmp_path, FEATURES, ids)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "similarity", "message"),
    [
        (np.nan, "cosine", "1 of 3 feature rows hold NaN or Inf"),
        (np.inf, "dot", "1 of 3 feature rows hold NaN or Inf"),
        (1e39, "euclidean", "1 of 3 feature rows leave the range of float32"),
    ],
)
def test_rows_that_the_index_cannot_hold_are_counted(
    value: float, similarity: Literal["cosine", "dot", "euclidean"], message: str, tmp_path: Path
) -> None:
    features = FEATURES.copy()
    features[1, 1] = value
    with pytest.raises(NumericError, match=message):
        write_index(tmp_path, features, IDS, similarity=similarity)
    assert list(tmp_path.iterdir()) == []


def test_without_faiss_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(EnvironmentFault, match="^faiss cannot be imported") as caught:
        write_index(tmp_path / "new", FEATURES, IDS)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", ["index", "listing"])
def test_a_full_disk_leaves_the_old_pair(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faiss: Any
) -> None:
    path, beside = write_index(tmp_path, FEATURES, IDS)
    before = path.read_bytes(), beside.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if fails == "index":
        writer = faiss.PyCallbackIOWriter
        monkeypatch.setattr(faiss, "PyCallbackIOWriter", lambda _: writer(full))
    else:
        monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(EnvironmentFault, match="disk full"):
        write_index(tmp_path, FEATURES * 2 + 1, ["x", "y", "z"])
    assert (path.read_bytes(), beside.read_bytes()) == before
    assert sorted(tmp_path.iterdir()) == [path, beside]


@pytest.mark.parametrize("name", ["index.faiss", "index.json"])
@pytest.mark.parametrize("kind", NO_FILES)
def test_an_index_and_its_listing_take_the_place_of_files_alone(tmp_path: Path, kind: str, name: str) -> None:
    NO_FILES[kind](tmp_path / name)
    before = identity(tmp_path / name)
    with pytest.raises(LayerprobeError, match=f"/{name}: {kind}, not a file"):
        write_index(tmp_path, FEATURES, IDS)
    assert identity(tmp_path / name) == before
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_facts_that_json_does_not_have_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        write_index(tmp_path, FEATURES, IDS, facts={"layer": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_no_utf_8_comes_back(tmp_path: Path) -> None:
    names = [b"caf\xe9.jpg".decode(errors="surrogateescape"), *IDS[1:]]
    write_index(tmp_path, FEATURES, names)
    assert listing(tmp_path)["ids"] == names


def clustered(classes: int, seed: int) -> NDArray[np.float32]:
    """(20 classes, 16) vectors around the means of their classes."""
    rng = np.random.default_rng(seed)
    means = np.repeat(rng.normal(size=(classes, 16)), 20, axis=0)
    return (means + 0.5 * rng.normal(size=means.shape)).astype(np.float32)


GALLERY, OTHERS = clustered(30, 1), clustered(20, 2)
NAMES = [f"{row}.png" for row in range(len(GALLERY))]
KINDS: tuple[IndexKind, ...] = ("flat", "ivfpq", "hnsw")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_a_written_index_is_read_back_and_finds_near_neighbours(
    kind: IndexKind, similarity: Literal["cosine", "dot", "euclidean"], tmp_path: Path
) -> None:
    write_index(tmp_path, GALLERY, NAMES, kind=kind, similarity=similarity, training=OTHERS)
    index = load_index(tmp_path)
    assert (index.kind, index.similarity, len(index), index.ids) == (kind, similarity, 600, tuple(NAMES))
    queries = GALLERY[::20] + 0.01
    _, found = index.search(queries, 10)
    exact = nearest_neighbours(queries, 10, GALLERY, similarity=similarity).indices
    shared = [len(set(ids) & {NAMES[row] for row in rows}) for ids, rows in zip(found, exact, strict=True)]
    # quantised to 4 parts of 64 codewords each, about half of the ten nearest are kept
    assert np.mean(shared) == 10 if kind != "ivfpq" else np.mean(shared) > 4


@pytest.mark.parametrize("kind", KINDS)
def test_equal_features_give_equal_bytes(kind: IndexKind, tmp_path: Path) -> None:
    first, second = (
        write_index(tmp_path / name, GALLERY, NAMES, kind=kind, training=OTHERS)[0].read_bytes() for name in "ab"
    )
    assert first == second


def test_an_ivfpq_stores_nothing_of_the_size_of_its_vectors(faiss: Any) -> None:
    index = build_index(GALLERY, "ivfpq", training=OTHERS)
    # 4 parts of 6 bits are 3 bytes, and the row is a number of 8 bytes
    assert index.parameters == {"nlist": 10, "nprobe": 10, "m": 4, "nbits": 6, "training": 400}
    assert index.faiss.code_size == 3
    assert faiss.serialize_index(index.faiss).nbytes < GALLERY.nbytes


@pytest.mark.parametrize(
    ("count", "dim", "training", "parameters"),
    [
        # 4 sqrt(250,000) = 2,000 lists, of which 1/16 is visited; 128 / 4 parts
        (250_000, 128, 100_000, (2000, 125, 32, 8)),
        (10_000, 512, 10_000, (256, 16, 64, 8)),  # lists by 39 vectors each; at most 64 parts
        (400, 12, 40, (1, 1, 3, 3)),  # 2^3 codewords of 4 vectors each
        (400, 17, 400, (10, 10, 17, 6)),  # 17 is the divisor of 17 nearest to 4.25, as a ratio
    ],
)
def test_the_parameters_fit_the_vectors(
    count: int, dim: int, training: int, parameters: tuple[int, int, int, int]
) -> None:
    found = ivfpq_parameters(count, dim, training)
    assert (found["nlist"], found["nprobe"], found["m"], found["nbits"]) == parameters


@pytest.mark.parametrize(
    ("training", "message"),
    [
        (None, "ivfpq has to be trained on other images than the indexed ones, and there are none"),
        (OTHERS[:38], "ivfpq has to be trained on 39 images or more, and there are 38"),
    ],
)
def test_without_training_vectors_no_ivfpq_is_begun(training: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(LayerprobeError, match=message):
        write_index(tmp_path, GALLERY, NAMES, kind="ivfpq", training=training)
    assert list(tmp_path.iterdir()) == []


def test_few_training_vectors_do(capfd: pytest.CaptureFixture[str]) -> None:
    assert len(build_index(GALLERY, "ivfpq", training=OTHERS[:39])) == 600
    assert capfd.readouterr() == ("", "")  # faiss warns on its own


@pytest.mark.parametrize("kind", ["ivfpq", "hnsw"])
def test_bits_are_searched_by_flat_alone(kind: IndexKind) -> None:
    with pytest.raises(LayerprobeError, match=f"an index {kind} holds float vectors, and binary codes are bits"):
        build_index(np.zeros((3, 2), np.uint8), kind, similarity="hamming", training=np.zeros((3, 2), np.uint8))


def test_a_written_index_of_bits_is_read_back(tmp_path: Path) -> None:
    codes = np.array([[255, 0], [0, 0], [3, 0]], np.uint8)
    write_index(tmp_path, codes, IDS, similarity="hamming")
    differing, ids = load_index(tmp_path).search(np.array([[1, 0]], np.uint8), 2)
    assert (differing.tolist(), ids) == ([[1, 1]], [[IDS[1], IDS[2]]])


def test_queries_of_other_dimensions_are_refused(tmp_path: Path) -> None:
    write_index(tmp_path, FEATURES, IDS)
    with pytest.raises(ValueError, match=r"queries of shape \(1, 3\) for an index of 2 dimensions"):
        load_index(tmp_path).search(np.ones((1, 3)), 1)


def spoiled(folder: Path, **fields: Any) -> None:
    """Change fields of index.json, with the hash of index.faiss as it is."""
    about = listing(folder) | {"sha256": sha256(folder / "index.faiss")} | fields
    (folder / "index.json").write_text(json.dumps(about))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "hnsw"}, "index.faiss: not the index of index.json: kind, similarity, rows or dimensions differ"),
        ({"similarity": "euclidean"}, "kind, similarity, rows or dimensions differ"),
        ({"similarity": "hamming"}, "not an index that faiss can read"),
        ({"dimensions": 3}, "kind, similarity, rows or dimensions differ"),
        ({"rows": 2, "ids": IDS[:2]}, "kind, similarity, rows or dimensions differ"),
        ({"ids": IDS[:2]}, "index.json: 2 ids for 3 rows, or equal ones"),
        ({"ids": ["a", "a", "b"]}, "index.json: 3 ids for 3 rows, or equal ones"),
        ({"ids": None}, "index.json: a field is missing or of another type"),
        ({"rows": True}, "index.json: a field is missing or of another type"),
        ({"sha256": "0"}, "index.faiss: damaged, or not the index of index.json: its SHA-256 differs"),
        ({"schema": 2}, "index.json: not the description of an index, or of another version"),
    ],
)
def test_an_index_and_a_listing_that_do_not_fit_are_told(fields: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_index(tmp_path, FEATURES, IDS)
    spoiled(tmp_path, **fields)
    with pytest.raises(DataError, match=message) as caught:
        load_index(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["index.faiss", "index.json"])
def test_a_missing_file_is_told(name: str, tmp_path: Path) -> None:
    write_index(tmp_path, FEATURES, IDS)
    (tmp_path / name).unlink()
    with pytest.raises(DataError, match=rf"{name}: cannot be read \(No such file or directory\)"):
        load_index(tmp_path)


@pytest.mark.parametrize("text", ["", "[" * 100_000, "[1]", "\udc80", '{"schema": 1e999}', "9" * 5000])
def test_a_listing_that_is_none_is_told(text: str, tmp_path: Path) -> None:
    write_index(tmp_path, FEATURES, IDS)
    (tmp_path / "index.json").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(DataError):
        load_index(tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_byte_is_told(kind: IndexKind, tmp_path: Path) -> None:
    path, _ = write_index(tmp_path, GALLERY, NAMES, kind=kind, training=OTHERS)
    whole, rng = path.read_bytes(), random.Random(0)
    for _ in range(20):
        place = rng.randrange(len(whole))
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << rng.randrange(8)]) + whole[place + 1 :])
        with pytest.raises(DataError, match="damaged"):
            load_index(tmp_path)
    for length in (0, 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        spoiled(tmp_path)  # the hash fits the truncated file
        with pytest.raises(DataError, match="not an index that faiss can read"):
            load_index(tmp_path)
