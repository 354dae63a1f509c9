"""The ways of `input.py` from JPEG files to batches, and trainings and captures that read them."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import h5py
import numpy as np
import PIL.Image
import torch
from PIL.Image import Resampling
from torch import Tensor
from torchvision.io import decode_image
from torchvision.transforms import Compose, Normalize, RandomCrop, RandomHorizontalFlip, Resize, ToTensor, v2

from benchmarks.capture import build
from layerprobe.data.contents import with_digests
from layerprobe.data.image_files import Files
from layerprobe.data.loading import load_batches, plain_batches, shuffled_batches
from layerprobe.data.pixel_cache import DecodedPixels, Entry, fill
from layerprobe.data.splits import Dataset, Split, digests_of
from layerprobe.data.transforms import Framing, Method, Normalise, frame_dataset
from layerprobe.hooks import resolve_hooks
from layerprobe.losses.smooth_triplet import SmoothTriplet
from layerprobe.measure.extraction import BATCH_SIZE, extract
from layerprobe.nets.net import Net
from layerprobe.registry import NETS, load
from layerprobe.system.computing import full_precision
from layerprobe.training import loop
from layerprobe.training.loop import Plan, Trainer
from layerprobe.training.schedule import Schedule

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
        batches = [(1, batch) for batch in shuffled_batches(split.labels, batch_size=BATCH, seed=0, epoch=1)]
        for pixels, _ in load_batches(split, batches, seed=0, augment="photo", workers=0):
            if normalise is not None:
                normalise(pixels)

    return epoch


def split_of(folder: Path, names: list[str], method: Method) -> Split:
    """The images, framed."""
    labels = np.arange(len(names)) % 8
    split = Split("train", labels, tuple(names), Files(folder, tuple(names), fast=method == "fast"))
    dataset = Dataset({"train": split}, tuple(map(str, range(8))))
    return frame_dataset(with_digests(dataset, folder, None), Framing("D2", 224, method)).splits["train"]


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


def run(net_name: str, count: int, workers: int, device: str) -> None:
    """Print images per second of training a network of layerprobe's, and of capturing all layers of any."""
    net = build(net_name, device)
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        names = photographs(folder, count, *SIZES[0])
        files = split_of(folder, names, "exact")
        entry = Entry.of(folder / "decoded", "benchmark", "exact")
        with entry.locked():
            fill(entry, files, Nobody(), digests=digests_of(files), about={}, workers=workers)
        cached = replace(files, image=DecodedPixels(entry))
        if net_name in NETS:
            train(net_name, files, cached, workers, device)
        print(f"capturing {net_name} on {device}, images per second")
        capture(net, cached, folder / "features.h5", workers, torch.device(device))


def train(net_name: str, files: Split, cached: Split, workers: int, device: str) -> None:
    """Print what reading files or the cache adds to a training with its input in memory."""
    batches = shuffled_batches(files.labels, batch_size=BATCH, seed=0, epoch=1)
    plan = Plan(
        2,
        lambda _: batches,
        len(batches),
        len(batches[0]),
        Schedule(),
        learning_rate=0.001,
        augment="photo",
        workers=workers,
    )
    held = list(load_batches(cached, [(1, batch) for batch in batches], seed=0, augment="photo", workers=workers))
    with patch.object(loop, "load_batches", lambda *_, **__: (batch for _ in range(plan.epochs) for batch in held)):
        alone, _ = second_epoch(net_name, files, plan, device)
    print(f"training {net_name} on {device}: {1 / alone:.0f} images per second with all input in memory")
    for name, split in (("files", files), ("cache", cached)):
        seconds, first = second_epoch(net_name, split, plan, device)
        print(
            f"  from {name}, {workers} workers: {1 / seconds:.0f}; input adds {seconds / alone - 1:.1%} after the first"
            f" step of an epoch, which takes {first:.2f} s"
        )


def capture(net: Net, cached: Split, file: Path, workers: int, device: torch.device) -> None:
    """Print images per second of a plain forward, and of capturing every layer; medians of three rounds."""
    hooks, normalise = resolve_hooks(["*"], net, image_size=224), Normalise.of(MEAN, STD)
    held = list(plain_batches(cached, batch_size=BATCH_SIZE, workers=0))

    def plain() -> None:
        with torch.inference_mode(), full_precision(device):
            for batch in held:
                net.module(normalise(batch.to(device))).cpu()

    def in_memory() -> None:
        for _ in extract(net.module, hooks, held, normalise, device=device):
            pass

    def from_cache() -> None:
        batches = plain_batches(cached, batch_size=BATCH_SIZE, workers=workers)
        with h5py.File(file, "w") as stored:
            rows = {hook.key: stored.create_dataset(str(hook.key), (len(cached), hook.dim), "f4") for hook in hooks}
            start = 0
            for features in extract(net.module, hooks, batches, normalise, device=device):
                for key, values in features.items():
                    rows[key][start : start + len(values)] = values
                start += len(next(iter(features.values())))

    compared = {
        "plain forward, images in memory": plain,
        f"all {len(hooks)} layers, images in memory": in_memory,
        f"all {len(hooks)} layers, from the cache by {workers} workers, features written by h5py": from_cache,
    }
    rates: dict[str, list[float]] = {name: [] for name in compared}
    for _ in range(3):
        for name, way in compared.items():
            started = time.perf_counter()
            way()
            rates[name].append(len(cached) / (time.perf_counter() - started))
    for name, values in rates.items():
        print(f"  {name}: {statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})")


def second_epoch(net_name: str, split: Split, plan: Plan, device: str) -> tuple[float, float]:
    """Seconds an image after the first step of the second epoch, and seconds of that step."""
    net = load("network", NETS, net_name)(fc=(512,), seed=0)
    net.module.to(device=device, memory_format=torch.channels_last)
    trainer = Trainer(net, SmoothTriplet(512, 8).to(device), split, Normalise.of(MEAN, STD), plan)
    ended: list[float] = []

    def after_step(_: float) -> bool:
        ended.append(time.perf_counter())
        return True

    epochs = trainer.epochs(after_step=after_step)
    next(epochs)
    ended.clear()
    begun = time.perf_counter()
    next(epochs)
    return (ended[-1] - ended[0]) / (BATCH * (len(ended) - 1)), ended[0] - begun
