"""The training loop and its optimisers: yields after each epoch and knows no probing."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from layerprobe.data.loading import load_batches
from layerprobe.data.splits import Split
from layerprobe.losses.loss import Loss, ParameterGroup
from layerprobe.nets.net import Net
from layerprobe.system.computing import with_float64
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.system.transfers import fetch, send
from layerprobe.training.chunks import ChunkedBatch
from layerprobe.training.schedule import Schedule
from layerprobe.training.sharing import Sharing

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def build_optimizer(  # noqa: PLR0913 - the options of a recipe's optimiser
    name: str,
    groups: list[dict[str, Any]],
    *,
    learning_rate: float,
    momentum: float | None,
    epsilon: float | None,
    fused: bool | None = None,
) -> Optimizer:
    """The optimiser of a recipe.

    Args:
        momentum: of sgd and rmsprop; None for the others.
        epsilon: what adam, adamw and rmsprop add to the denominator; None for torch's 1e-8.
        fused: all parameters in one kernel, which takes no step where the optimiser's `found_inf` is 1; rmsprop has
            none.
    """
    if name == "sgd":
        return RowSGD(groups, lr=learning_rate, momentum=momentum or 0.0, fused=fused)
    eps = 1e-8 if epsilon is None else epsilon
    if name == "rmsprop":
        return RMSprop(groups, lr=learning_rate, momentum=momentum or 0.0, eps=eps)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[name]
    return kind(groups, lr=learning_rate, eps=eps, fused=fused)


class RowSGD(SGD):
    """torch's SGD; of a weight with a sparse gradient only the rows that the gradient holds move.

    Momentum and weight decay act on those rows alone, when they are met: a step costs what its rows do, however many
    there are (the classes that a subsampled softmax draws).
    """

    found_inf: Tensor | None = None  # 1: a fused step moves nothing

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """One step; torch's own for every parameter with a dense gradient."""
        sparse = [
            (group, parameter)
            for group in self.param_groups
            for parameter in group["params"]
            if parameter.grad is not None and parameter.grad.is_sparse
        ]
        for group, parameter in sparse:
            self._move_rows(parameter, group)
            parameter.grad = None
        return super().step(closure)

    def _move_rows(self, weight: Tensor, group: dict[str, Any]) -> None:
        gradient = weight.grad.coalesce()  # type: ignore[union-attr] # there is one
        rows, values = gradient.indices()[0], gradient.values()
        values = values + group["weight_decay"] * weight[rows]
        if group["momentum"]:
            state = self.state[weight]
            if state.get("momentum_buffer") is None:
                state["momentum_buffer"] = torch.zeros_like(weight)
            buffer = state["momentum_buffer"]
            values = group["momentum"] * buffer[rows] + values
            buffer[rows] = values
        if self.found_inf is not None:
            values = values.masked_fill(self.found_inf > 0, 0.0)
        weight.index_add_(0, rows, values, alpha=-group["lr"])


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients of the parameters that have one; of a sparse gradient its values."""
    stored = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in stored]


def _lengths(gradients: list[Tensor]) -> Tensor:
    """The length of all gradients together, as `torch.nn.utils.get_total_norm` has it, then that of each."""
    lengths = torch.stack(torch._foreach_norm(gradients))
    return torch.cat([torch.linalg.vector_norm(lengths)[None], lengths])


def _fuses(device: torch.device) -> bool:
    """Whether optimisers are fused: a CPU keeps the bits that it always gave."""
    return device.type == "cuda"


@dataclass(frozen=True, eq=False)
class _Step:
    """A step of the optimiser, for the error that it may end in.

    Args:
        iteration: from 0.
        indices: of all its images.
        trained: the parameters that have a gradient; none before its last batch.
    """

    epoch: int
    iteration: int
    indices: NDArray[np.int64]
    trained: Sequence[Tensor]


@dataclass(frozen=True, eq=False)
class _Unread:
    """A batch whose numbers a GPU may still be computing.

    Args:
        indices: of its images.
        numbers: waits for its loss and its number of informative pairs and, of the last batch of a step, the length of
            the gradient and of that of each trained parameter.
    """

    step: _Step
    indices: NDArray[np.int64]
    numbers: Callable[[], Tensor]


@dataclass(frozen=True)
class Plan:
    """How to train.

    Args:
        batches: epoch (from 1) -> that epoch's batches of image indices; the same on every call.
        batches_per_epoch: how many these are, in every epoch.
        images_per_batch: how many images are in each.
        optimizer: sgd, adam, adamw or rmsprop.
        epsilon: of adam, adamw and rmsprop; None for torch's default.
        weight_decay: added to the gradient, or with adamw applied apart from it.
        clip_gradient: largest length of the gradient of all parameters together; a longer one is scaled down. None: no
            limit.
        accumulate: how many batches make one step, by their mean gradient; the loss and BatchNorm see each by itself.
            The last step of an epoch may have fewer.
        chunk: how many images of a batch are forwarded at once (`ChunkedBatch`), by all processes together; BatchNorm
            normalises by them. 0: the whole batch.
        bfloat16: the network's products in bfloat16 (autocast); weights, loss and gradients stay float32.
        workers: data worker processes; 0 loads in this one. Never changes the result.
    """

    epochs: int
    batches: Callable[[int], list[NDArray[np.int64]]]
    batches_per_epoch: int
    images_per_batch: int
    schedule: Schedule
    learning_rate: float = 0.01
    new_layers_factor: float = 1.0
    optimizer: str = "sgd"
    momentum: float | None = 0.9
    epsilon: float | None = None
    weight_decay: float = 5e-4
    clip_gradient: float | None = None
    accumulate: int = 1
    chunk: int = 0
    bfloat16: bool = False
    augment: str = "none"
    seed: int = 0
    workers: int = 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps of the optimiser in an epoch, the same in every epoch."""
        return math.ceil(self.batches_per_epoch / self.accumulate)

    @property
    def images_at_once(self) -> int:
        """How many images are forwarded at once: those of a chunk, or of the whole batch."""
        return min(self.chunk or self.images_per_batch, self.images_per_batch)


