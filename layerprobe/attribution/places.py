"""Layer Grad-CAM: which layer's map it is of, and what each place contributes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from torch import Tensor, nn

from layerprobe.attribution.scoring import Score
from layerprobe.taps import Layer, Measured, member_taps
from layerprobe.taps.hooks import parts_by_path, plain_path
from layerprobe.taps.layouts import Layout, tensor_at


@dataclass(frozen=True)
class MapCall:
    """A call of a module whose output is a map, or tokens whose patches are one.

    Args:
        number: of the call among those of its module in a forward, from 1.
    """

    layer: str
    module: str
    number: int
    layout: Layout

    def __str__(self) -> str:
        return f"{self.layer} ({self.layout.grid[0]}x{self.layout.grid[1]})"


def maps_before(layer: Layer, measured: Measured) -> list[MapCall]:
    """The maps of several places at or before a layer, among the named layers and itself, the last one first.

    The layer need not depend on each of them: a class token does not on the patch tokens beside it.
    """
    calls = [measured.calls[tap.module][tap.call - 1].order for tap in member_taps([layer])]
    tapped_names = {tap.module: tap.layer for tap in member_taps([layer])}
    names = {plain_path(path): name for name, path in measured.net.layers.items()} | tapped_names
    maps = {
        call.order: MapCall(name, path, number, call.layout)
        for path, name in names.items()
        for number, call in enumerate(measured.calls.get(path, ()), start=1)
        if call.order <= max(calls) and isinstance(call.layout, Layout) and _is_spatial(call.layout)
    }
    return [maps[order] for order in sorted(maps, reverse=True)]


def _is_spatial(layout: Layout) -> bool:
    return layout.kind != "vector" and layout.in_rows and prod(layout.grid) > 1


@contextlib.contextmanager
def watch_map(module: nn.Module, at: MapCall) -> Iterator[nn.Module]:
    """A module that a map goes through during forwards in the block, as (B, C, h, w) whatever its layout.

    It must be entered before the taps of the same layer, whose hooks then see what comes out of it.
    """
    through, calls = nn.Identity(), 0

    def begin(_module: nn.Module, _inputs: object) -> None:
        nonlocal calls
        calls = 0

    def hook(_module: nn.Module, _inputs: object, output: object) -> object:
        nonlocal calls
        calls += 1
        if calls != at.number:
            return None
        # Of an output of several parts, the part itself is overwritten.
        tensor = output.clone() if isinstance(output, Tensor) else tensor_at(output, at.layout.part)
        places = at.layout.patches(at.layout.arranged(tensor))
        places.copy_(through(places.clone()))
        return tensor if isinstance(output, Tensor) else None

    handles = [module.register_forward_pre_hook(begin), parts_by_path(module)[at.module].register_forward_hook(hook)]
    try:
        yield through
    finally:
        for handle in handles:
            handle.remove()


def grad_cam(score: Score, through: nn.Module, image: Tensor) -> Tensor:
    """What each channel adds to Grad-CAM of a score: the map times its mean gradient; the sum is Grad-CAM.

    Selvaraju et al., Grad-CAM, ICCV 2017, Eqs. 1 and 2, by captum; without the ReLU of Eq. 2, which would hide what
    makes images less similar.

    Args:
        through: of `watch_map`.
        image: (1, C, H, W).

    Returns:
        (C', h, w) for a map of C' channels; 0 where the score does not depend on the map.
    """
    from captum.attr import LayerGradCam

    # The parameters of a frozen network ask for no gradient.
    image_with_gradient, unused = image.clone().requires_grad_(), {"allow_unused": True, "materialize_grads": True}
    maps: Tensor = LayerGradCam(score, through).attribute(
        image_with_gradient, attr_dim_summation=False, grad_kwargs=unused
    )
    return maps.detach()[0]
