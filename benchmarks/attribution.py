"""Explanations of similarities: completeness of integrated gradients, and the check against random weights.

Each network is trained for some steps by the normalised softmax loss on the first half of the characters of Omniglot's
small background set, of 64 x 64 pixels and inverted. Queries are images of the other half, and each is paired with its
nearest neighbour at each layer, as `layerprobe explain` does. For each layer: the completeness errors and steps of
integrated gradients over both images of all pairs whose difference F(x) - F(x0) is at least 0.05; the median rank
correlation of maps, and of their absolute values, with those of the same network with other random weights; and the
same of Grad-CAM. One thread.

    python benchmarks/attribution.py FOLDER_OF_OMNIGLOT_SMALL1_ZIP --pairs 6
"""

from __future__ import annotations

import argparse
import os
import time
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

os.environ.setdefault("OMP_WAIT_POLICY", "passive")

import numpy as np
import PIL.Image
import timm
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import layerprobe
from layerprobe.attribution.explaining import explain
from layerprobe.attribution.maps import ScoredLayer
from layerprobe.hooks import find_hooks, measure_layers
from layerprobe.nets.net import Net
from layerprobe.post_processing.applying import Blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.registry import NETS, load
from layerprobe.values.explanations import Attribution, RankCorrelation
from layerprobe.values.layers import RankedLayer

SIZE, BATCH, DIM = 64, 32, 64
PARTIALLY_WHITENED = "l2+whiten:32:0.5+l2"
# Network -> steps of training; and layers, the last of which is explained partially whitened, too.
STEPS = {"vgg16_bn": 60, "googlenet": 60, "resnet50": 60, "vit": 1000}
LAYERS = {
    "vgg16_bn": ("pool3.3@max", "pool4.3@max", "pool5.3@max", "fc6"),
    "googlenet": ("inception3b@max", "inception4e@max", "inception5b@max", "fc6"),
    "resnet50": ("layer2.3@max", "layer3.5@max", "layer4.2@max", "fc6"),
    "vit": ("blocks.1@cls", "blocks.3@cls", "blocks.5@cls", "blocks.5@avg"),
}
HEAD = (
    "network", "layer", "R@1", "below 1 % in 200 steps", "error %: median, worst", "steps: median, most", "random r",
    "of absolute values", "Grad-CAM r", "of absolute values", "CPU s a pair", "map of Grad-CAM",
)  # fmt: skip
_SMALLEST = 0.05


@dataclass(frozen=True, eq=False)
class Images:
    """Normalised images of the characters that are trained on, and of the others, with their labels."""

    trained: Tensor
    trained_labels: Tensor
    unseen: Tensor
    unseen_labels: NDArray[np.int64]


def images_of(folder: Path) -> Images:
    pixels = []
    with zipfile.ZipFile(folder / "omniglot_small1.zip") as archive:
        for name in sorted(name for name in archive.namelist() if name.endswith(".png")):
            with archive.open(name) as file, PIL.Image.open(file) as image:
                pixels.append(np.asarray(image.convert("RGB").resize((SIZE, SIZE))))
    inputs = (1 - torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).float() / 255 - 0.08) / 0.25
    labels = torch.arange(len(inputs)) // 20  # 20 images of each character
    half = len(inputs) // 2
    return Images(inputs[:half], labels[:half], inputs[half:], labels[half:].numpy())


