"""Trackers for tests: one that keeps what it is given, and one that draws numbers and raises at every call."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch


class Kept:
    """A tracker that keeps its calls, of all runs one after the other."""

    calls: list[tuple[object, ...]] = []  # noqa: RUF012 - shared on purpose

    def __init__(self, where: str, run: str, config: Mapping[str, object]) -> None:
        self.calls.append(("begin", where, run, dict(config)))

    @staticmethod
    def require(where: str) -> None:
        pass

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self.calls.append(("log", epoch, dict(numbers)))

    def log_figure(self, name: str, file: Path, epoch: int) -> None:
        self.calls.append(("figure", name, epoch, file.read_bytes()[:4]))

    def log_file(self, file: Path) -> None:
        self.calls.append(("file", file.name, file.read_text()[:15]))

    def close(self, *, failed: bool) -> None:
        self.calls.append(("close", "failed" if failed else "finished"))


class Raising:
    """A tracker that draws from every generator, prints, and raises at every call."""

    count = 0

    def __init__(self, where: str, run: str, config: Mapping[str, object]) -> None:
        if where != "later":
            self._raise()

    @staticmethod
    def require(where: str) -> None:
        pass

    def log(self, numbers: Mapping[str, float], epoch: int) -> None:
        self._raise()

    def log_figure(self, name: str, file: Path, epoch: int) -> None:
        self._raise()

    def log_file(self, file: Path) -> None:
        self._raise()

    def close(self, *, failed: bool) -> None:
        self._raise()

    def _raise(self) -> NoReturn:
        Raising.count += 1
        random.random()
        np.random.rand()  # noqa: NPY002 - the global generator
        torch.rand(1)
        print("on stdout")
        raise RuntimeError("no\nnetwork")
