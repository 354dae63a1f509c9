"""Capture of every layer against the plain forward: images per CPU second, and their ratio.

All ways run the same network on the same images in channels_last format and inference mode, one after the other in
interleaved rounds in one process; the median over the rounds of plain time / way's time is what counts. `again` is the
plain forward once more: what its ratio differs from 1 is noise. `hooks` is layerprobe's extraction, which ends the
forward after the last layer and takes its hooks away between batches; `captum` is its LayerActivation of all layers at
once, pooled afterwards; `extractor` is torchvision's create_feature_extractor, its maps pooled afterwards, where it can
trace the network. All compute float32 as float32 and end with what they give on the host, `plain` and `again` with the
network's output. The goal of `hooks` is 0.90.
Batches have the size of `probe`'s, and freed memory is kept as in the command line's process. With a setting of glibc's
malloc in the environment it is not; the second command below sets a default, so that only this differs. Each takes
about three CPU minutes; --nets takes all networks of layerprobe and models of timm. On a GPU the clock is the wall's.

    python benchmarks/capture.py
    python benchmarks/capture.py --device cuda --repeats 20 --pairs 9
    GLIBC_TUNABLES=glibc.malloc.arena_test=8 python benchmarks/capture.py
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning waiters would count as CPU time

import torch
from captum.attr import LayerActivation
from torch import Tensor
from torch.fx.proxy import TraceError
from torchvision.models.feature_extraction import create_feature_extractor

from layerprobe.hooks import resolve_hooks
from layerprobe.measure.extraction import BATCH_SIZE, extract
from layerprobe.nets.net import Net
from layerprobe.registry import NETWORKS, load_apart
from layerprobe.system.computing import full_precision
from layerprobe.system.memory import keep_freed_memory

GOAL = 0.90
Forward = Callable[[Tensor], object]


def build(name: str, device: str) -> Net:
    """The network in the format that capture uses."""
    found, model = load_apart("network", NETWORKS, name)
    net: Net = found.build(model, seed=0) if model else found(seed=0)
    net.module.to(device).to(memory_format=torch.channels_last)
    net.module.eval()
    return net


def pooled(outputs: list[Tensor]) -> list[Tensor]:
    """The largest value of each channel of a map, and vectors as they are, on the host."""
    return [each.cpu() for each in [output.amax((2, 3)) if output.ndim == 4 else output for output in outputs]]


def ways(net: Net, size: int) -> dict[str, Forward]:
    """What is compared, by name."""
    hooks = resolve_hooks(["*"], net, image_size=size)
    activation = LayerActivation(net.module, [net.module.get_submodule(path) for path in net.layers.values()])

    def plain(images: Tensor) -> object:
        return net.module(images).cpu()

    compared: dict[str, Forward] = {
        "plain": plain,
        "again": plain,
        "hooks": lambda images: next(extract(net.module, hooks, [images], device=images.device)),
        "captum": lambda images: pooled(activation.attribute(images)),
    }
    with contextlib.suppress(TraceError):
        extractor = create_feature_extractor(net.module, {path: name for name, path in net.layers.items()})
        compared["extractor"] = lambda images: pooled(list(extractor(images).values()))
    return compared


def clock(device: torch.device) -> float:
    """CPU seconds of this process; on a GPU wall seconds, when all of its work is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def measure(net: Net, images: Tensor, pairs: int, repeats: int) -> dict[str, list[float]]:
    """Seconds a batch of each way, one number a round."""
    compared = ways(net, images.shape[-1])
    seconds: dict[str, list[float]] = {name: [] for name in compared}
    with torch.inference_mode(), full_precision(images.device):
        for forward in compared.values():
            forward(images)  # sets things up
        for pair in range(pairs):
            for name in sorted(compared, reverse=pair % 2 == 1):
                started = clock(images.device)
                for _ in range(repeats):
                    compared[name](images)
                seconds[name].append((clock(images.device) - started) / repeats)
    return seconds


def show(size: int, arguments: argparse.Namespace) -> None:
    """Measure the networks on images of one size."""
    torch.manual_seed(0)
    images = torch.randn(arguments.batch, 3, size, size).to(arguments.device, memory_format=torch.channels_last)
    print(
        f"{size} px, batch {arguments.batch}, {arguments.device}, {arguments.threads} thread, {arguments.pairs} rounds;"
        " plain time / way's time, median (lowest to highest)"
    )
    for name in arguments.nets:
        net = build(name, arguments.device)
        seconds = measure(net, images, arguments.pairs, arguments.repeats)
        rate = arguments.batch / statistics.median(seconds["plain"])
        print(f"{name}, {len(net.layers)} layers: plain forward {rate:.1f} images a second")
        for way in list(seconds)[1:]:
            ratios = [plain / other for plain, other in zip(seconds["plain"], seconds[way], strict=True)]
            median, goal = statistics.median(ratios), f"  goal {GOAL:.2f}" if way == "hooks" else ""
            print(f"  {way:<9} {median:.3f} ({min(ratios):.3f} to {max(ratios):.3f}){goal}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nets", nargs="+", default=["resnet18", "timm:tf_efficientnet_lite0"])
    parser.add_argument("--sizes", nargs="+", type=int, default=[96, 224])
    parser.add_argument("--batch", type=int, default=BATCH_SIZE)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=1, help="forwards of one measurement")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(keep_freed_memory())
    for size in arguments.sizes:
        show(size, arguments)


if __name__ == "__main__":
    main()
