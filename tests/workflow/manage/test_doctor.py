from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from layerprobe.workflow.manage.doctor import Check, doctor


def found(cache: Path) -> dict[str, Check]:
    return {check.subject: check for check in doctor(cache, "freed memory is kept")}


def test_versions_disk_and_weights_are_there(tmp_path: Path) -> None:
    checks = found(tmp_path / "not" / "yet" / "there")
    assert checks["torch"].found == metadata.version("torch")
    assert "free for" in checks["disk"].found
    assert "vgg16_bn-6c64b313.pth" in checks["vgg16_bn weights"].found
    assert ("GPU" in checks) != torch.cuda.is_available()


def test_every_requirement_is_listed(tmp_path: Path) -> None:
    requirements = [text for text in metadata.requires("layerprobe") or () if "extra ==" not in text]
    names = [re.match(r"[\w-]+", text)[0] for text in requirements]  # type: ignore[index] # each begins with its name
    assert len(names) > 10
    assert {name for name in names if not name.startswith("faiss")} <= found(tmp_path).keys()


def test_every_extra_of_a_user_has_its_versions_or_its_install_line(tmp_path: Path) -> None:
    extras = set(metadata.metadata("layerprobe").get_all("Provides-Extra") or ()) - {"dev", "docs"}
    rows = {name.removeprefix("extra ").replace("_", "-"): check for name, check in found(tmp_path).items()}
    assert {extra.replace("_", "-") for extra in extras} <= rows.keys()
    assert rows["timm"].found == f"timm {metadata.version('timm')}"
    assert rows["wandb"].found.startswith("absent; pip install 'wandb>=")


def test_what_holds_of_the_memory_is_told(tmp_path: Path) -> None:
    assert found(tmp_path)["memory"] == Check("memory", "freed memory is kept")


Distribution = tuple[str, int, list[str]]  # name, bytes of its files, requirements
FAISS_GPU: Distribution = ("faiss_gpu", 250_000_000, ["numpy>=1.25", "packaging", "nvidia-cublas-cu12>=12.1"])
OTHERS: list[Distribution] = [
    ("torch", 1_200_000_000, ["nvidia-cublas (<14,>=13.2)", "triton==3.9.0; platform_system == 'Linux'"]),
    ("triton", 1_000_000_000, []),
    ("nvidia-cublas", 600_000_000, []),
    ("nvidia_cublas_cu12", 900_000_000, ["nvidia-cuda-nvrtc-cu12"]),
    ("nvidia_cuda_nvrtc_cu12", 200_000_000, []),
    ("packaging", 2_000_000, []),
    ("numpy", 70_000_000, []),
    ("matplotlib", 30_000_000, ["numpy>=1.25", "packaging>=20"]),
]


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Path]:
    """Make these distributions all that is installed, and give the folder of their metadata."""
    folder = tmp_path / "site-packages"

    def only(*distributions: Distribution) -> Path:
        for name, size, requirements in distributions:
            info = folder / f"{name}-1.dist-info"
            info.mkdir(parents=True)
            lines = [
                "Metadata-Version: 2.1",
                f"Name: {name}",
                "Version: 1",
                *map("Requires-Dist: {}".format, requirements),
            ]
            (info / "METADATA").write_text("\n".join(lines) + "\n")
            (info / "RECORD").write_text(
                f"{name}/a.so,sha256=x,{size - 1}\n{name}/b.py,sha256=x,1\n{name}/b.pyc,,\n{name}/c.pyc,,\n\n"
            )
        found = metadata.distributions
        monkeypatch.setattr(metadata, "distributions", lambda: found(path=[str(folder)]))
        return folder

    return only


Install = Callable[..., Path]


