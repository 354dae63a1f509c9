"""What is no file, made under a name in a test's own folder."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made, contextlib.chdir(path.parent):  # its address takes about 100 letters
        made.bind(path.name)


def _device(path: Path) -> None:
    if os.geteuid():
        pytest.skip("devices are made by the system's administrator")
    os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))  # as /dev/null


NO_FILES: Mapping[str, Callable[[Path], None]] = {
    "a link": lambda path: path.symlink_to("elsewhere"),
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a socket": _socket,
    "a device": _device,
}


def identity(path: Path) -> tuple[int, ...]:
    """What a path is, without the time of its last access: looking at a link may change that."""
    found = path.lstat()
    return found.st_mode, found.st_ino, found.st_dev, found.st_size, found.st_mtime_ns
