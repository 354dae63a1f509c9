"""A fitted map as named steps and arrays, which numpy alone can apply."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from layerprobe.post_processing.post_processing import FittedStep, InTurn, Projection, steps_of
from layerprobe.post_processing.quantised import before_rounding, round_to_float16, round_to_int8
from layerprobe.post_processing.unfitted import Prefix, normalise_rows, pack_signs, unit
from layerprobe.system.errors import LayerprobeError

_NAMES: Mapping[FittedStep, str] = {
    unit: "l2", normalise_rows: "layernorm", pack_signs: "binary", torch.relu: "relu", round_to_float16: "float16",
    round_to_int8: "int8",
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class UnitParts:
    """(B, the sum of sizes) -> the same, the numbers of each part at length 1, in float32 as they are stored.

    Args:
        sizes: dimensions of the concatenated layers.
    """

    sizes: tuple[int, ...]

    def __call__(self, features: Tensor) -> Tensor:
        """The concatenation as it is ranked."""
        return torch.cat([unit(block).float() for block in features.split(self.sizes, dim=1)], dim=1).to(features.dtype)


@dataclass(frozen=True, eq=False)
class FittedMap:
    """What is done to pooled features.

    Args:
        steps: their names, in the order in which they are applied.
        arrays: of the step i: `mean.i` (D,) and `matrix.i` (D, D') of a projection, `sizes.i` of the parts of `A+B`,
            `dim.i` D' of a prefix.
    """

    steps: tuple[str, ...]
    arrays: Mapping[str, NDArray[np.generic]]


def with_ends(post_process: FittedStep, *, sizes: Sequence[int], similarity: str) -> FittedStep:
    """A fitted post-processing between what comes before and after it.

    Args:
        sizes: dimensions of the layers that are concatenated, each at length 1; of a single layer, its own.
        similarity: features that are searched by cosine get length 1, but for float16 and int8.
    """
    steps = tuple(steps_of(post_process))
    if len(sizes) > 1:
        steps = (UnitParts(tuple(sizes)), *steps)
    if similarity == "cosine" and steps[-1:] != (unit,) and before_rounding(post_process) is None:
        steps = (*steps, unit)
    return InTurn(steps)


def fitted_map(post_process: FittedStep) -> FittedMap:
    """The steps and arrays of a map.

    Raises:
        LayerprobeError: a step is none that numpy is told to apply.
    """
    names: list[str] = []
    arrays: dict[str, NDArray[np.generic]] = {}
    for i, step in enumerate(steps_of(post_process)):
        if isinstance(step, Projection):
            names.append("projection")
            matrix = step.matrix.double().cpu()
            arrays[f"mean.{i}"] = (matrix.new_zeros(len(matrix)) if step.mean is None else step.mean.cpu()).numpy()
            arrays[f"matrix.{i}"] = matrix.numpy()
        elif isinstance(step, UnitParts):
            names.append("l2 of parts")
            arrays[f"sizes.{i}"] = np.array(step.sizes, np.int64)
        elif isinstance(step, Prefix):
            names.append("first")
            arrays[f"dim.{i}"] = np.array(step.dim, np.int64)
        elif step in _NAMES:
            names.append(_NAMES[step])
        else:
            known = ", ".join([*_NAMES.values(), "first", "projection"])
            problem = f"step {i + 1} of the post-processing, {step!r}, is not one of {known}"
            raise LayerprobeError(f"map.npz: {problem}", fix="Leave npz out of --format")
    return FittedMap(tuple(names), arrays)
