"""Models that are small enough for tests, saved where their libraries keep them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from layerprobe.nets.net import Net
from layerprobe.registry import SOURCES, load_apart
from layerprobe.sources.source import Source
from layerprobe.system.naming import name_model


def source(name: str) -> tuple[Source, str]:
    found: tuple[Source, str] = load_apart("network", SOURCES, name)
    return found


def build(name: str, **options: Any) -> Net:
    name_model(name)
    found, argument = source(name)
    return found.build(argument, **options)


def embeddings(net: Net, images: Tensor) -> Tensor:
    with torch.inference_mode():
        output: Tensor = net.module.eval()(images)
    return output


def noise(size: int, count: int = 2) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def seeded() -> None:
    """The weights of models that a test builds are the same each time."""
    torch.manual_seed(0)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., str]:
    """Save a model of transformers, and its processor, in a folder; returns its name as a source."""

    def save(model: Any, processor: Any = None) -> str:
        from transformers.utils import logging

        logging.set_verbosity_error()  # type: ignore[no-untyped-call]
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        folder = tmp_path / type(model).__name__
        with warnings.catch_warnings(action="ignore"):
            model.save_pretrained(folder)
            if processor is not None:
                processor.save_pretrained(folder)
        name_model(f"hf:{folder}")
        return f"hf:{folder}"

    return save
