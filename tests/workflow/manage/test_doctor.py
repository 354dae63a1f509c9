from __future__ import annotations

from importlib import metadata
from pathlib import Path

import pytest
import torch

from layerprobe.workflow.manage.doctor import Check, doctor


def found(cache: Path) -> dict[str, Check]:
    return {check.subject: check for check in doctor(cache)}


def test_versions_disk_and_weights_are_there(tmp_path: Path) -> None:
    checks = found(tmp_path / "not" / "yet" / "there")
    assert checks["torch"].found == metadata.version("torch")
    assert "free for" in checks["disk"].found
    assert "vgg16_bn-6c64b313.pth" in checks["vgg16_bn weights"].found
    assert ("GPU" in checks) != torch.cuda.is_available()


@pytest.mark.parametrize(
    ("installed", "text", "fix"),
    [
        ({"faiss-gpu", "faiss-cpu"}, "break each other", "pip uninstall -y faiss-cpu faiss-gpu"),
        (set(), "absent", "pip install faiss-gpu"),
        ({"faiss-cpu"}, "faiss-cpu 1", ""),
    ],
)
def test_faiss_is_there_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, installed: set[str], text: str, fix: str
) -> None:
    real = metadata.version

    def version(package: str) -> str:
        if not package.startswith("faiss"):
            return real(package)
        if package not in installed:
            raise metadata.PackageNotFoundError(package)
        return "1"

    monkeypatch.setattr(metadata, "version", version)
    check = found(tmp_path)["faiss"]
    assert text in check.found
    assert check.fix.startswith(fix)
    assert bool(check.fix) == bool(fix)


def test_a_cache_that_takes_no_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert found(tmp_path / "file" / "cache")["disk"].found == f"{tmp_path / 'file'} cannot be written to"
    assert found(tmp_path / "file" / "cache")["disk"].fix == "Choose another --cache"
