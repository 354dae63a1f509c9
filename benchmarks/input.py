"""From JPEG files to batches: images per CPU second of layerprobe's ways and of the usual torchvision pipeline.

All resize to 256 x 256, take a random square of 224 and mirror it. `usual` is torchvision's Resize, RandomCrop,
RandomHorizontalFlip, ToTensor and Normalize on PIL images, collated to float32. The others give uint8 batches, which
are normalised on the device: `v2` decodes by torchvision.io and transforms tensors, `exact` resizes by PIL, `fast` by
torch, `cached` reads what was decoded once. `+ normalise` adds the step to float32 on this core. One process, one
thread, interleaved rounds, medians. The goals are 1.8 for `fast` and 10 for `cached`; `fast` is to be faster than `v2`.

With --net, instead, images per wall second of a network's training, and of capturing all of its layers, with batches in
memory and with data workers that read files or the cache.

    python -m benchmarks.input
    python -m benchmarks.input --net googlenet --workers 2 [--device cuda]
"""

from __future__ import annotations

import argparse
import os

# Data workers import this script anew, as they do the short one of the command: all else is imported in `main`.


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=96)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--net")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch: spinning waiters would count as CPU time
    import torch

    from benchmarks.input_ways import compare, run

    torch.set_num_threads(1)
    if arguments.net:
        run(arguments.net, arguments.images, arguments.workers, arguments.device)
    else:
        compare(arguments.images, arguments.rounds)


if __name__ == "__main__":
    main()
