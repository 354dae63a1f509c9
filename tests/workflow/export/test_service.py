"""The service of docs/shipping.md, run as it stands there in a process that cannot import layerprobe."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from layerprobe.workflow.export.export_run import export_run, layer_to_export
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent
from tests.workflow.export.conftest import HALF_WHITENED

PAGE = Path(__file__).parents[3] / "docs" / "shipping.md"


@pytest.fixture
def address(probed: Run, faiss: None, tmp_path: Path) -> Iterator[str]:
    request = ExportRequest(tmp_path / "encoder", ("pt2",), layer=f"c3/{HALF_WHITENED}", index="flat")
    export_run(layer_to_export(probed, request, Silent()), request, Silent())
    (code, *_) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "serve.py").write_text(code)
    (tmp_path / "layerprobe.py").write_text("raise SystemExit('layerprobe was imported')")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "serve.py", "encoder", str(port)]
    service = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.DEVNULL)
    try:
        yield f"http://localhost:{port}"
    finally:
        service.terminate()
        service.wait()


def answer(address: str, image: bytes) -> list[dict[str, object]]:
    """What the service answers, once it listens."""
    for _ in range(600):
        try:
            with urllib.request.urlopen(urllib.request.Request(address, data=image)) as found:
                return list(json.load(found))
        except urllib.error.URLError:
            time.sleep(0.1)
    raise TimeoutError(address)


def test_the_service_of_the_page_finds_an_image_by_itself(address: str, folder: Path) -> None:
    name = "class7/3.png"
    first, *others = answer(address, (folder / "images" / name).read_bytes())
    assert first["id"] == name
    assert first["similarity"] == pytest.approx(1, abs=1e-5)
    assert all(0.85 <= float(str(each["similarity"])) <= 1 for each in others)
