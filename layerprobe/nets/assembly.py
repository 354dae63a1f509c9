"""Trunk + pool + head = Net; what is loaded and what starts anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from layerprobe.errors import DataError, UnknownNameError
from layerprobe.nets.net import Net
from layerprobe.nets.pooling import GlobalPool

# Batches seen: it weighs nothing where BN's momentum is a number, and files older than the counter lack it.
_OPTIONAL = "num_batches_tracked"


@dataclass(frozen=True)
class Backbone:
    """What one network has that the others have not.

    Args:
        name: as registered.
        trunk: draws the trunk's children in execution order, with torchvision's names and its initialisation.
        layers: the trunk's papers' names -> module paths, in execution order.
        units: what `from_scratch` may name -> the module paths whose parameters and statistics it means.
        channels: of the trunk's output.
        lists_pool: whether `pool5` is a layer of its own rather than the last map's pool.
    """

    name: str
    trunk: Callable[[], Mapping[str, nn.Module]]
    layers: Mapping[str, str]
    units: Mapping[str, tuple[str, ...]]
    channels: int
    lists_pool: bool


@dataclass(frozen=True)
class Options:
    """What a recipe's [net] says; see a backbone's `build`."""

    fc: Sequence[int]
    pool: str
    weights: Mapping[str, Tensor] | None
    from_scratch: Sequence[str]
    seed: int


def assemble(backbone: Backbone, options: Options) -> Net:
    """The network: trunk, `pool5`, then `fc6`, `relu6`, `fc7` ... with a ReLU between the fully connected layers only.

    Raises:
        UnknownNameError: `pool` or a name in `from_scratch` that this network has not.
        DataError: weights that lack a tensor of the trunk, or have it in another shape, or are of a deeper one.
        ValueError: a size in `fc` below 1.
    """
    for name in options.from_scratch:
        if name not in backbone.units:
            raise UnknownNameError(f"layer of {backbone.name} to train from scratch", name, backbone.units)
    children: OrderedDict[str, nn.Module] = OrderedDict()
    # The default generator alone is reseeded: torch.manual_seed would also reseed every GPU, which the fork leaves out.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(options.seed)
        children.update(backbone.trunk())
        trunk = tuple(children)
        children["pool5"] = GlobalPool(options.pool)
        children.update(_head(backbone.channels, options.fc))
    module = nn.Sequential(children)
    loaded: set[str] = set()
    if options.weights is not None:
        anew = [path for name in options.from_scratch for path in backbone.units[name]]
        loaded = _load(module, options.weights, trunk=trunk, anew=anew, name=backbone.name)
    layers = dict(backbone.layers)
    if backbone.lists_pool:
        layers["pool5"] = "pool5"
    layers.update((name, name) for name in children if name.startswith("fc"))
    return Net(
        module=module,
        layers=layers,
        embedding_dim=options.fc[-1] if options.fc else backbone.channels,
        new_parameters=frozenset(name for name, _ in module.named_parameters() if name not in loaded),
    )


def _head(channels: int, sizes: Sequence[int]) -> OrderedDict[str, nn.Module]:
    """fc6, relu6, fc7 ...; nothing for no sizes (NetD). Linear layers keep torch's initialisation."""
    if any(size < 1 for size in sizes):
        raise ValueError(f"fc = {list(sizes)}: a layer needs at least 1 output")
    head: OrderedDict[str, nn.Module] = OrderedDict()
    for number, size in enumerate(sizes, start=6):
        if number > 6:
            head[f"relu{number - 1}"] = nn.ReLU()
        head[f"fc{number}"] = nn.Linear(channels, size)
        channels = size
    return head


def _load(
    module: nn.Module, weights: Mapping[str, Tensor], *, trunk: Sequence[str], anew: Sequence[str], name: str
) -> set[str]:
    """Copy weights into the module; the names of what was copied.

    The trunk is loaded strictly. A head's tensors are taken where name and shape agree; a classifier and auxiliary
    heads have names that the module has not, and stay out.
    """
    own = module.state_dict()
    fix = f"The recipe's network is {name}"
    unknown = next((key for key in weights if key.partition(".")[0] in trunk and key not in own), None)
    taken: dict[str, Tensor] = {}
    for key, tensor in own.items():
        in_trunk = key.partition(".")[0] in trunk
        given = weights.get(key)
        if given is not None and given.shape == tensor.shape:
            taken[key] = given
        elif in_trunk and given is not None:
            shapes = f"{tuple(given.shape)}, not {tuple(tensor.shape)}"
            raise DataError(f"weights of another network: {key} has shape {shapes}", fix=fix)
        elif in_trunk and not key.endswith(_OPTIONAL):
            raise DataError(f"weights of another network: {key} is missing", fix=fix)
    if unknown is not None:
        raise DataError(f"weights of another network: {unknown} has no place", fix=fix)
    # What starts anew keeps the seed's draw and BN's fresh statistics: it is left out, not drawn again.
    taken = {key: tensor for key, tensor in taken.items() if not key.startswith(tuple(f"{path}." for path in anew))}
    module.load_state_dict(taken, strict=False)
    return set(taken)
