"""From JPEG files to batches: images per CPU second of layerprobe's ways and of the usual torchvision pipeline.

All resize to 256 x 256, take a random square of 224 and mirror it. `usual` is torchvision's Resize, RandomCrop,
RandomHorizontalFlip, ToTensor and Normalize on PIL images, collated to float32. The others give uint8 batches, which
are normalised on the device: `v2` decodes by torchvision.io and transforms tensors, `exact` resizes by PIL, `fast` by
torch, `cached` reads what was decoded once. `+ normalise` adds the step to float32 on this core. One process, one
thread, interleaved rounds, medians. The goals are 1.8 for `fast` and 10 for `cached`; `fast` is to be faster than `v2`.

With --net, also the share of a training epoch's wall time in which the network waits for input, with data workers.

    python benchmarks/input.py
    python benchmarks/input.py --net googlenet --workers 2 [--device cuda]
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning waiters would count as CPU time

import numpy as np
import PIL.Image
import torch
from PIL.Image import Resampling
from torch import Tensor
from torchvision.io import decode_image
from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, Resize, ToTensor, v2

from layerprobe.data.batches import Indices, shuffled_batches
from layerprobe.data.cache import DecodedPixels, Entry
from layerprobe.data.contents import with_digests
from layerprobe.data.decoding import fill
from layerprobe.data.framing import Framing, framed
from layerprobe.data.image_files import Files
from layerprobe.data.loading import load_batches
from layerprobe.data.resizing import Method
from layerprobe.data.splits import Dataset, Split, digests_of
from layerprobe.data.transforms import Normalise
from layerprobe.losses.smooth_triplet import SmoothTriplet
from layerprobe.registry import NETS, load

SIZES = ((500, 375), (1024, 768))
DIFFERENT = 96  # photographs; further ones are copies of these
BATCH, GOALS = 32, {"fast": 1.8, "cached": 10.0}
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Nobody:
    """Who is told of images being decoded."""

    def advance(self, steps: int = 1, **figures: float) -> None:
        """Nothing is shown."""


def photographs(folder: Path, count: int, width: int, height: int) -> list[str]:
    """JPEGs of quality 90 with detail at every scale and sensor noise, about as large as the benchmarks' images.

    Those after the first `DIFFERENT` are copies: to make one takes as long as to decode eight.
    """
    rng = np.random.default_rng(0)
    names = [f"{number:04}.jpg" for number in range(count)]
    for name in names[:DIFFERENT]:
        image = np.zeros((height, width, 3), np.float32)
        for octave in range(2, 8):
            coarse = rng.normal(0, 160 / 2**octave, (2**octave, 2**octave, 3)).astype(np.float32)
            layers = [
                np.asarray(PIL.Image.fromarray(coarse[..., c]).resize((width, height), Resampling.BICUBIC))
                for c in range(3)
            ]
            image += np.stack(layers, axis=2)
        image += rng.normal(0, 3, (height, width, 1))
        PIL.Image.fromarray((image + 128).clip(0, 255).astype(np.uint8)).save(folder / name, quality=90)
    for number, name in enumerate(names[DIFFERENT:]):
        shutil.copyfile(folder / names[number % DIFFERENT], folder / name)
    return names


def usual(folder: Path, names: list[str]) -> Callable[[], None]:
    """The pipeline that most projects have: PIL images, a float tensor each, collated."""
    pipeline = Compose([Resize((256, 256)), RandomCrop(224), RandomHorizontalFlip(), ToTensor(), Normalize(MEAN, STD)])

    def epoch() -> None:
        order = np.random.default_rng(1).permutation(len(names))
        for start in range(0, len(names), BATCH):
            images = []
            for index in order[start : start + BATCH].tolist():
                with PIL.Image.open(folder / names[index]) as image:
                    images.append(pipeline(image.convert("RGB")))
            torch.stack(images)

    return epoch


def tensors(folder: Path, names: list[str]) -> Callable[[], None]:
    """The faster pipeline of torchvision: uint8 tensors from the decoder to the batch."""
    pipeline = v2.Compose([v2.Resize((256, 256)), v2.RandomCrop(224), v2.RandomHorizontalFlip()])

    def epoch() -> None:
        order = np.random.default_rng(1).permutation(len(names))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # decoding by torchvision is deprecated
            for start in range(0, len(names), BATCH):
                paths = [str(folder / names[index]) for index in order[start : start + BATCH].tolist()]
                torch.stack([pipeline(decode_image(path, mode="RGB")) for path in paths])

    return epoch


def ours(split: Split, normalise: Callable[[Tensor], Tensor] | None) -> Callable[[], None]:
    """An epoch of layerprobe's batches."""

    def epoch() -> None:
        batches = shuffled_batches(split.labels, batch_size=BATCH, seed=0, epoch=1)
        for pixels, _ in load_batches(split, batches, epoch=1, seed=0, augment="photo", workers=0):
            if normalise is not None:
                normalise(pixels)

    return epoch


