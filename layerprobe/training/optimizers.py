"""Torch's optimisers by name; SGD also reads gradients that hold only some rows of a weight."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop


def build_optimizer(
    name: str, groups: list[dict[str, Any]], *, learning_rate: float, momentum: float | None, epsilon: float | None
) -> Optimizer:
    """The optimiser of a recipe.

    Args:
        momentum: of sgd and rmsprop; None for the others.
        epsilon: what adam, adamw and rmsprop add to the denominator; None for torch's 1e-8.
    """
    if name == "sgd":
        return RowSGD(groups, lr=learning_rate, momentum=momentum or 0.0)
    eps = 1e-8 if epsilon is None else epsilon
    if name == "rmsprop":
        return RMSprop(groups, lr=learning_rate, momentum=momentum or 0.0, eps=eps)
    kind: type[Adam] = {"adam": Adam, "adamw": AdamW}[name]
    return kind(groups, lr=learning_rate, eps=eps)


class RowSGD(SGD):
    """torch's SGD; of a weight with a sparse gradient only the rows that the gradient holds move.

    Momentum and weight decay act on those rows alone, when they are met: a step costs what its rows do, however many
    there are (the classes that a subsampled softmax draws).
    """

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
        weight.index_add_(0, rows, values, alpha=-group["lr"])


def gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    """The gradients of the parameters that have one; of a sparse gradient its values."""
    stored = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return [gradient.coalesce().values() if gradient.is_sparse else gradient for gradient in stored]
