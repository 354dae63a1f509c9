from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import load_encoder
from layerprobe.encoder import example
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
    "images", [np.zeros((1, 4, 5, 3)), np.zeros((1, 5, 4, 3), np.uint8), np.zeros((4, 5, 3), np.uint8)]
)
def test_images_of_another_type_or_size_are_refused(tmp_path: Path, images: NDArray[Any]) -> None:
    (tmp_path / example.MAP).touch()
    write_manifest(tmp_path, FACTS | {"input": {"size": (4, 5), "channels": 3}}, [example.MAP])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(example, "encoder", lambda *_: lambda images: images)
        encoder = load_encoder(tmp_path)
    with pytest.raises(ValueError, match=r"expected images uint8 \(B, 4, 5, 3\), got"):
        encoder(images)
    assert encoder(np.zeros((2, 4, 5, 3), np.uint8)).shape == (2, 4, 5, 3)


def test_onnx_without_onnx_runtime_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(path: Path) -> None:
        raise ModuleNotFoundError("No module named 'onnxruntime'", name="onnxruntime")

    monkeypatch.setattr(example, "of_onnx", absent)
    (tmp_path / example.ONNX).touch()
    write_manifest(tmp_path, FACTS, [example.ONNX])
    with pytest.raises(EnvironmentFault, match=r"model\.onnx: onnxruntime is not installed. pip install"):
        load_encoder(tmp_path)
