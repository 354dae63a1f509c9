"""Options and data that all tests share."""

from __future__ import annotations

import gc
import multiprocessing
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# pytest-xdist starts a process for every core, so each computes with one thread, and so do the processes that tests
# start. OpenMP reads this when torch or numpy is imported. A waiting thread sleeps: GNU OpenMP's spinning waiters would
# cost a scheduler tick an operation where there are more threads than cores.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
if shutil.which("nvidia-smi") is None:  # no GPU: Triton, once imported, runs its kernels in NumPy
    os.environ.setdefault("TRITON_INTERPRET", "1")
# Processes that tests start import layerprobe: each would compile it again where no bytecode is kept.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
# Ten thousand tests and what their modules import live as long as the process: while they are collected nothing becomes
# garbage, and after that no search for garbage visits them again (`pytest_collection_finish`).
gc.disable()
# Whichever test starts the fork server: it imports these once, and each of its processes is a fork of it. torch
# imports torch._dynamo with the first optimizer, which takes as long as the rest.
multiprocessing.set_forkserver_preload(
    [
        "layerprobe.workflow.train.train", "layerprobe.workflow.probe.probe", "layerprobe.cli.probe", "scipy.special",
        "torch._dynamo",
    ]
)  # fmt: skip
os.environ.pop("LAYERPROBE_CACHE", None)  # whoever runs the tests may have set it for runs of their own
os.environ.pop("LAYERPROBE_NAMED_MODELS", None)

# An example that takes long on a busy machine is no fault.
hypothesis.settings.register_profile(
    "unhurried", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("unhurried")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests marked slow too")
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/cli/golden by what commands print")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if "slow" in item.keywords and not config.getoption("--slow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --slow"))
        if "gpu" in item.keywords and not _has_gpu():
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.freeze()
    gc.enable()


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.fixture(scope="session", autouse=True)
def state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What tests name is kept on a list of their own, not on that of whoever runs them."""
    folder = tmp_path_factory.mktemp("state")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def unsynced() -> Iterator[None]:
    """No test cuts the power: files may wait in the memory of the system."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def faiss() -> Any:
    """The module faiss; a test that needs it is skipped where it is absent."""
    from layerprobe.ranking.faiss_search import import_faiss
    from layerprobe.system.errors import EnvironmentFault

    try:
        return import_faiss()
    except EnvironmentFault as fault:
        pytest.skip(str(fault))


@pytest.fixture
def tracker_calls() -> Iterator[list[tuple[object, ...]]]:
    """Trackers `kept` and `raising`, registered; the calls of the first."""
    from layerprobe import registry
    from tests.trackers.kept import Kept, Raising

    with pytest.MonkeyPatch.context() as patch:
        for kind in ("kept", "raising"):
            patch.setitem(registry.TRACKERS, kind, f"tests.trackers.kept:{kind.title()}")
        Kept.calls.clear()
        Raising.count = 0
        yield Kept.calls


@pytest.fixture
def nothing_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has named no model yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")


@pytest.fixture
def real_images() -> Path:
    """The folder of real test images; a test that needs it is skipped where it is absent."""
    folder = Path(os.environ.get("LAYERPROBE_TEST_DATA", "../shared/data"))
    if not folder.is_dir():
        pytest.skip(f"no real images: {folder} is absent and LAYERPROBE_TEST_DATA is not set")
    return folder
