"""A small training of every loss in float64, by one process or by several: a program for tests."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from layerprobe.data.loading import class_batches
from layerprobe.data.splits import Image, Split
from layerprobe.losses.loss import loss as build_loss
from layerprobe.nets.net import Net
from layerprobe.nets.vgg16_bn import build as vgg16_bn
from layerprobe.registry import LOSSES
from layerprobe.training.loop import Plan, Trainer
from layerprobe.training.schedule import Schedule

Training = tuple[list[float], dict[str, Tensor]]
LABELS = np.repeat(np.arange(8), 4)
PIXELS = np.random.default_rng(0).integers(0, 256, (len(LABELS), 4, 4, 3), np.uint8)
OPTIONS: dict[str, dict[str, Any]] = {"cross_batch_memory": {"warmup": 1, "size": 20}, "prototypical": {"support": 1}}
SCHEDULES = {
    "smooth_triplet": Schedule(warmup=2, warmup_by="freeze"),
    "softmax": Schedule(warmup=2, warmup_by="new_layers"),
    "margin": Schedule(warmup=2, warmup_by="new_layers"),
}
CHUNKED = ("contrastive", "margin", "cross_batch_memory", "subsampled_softmax")
PLAN = Plan(
    epochs=2,
    batches=lambda epoch: class_batches(LABELS, batch_size=12, images_per_class=2, seed=0, epoch=epoch),
    batches_per_epoch=2,
    images_per_batch=12,
    schedule=Schedule(),
    clip_gradient=1.0,
)


def image(index: int) -> Image:
    pixels: Image = PIXELS[index]
    return pixels


def normalise(pixels: Tensor) -> Tensor:
    return pixels.permute(0, 3, 1, 2).double() / 255


def network() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Dropout2d(0.1), nn.Flatten(),
            nn.Linear(24, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 5),
        )  # fmt: skip
        module.unused = nn.Linear(2, 2)  # no embedding depends on it
        module.forward = lambda images: nn.Sequential.forward(module[:9], images)  # type: ignore[method-assign, no-untyped-call] # without it
    return Net(module.double(), {}, 5, frozenset({"8.weight", "8.bias"}))


def trainings(group: ProcessGroup | None) -> dict[str, Training]:
    """Of each loss: the loss after every batch, and the weights at the end."""
    results = {}
    for name in LOSSES:
        loss = build_loss(name, 5, 8, **OPTIONS.get(name, {})).double()
        plan = replace(
            PLAN,
            schedule=SCHEDULES.get(name, PLAN.schedule),
            accumulate=2 if name in ("triplet", "contrastive") else 1,
            chunk=6 if name in CHUNKED else 0,
        )
        split = Split("train", LABELS, tuple(map(str, range(len(LABELS)))), image)
        results[name] = _trained(Trainer(network(), loss, split, normalise, plan), group)
    return results


def vgg16_bn_training(group: ProcessGroup | None) -> Training:
    """As one of `trainings`, of netA's network and loss, by four batches of 16 images of 32 pixels."""
    pixels = np.random.default_rng(0).integers(0, 256, (64, 32, 32, 3), np.uint8)
    labels = np.repeat(np.arange(8), 8)
    batches = class_batches(labels, batch_size=16, images_per_class=4, seed=0, epoch=1)
    plan = Plan(1, lambda epoch: batches, 4, 16, Schedule())
    net, loss = vgg16_bn(pool="max"), build_loss("smooth_triplet", 512, 8, scale=4.0)
    net.module.double()
    split = Split("train", labels, tuple(map(str, range(64))), lambda index: pixels[index])
    return _trained(Trainer(net, loss.double(), split, normalise, plan), group)


def _trained(trainer: Trainer, group: ProcessGroup | None) -> Training:
    losses = list[float]()
    trainer.share(group)
    for _ in trainer.epochs(after_step=lambda value: losses.append(value) or True):  # type: ignore[func-returns-value] # append gives None
        pass
    state = {f"net.{key}": value for key, value in trainer.net.module.state_dict().items()}
    return losses, state | {f"loss.{key}": value for key, value in trainer.loss.state_dict().items()}
