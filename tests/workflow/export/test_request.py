from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from layerprobe.encoder.manifest import write_manifest
from layerprobe.system.errors import EnvironmentFault, LayerprobeError, UnknownNameError
from layerprobe.workflow.export.request import ExportRequest


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown format 'pt'. Did you mean 'pt2'"):
        ExportRequest(tmp_path / "out", ("pt",)).require_ready()


def test_a_missing_package_is_told_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else object())
    with pytest.raises(EnvironmentFault, match=r"onnxruntime is not installed. pip install 'onnx>=.*' 'onnxruntime>="):
        ExportRequest(tmp_path / "out", ("onnx",)).require_ready()
    ExportRequest(tmp_path / "out", ("npz", "pt2")).require_ready()


def test_a_folder_is_refused_without_force(tmp_path: Path) -> None:
    with pytest.raises(LayerprobeError, match="it exists already. Name another folder; .*--force replaces it"):
        ExportRequest(tmp_path).require_ready()
    ExportRequest(tmp_path, force=True).require_ready()  # it is empty


def test_force_replaces_an_export_alone(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write_manifest(tmp_path / "out", {"name": "fc6", "dim": 2, "input": None, "map": None}, [])
    ExportRequest(tmp_path / "out", force=True).require_ready()
    (tmp_path / "link").symlink_to(tmp_path / "out")
    (tmp_path / "file").touch()
    (tmp_path / "out" / "notes.txt").touch()
    for name in ("out", "link", "file"):
        for force in (True, False):
            with pytest.raises(LayerprobeError, match="not an export alone"):
                ExportRequest(tmp_path / name, force=force).require_ready()
