from __future__ import annotations

import errno
import json
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from layerprobe.ranking import export_index, nearest_neighbours
from layerprobe.system.errors import EnvironmentFault, LayerprobeError, NumericError
from layerprobe.system.files import sha256
from tests.no_files import NO_FILES

IDS = ["bird/ä.jpg", "bird/b.jpg", "car/c d.jpg"]
FEATURES = np.array([[3.0, 4], [0, 2], [1, 0]])

pytestmark = pytest.mark.usefixtures("faiss")


def listing(path: Path) -> Any:
    return json.loads(path.with_name(f"{path.name}.json").read_text(encoding="utf-8"))


def test_a_user_reads_the_index_and_the_ids_of_its_neighbours(tmp_path: Path, faiss: Any) -> None:
    path = tmp_path / "made" / "fc6.faiss"
    assert export_index(path, FEATURES, IDS) == (path, tmp_path / "made" / "fc6.faiss.json")
    index = faiss.read_index(str(path))
    ids = listing(path)["ids"]
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
    export_index(tmp_path / "x.faiss", torch.from_numpy(FEATURES), IDS, similarity=similarity)
    found, places = faiss.read_index(str(tmp_path / "x.faiss")).search(np.array([query], np.float32), 3)
    assert (places[0].tolist(), found[0].tolist()) == (best, values)


def test_packed_bits_are_a_binary_index(tmp_path: Path, faiss: Any) -> None:
    codes = np.array([[255, 0], [0, 0], [3, 0]], np.uint8)
    export_index(tmp_path / "x.faiss", codes, IDS, similarity="hamming")
    found, places = faiss.read_index_binary(str(tmp_path / "x.faiss")).search(np.array([[1, 0]], np.uint8), 3)
    assert (places[0].tolist(), found[0].tolist()) == ([1, 2, 0], [1, 1, 7])
    assert listing(tmp_path / "x.faiss")["dimensions"] == 16


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
def test_the_index_finds_what_nearest_neighbours_finds(
    similarity: Literal["cosine", "dot", "euclidean"], tmp_path: Path, faiss: Any
) -> None:
    features = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    path, _ = export_index(tmp_path / "x.faiss", features, [str(i) for i in range(200)], similarity=similarity)
    queries = features[:9] / np.linalg.norm(features[:9], axis=1, keepdims=True)
    _, places = faiss.read_index(str(path)).search(queries, 5)
    assert (places == nearest_neighbours(queries, 5, features, similarity=similarity).indices).all()


def test_the_listing_says_what_the_index_is(tmp_path: Path) -> None:
    path, _ = export_index(tmp_path / "x.faiss", FEATURES, IDS, facts={"layer": "fc6", "epoch": 3})
    assert listing(path) == {
        "schema": 1,
        "index": "x.faiss",
        "sha256": sha256(path),
        "count": 3,
        "dimensions": 2,
        "similarity": "cosine",
        "vectors": "float32, divided by their length",
        "facts": {"layer": "fc6", "epoch": 3},
        "ids": IDS,
    }


def test_a_zero_vector_stays_zero(tmp_path: Path, faiss: Any) -> None:
    path, _ = export_index(tmp_path / "x.faiss", np.eye(2) * [0, 1], ["a", "b"])
    assert faiss.read_index(str(path)).reconstruct(0).tolist() == [0, 0]


@pytest.mark.parametrize(("ids", "got"), [(IDS[:2], "2, 2"), (["a", "a", "b"], "3, 2")])
def test_every_row_has_an_id_of_its_own(ids: list[str], got: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"expected 3 different ids, got {got} of them different"):
        export_index(tmp_path / "x.faiss", FEATURES, ids)
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
        export_index(tmp_path / "x.faiss", features, IDS, similarity=similarity)
    assert list(tmp_path.iterdir()) == []


def test_without_faiss_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(EnvironmentFault, match="^faiss cannot be imported") as caught:
        export_index(tmp_path / "new" / "x.faiss", FEATURES, IDS)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("fails", ["index", "listing"])
def test_a_full_disk_leaves_the_old_pair(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, faiss: Any
) -> None:
    path, beside = export_index(tmp_path / "x.faiss", FEATURES, IDS)
    before = path.read_bytes(), beside.read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if fails == "index":
        writer = faiss.PyCallbackIOWriter
        monkeypatch.setattr(faiss, "PyCallbackIOWriter", lambda _: writer(full))
    else:
        monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(EnvironmentFault, match="disk full"):
        export_index(path, FEATURES * 2 + 1, ["x", "y", "z"])
    assert (path.read_bytes(), beside.read_bytes()) == before
    assert sorted(tmp_path.iterdir()) == [path, beside]


@pytest.mark.parametrize("name", ["fc6.faiss", "fc6.faiss.json"])
@pytest.mark.parametrize("kind", NO_FILES)
def test_an_index_and_its_listing_take_the_place_of_files_alone(tmp_path: Path, kind: str, name: str) -> None:
    NO_FILES[kind](tmp_path / name)
    before = (tmp_path / name).lstat()
    with pytest.raises(LayerprobeError, match=f"/{name}: {kind}, not a file"):
        export_index(tmp_path / "fc6.faiss", FEATURES, IDS)
    assert (tmp_path / name).lstat() == before
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_facts_that_json_does_not_have_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="not JSON serializable"):
        export_index(tmp_path / "x.faiss", FEATURES, IDS, facts={"layer": object()})
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_is_no_utf_8_comes_back(tmp_path: Path) -> None:
    names = [b"caf\xe9.jpg".decode(errors="surrogateescape"), *IDS[1:]]
    export_index(tmp_path / "x.faiss", FEATURES, names)
    assert listing(tmp_path / "x.faiss")["ids"] == names
