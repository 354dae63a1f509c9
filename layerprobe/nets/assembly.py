"""Trunk + pool + head = Net; what is loaded and what starts anew."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

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
    head = {f"fc{number}": (f"fc{number}",) for number, _ in enumerate(options.fc, start=6)}
    units = {**backbone.units, **head}
    for name in options.from_scratch:
        if name not in units:
            raise UnknownNameError(f"layer of {backbone.name} to train from scratch", name, units)
    # The default generator alone is reseeded: torch.manual_seed would also reseed every GPU, which the fork leaves out.
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(options.seed)
        trunk = backbone.trunk()
        children = {**trunk, "pool5": GlobalPool(options.pool), **_head(backbone.channels, options.fc)}
    module = nn.Sequential(OrderedDict(children))
    loaded: set[str] = set()
    if options.weights is not None:
        anew = tuple(f"{path}." for name in options.from_scratch for path in units[name])
        _require_trunk(backbone.name, module, list(trunk), options.weights)
        loaded = _load(module, options.weights, anew)
    pool = {"pool5": "pool5"} if backbone.lists_pool else {}
    return Net(
        module=module,
        layers={**backbone.layers, **pool, **{name: name for name in head}},
        embedding_dim=options.fc[-1] if options.fc else backbone.channels,
        new_parameters=frozenset(name for name, _ in module.named_parameters() if name not in loaded),
    )


def _head(channels: int, sizes: Sequence[int]) -> dict[str, nn.Module]:
    """fc6, relu6, fc7 ...; nothing for no sizes (NetD). Linear layers keep torch's initialisation."""
    if any(size < 1 for size in sizes):
        raise ValueError(f"fc = {list(sizes)}: a layer needs at least 1 output")
    head: dict[str, nn.Module] = {}
    for number, (inputs, outputs) in enumerate(pairwise((channels, *sizes)), start=6):
        if head:
            head[f"relu{number - 1}"] = nn.ReLU()
        head[f"fc{number}"] = nn.Linear(inputs, outputs)
    return head


def _require_trunk(name: str, module: nn.Module, trunk: Sequence[str], weights: Mapping[str, Tensor]) -> None:
    """Check that weights have every tensor of the trunk, in its shape, and none more of it."""
    own = {key: tensor.shape for key, tensor in module.state_dict().items() if key.partition(".")[0] in trunk}
    given = {key: tensor.shape for key, tensor in weights.items() if key.partition(".")[0] in trunk}
    problems = [f"{key} is missing" for key in own if key not in given and not key.endswith(_OPTIONAL)]
    problems += [
        f"{key} has shape {tuple(given[key])}, not {tuple(own[key])}"
        for key in own
        if given.get(key, own[key]) != own[key]
    ]
    problems += [f"there is no place for {key}" for key in given if key not in own]
    if problems:
        raise DataError(f"weights of another network: {problems[0]}", fix=f"The network asked for is {name}")


def _load(module: nn.Module, weights: Mapping[str, Tensor], anew: tuple[str, ...]) -> set[str]:
    """Copy what agrees in name and shape, except below the prefixes `anew`; the names of what was copied.

    A head of another size is left out like the classifiers of torchvision, whose names no module here has. What starts
    anew keeps the seed's draw and BN's fresh statistics: it is not loaded and drawn again, but never loaded.
    """
    own = module.state_dict()
    taken = {
        key: tensor
        for key, tensor in weights.items()
        if key in own and tensor.shape == own[key].shape and not key.startswith(anew)
    }
    module.load_state_dict(taken, strict=False)
    return set(taken)