def split_of(folder: Path, names: list[str], method: Method) -> Split:
    """The images, framed."""
    labels = np.arange(len(names)) % 8
    split = Split("train", labels, tuple(names), Files(folder, tuple(names), fast=method == "fast"))
    dataset = Dataset({"train": split}, tuple(map(str, range(8))))
    return framed(with_digests(dataset, folder, None), Framing("D2", 224, method)).splits["train"]


def ways(folder: Path, names: list[str]) -> dict[str, Callable[[], None]]:
    """What is compared, by name."""
    normalise = Normalise.of(MEAN, STD)
    fast = split_of(folder, names, "fast")
    entry = Entry.of(folder / "decoded", "benchmark", "fast")
    with entry.locked():
        fill(entry, fast, Nobody(), digests=digests_of(fast), about={}, workers=0)
    cached = replace(fast, image=DecodedPixels(entry))
    return {
        "usual": usual(folder, names),
        "v2": tensors(folder, names),
        "exact": ours(split_of(folder, names, "exact"), None),
        "fast": ours(fast, None),
        "fast + normalise": ours(fast, normalise),
        "cached": ours(cached, None),
        "cached + normalise": ours(cached, normalise),
    }


def compare(count: int, rounds: int) -> None:
    """Print images per CPU second of each way, and the ratios."""
    for width, height in SIZES:
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root)
            names = photographs(folder, count, width, height)
            kilobytes = sum((folder / name).stat().st_size for name in names) / len(names) / 1000
            epochs = ways(folder, names)
            seconds: dict[str, list[float]] = {name: [] for name in epochs}
            for turn in range(rounds):
                for name in sorted(epochs, reverse=turn % 2 == 1):
                    epochs[name]()  # otherwise a way would be measured with the heap that the one before it left
                    started = time.process_time()
                    epochs[name]()
                    seconds[name].append(time.process_time() - started)
        print(f"{width} x {height}, {kilobytes:.0f} kB, {count} images, {rounds} rounds")
        for name, values in seconds.items():
            ratios = [u / v for u, v in zip(seconds["usual"], values, strict=True)]
            goal = f", goal {GOALS[name]}" if name in GOALS else ""
            print(
                f"  {name:18} {count / statistics.median(values):9.0f} images per CPU second, usual x"
                f" {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}{goal})"
            )


def waiting(net_name: str, count: int, workers: int, device: str) -> None:
    """Print the share of an epoch's wall time that the network waits for input, decoding and from the cache."""
    net = load("network", NETS, net_name)(fc=(512,), seed=0)
    module = net.module.to(device=device, memory_format=torch.channels_last).train()
    loss, normalise = SmoothTriplet(512, 8), Normalise.of(MEAN, STD)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.001, momentum=0.9)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        names = photographs(folder, count, *SIZES[0])
        decoding = split_of(folder, names, "exact")
        entry = Entry.of(folder / "decoded", "benchmark", "exact")
        with entry.locked():
            fill(entry, decoding, Nobody(), digests=digests_of(decoding), about={}, workers=workers)
        for name, split in (("decoding", decoding), ("cached", replace(decoding, image=DecodedPixels(entry)))):
            batches = shuffled_batches(split.labels, batch_size=BATCH, seed=0, epoch=1)
            loaded: Iterable[tuple[Tensor, Indices]] = load_batches(
                split, batches, epoch=1, seed=0, augment="photo", workers=workers
            )
            waited, first, started = 0.0, 0.0, time.perf_counter()
            begun = started
            for pixels, indices in loaded:
                wait = time.perf_counter() - begun
                # The first batch waits for the workers to start, once an epoch.
                waited, first = waited + wait, first or wait
                labels = torch.from_numpy(split.labels[indices]).to(device)
                value = loss(module(normalise(pixels.to(device))), labels)
                optimizer.zero_grad(set_to_none=True)
                value.backward()
                optimizer.step()
                value.item()  # waits for the device
                begun = time.perf_counter()
            total = begun - started
            print(
                f"{net_name} on {device}, {workers} workers, {name}: waits {(waited - first) / (total - first):.1%} of"
                f" the time after the first batch ({first:.2f} s); {count / total:.1f} images per second"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--net", choices=sorted(NETS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if arguments.net:
        waiting(arguments.net, arguments.images, arguments.workers, arguments.device)
    else:
        compare(arguments.images, arguments.rounds)


if __name__ == "__main__":
    main()
