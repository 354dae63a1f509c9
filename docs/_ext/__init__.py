"""What the site of docs/ generates: its reference from the command line, signatures, docstrings and the registry."""

from __future__ import annotations

from importlib.util import find_spec

# Packages that the build does without where they are absent: it reads names, signatures and docstrings alone.
HEAVY = (
    *("torch", "torchvision", "captum", "h5py", "faiss", "sklearn", "threadpoolctl", "safetensors"),
    *("matplotlib", "optuna", "umap"),
)


def absent() -> list[str]:
    """Those of the heavy packages that are not installed."""
    return [name for name in HEAVY if find_spec(name) is None]
