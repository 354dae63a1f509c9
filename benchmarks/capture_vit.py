"""Features of a ViT-S with random weights, of Omniglot images: the speed of extraction against the plain forward's.

The images are the 1,360 of the 68 characters that the first-half rule tests on, of Omniglot's small background set.
`plain` normalises a batch and runs the network; `blocks` extracts all 12 blocks with the pools cls and avg; `half` the
first 6 blocks, after which the forward ends. All ways run on each batch one after the other, in changing order, on one
core; what counts is the ratio of their CPU seconds. The goals are 0.90 for `blocks` against `plain`, and 1.7 for
`half` against `blocks`.

    python benchmarks/capture_vit.py FOLDER_OF_OMNIGLOT_SMALL1_ZIP --size 112
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
import zipfile
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning waiters would count as CPU time

import numpy as np
import PIL.Image
import timm
import torch
from torch import Tensor

from layerprobe.data.transforms import Normalise
from layerprobe.hooks import find_hooks, measure_layers
from layerprobe.measure.extraction import extract
from layerprobe.nets.net import Net

DEPTH, BATCH = 12, 64
GOALS = {"blocks against plain": 0.90, "half against blocks": 1.70}
CPU = torch.device("cpu")


def omniglot(folder: Path, size: int) -> Tensor:
    """uint8 (1360, size, size, 3): the images of the second half of the characters, by name."""
    with zipfile.ZipFile(folder / "omniglot_small1.zip") as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".png"))
        characters = sorted({name.rpartition("/")[0] for name in names})
        tested = set(characters[len(characters) // 2 :])
        pixels = []
        for name in names:
            if name.rpartition("/")[0] in tested:
                with archive.open(name) as file, PIL.Image.open(file) as image:
                    pixels.append(np.asarray(image.convert("RGB").resize((size, size))))
    return torch.from_numpy(np.stack(pixels))


def vit_small(size: int) -> Net:
    """The ViT-S/16 of timm, 12 blocks of 384 channels, without its classifier."""
    torch.manual_seed(0)
    model = timm.create_model("vit_small_patch16_224", img_size=size, num_classes=0, pretrained=False).eval()
    model.to(memory_format=torch.channels_last)
    layers = {f"blocks.{i}": f"blocks.{i}" for i in range(DEPTH)}
    return Net(model, layers, embedding_dim=384, new_parameters=frozenset(), prefix_tokens=1)


def ways(net: Net, size: int) -> dict[str, Callable[[Tensor], object]]:
    """What is compared, by name: each takes a batch of uint8 images."""
    normalise = Normalise((0.5,) * 3, (0.5,) * 3)
    measured = measure_layers(net, size)
    pools = ("cls", "avg")
    every = find_hooks(["blocks.*"], measured, pools=pools)
    first = find_hooks([f"blocks.{i}" for i in range(DEPTH // 2)], measured, pools=pools)

    def plain(batch: Tensor) -> object:
        with torch.inference_mode():
            return net.module(normalise(batch))

    return {
        "plain": plain,
        "blocks": lambda batch: list(extract(net.module, every, [batch], normalise, device=CPU)),
        "half": lambda batch: list(extract(net.module, first, [batch], normalise, device=CPU)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("LAYERPROBE_TEST_DATA"))
    parser.add_argument("--size", type=int, default=112)
    parser.add_argument("--images", type=int, default=1360)
    arguments = parser.parse_args()
    if arguments.folder is None:
        parser.error("name the folder of omniglot_small1.zip")
    torch.set_num_threads(1)
    batches = omniglot(Path(arguments.folder), arguments.size)[: arguments.images].split(BATCH)
    compared = ways(vit_small(arguments.size), arguments.size)
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    for forward in compared.values():
        forward(batches[0])  # sets things up
    for number, batch in enumerate(batches):
        names = list(compared)
        for name in names[number % 3 :] + names[: number % 3]:
            started = time.process_time()
            compared[name](batch)
            seconds[name].append(time.process_time() - started)
    images = sum(map(len, batches))
    print(f"ViT-S/16 at {arguments.size} px, {images} images in batches of {BATCH}, one thread")
    for name, times in seconds.items():
        print(f"  {name:<8} {sum(times):7.1f} CPU s, {images / sum(times):6.1f} images per CPU second")
    for (name, goal), (one, other) in zip(GOALS.items(), (("plain", "blocks"), ("blocks", "half")), strict=True):
        ratios = [a / b for a, b in zip(seconds[one], seconds[other], strict=True)]
        low, _, high = statistics.quantiles(ratios, n=4)
        whole = sum(seconds[one]) / sum(seconds[other])
        print(f"  {name}: {whole:.3f} (quartiles of batches {low:.3f} to {high:.3f})  goal {goal:.2f}")


if __name__ == "__main__":
    main()
