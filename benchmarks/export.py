"""Exports of several networks: their differences from the probe, sizes, and times beside the whole network.

    python benchmarks/export.py DATA GREY [--lite0 FILE] [--only TEXT] [--keep DIR]

DATA and GREY are folders with a folder of images for each class; those of GREY are dark on white, and are inverted.
FILE holds the ImageNet weights of timm's `tf_efficientnet_lite0`. Other networks have random weights. Each layer is
exported raw, partially whitened and as bits, as .pt2 and as ONNX. A line for each: the largest difference of any number
from the stored features, of bits the share that differ; the files' sizes beside that of all weights; and CPU
milliseconds of one thread for a batch of 16 images, the best of 3, of the files and of the whole network in torch.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import onnxruntime
import torch

from layerprobe.cli.output import Terminal
from layerprobe.encoder import example
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.naming import name_model
from layerprobe.workflow.export.export_run import export_run, layer_to_export
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.probed_run import open_for_probing
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_net
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train

BATCH = 16
QUIET = Terminal(quiet=True)
POST_PROCESSING = ("none", "l2+whiten:32:0.5+l2", "l2+whiten:32:0.5+binary")


@dataclass(frozen=True)
class Case:
    """A layer of a network."""

    name: str
    net: str
    layer: str
    size: int
    settings: tuple[str, ...] = ()


CASES = (
    Case("VGG16-BN", "vgg16_bn", "pool5.3@max", 64),
    Case("ResNet50", "resnet50", "layer4.2@avg", 64),
    Case("ResNet18", "resnet18", "layer3.1@gem", 64),
    Case("ViT-Tiny", "timm:vit_tiny_patch16_224", "blocks.5@cls", 224),
    Case("Swin-Tiny", "timm:swin_tiny_patch4_window7_224", "layers.2.blocks.1@avg", 224),
    Case("A+B, ResNet18", "resnet18", "layer2.1+layer3.1@max", 64),
    Case("inverted, LeNet", "lenet", "c5@max", 64, ("data.invert=true",)),
    Case("pretrained lite0", "timm:tf_efficientnet_lite0", "blocks.5.1@avg", 96),
)


def probed(case: Case, root: Path, weights: str, cache: Path) -> Run:
    """A run of 0 epochs whose layer is measured by each post-processing."""
    name_model(case.net) if ":" in case.net else None
    settings = (
        f"net.name={case.net}", f"net.weights={weights}", f"data.image_size={case.size}", "train.epochs=0", "net.fc=[]",
        'probe.layers=["*"]', *case.settings,
    )  # fmt: skip
    recipe = load_recipe("netA", Overrides(f"folder:{root}", settings))
    run = train(TrainRequest(recipe, True, cache, case.name.split(",")[0].replace(" ", "-"), "cpu", 0), QUIET)
    probe(run, ProbeRequest(layers=(case.layer,), device="cpu", workers=0, post=POST_PROCESSING), QUIET)
    return run


def best_of_3(call: Callable[[], Any]) -> float:
    """CPU milliseconds."""
    call()
    times = []
    for _ in range(3):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return 1000 * min(times)


def whole(run: Run, images: torch.Tensor) -> tuple[float, float]:
    """CPU milliseconds of the whole network in torch, and megabytes of its weights."""
    opened = open_for_probing(run, ProbeRequest(device="cpu"))
    load_net(run, 0, opened.net)
    module, normalise = opened.net.module.eval(), from_recipe.build_normalise(opened.recipe)
    with torch.inference_mode():
        milliseconds = best_of_3(lambda: module(normalise(images)))
    return milliseconds, sum(tensor.nbytes for tensor in module.state_dict().values()) / 1e6


def of_onnx(path: Path) -> Callable[[np.ndarray[Any, Any]], Any]:
    """The function of an ONNX file, with one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda images: session.run(None, {session.get_inputs()[0].name: images})


def measure(case: Case, run: Run, folder: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (BATCH, case.size, case.size, 3), dtype=np.uint8)
    milliseconds, megabytes = whole(run, torch.from_numpy(images))
    for post_processing in POST_PROCESSING:
        layer = case.layer + ("" if post_processing == "none" else f"/{post_processing}")
        out = folder / f"{run.name}-{POST_PROCESSING.index(post_processing)}"
        request = ExportRequest(out, ("npz", "pt2", "onnx"), force=True, layer=layer)
        start = time.process_time()
        written = export_run(layer_to_export(run, request, QUIET), request, QUIET)
        seconds = time.process_time() - start
        graph, onnx = example.load_graph(out / example.GRAPH), of_onnx(out / example.ONNX)
        differences = (written.check[name].difference for name in (example.MAP, example.GRAPH, example.ONNX))
        sizes = (written.files[name] / 1e6 for name in (example.GRAPH, example.ONNX))
        times = (best_of_3(lambda encode=encode: encode(images)) for encode in (graph, onnx))  # type: ignore[misc]
        cells = [
            case.name, layer, *(f"{x:.0e}" if x else "0" for x in differences),
            *(f"{x:.1f}" for x in sizes), f"{megabytes:.1f}", *(f"{x:.0f}" for x in times), f"{milliseconds:.0f}",
            written.checked, f"{seconds:.0f}",
        ]  # fmt: skip
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("grey", type=Path)
    parser.add_argument("--lite0", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    heads = ("network", "layer", "map.npz", "pt2", "ONNX", "MB pt2", "MB ONNX", "MB whole", "ms pt2", "ms ONNX")
    print(f"| {' | '.join((*heads, 'ms whole', 'checked on', 'CPU s to export'))} |\n|{'---|' * 13}")
    with tempfile.TemporaryDirectory() as temporary:
        cache = Path(temporary)
        for case in CASES:
            if args.only not in case.name or (args.lite0 is None and "lite0" in case.name):
                continue
            root = args.grey if case.settings else args.data
            weights = str(args.lite0) if "lite0" in case.name else "none"
            measure(case, probed(case, root.resolve(), weights, cache), args.keep or cache)


if __name__ == "__main__":
    main()
