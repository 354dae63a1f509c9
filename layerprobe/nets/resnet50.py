"""ResNet50: torchvision's trunk, a global pool, fully connected layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torchvision.models import resnet50

from layerprobe.nets.assembly import Backbone, Options, assemble
from layerprobe.nets.net import Net

_BLOCKS = tuple(
    f"layer{stage}.{block}" for stage, blocks in enumerate((3, 4, 6, 3), start=1) for block in range(blocks)
)
_REPLACED = ("avgpool", "fc")


def _trunk() -> Mapping[str, nn.Module]:
    return {name: child for name, child in resnet50(weights=None).named_children() if name not in _REPLACED}


_BACKBONE = Backbone(
    name="resnet50",
    trunk=_trunk,
    layers={block: block for block in _BLOCKS},
    units={block: (block,) for block in _BLOCKS},
    channels=2048,
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
    """ResNet50 without its classifier.

    The papers define NetA to NetF for VGG16 alone; here the same heads sit on the pooled `layer4.2`.

    Args:
        fc: outputs of fc6, fc7 ...; with none the embedding is the pool.
        pool: what feeds fc6: `avg` (where None), `max` or `gem`.
        weights: torchvision's names -> tensors, the trunk complete; None starts everything anew.
        from_scratch: blocks `layerX.Y` left at their start with their batch normalisation (NetB: layer4.2).
        seed: of all that starts anew; the global generators are not touched.

    Returns:
        Layers layer1.0 ... layer4.2 (a block's output, after the sum and its ReLU), pool5, fc6 ...

    Raises:
        UnknownNameError: a pool or block that there is none of.
        DataError: weights of another network.
    """
    return assemble(_BACKBONE, Options(fc, pool or "avg", weights, from_scratch, seed))
