"""GoogLeNet: torchvision's trunk, which has batch normalisation, a global pool, fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torchvision.models import GoogLeNet

from layerprobe.nets.assembly import Backbone, Options, assemble
from layerprobe.nets.net import Net

_BLOCKS = tuple(f"inception{block}" for block in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b"))
_REPLACED = ("avgpool", "dropout", "fc")


class TransformInput(nn.Module):
    """(B, 3, H, W) normalised with ImageNet's mean and deviation -> normalised with 0.5 and 0.5.

    torchvision's weights, ported from TensorFlow, want the latter. torchvision converts only where a network was made
    with its weights; here it is part of the network, so that a reloaded one never sees another input.
    """

    scale: Tensor
    shift: Tensor

    def __init__(self) -> None:
        super().__init__()
        mean, deviation = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]], dtype=torch.float64)
        # Not persistent: constants, and torchvision's files have no such names.
        self.register_buffer("scale", (deviation / 0.5).float()[:, None, None], persistent=False)
        self.register_buffer("shift", ((mean - 0.5) / 0.5).float()[:, None, None], persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) -> (B, 3, H, W)."""
        return images * self.scale + self.shift


def _trunk() -> Mapping[str, nn.Module]:
    # Without auxiliary heads: they hold half of the parameters and never run in evaluation.
    network = GoogLeNet(aux_logits=False, init_weights=True)
    children = {name: child for name, child in network.named_children() if name not in _REPLACED}
    return {"transform_input": TransformInput(), **children}


_BACKBONE = Backbone(
    name="googlenet",
    trunk=_trunk,
    layers={block: block for block in _BLOCKS},
    units={block: (block,) for block in _BLOCKS},
    channels=1024,
    lists_pool=True,
)


def build(
    *,
    fc: Sequence[int] = (512,),
    pool: str | None = None,
    weights: Mapping[str, Tensor] | None = None,
    from_scratch: Sequence[str] = (),
    seed: int = 0,
) -> Net:
    """GoogLeNet without its classifiers; the input is normalised as for the other networks.

    It is torchvision's, ported from TensorFlow, with batch normalisation: the papers' GoogLeNet has none, and their
    numbers for it are not to be expected. The papers define NetA to NetF for VGG16 alone; here the same heads sit on
    the pooled `inception5b`.

    Args:
        fc: outputs of fc6, fc7 ...; with none the embedding is the pool.
        pool: what feeds fc6: `avg` (where None), `max` or `gem`.
        weights: torchvision's names -> tensors, the trunk complete; None starts everything anew.
        from_scratch: blocks `inceptionXy` left at their start with their batch normalisation (NetB: inception5b).
        seed: of all that starts anew; the global generators are not touched.

    Returns:
        Layers inception3a ... inception5b, pool5, fc6 ...

    Raises:
        UnknownNameError: a pool or block that there is none of.
        DataError: weights of another network.
    """
    return assemble(_BACKBONE, Options(fc, pool or "avg", weights, from_scratch, seed))
