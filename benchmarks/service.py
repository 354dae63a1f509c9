"""Bad requests to the service of docs/how-to/deploy.md: does each get a status, and how much memory do they take?

The service runs as it stands on the page, with the export of a small network. Requests are drawn by a seed: damaged
images of ten formats, images of every mode, sizes that a few bytes claim, lengths that are none, too long or not those
of the body, and lines that are no HTTP. Between them, and at the end, a whole image must be found. Some requests end in
the middle and keep their connection open, so that the service has to give up waiting.

    python benchmarks/service.py [--requests 1000] [--seed 0]

The exit code is 1 if a request got no status, the service ended, or a whole image was not found.
"""

from __future__ import annotations

import argparse
import io
import os
import random
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL.Image

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "deploy.md"
FORMATS = ("PNG", "JPEG", "GIF", "BMP", "WEBP", "TIFF", "PPM", "JPEG2000", "AVIF", "ICO")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16", "I;16B")
COMMANDS = (
    "train quick --run m --set net.name=lenet --set data.image_size=28 --set data.train_classes=20"
    " --set data.test_classes=12 --set data.images_per_class=8 --set train.epochs=1",
    "probe m --layers fc6",
    "export m --layer fc6 --format pt2 --index flat --out encoder",
)


def code_with(words: str) -> str:
    """The program of the page that has these words."""
    blocks: list[str] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (code,) = (block for block in blocks if words in block)
    return code


def service_code() -> str:
    """serve.py, as the page has it."""
    return code_with("serve_forever")


def saved(mode: str, file_format: str, width: int = 20, height: int = 16) -> bytes:
    """An image of noise; empty where the format has not the mode, or PIL not the format."""
    noise = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    image, stream = PIL.Image.fromarray(noise), io.BytesIO()
    try:
        image = image.convert("I").convert(mode) if mode.startswith("I;") else image.convert(mode)
        image.save(stream, file_format)
    except (OSError, ValueError, KeyError):
        return b""
    return stream.getvalue()


def png(width: int, height: int, bits: int = 8, colour: int = 2, rows: int = 1) -> bytes:
    """A PNG that claims a size, with a few rows of it."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
    pixels = zlib.compress(bytes(min(2**20, (1 + 3 * width) * rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def post(body: bytes, length: object = None) -> bytes:
    """A request with a body; with a length that is not its own if one is given."""
    return f"POST / HTTP/1.1\r\nContent-Length: {len(body) if length is None else length}\r\n\r\n".encode() + body


def bad_request(rng: random.Random) -> bytes:
    """A request that no client should make."""
    sizes = (0, 1, 2, 999, 1001, 10_000, 65_535, 2**24, 2**31 - 1, 2**32 - 1)
    whole = b""
    while not whole:
        whole = saved(rng.choice(MODES), rng.choice(FORMATS))

    def damaged() -> bytes:
        content = bytearray(whole)
        for _ in range(rng.randint(1, 8)):
            place = rng.randrange(min(len(content), rng.choice((32, 256, 2**20))))
            content[place] = rng.choice((0, 1, 127, 255, rng.randrange(256)))
        return post(bytes(content))

    def patched() -> bytes:
        content = bytearray(whole)
        place = rng.randrange(min(len(content), 256) - 4)
        content[place : place + 4] = struct.pack(rng.choice("<>") + "I", rng.choice(sizes))
        return post(bytes(content))

    lengths = ("", "-1", "-0", "1e3", "0x10", "٣", "+5", "10 000", "NaN", "0", 10**6, 10**9, 10**12, "9" * 5000)
    lines = (
        b"GET / HTTP/1.1\r\n\r\n", b"PUT / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"POST /\r\n\r\n", b"\x00\r\n",
        b"POST / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\n" + b"a: b\r\n" * 200, b"POST /" + b"a" * 70_000 + b"\r\n",
        b"POST / HTTP/1.1\r\nContent-Length\r\n\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nabc",
        b"POST / HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: -3\r\n\r\nabc", b"\x16\x03\x01\x02\x00\x01\x00\r\n",
    )  # fmt: skip
    kinds: tuple[Callable[[], bytes], ...] = (
        damaged,
        damaged,
        damaged,
        patched,
        lambda: post(whole[: rng.randrange(len(whole))]),
        lambda: post(whole),
        lambda: post(rng.randbytes(rng.randrange(2000))),
        lambda: post(png(rng.choice(sizes), rng.choice(sizes), rng.choice((1, 8, 16)), rng.choice((0, 2, 3, 4, 6)))),
        lambda: post(saved("1", "PNG", *rng.choice(((1, 10_000), (10_000, 1), (1, 1), (900, 1), (1, 900))))),
        lambda: post(whole, rng.choice(lengths)),
        lambda: rng.choice(lines),
        lambda: post(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n" + rng.randbytes(50)),
    )
    return rng.choice(kinds)()


def status(port: int, request: bytes, *, ends: bool = True) -> int:
    """The status that a request gets; 0 for an answer without one.

    Args:
        ends: whether the client says that it sends nothing more.
    """
    with socket.create_connection(("localhost", port), timeout=60) as client:
        answer = b""
        try:
            client.sendall(request)
            if ends:
                client.shutdown(socket.SHUT_WR)
            while part := client.recv(65536):
                answer += part
        except OSError as error:
            print(f"{type(error).__name__} {request[:60]!r}")
    match = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    return int(match[1]) if match else 0


def peak(process: int) -> float:
    """The largest memory of a process so far, in MB."""
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[0]) / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description="Bad requests to the service of docs/how-to/deploy.md.")
    parser.add_argument("--requests", type=int, default=1000, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the requests")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(measure(Path(folder), arguments.requests, random.Random(arguments.seed)))


def measure(folder: Path, count: int, rng: random.Random) -> int:
    """Serve an export, send the requests, print the statuses and the memory, and return the exit code."""
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1"}
    for words in COMMANDS:
        command = [sys.executable, "-m", "layerprobe", *words.split(), "--cache", "cache", "--quiet"]
        subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    (folder / "serve.py").write_text(service_code(), encoding="utf-8")
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    good = post(saved("RGB", "PNG"))
    command = [sys.executable, "serve.py", "encoder", str(port)]
    with subprocess.Popen(command, cwd=folder, env=os.environ, stderr=subprocess.DEVNULL) as service:
        try:
            while True:
                try:
                    faults = int(status(port, good) != 200)
                    break
                except ConnectionRefusedError:
                    time.sleep(0.1)
            before, began = peak(service.pid), time.monotonic()
            statuses = Counter[int]()
            with ThreadPoolExecutor(4) as clients:  # these wait for the service to give up
                waiting = [clients.submit(status, port, post(b"abc", 10**6), ends=False) for _ in range(4)]
                for number in range(count):
                    statuses[status(port, bad_request(rng))] += 1
                    faults += number % 100 == 0 and status(port, good) != 200
            statuses.update(found.result() for found in waiting)
            faults += int(status(port, good) != 200) + statuses[0]
            print(f"statuses: {', '.join(f'{name} {times}' for name, times in sorted(statuses.items()))}")
            print(
                f"{time.monotonic() - began:.0f} s; memory {before:.0f} MB before, {peak(service.pid):.0f} MB at most"
            )
            print(f"faults: {faults}")
            return min(faults, 1)
        finally:
            service.terminate()


if __name__ == "__main__":
    main()
