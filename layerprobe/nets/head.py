"""The head: the pool and the layers between the last map and the loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from torch import Tensor, nn

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.layers import POOLS, gem


class GlobalPool(nn.Module):
    """(B, C, H, W) -> (B, C): one number a channel, whatever the map's size.

    Args:
        kind: `max`, `avg`, or `gem` (see `layerprobe.values.layers.gem`).
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind not in POOLS:
            raise UnknownNameError("pool", kind, POOLS)
        self.kind = kind

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C)."""
        if self.kind == "max":
            return maps.amax((2, 3))
        if self.kind == "avg":
            return maps.mean((2, 3))
        return gem(maps)

    def extra_repr(self) -> str:
        """The kind, for print(module)."""
        return self.kind


NORMS = ("none", "layer", "batch")


@dataclass(frozen=True)
class Head:
    """A head as a recipe's [net] states it; see `Backbone.build`."""

    fc: Sequence[int]
    pool: str
    norm: str
    dropout: float
    fc_bias: bool
    fc_norm: str
    fc_dropout: float

    @property
    def layers(self) -> tuple[str, ...]:
        """Those of its children that are layers behind the pool: `norm5`, `fc6`, `fc7` ..., and a norm of the last."""
        numbers = range(6, 6 + len(self.fc))
        before = [] if self.norm == "none" else ["norm5"]
        after = [] if self.fc_norm == "none" else [f"norm{5 + len(self.fc)}"]
        return (*before, *(f"fc{number}" for number in numbers), *after)

    def children(self, channels: int) -> dict[str, nn.Module]:
        """`pool5`, `norm5`, `dropout5`, `fc6`, `relu6`, `fc7` ..., a norm, a dropout, as the recipe states.

        The last norm and dropout have their layer's number. Linear layers keep torch's initialisation.
        """
        self._require_sizes()
        modules: dict[str, nn.Module] = {"pool5": GlobalPool(self.pool)}
        if self.norm != "none":
            modules["norm5"] = _norm(self.norm, channels)
        if self.dropout:
            modules["dropout5"] = nn.Dropout(self.dropout)
        for number, (inputs, outputs) in enumerate(pairwise((channels, *self.fc)), start=6):
            if number > 6:
                modules[f"relu{number - 1}"] = nn.ReLU()
            modules[f"fc{number}"] = nn.Linear(inputs, outputs, bias=self.fc_bias)
        if self.fc_norm != "none":
            modules[f"norm{5 + len(self.fc)}"] = _norm(self.fc_norm, self.fc[-1])
        if self.fc_dropout:
            modules[f"dropout{5 + len(self.fc)}"] = nn.Dropout(self.fc_dropout)
        return modules

    def _require_sizes(self) -> None:
        if any(size < 1 for size in self.fc):
            raise ValueError(f"fc = {list(self.fc)}: a layer needs at least 1 output")
        for name, probability in (("dropout", self.dropout), ("fc_dropout", self.fc_dropout)):
            if not 0 <= probability < 1:
                raise RecipeError(f"[net]: {name} = {probability}", fix="A probability is at least 0 and below 1")
        for name, value, instead in (
            ("fc_norm", self.fc_norm != "none" and f'"{self.fc_norm}"', "norm"),
            ("fc_dropout", self.fc_dropout, "dropout"),
        ):
            if value and not self.fc:
                raise RecipeError(
                    f"[net]: {name} = {value} without a fully connected layer", fix=f"Give fc a size, or set {instead}"
                )


def _norm(name: str, channels: int) -> nn.Module:
    if name == "layer":
        return nn.LayerNorm(channels, elementwise_affine=False)
    if name == "batch":
        return nn.BatchNorm1d(channels, affine=False)
    raise UnknownNameError("norm", name, NORMS)
