"""The script that a good engineer writes in place of `layerprobe probe`: what `path.py` compares the probe with.

Of each layer of an EfficientNet-Lite0 and of the two halves of the classes: features by plain hooks that pool, a file
of them, and Recall@K by faiss. Default settings throughout: nothing is checked, cached, resumed or recorded.

    python benchmarks/path_bare.py IMAGES WEIGHTS OUT.h5 OUT.json [LAYER ...]
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import faiss
import h5py
import numpy as np
import timm
import torch
from timm.data.config import resolve_data_config
from timm.data.transforms_factory import create_transform
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder

SIDE, BATCH, KS = 96, 64, (1, 2, 4, 8, 16, 32)


def main() -> None:
    images, weights, features_file, recalls_file, *layers = sys.argv[1:]
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)
    net: Any = timm.create_model("tf_efficientnet_lite0")
    net.load_state_dict(torch.load(weights, weights_only=True))
    net.eval().to(memory_format=torch.channels_last)
    net.reset_classifier(0)
    transform = create_transform(**resolve_data_config({"input_size": (3, SIDE, SIDE)}, model=net))  # type: ignore[no-untyped-call]

    pooled = {}
    names = layers or [name for name, _ in net.named_modules() if name.startswith("blocks.") and name.count(".") == 2]
    for name in names:
        if name != "output":
            net.get_submodule(name).register_forward_hook(
                lambda _, __, output, name=name: pooled.update({name: output.amax((2, 3))})
            )

    dataset = ImageFolder(images, transform)
    features: dict[str, list[np.ndarray]] = {}
    with torch.inference_mode():
        for pixels, _ in DataLoader(dataset, BATCH):
            output = net(pixels.contiguous(memory_format=torch.channels_last))
            if not layers or "output" in layers:
                pooled["output"] = output
            for name, batch in pooled.items():
                features.setdefault(name, []).append(batch.numpy())

    labels = np.array(dataset.targets)
    in_train = labels < len(dataset.classes) // 2
    recalls: dict[str, dict[str, list[float]]] = {"train": {}, "test": {}}
    with h5py.File(features_file, "w") as file:
        for name, batches in features.items():
            values = np.concatenate(batches)
            for split, rows in (("train", in_train), ("test", ~in_train)):
                file[f"{split}/{name}"] = values[rows]
                recalls[split][name] = recall(values[rows], labels[rows])
    Path(recalls_file).write_text(json.dumps(recalls))


def recall(features: np.ndarray, labels: np.ndarray) -> list[float]:
    """Recall@K of every image among the others, for each K."""
    unit = features.copy()
    faiss.normalize_L2(unit)
    index = faiss.IndexFlatIP(unit.shape[1])
    index.add(unit)
    _, nearest = index.search(unit, max(KS) + 1)
    # The image itself is taken out wherever it stands; where equal images crowd it out, the last one goes.
    others = nearest != np.arange(len(unit))[:, None]
    others[others.all(axis=1), -1] = False
    right = labels[nearest[others].reshape(len(unit), -1)] == labels[:, None]
    return [float(right[:, :k].any(axis=1).mean()) for k in KS]


if __name__ == "__main__":
    main()