@dataclass(frozen=True)
class EpochResult:
    """The result of one epoch of training.

    Args:
        learning_rate: at the last step, of pretrained parameters if there are any.
        idle: how many batches taught nothing, because the loss of all their pairs or triplets was 0.
    """

    epoch: int
    loss: float
    learning_rate: float
    images: int
    seconds: float
    idle: int = 0


class Trainer:
    """A network, a loss and an optimiser, trained epoch by epoch.

    All randomness is drawn from (seed, epoch, index), so that a run that goes on from `state` ends with the same bytes
    as one that was never interrupted: no generator's position has to be kept.

    Args:
        normalise: uint8 (B, H, W, 3) -> the network's input.
        targets: (N,) class of each image for the loss, from 0; None: the split's classes in their order.
    """

    def __init__(  # noqa: PLR0913 - network, loss, data and plan
        self,
        net: Net,
        loss: Loss,
        split: Split,
        normalise: Callable[[Tensor], Tensor],
        plan: Plan,
        targets: NDArray[np.int64] | None = None,
    ) -> None:
        self.net, self.loss, self.split, self.normalise, self.plan = net, loss, split, normalise, plan
        self.device = next(net.module.parameters()).device
        if targets is None:
            _, targets = np.unique(split.labels, return_inverse=True)
        self.targets = torch.from_numpy(targets.astype(np.int64))
        # The workers are given the next epoch's while the present one is trained.
        self._batches = functools.lru_cache(maxsize=2)(plan.batches)
        self._sharing: Sharing | None = None
        self.equalised: list[int] = []  # epochs after which processes had another loss than the first one
        self.epoch = 0
        self.iteration = 0
        self._groups = _parameter_groups(net, loss, plan)
        self._parameters = [parameter for group in self._groups for parameter in group["params"]]
        if plan.schedule.heatings and not isinstance(getattr(loss, "scale", None), Tensor):
            raise RecipeError(f"[train]: {type(loss).__name__} has no scale to heat", fix="Leave heat_* out")
        if plan.schedule.freeze and plan.schedule.warmup and all(group["pretrained"] for group in self._groups):
            raise RecipeError(
                f'[train]: warmup = "{plan.schedule.warmup_by}" trains new layers alone, and neither network nor loss'
                " has any",
                fix='Set train.warmup = "linear", or name layers in net.from_scratch',
            )
        images = plan.images_per_batch
        if self.chunks_normalise and 1 in (plan.chunk, images % plan.chunk):
            sizes = [size for size in range(2, images + 1) if images % size != 1]
            raise RecipeError(
                f"[train]: chunk = {plan.chunk} leaves BatchNorm a single image of {images} to normalise by",
                fix=f"Set train.chunk={min(sizes, key=lambda size: abs(size - plan.chunk))}, or leave it out",
            )
        if plan.epochs:
            _ = self.optimizer

    @functools.cached_property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of all parameters; a frozen network needs none, and building one takes torch a second."""
        return build_optimizer(
            self.plan.optimizer,
            self._groups,
            learning_rate=self.plan.learning_rate,
            momentum=self.plan.momentum,
            epsilon=self.plan.epsilon,
            fused=_fuses(self.device) or None,  # None, not False: a state to resume from keeps its bytes
        )

    @property
    def chunks_normalise(self) -> bool:
        """Whether BatchNorms normalise by the images of a chunk, which are fewer than those of the batch."""
        normalise = any(isinstance(layer, nn.modules.batchnorm._BatchNorm) for layer in self.net.module.modules())
        return normalise and self.plan.images_at_once < self.plan.images_per_batch

    @functools.cached_property
    def _base_rates(self) -> list[float]:
        """The learning rate of each group, which the optimizer sets where a group has none."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def share(self, group: ProcessGroup | None) -> None:
        """Train with the other processes of a group from now on, from the weights and the state of its first one.

        Each computes an equal part of every batch, and all take the same steps; None: this process alone.
        """
        self._sharing = None if group is None else Sharing(self.net.module, group)
        if self._sharing is not None:
            self._sharing.equalise([*self.net.module.state_dict().values(), *self.loss.state_dict().values()])
            state = self._sharing.state_of_first(self.state(), self.device)
            if self._sharing.rank:
                self.load_state(state)

    def epochs(self, *, after_step: Callable[[float], bool] = lambda loss: True) -> Iterator[EpochResult]:  # noqa: ARG005 - the default goes on whatever the loss
        """Train the epochs that are left.

        Yields:
            After each whole epoch; between two, the network may be read but not changed.
        """
        epochs = range(self.epoch + 1, self.plan.epochs + 1)
        if not epochs:
            return
        plan = self.plan

        def part(indices: NDArray[np.int64]) -> NDArray[np.int64]:
            return self._sharing.part(indices, plan.images_at_once) if self._sharing else indices

        batches = ((epoch, part(indices)) for epoch in epochs for indices in self._batches(epoch))
        workers = min(plan.workers, plan.batches_per_epoch)
        loading = load_batches(self.split, batches, seed=plan.seed, augment=plan.augment, workers=workers)
        with contextlib.closing(loading) as loaded:
            for epoch in epochs:
                result = self._epoch(epoch, itertools.islice(loaded, len(self._batches(epoch))), after_step)
                if result is None:
                    return
                self._require_finite_weights(epoch)
                self._equalise_loss()
                self.epoch = epoch
                yield result

    def _epoch(
        self, epoch: int, loaded: Iterable[tuple[Tensor, NDArray[np.int64]]], after_step: Callable[[float], bool]
    ) -> EpochResult | None:
        # Every epoch has a seed of its own, so that dropout needs no stored generator state.
        torch.manual_seed(int(np.random.default_rng([self.plan.seed, epoch]).integers(2**63)))
        losses, idle, started = [], 0, time.perf_counter()
        self.net.module.train()
        self.loss.train()
        with self._sharing.whole_batch() if self._sharing else contextlib.nullcontext():
            for loss, is_idle in self._steps(epoch, loaded):
                losses.append(loss)
                idle += is_idle
                if not after_step(loss):
                    return None
        rate = self._base_rates[0] * self.plan.schedule.rate(self.iteration - 1)
        images = sum(map(len, self._batches(epoch)))
        return EpochResult(epoch, float(np.mean(losses)), rate, images, time.perf_counter() - started, idle)

    def _steps(self, epoch: int, loaded: Iterable[tuple[Tensor, NDArray[np.int64]]]) -> Iterator[tuple[float, bool]]:
        """Take an epoch's steps; yields the loss of each batch, and whether no pair or triplet counted.

        Where the optimiser can refuse a step on the GPU (`_behind`), the numbers of a batch are read when the next one
        has been launched, so that the GPU is never waited for.
        """
        batches, unread, losses = self._batches(epoch), deque[_Unread](), list[Tensor]()
        for number, (pixels, _) in enumerate(loaded):  # of this process's part of the batch
            indices = batches[number]
            first_of_step = number - number % self.plan.accumulate
            together = batches[first_of_step : first_of_step + self.plan.accumulate]  # of one step
            if number == first_of_step:
                self._begin_step()
                losses = []
            losses.append(self._backward(pixels, indices, len(together)))
            numbers, trained = [self._loss_and_informative(losses[-1])], list[Tensor]()
            if ends_step := len(losses) == len(together):
                trained = [parameter for parameter in self._parameters if parameter.grad is not None]
                numbers.append(_lengths(gradients(trained)))
            step = _Step(epoch, self.iteration, np.concatenate(together), trained)
            unread.append(_Unread(step, indices, fetch(torch.cat(numbers))))
            results = [self._read(unread.popleft()) for _ in range(len(unread) - self._behind)]
            if ends_step:
                self._end_step(losses, numbers[-1][0], trained)
            yield from results
        yield from map(self._read, unread)

    def _backward(self, pixels: Tensor, indices: NDArray[np.int64], batches: int) -> Tensor:
        """Add a batch's share of the gradient; returns its loss.

        Args:
            pixels: of its images; with other processes, of this one's part.
            indices: (B,) of its images.
        """
        labels = send(self.targets[torch.from_numpy(indices % len(self.targets))], self.device)
        size = self.plan.images_at_once // (self._sharing.group.size() if self._sharing else 1)
        chunked = ChunkedBatch(self.net.module, self._embed, pixels.split(size)) if len(pixels) > size else None
        embeddings = self._embed(pixels) if chunked is None else chunked.embeddings
        try:
            loss = self.loss(embeddings, labels)
        except ValueError as error:
            raise RecipeError(f"[loss]: {error}", fix="Choose another train.sampler or train.batch_size") from error
        (loss / batches if batches > 1 else loss).backward()
        if chunked is not None:
            chunked.backward()
        value: Tensor = loss.detach()
        return value

    def _embed(self, pixels: Tensor) -> Tensor:
        """(n, D) the embeddings of images; with other processes, of theirs too."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.plan.bfloat16):
            network = self._sharing.network if self._sharing else self.net.module
            embeddings: Tensor = network(self.normalise(send(pixels, self.device)))
        embeddings = embeddings if embeddings.dtype == torch.float64 else embeddings.float()
        return self._sharing.gather(embeddings) if self._sharing else embeddings

    def _loss_and_informative(self, loss: Tensor) -> Tensor:
        informative = loss.new_ones(()) if self.loss.informative is None else self.loss.informative
        return torch.stack([loss, informative.to(loss.dtype)])

    @property
    def _behind(self) -> int:
        """How many batches are launched before the numbers of one are read."""
        return 1 if self.optimizer.defaults.get("fused") else 0

    def _read(self, batch: _Unread) -> tuple[float, bool]:
        """The loss of a batch, and whether no pair or triplet counted; waits until they are computed.

        Raises:
            NumericError: its loss, or the gradient of the step that it ends, is not finite.
        """
        loss, informative, *lengths = batch.numbers().tolist()
        if not math.isfinite(loss):
            raise self._not_finite(f"loss is {loss}", batch.indices, batch.step)
        if lengths and not math.isfinite(lengths[0]):
            quantity = f"the gradient of {self._worst(batch.step.trained, lengths[1:])} is not finite"
            raise self._not_finite(quantity, batch.step.indices, batch.step)
        return loss, informative == 0

    def _end_step(self, losses: Sequence[Tensor], length: Tensor, trained: Sequence[Tensor]) -> None:
        """Move the weights.

        Args:
            losses: of the step's batches.
            length: of the gradient.
            trained: the parameters that have a gradient.
        """
        if self.plan.clip_gradient is not None:
            factor = self.plan.clip_gradient / length.to(with_float64(length.device)).double()
            if self._behind or bool(factor < 1):
                for parameter in trained:
                    parameter.grad.mul_(factor.clamp(max=1.0))  # type: ignore[union-attr] # it has one
        if self._behind:
            is_finite = torch.stack([*losses, length]).isfinite().all()
            self.optimizer.found_inf = (~is_finite).float()  # type: ignore[attr-defined] # as torch's GradScaler sets it
        self.optimizer.step()
        self.iteration += 1

    def _worst(self, trained: Sequence[Tensor], lengths: Sequence[float]) -> str:
        """The first parameter whose gradient is not finite; if none, their length alone overflows."""
        bad = {id(p) for p, length in zip(trained, lengths, strict=True) if not math.isfinite(length)}
        parameters = [*self.net.module.named_parameters(), *self.loss.named_parameters(prefix="loss")]
        return next((name for name, p in parameters if id(p) in bad), "all parameters together")

    def _not_finite(self, quantity: str, indices: NDArray[np.int64], step: _Step) -> NumericError:
        names = [self.split.ids[i % len(self.split)] for i in indices.tolist()]
        error = NumericError(
            f"{quantity} at epoch {step.epoch}, iteration {step.iteration + 1} (images {', '.join(names[:4])} ...);"
            f" last good checkpoint: epoch {self.epoch}",
            # Before the first step the learning rate cannot be the cause.
            fix=self._fix() if step.iteration else "Look at the options of [loss] and at the weights",
        )
        error.add_note(f"images of the step: {', '.join(names)}")
        return error

    def _begin_step(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        schedule, warming = self.plan.schedule, self.plan.schedule.warming(self.iteration)
        for _ in range(schedule.heats(self.iteration)):
            with torch.no_grad():
                self.loss.scale.mul_(schedule.heat_factor)  # type: ignore[operator] # __init__ has looked
        for group, base in zip(self.optimizer.param_groups, self._base_rates, strict=True):
            held = warming and group["pretrained"]
            group["lr"] = 0.0 if held else base * schedule.rate(self.iteration)
            if held and schedule.freeze:
                _freeze(self.net, statistics=schedule.warmup_by == "freeze")
        if schedule.freeze and self.iteration == schedule.warmup:
            self.net.module.requires_grad_(True).train()
            if schedule.warmup_by == "new_layers":
                self.optimizer.state.clear()

    def _equalise_loss(self) -> None:
        """Give every process what the first one's loss has learnt, where sums on a GPU had another order."""
        if self._sharing is None:
            return
        moments = [self.optimizer.state.get(parameter, {}).values() for parameter in self.loss.parameters()]
        tensors = [value for values in moments for value in values if isinstance(value, Tensor)]
        if self._sharing.equalise([*self.loss.state_dict().values(), *tensors]):
            self.equalised.append(self.epoch + 1)

    def _require_finite_weights(self, epoch: int) -> None:
        for name, tensor in [*self.net.module.state_dict().items(), *self.loss.state_dict().items()]:
            if not bool(torch.isfinite(tensor).all()):
                raise NumericError(
                    f"{name} is not finite after epoch {epoch}; last good checkpoint: epoch {self.epoch}",
                    fix=self._fix(),
                )

    def _fix(self) -> str:
        limit = self.plan.clip_gradient
        return "Lower train.learning_rate, or " + (
            "set train.clip_gradient=10" if limit is None else f"train.clip_gradient, which is {limit:g}"
        )

    def state(self) -> dict[str, Any]:
        """What `load_state` needs beside the weights: plain numbers, lists and tensors."""
        return {"epoch": self.epoch, "iteration": self.iteration, "optimizer": self.optimizer.state_dict()}

    def load_state(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; the caller loads the weights."""
        # Whether it is fused is a question of this device, not of the one that saved it.
        fused = {key: value for key, value in self.optimizer.defaults.items() if key == "fused"}
        groups = [group | fused for group in state["optimizer"]["param_groups"]]
        self.optimizer.load_state_dict(state["optimizer"] | {"param_groups": groups})
        self.epoch, self.iteration = int(state["epoch"]), int(state["iteration"])


def _parameter_groups(net: Net, loss: Loss, plan: Plan) -> list[dict[str, Any]]:
    """The optimiser's groups: pretrained, new, and the loss's own; each parameter in exactly one."""
    parameters = dict(net.module.named_parameters())
    new_rate = plan.learning_rate * plan.new_layers_factor
    groups = [
        {"params": [p for n, p in parameters.items() if n not in net.new_parameters], "lr": plan.learning_rate},
        {"params": [p for n, p in parameters.items() if n in net.new_parameters], "lr": new_rate},
    ]
    groups = [group | {"weight_decay": plan.weight_decay, "pretrained": i == 0} for i, group in enumerate(groups)]
    groups += [
        {
            "params": group.parameters,
            "lr": _rate(group, plan),
            "weight_decay": plan.weight_decay if group.weight_decay is None else group.weight_decay,
            "pretrained": False,
        }
        for group in loss.parameter_groups()
    ]
    return [group for group in groups if group["params"]]


def _rate(group: ParameterGroup, plan: Plan) -> float:
    if group.rate_factor is not None:
        return plan.learning_rate * group.rate_factor
    return plan.learning_rate * plan.new_layers_factor if group.learning_rate is None else group.learning_rate


def _freeze(net: Net, *, statistics: bool) -> None:
    """Take the gradient from pretrained parameters; with `statistics`, also stop BatchNorms that are all pretrained."""
    for name, parameter in net.module.named_parameters():
        parameter.requires_grad_(name in net.new_parameters)
    for module in net.module.modules() if statistics else ():
        parameters = list(module.parameters())
        # A BatchNorm without parameters belongs to a new head, and learns its statistics.
        if (
            isinstance(module, nn.modules.batchnorm._BatchNorm)
            and parameters
            and not any(p.requires_grad for p in parameters)
        ):
            module.eval()
