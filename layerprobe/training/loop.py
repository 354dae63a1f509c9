"""The training loop: yields after each epoch and knows no probing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.data.loading import load_batches
from layerprobe.data.splits import Split
from layerprobe.errors import NumericError, RecipeError
from layerprobe.losses.loss import Loss
from layerprobe.nets.net import Net
from layerprobe.training.schedule import Schedule


@dataclass(frozen=True)
class Plan:
    """How to train.

    Args:
        epochs: how many.
        batches: epoch (from 1) -> that epoch's batches of image indices; the same for the same epoch.
        schedule: of the learning rate.
        learning_rate: of the network.
        new_layers_factor: what new layers' rate is multiplied by.
        momentum: of SGD.
        weight_decay: of SGD, added to the gradient.
        augment: name of the augmentation.
        seed: of augmentation and dropout.
        workers: data worker processes; 0 loads in this one. Never changes the result.
    """

    epochs: int
    batches: Callable[[int], list[NDArray[np.int64]]]
    schedule: Schedule
    learning_rate: float = 0.01
    new_layers_factor: float = 1.0
    momentum: float = 0.9
    weight_decay: float = 5e-4
    augment: str = "none"
    seed: int = 0
    workers: int = 0


@dataclass(frozen=True)
class EpochResult:
    """What one epoch of training came to: mean loss, last learning rate, images, seconds."""

    epoch: int
    loss: float
    learning_rate: float
    images: int
    seconds: float


class Trainer:
    """A network, a loss and an optimiser, trained epoch by epoch.

    All randomness is drawn from (seed, epoch, index), so that a run that goes on from `state` ends with the bytes of
    one that was never interrupted: there is no generator whose position would have to be kept.

    Args:
        net: its module on `device`, in channels_last format.
        loss: on `device`.
        split: the training images.
        normalise: uint8 (B, H, W, 3) -> what the network takes.
        plan: how to train.
    """

    def __init__(self, net: Net, loss: Loss, split: Split, normalise: Callable[[Tensor], Tensor], plan: Plan) -> None:
        self.net, self.loss, self.split, self.normalise, self.plan = net, loss, split, normalise, plan
        self.device = next(net.module.parameters()).device
        _, targets = np.unique(split.labels, return_inverse=True)
        self.targets = torch.from_numpy(targets.astype(np.int64))
        self.epoch = 0
        self.iteration = 0
        self._groups = _parameter_groups(net, loss, plan)
        self.optimizer = torch.optim.SGD(self._groups, lr=plan.learning_rate, momentum=plan.momentum)
        if plan.schedule.freeze and plan.schedule.warmup and all(group["pretrained"] for group in self._groups):
            raise RecipeError("[train]: a frozen warm-up of a network in which nothing is new would train nothing")
        self._base_rates = [float(group["lr"]) for group in self._groups]

    def epochs(self, *, after_step: Callable[[float], bool] = lambda loss: True) -> Iterator[EpochResult]:  # noqa: ARG005 - the default goes on whatever the loss
        """Train the epochs that are left.

        Args:
            after_step: hears each step's loss; False ends the training at once, without the epoch's result.

        Yields:
            After each whole epoch; between two, the network may be read but not changed.

        Raises:
            NumericError: a loss or, at an epoch's end, a weight is not finite.
        """
        while self.epoch < self.plan.epochs:
            result = self._epoch(self.epoch + 1, after_step)
            if result is None:
                return
            self._require_finite_weights(result.epoch)
            self.epoch = result.epoch
            yield result

    def _epoch(self, epoch: int, after_step: Callable[[float], bool]) -> EpochResult | None:
        # A key of its own for each epoch, so that dropout needs no stored generator state.
        torch.manual_seed(int(np.random.default_rng([self.plan.seed, epoch]).integers(2**63)))
        batches = self.plan.batches(epoch)
        losses, images, started = [], 0, time.perf_counter()
        self.net.module.train()
        self.loss.train()
        loaded = load_batches(
            self.split, batches, epoch=epoch, seed=self.plan.seed, augment=self.plan.augment, workers=self.plan.workers
        )
        for pixels, indices in loaded:
            losses.append(self._step(pixels, indices, epoch))
            images += len(indices)
            if not after_step(losses[-1]):
                return None
        rate = self._base_rates[0] * self.plan.schedule.rate(self.iteration - 1)
        return EpochResult(epoch, float(np.mean(losses)), rate, images, time.perf_counter() - started)

    def _step(self, pixels: Tensor, indices: NDArray[np.int64], epoch: int) -> float:
        self._set_rates()
        labels = self.targets[torch.from_numpy(indices)].to(self.device)
        loss = self.loss(self.net.module(self.normalise(pixels.to(self.device))), labels)
        value = float(loss.detach())
        if not np.isfinite(value):
            names = ", ".join(self.split.ids[i] for i in indices[:4])
            raise NumericError(
                f"loss is {value} at epoch {epoch}, iteration {self.iteration + 1} (images {names} ...);"
                f" last good checkpoint: epoch {self.epoch}",
                fix="Lower train.learning_rate",
            )
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.iteration += 1
        return value

    def _set_rates(self) -> None:
        schedule, warming = self.plan.schedule, self.plan.schedule.warming(self.iteration)
        for group, base in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            held = warming and group["pretrained"]
            group["lr"] = 0.0 if held else base * schedule.rate(self.iteration)
            if held and schedule.freeze:
                _freeze(self.net)
        if schedule.freeze and self.iteration == schedule.warmup:
            self.net.module.requires_grad_(True).train()

    def _require_finite_weights(self, epoch: int) -> None:
        for name, tensor in [*self.net.module.state_dict().items(), *self.loss.state_dict().items()]:
            if not bool(torch.isfinite(tensor).all()):
                raise NumericError(
                    f"{name} is not finite after epoch {epoch}; last good checkpoint: epoch {self.epoch}",
                    fix="Lower train.learning_rate",
                )

    def state(self) -> dict[str, Any]:
        """What `load_state` goes on from, beside the weights: plain numbers, lists and tensors."""
        return {"epoch": self.epoch, "iteration": self.iteration, "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Take up a `state`; the weights are the caller's to load."""
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.iteration = int(state["epoch"]), int(state["iteration"])


def _parameter_groups(net: Net, loss: Loss, plan: Plan) -> list[dict[str, Any]]:
    """SGD's groups: pretrained, new, and the loss's own; each parameter in exactly one."""
    named = dict(net.module.named_parameters())
    new_rate = plan.learning_rate * plan.new_layers_factor
    groups = [
        {"params": [p for n, p in named.items() if n not in net.new_parameters], "lr": plan.learning_rate},
        {"params": [p for n, p in named.items() if n in net.new_parameters], "lr": new_rate},
    ]
    groups = [group | {"weight_decay": plan.weight_decay, "pretrained": i == 0} for i, group in enumerate(groups)]
    groups += [
        {
            "params": group.parameters,
            "lr": new_rate if group.learning_rate is None else group.learning_rate,
            "weight_decay": plan.weight_decay if group.weight_decay is None else group.weight_decay,
            "pretrained": False,
        }
        for group in loss.parameter_groups()
    ]
    return [group for group in groups if group["params"]]


def _freeze(net: Net) -> None:
    """No gradient for pretrained parameters, and BatchNorm statistics that stand still where all of theirs are."""
    for name, parameter in net.module.named_parameters():
        parameter.requires_grad_(name in net.new_parameters)
    for module in net.module.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and not any(
            parameter.requires_grad for parameter in module.parameters()
        ):
            module.eval()