def test_sizes_are_those_of_the_records(install: Install, tmp_path: Path) -> None:
    install(*OTHERS, FAISS_GPU)
    # torch 1.2, nvidia-cublas 0.6, triton 1.0; faiss-gpu 0.25 with cublas 0.9 and nvrtc 0.2; the others 0.102
    assert found(tmp_path)["packages"].found == (
        "4.3 GB: PyTorch 1.2 GB, its CUDA libraries 600 MB, Triton 1.0 GB, faiss-gpu 250 MB,"
        " libraries for faiss-gpu alone 1.1 GB, others 102 MB"
    )


def test_files_that_are_listed_without_a_size_count(install: Install, tmp_path: Path) -> None:
    folder = install(("h5py", 2_000_000, []))
    (folder / "h5py").mkdir()
    (folder / "h5py" / "b.pyc").write_bytes(bytes(3_000_000))
    assert found(tmp_path)["packages"].found == "5 MB: others 5 MB"


def test_what_only_faiss_requires_can_go_with_it(install: Install, tmp_path: Path) -> None:
    install(*OTHERS, FAISS_GPU)
    names = "faiss-gpu nvidia-cublas-cu12 nvidia-cuda-nvrtc-cu12"
    lighter = found(tmp_path)["lighter"]
    assert lighter.found.startswith(f"1.4 GB less: pip uninstall -y {names}; only indexes need faiss")
    assert not lighter.fix


def test_what_another_package_requires_stays(install: Install, tmp_path: Path) -> None:
    install(*OTHERS, FAISS_GPU, ("cupy", 1, ["nvidia-cublas-cu12"]))
    assert "lighter" not in found(tmp_path)
    assert "for faiss-gpu alone" not in found(tmp_path)["packages"].found


def test_a_package_without_metadata_is_absent(install: Install, tmp_path: Path) -> None:
    folder = install(*OTHERS)
    (folder / "h5py-3.dist-info").mkdir()
    (folder / "pillow-1.dist-info").mkdir()
    (folder / "pillow-1.dist-info" / "METADATA").write_text("Name: pillow\n")
    assert found(tmp_path)["h5py"] == Check("h5py", "absent", "pip install h5py")
    assert found(tmp_path)["pillow"] == Check("pillow", "of unknown version")


@pytest.mark.parametrize(
    ("builds", "module", "text", "fix"),
    [
        (["faiss-gpu", "faiss-cpu"], "whole", "break each other", "pip uninstall -y faiss-gpu faiss-cpu; then"),
        (["faiss-cpu"], "whole", "faiss-cpu 1", ""),
        (["faiss-gpu-cuvs"], "whole", "faiss-gpu-cuvs 1", ""),
        (
            ["faiss-gpu-cuvs"],
            "absent",
            "faiss-gpu-cuvs 1: faiss cannot be imported (",
            "pip uninstall -y faiss-gpu-cuvs;",
        ),
        ([], "whole", "1.9", ""),  # as conda installs it
        ([], "absent", "absent: everything but indexes works without it", ""),
    ],
)
def test_one_build_of_faiss_or_none_is_fine(
    install: Install,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    builds: list[str],
    module: str,
    text: str,
    fix: str,
) -> None:
    install(*OTHERS, *((name, 1, []) for name in builds))
    whole = SimpleNamespace(__version__="1.9", IndexFlatIP=None)
    monkeypatch.setitem(sys.modules, "faiss", whole if module == "whole" else None)
    check = found(tmp_path)["faiss"]
    assert text in check.found
    assert check.fix.startswith(fix)
    assert bool(check.fix) == bool(fix)


@pytest.mark.parametrize("name", ["torch", "torchvision"])
def test_a_missing_torch_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    checks = found(tmp_path)
    assert checks["PyTorch"].found.startswith("cannot be imported (")
    assert checks["PyTorch"].fix == "pip install --force-reinstall torch torchvision"
    assert "threads" not in checks


def test_a_cache_that_takes_no_files_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert found(tmp_path / "file" / "cache")["disk"].found == f"{tmp_path / 'file'} cannot be written to"
    assert found(tmp_path / "file" / "cache")["disk"].fix == "Choose another --cache"
