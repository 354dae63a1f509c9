"""The service of docs/how-to/deploy.md, run as it stands there in a process that cannot import layerprobe."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.service import bad_request, code_with, peak, post, saved, service_code, status
from layerprobe.workflow.export.export_run import export_run, layer_to_export
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent
from tests.workflow.export.conftest import CODES, PARTIALLY_WHITENED


@contextlib.contextmanager
def serving(probed: Run, chain: str, home: Path, catalogue: Path | None = None) -> Iterator[tuple[int, int]]:
    """Its port and its process, once it listens; it waits a second for a byte.

    Args:
        catalogue: images that it searches; None for the test images.
    """
    request = ExportRequest(home / "encoder", ("pt2",), layer=f"c3/{chain}", index="flat")
    export_run(layer_to_export(probed, request, Silent()), request, Silent())
    (home / "serve.py").write_text(service_code().replace("timeout = 10 ", "timeout = 1 "))
    (home / "layerprobe.py").write_text("raise SystemExit('layerprobe was imported')")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    environment = os.environ | {"PYTHONPATH": str(home)}
    command = [sys.executable, "serve.py", "encoder", str(port)]
    if catalogue is not None:
        (home / "catalogue.py").write_text(code_with("faiss.write_index"))
        words = [sys.executable, "catalogue.py", "encoder", str(catalogue), "catalogue"]
        subprocess.run(words, cwd=home, env=environment, check=True)
        command.append("catalogue")
    process = subprocess.Popen(command, cwd=home, env=environment, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                socket.create_connection(("localhost", port)).close()
                break
            except ConnectionRefusedError:
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(scope="module")
def service(probed: Run, faiss: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, int]]:
    with serving(probed, PARTIALLY_WHITENED, tmp_path_factory.mktemp("service")) as port_and_process:
        yield port_and_process


def test_the_service_of_the_page_finds_an_image_by_itself(service: tuple[int, int], folder: Path) -> None:
    assert_finds_itself(service[0], folder)


def test_it_takes_codes_of_8_bits(probed: Run, faiss: None, folder: Path, tmp_path: Path) -> None:
    with serving(probed, CODES, tmp_path) as (port, _):
        assert_finds_itself(port, folder)


def test_it_searches_a_catalogue_of_other_images(probed: Run, faiss: None, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "images" / "class7", tmp_path / "photos" / "mine")
    with serving(probed, PARTIALLY_WHITENED, tmp_path, tmp_path / "photos") as (port, _):
        assert_finds_itself(port, folder, "mine/3.png")


def assert_finds_itself(port: int, folder: Path, id_: str = "class7/3.png") -> None:
    name = "class7/3.png"
    image = (folder / "images" / name).read_bytes()
    with urllib.request.urlopen(urllib.request.Request(f"http://localhost:{port}", data=image)) as answer:
        first, *others = json.load(answer)
    assert first["id"] == id_
    assert first["similarity"] == pytest.approx(1, abs=1e-5)
    assert all(0.85 <= float(str(each["similarity"])) <= 1 for each in others)


REFUSED = {
    "32-bit pixels": post(saved("F", "TIFF")),
    "thin": post(saved("L", "PNG", 1, 1001)),
    "no length": b"POST / HTTP/1.1\r\n\r\n",
    "a negative length": post(b"abc", -1),
    "a length in words": post(b"abc", "three"),
    "too long": post(b"abc", 10**12),
    "no image": post(b"abc"),
    "EPS": post(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"),
    "no HTTP": b"\x00\xff\r\n",
}


@pytest.mark.parametrize("request_bytes", REFUSED.values(), ids=REFUSED)
def test_what_is_no_image_is_a_bad_request(service: tuple[int, int], request_bytes: bytes) -> None:
    assert status(service[0], request_bytes) == 400


def test_an_image_that_does_not_come_is_a_bad_request_and_holds_nobody(service: tuple[int, int], folder: Path) -> None:
    port, _ = service
    with socket.create_connection(("localhost", port), timeout=60) as client:
        client.sendall(post(b"abc", 1000))
        assert status(port, post((folder / "images/class1/0.png").read_bytes())) == 200
        assert client.recv(12) == b"HTTP/1.0 400"


def test_every_bad_request_gets_a_status_and_takes_little_memory(service: tuple[int, int]) -> None:
    port, process = service
    before, rng = peak(process), random.Random(0)
    statuses = Counter(status(port, bad_request(rng)) for _ in range(40))
    assert not {0, 500} & statuses.keys()
    assert peak(process) < before + 500
