"""Trunk + pool + head = Net, with parameters that are loaded (torchvision's, a file's) or initialised."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.nets.checkpoint_files import FileWeights, read_checkpoint
from layerprobe.nets.fitting import TargetNetwork, Translate, as_they_are, fit, shapes, unused_note, with_versions
from layerprobe.nets.net import Net
from layerprobe.registry import IMAGENET_WEIGHTS, load
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.system.files import sha256
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


class FrozenBatchNorm(nn.Module):
    """A BatchNorm in evaluation mode, whatever the module's mode.

    Mean, variance, weight and bias keep their names in the state but are all buffers: neither `train()` nor
    `requires_grad_(True)` of a network around it sets them moving, and no optimiser sees them.
    """

    running_mean: Tensor
    running_var: Tensor
    weight: Tensor
    bias: Tensor

    def __init__(self, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.eps = norm.eps
        for name, tensor in norm.state_dict().items():
            self.register_buffer(name, tensor)

    def forward(self, maps: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, C, H, W)."""
        return F.batch_norm(maps, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps)


def freeze_batch_norm(module: nn.Module, learning: tuple[str, ...]) -> bool:
    """Freeze every BatchNorm of maps; returns whether there was one."""
    has_batch_norm = False
    for path, norm in list(module.named_modules()):
        if isinstance(norm, nn.BatchNorm2d):
            has_batch_norm = True
            if not f"{path}.".startswith(learning):
                module.set_submodule(path, FrozenBatchNorm(norm))
    return has_batch_norm


_ALTERNATIVES = "--set net.weights=none, or --set net.weights=PATH"


def weights_file(name: str) -> Path:
    """Where torchvision's ImageNet weights of a network lie, or would: below TORCH_HOME."""
    return Path(str(torch.hub.get_dir()), "checkpoints", Path(_url(name)).name)


def _url(name: str) -> str:
    # By version: torchvision's DEFAULT changes with its releases.
    published = load("network with ImageNet weights", IMAGENET_WEIGHTS, name).IMAGENET1K_V1
    return str(published.url)


def imagenet_weights(name: str) -> FileWeights:
    """ImageNet weights of torchvision, version IMAGENET1K_V1, from TORCH_HOME; fetched where absent.

    Returns:
        The file's tensors, by torchvision's names.
    """
    path = weights_file(name)
    digest = path.stem.rpartition("-")[2]
    if not path.exists():
        _fetch(_url(name), path, digest)
    # torchvision compares the hash only on download, and would take any file that lies there.
    if not sha256(path).startswith(digest):
        raise DataError("sha256 differs from the one in its name", file=path, fix="Delete it")
    return read_checkpoint(path)