def vit(seed: int) -> Net:
    """A ViT of 6 blocks of 96 channels and patches of 8 x 8."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = timm.models.VisionTransformer(SIZE, 8, embed_dim=96, depth=6, num_heads=3, num_classes=0)
    return Net(model, {f"blocks.{i}": f"blocks.{i}" for i in range(6)}, 96, frozenset(), prefix_tokens=1)


def net_of(name: str, seed: int) -> Net:
    if name == "vit":
        return vit(seed)
    built: Net = load("network", NETS, name)(fc=[DIM], pool=None, weights=None, from_scratch=[], seed=seed)
    return built


def trained(name: str, images: Images, kept: Path | None) -> Net:
    """The network after some steps of Adam."""
    net, steps = net_of(name, 0), STEPS[name]
    file = kept and kept / f"{name}-{steps}.pt"
    if file and file.exists():
        net.module.load_state_dict(torch.load(file, weights_only=True))
        return net
    loss: nn.Module = layerprobe.loss(
        "norm_softmax", embedding_dim=net.embedding_dim, num_classes=int(images.trained_labels.max()) + 1
    )
    optimizer = torch.optim.Adam([*net.module.parameters(), *loss.parameters()], 1e-3 if name != "vit" else 5e-4)
    generator = torch.Generator().manual_seed(0)
    net.module.train()
    for _ in range(steps):
        rows = torch.randint(len(images.trained), (BATCH,), generator=generator)
        optimizer.zero_grad()
        value = loss(net.module(images.trained[rows]), images.trained_labels[rows])
        value.backward()
        optimizer.step()
    if file:
        torch.save(net.module.state_dict(), file)
    return net


def fitted(name: str, features: NDArray[np.float32]) -> FittedStep:
    chain = parse_chain(name)
    return chain.fit(Blocks(features, torch.device("cpu")), features.shape[1], seed=0)


def columns(found: Sequence[Attribution], seconds: float) -> list[str]:
    """What a row of the table says of the two images of each pair."""
    large = [each for each in found if abs(each.difference) >= _SMALLEST]
    errors, steps = [each.error for each in large], [each.steps for each in large]
    below = sum(error < 0.01 and count <= 200 for error, count in zip(errors, steps, strict=True))
    shown = [
        f"{below} of {len(large)}",
        f"{100 * median(errors):.2f}, {100 * max(errors):.2f}" if errors else "-",
        f"{median(steps):.0f}, {max(steps)}" if steps else "-",
    ]
    for kind in ("random_pixels", "random_places"):
        agreements: list[RankCorrelation] = [getattr(each, kind) for each in found if getattr(each, kind) is not None]
        for part in ("signed", "absolute"):
            values = [value for each in agreements if (value := getattr(each, part)) is not None]
            shown.append(f"{median(values):.2f}" if values else "-")
    return [*shown, f"{seconds / len(found) * 2:.1f}"]


def rows_of(name: str, net: Net, images: Images, pairs: int) -> list[list[str]]:
    """A row for each layer, and one for the last layer partially whitened."""
    random, measured, found = net_of(name, 1), measure_layers(net, SIZE), []
    queries = np.random.default_rng(0).choice(len(images.unseen), pairs, replace=False)
    names = LAYERS[name]
    unseen = layerprobe.extract(net, names, images.unseen)
    seen = layerprobe.extract(net, names[-1:], images.trained)[names[-1]]
    for text in (*names, f"{names[-1]}/{PARTIALLY_WHITENED}"):
        layer_name, _, post_processing = text.partition("/")
        (hook,) = find_hooks([layer_name], measured)
        post_process = fitted(PARTIALLY_WHITENED, seen) if post_processing else None
        values = torch.from_numpy(unseen[layer_name])
        features = values if post_process is None else post_process(values.double())
        recall = layerprobe.recall_at_k(features, images.unseen_labels, ks=[1])[1]
        nearest = layerprobe.nearest_neighbours(features, k=1).indices[:, 0]
        scored = ScoredLayer(hook, RankedLayer(hook.key, post_processing or "none", "cosine"), post_process)
        started, sides, places = time.process_time(), [], ""
        for query in queries.tolist():
            pair = (images.unseen[query : query + 1], images.unseen[nearest[query]][None])
            explained = explain(measured, scored, pair, random=random.module)
            sides += [explained.query, explained.neighbour]
            places = explained.places_of or "-"
        seconds = time.process_time() - started
        found.append([name, text, f"{100 * recall:.1f}", *columns(sides, seconds), places])
        print("|", " | ".join(found[-1]), "|", flush=True)
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nets", default=",".join(LAYERS))
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--kept", type=Path, help="folder of trained weights, for a second call")
    parser.add_argument("--only-train", action="store_true")
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    images = images_of(options.folder)
    print("|", " | ".join(HEAD), "|\n" + "|---" * len(HEAD) + "|", flush=True)
    for name in options.nets.split(","):
        net = trained(name, images, options.kept)
        if not options.only_train:
            rows_of(name, net, images, options.pairs)


if __name__ == "__main__":
    main()
