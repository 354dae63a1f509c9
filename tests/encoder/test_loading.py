from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import load_encoder
from layerprobe.encoder import example
from layerprobe.encoder.loading import LoadedEncoder
from layerprobe.encoder.manifest import write_manifest
from layerprobe.system.errors import DataError, EnvironmentFault

FACTS = {"name": "tiny#1:fc6", "dim": 2, "input": None, "map": {"dim": 3, "steps": ["projection"]}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    arrays: dict[str, Any] = {"mean.0": np.ones(3), "matrix.0": np.eye(3)[:, :2]}
    np.savez(tmp_path / example.MAP, **arrays)
    write_manifest(tmp_path, FACTS, [example.MAP])
    return tmp_path


def test_a_map_alone_takes_features(folder: Path) -> None:
    encoder = load_encoder(folder)
    assert encoder(np.array([[2, 3, 4]])).tolist() == [[1, 2]]
    assert repr(encoder) == "LoadedEncoder('tiny#1:fc6', 2 dimensions)"


def test_a_changed_file_is_not_loaded(folder: Path) -> None:
    content = bytearray((folder / example.MAP).read_bytes())
    content[-1] ^= 1
    (folder / example.MAP).write_bytes(content)
    with pytest.raises(DataError, match=r"map\.npz: has changed since it was exported"):
        load_encoder(str(folder))


@pytest.mark.parametrize(
    "images",
    [
        np.zeros((1, 4, 5, 3)),
        np.zeros((1, 4, 5, 3), np.uint16),
        np.zeros((1, 5, 4, 3), np.uint8),
        np.zeros((4, 5, 3), np.uint8),
        np.zeros((0, 4, 5, 3), np.uint8),
    ],
)
def test_images_of_another_type_or_size_are_refused(images: NDArray[Any]) -> None:
    encoder = LoadedEncoder({"input": {"size": (4, 5), "channels": 3}}, lambda images: images)
    with pytest.raises(ValueError, match=r"expected images uint8 \(B, 4, 5, 3\), B at least 1, got"):
        encoder(images)
    assert encoder(np.zeros((2, 4, 5, 3), np.uint8)).shape == (2, 4, 5, 3)


@pytest.mark.parametrize("features", [np.zeros((2, 4)), np.zeros(3), np.array([["a", "b", "c"]]), np.zeros((0, 3))])
def test_features_of_another_type_or_size_are_refused(folder: Path, features: NDArray[Any]) -> None:
    encoder = load_encoder(folder)
    with pytest.raises(ValueError, match=r"expected features \(B, 3\), B at least 1, got"):
        encoder(features)


@pytest.mark.parametrize(
    "arrays",
    [
        {"mean.0": np.ones(3)},
        {"mean.0": np.ones(3), "matrix.0": np.ones((4, 2))},
        {"mean.0": np.ones(3), "matrix.0": np.ones(())},
        {"mean.0": np.array(["a", "b", "c"]), "matrix.0": np.eye(3)[:, :2]},
    ],
)
def test_a_map_with_other_arrays_than_its_steps_take_is_told(folder: Path, arrays: dict[str, Any]) -> None:
    np.savez(folder / example.MAP, **arrays)
    write_manifest(folder, FACTS, [example.MAP])
    with pytest.raises(DataError, match=r"map\.npz: not the encoder that export\.json describes \(\w+Error\)"):
        load_encoder(folder)


def test_what_float16_cannot_hold_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / example.MAP)
    write_manifest(tmp_path, FACTS | {"dim": 3, "map": {"dim": 3, "steps": ["float16"]}}, [example.MAP])
    encoder = load_encoder(tmp_path)
    assert encoder(np.array([[65519, 1, 2]])).tolist() == [[65504, 1, 2]]
    with pytest.raises(ValueError, match="beyond the range of float16, which ends at 65,504"):
        encoder(np.array([[65520, 1, 2]]))


def test_an_index_takes_codes_at_length_1_as_float32() -> None:
    codes = np.array([[3, 4], [0, 0]], np.int8)
    found = example.searchable(codes, "cosine")
    assert found.dtype == np.float32
    assert found.tolist() == [[np.float32(0.6), np.float32(0.8)], [0, 0]]
    assert example.searchable(codes.astype(np.float16), "dot").tolist() == [[3, 4], [0, 0]]
    bits = np.array([[1]], np.uint8)
    assert example.searchable(bits, "hamming") is bits


@pytest.mark.parametrize("file", [example.MAP, example.GRAPH, example.ONNX])
@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x80\x02.", b"\x93NUMPY\x01\x00", bytes(99)])
def test_an_encoder_with_another_content_and_its_hash_is_told(tmp_path: Path, file: str, content: bytes) -> None:
    (tmp_path / file).write_bytes(content)
    facts = FACTS if file == example.MAP else FACTS | {"input": {"size": (4, 5), "channels": 3}}
    write_manifest(tmp_path, facts, [file])
    with pytest.raises(DataError, match=rf"{file}: not the encoder that export\.json describes"):
        load_encoder(tmp_path)


def test_another_number_of_dimensions_is_told(folder: Path) -> None:
    write_manifest(folder, FACTS | {"dim": 5}, [example.MAP])
    with pytest.raises(DataError, match=r"map\.npz: gives features \(1, 2\) of one image, dim of export\.json is 5"):
        load_encoder(folder)


def test_onnx_without_onnx_runtime_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: Path) -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    monkeypatch.setattr(example, "load_onnx", absent)
    (tmp_path / example.ONNX).touch()
    write_manifest(tmp_path, FACTS | {"input": {"size": (4, 5), "channels": 3}}, [example.ONNX])
    with pytest.raises(EnvironmentFault, match=r"model\.onnx: onnxruntime is not installed. pip install"):
        load_encoder(tmp_path)
