"""The pool by which a model itself makes a vector of its last map or tokens, told from one forward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_MOST_PREFIX_TOKENS = 8
_RELATIVE, _ABSOLUTE = 1e-4, 1e-5


@dataclass(eq=False)
class FinalPool:
    """Sees the tensors of a forward in their order, of modules without parts.

    Args:
        found: cls, avg or max; None for another pool, or none.
    """

    found: str | None = None
    _last: Tensor | None = None

    def see(self, value: object) -> None:
        """A module's input or output: a later map or sequence of tokens starts anew, as in squeeze and excitation."""
        import torch
        from torch import Tensor

        if not isinstance(value, Tensor) or not value.is_floating_point() or value.ndim < 2:
            return
        if value.ndim in (3, 4) and value[0].numel() > max(value.shape[1], value.shape[-1]):
            self._last, self.found = value, None
        elif self._last is not None and self.found is None and len(value) == len(self._last):
            vector = value.flatten(1).float()
            # A ReLU may be a function, which no hook sees.
            for maps in (self._last.float(), self._last.float().clamp(min=0)):
                for name, pooled in _pool_maps(maps):
                    if pooled.shape == vector.shape and torch.allclose(pooled, vector, _RELATIVE, _ABSOLUTE):
                        self.found = name
                        return


def _pool_maps(maps: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Each pool of maps, channels first or last, or of tokens (B, T, D) with up to 8 before the patches."""
    if maps.ndim == 3:
        yield "cls", maps[:, 0]
        for prefix in range(min(_MOST_PREFIX_TOKENS, maps.shape[1] - 1) + 1):
            yield "avg", maps[:, prefix:].mean(1)
            yield "max", maps[:, prefix:].amax(1)
        return
    for axes in ((2, 3), (1, 2)):
        yield "avg", maps.mean(axes)
        yield "max", maps.amax(axes)