def _fetch(url: str, path: Path, digest: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        torch.hub.download_url_to_file(url, str(path), hash_prefix=digest, progress=sys.stderr.isatty())
    except (OSError, RuntimeError) as error:
        raise EnvironmentFault(
            f"{path.name} is not there and {url} cannot be fetched: {error}",
            file=path.parent,
            fix=f"Put the file there, or use {_ALTERNATIVES}",
        ) from error


@dataclass(frozen=True)
class Backbone:
    """What one network has of its own: trunk, names of layers, defaults.

    Args:
        trunk: draws the trunk's children in execution order, with its initialisation and the names of its weights.
        layers: the papers' names of the trunk's layers -> module paths, in execution order.
        units: what `from_scratch` may name -> the module paths whose parameters and statistics it means.
        lists_pool: whether `pool5` is a layer of its own rather than the last map's pool.
        translate: gives the tensors of a weights file the trunk's names.
    """

    name: str
    trunk: Callable[[], Mapping[str, nn.Module]]
    layers: Mapping[str, str]
    units: Mapping[str, tuple[str, ...]]
    channels: int
    pool: str = "avg"
    lists_pool: bool = True
    translate: Translate = as_they_are

    def build(  # noqa: PLR0913 - the keys of a recipe's [net]
        self,
        *,
        fc: Sequence[int] = (512,),
        pool: str | None = None,
        norm: Literal["none", "layer", "batch"] = "none",
        dropout: float = 0.0,
        fc_bias: bool = True,
        fc_norm: Literal["none", "layer", "batch"] = "none",
        fc_dropout: float = 0.0,
        freeze_bn: bool = False,
        weights: FileWeights | Mapping[str, Tensor] | None = None,
        from_scratch: Sequence[str] = (),
        seed: int = 0,
    ) -> Net:
        """The network without its classifier: trunk, pool, norm, dropout, fully connected layers, norm, dropout.

        The papers' heads: FCR1 of Horiguchi et al. 2019 (section 3.1), a fully connected layer "just before the output
        layer", is fc = [64], FCR2 the same "followed by a dropout layer", with `fc_dropout`. Zhai & Wu 2019 (section
        4.2) have norm = "layer" "immediately after the final pooling layer"; their code has no bias after it, and no
        layer where its outputs are as many as the pool's (fc = []). The BN of Zhang et al. 2018 (equation 13) is
        fc_norm = "batch".

        Args:
            fc: outputs of fc6, fc7 ..., with a ReLU between two; with none the embedding is the pool, or its norm.
            pool: what feeds the head, `max`, `avg` or `gem`; None for the network's own.
            norm: normalisation of the pool, `layer` or `batch`, without weight and bias; it is the layer `norm5`.
            dropout: probability of dropout after the pool and its norm, as in the released code of Vo & Hays 2019.
            fc_bias: whether fully connected layers have a bias.
            fc_norm: normalisation of the last fully connected layer's outputs, likewise; it is the layer `norm6` after
                `fc6`, and the embedding.
            fc_dropout: probability of dropout after the last fully connected layer, as in FCR2, and 0.5 in the code of
                the normalised proxies of Fehervari et al. 2019.
            freeze_bn: keep the trunk's batch normalisation as it was loaded, except in `from_scratch`: statistics,
                weight and bias become buffers, which `train()` does not move. Without weights it normalises nothing.
            weights: what `read_checkpoint` read, or names -> tensors, with the whole trunk under one prefix; None:
                everything starts from its initialisation.
            from_scratch: blocks or layers that start from their initialisation, with their batch normalisation.
            seed: of the initialisation; the global generators are not touched.

        Returns:
            The papers' layers, `pool5`, `norm5`, `fc6`, `norm6` ...

        Raises:
            UnknownNameError: `pool`, `norm`, `fc_norm` or a name in `from_scratch` that this network has not.
            RecipeError: a probability outside [0, 1), `fc_norm` or `fc_dropout` without `fc`, `freeze_bn` where there
                is none.
            DataError: weights that lack a tensor of the trunk, have it in another shape, or have more than the trunk.
            ValueError: a size in `fc` below 1.
        """
        paths = self._paths(from_scratch, len(fc))
        head = Head(fc, pool or self.pool, norm, dropout, fc_bias, fc_norm, fc_dropout)
        # The default generator alone is reseeded: torch.manual_seed would also reseed every GPU, which the fork leaves
        # out.
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            trunk = self.trunk()
            new = head.children(self.channels)
        module = nn.Sequential(OrderedDict({**trunk, **new}))
        loaded: set[str] = set()
        notes: tuple[str, ...] = ()
        if weights is not None:
            expected_shapes = shapes(module)
            head_of = [key for key in expected_shapes if key.partition(".")[0] not in trunk]
            weights_fit = fit(weights, TargetNetwork(self.name, expected_shapes, head_of, translate=self.translate))
            # What starts anew is not loaded, so that it keeps the seed's draw and BatchNorm's fresh statistics.
            tensors = {key: tensor for key, tensor in weights_fit.tensors.items() if not key.startswith(paths)}
            module.load_state_dict(with_versions(tensors, module), strict=False)
            loaded = set(tensors)
            notes = (*weights_fit.notes, *unused_note(expected_shapes, weights_fit.left, paths))
        if freeze_bn and not freeze_batch_norm(module, paths):
            raise RecipeError(f"[net]: {self.name} has no batch normalisation to freeze", fix="Leave freeze_bn out")
        return Net(
            module=module,
            layers={**self.layers, **{name: name for name in [*["pool5"] * self.lists_pool, *head.layers]}},
            embedding_dim=fc[-1] if fc else self.channels,
            new_parameters=frozenset(name for name, _ in module.named_parameters() if name not in loaded),
            notes=notes,
        )

    def _paths(self, names: Sequence[str], layers: int) -> tuple[str, ...]:
        """The prefixes of all that starts from its initialisation."""
        units = {**self.units, **{f"fc{number}": (f"fc{number}",) for number in range(6, 6 + layers)}}
        for name in names:
            if name not in units:
                raise UnknownNameError(f"layer of {self.name} to train from scratch", name, units)
        return tuple(f"{path}." for name in names for path in units[name])
