"""Estimated time, memory and disk space of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Estimate:
    """Seconds of work; bytes of peak memory, on disk, and free on that disk."""

    seconds: float
    memory: int
    disk: int
    free: int
