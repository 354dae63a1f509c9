"""layers: names, module paths and dimensions of a network's layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from layerprobe.hooks import list_layers
from layerprobe.nets.net import Net
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe, recorded_recipe
from layerprobe.recipe.recipe_files import find_recipe, list_recipes
from layerprobe.registry import NETS, NETWORKS, SOURCES, is_source, load, load_apart
from layerprobe.system.errors import UnknownNameError
from layerprobe.system.naming import name_model
from layerprobe.values.network_input import ImageSize
from layerprobe.workflow.run.from_recipe import build_net
from layerprobe.workflow.run.run_network import run_network
from layerprobe.workflow.run.runs import list_runs, named_run

_OWN_NETS_SIZE = 224


@dataclass(frozen=True)
class LayerRow:
    """A layer of a network.

    Args:
        kind: map, tokens or vector.
        size: `8x8` of a map, `197 tokens`; empty for a vector.
        weights: new, partly new or pretrained; empty for a network without weights.
    """

    layer: str
    module: str
    dim: int
    kind: str
    size: str
    pools: tuple[str, ...]
    weights: str


@dataclass(frozen=True)
class Listing:
    """The layers of a network in execution order, and the notes on it."""

    layers: tuple[LayerRow, ...]
    notes: tuple[str, ...]


def layers(name: str, cache: Path, model: str | None = None) -> Listing:
    """The layers of a network, external model, recipe or run, in execution order.

    An external model is built without weights, for images of its own size. A run takes precedence over a recipe.
    """
    runs = [run.name for run, _ in list_runs(cache)]
    if name in runs:
        run = named_run(cache, name)
        record = run.read()
        recipe = recorded_recipe(record, run.record_file).at(model)
        trained = replace(run_network(run, record, recipe), new_parameters=frozenset(record.new_parameters))
        return _listing(trained, recipe.data.image_size, with_origins=True)
    if model is not None:
        raise UnknownNameError("run", name, runs)
    if name in NETS:
        return _listing(load("network", NETS, name)(), _OWN_NETS_SIZE, with_origins=False)
    if is_source(name):
        name_model(name)
        source, external = load_apart("network", SOURCES, name)
        model_input = source.own_input(external)
        net = source.build(external, image_size=None if model_input is None else model_input.size)
        return _listing(net, net.image_size, with_origins=False)
    if name in list_recipes() or name.endswith(".toml"):
        recipe = load_recipe(str(find_recipe(name)), Overrides(settings=("data.root=.",)))  # no image is read
        return _listing(build_net(recipe, cache=cache), recipe.data.image_size, with_origins=True)
    raise UnknownNameError("network, recipe, run or source", name, [*NETWORKS, *list_recipes(), *runs])


def _listing(net: Net, image_size: ImageSize, *, with_origins: bool) -> Listing:
    rows = (
        LayerRow(
            info.name,
            info.module,
            info.dim,
            info.kind,
            info.layout.size,
            info.pools,
            _origin(net, info.module) if with_origins else "",
        )
        for info in list_layers(net, image_size)
    )
    return Listing(tuple(rows), net.notes)


def _origin(net: Net, path: str) -> str:
    """Whether a layer's parameters are new; a layer without parameters counts as the one before it."""
    names = [name for name, _ in net.module.named_parameters()]
    layer_names = [name for name in names if name.startswith(f"{path}.")]
    if not layer_names:
        order = [name for name, _ in net.module.named_modules()]
        before = set(order[: order.index(path) + 1])
        layer_names = [name for name in names if name.rpartition(".")[0] in before][-1:]
    new = [name in net.new_parameters for name in layer_names]
    return "new" if all(new) else "partly new" if any(new) else "pretrained"
