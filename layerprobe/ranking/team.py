"""Processes that share a ranking: each takes part of the pairs; a maximum and a sum combine their results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup


@dataclass(frozen=True, eq=False)
class Team:
    """This process and the others of its group; None for this process alone."""

    group: ProcessGroup | None = None

    @property
    def share(self) -> slice:
        """Which of a list's elements are this process's."""
        return slice(self.group.rank(), None, self.group.size()) if self.group else slice(None)

    def maximum(self, values: Tensor) -> Tensor:
        """The maximum over all processes, element by element."""
        return self._all_reduce(values, "MAX")

    def total(self, values: Tensor) -> Tensor:
        """The sum over all processes, element by element."""
        return self._all_reduce(values, "SUM")

    def _all_reduce(self, values: Tensor, operation: str) -> Tensor:
        if self.group:
            import torch.distributed as dist

            dist.all_reduce(values, getattr(dist.ReduceOp, operation), group=self.group)
        return values
