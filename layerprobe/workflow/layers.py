"""layers: names, module paths and dimensions of a network's layers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from layerprobe.errors import UnknownNameError
from layerprobe.nets.net import Net
from layerprobe.overrides import Overrides
from layerprobe.recipe import load_recipe, recorded_recipe
from layerprobe.recipe_files import find_recipe, list_recipes
from layerprobe.registry import NETS, load
from layerprobe.runs import list_runs, named_run
from layerprobe.taps import list_layers
from layerprobe.workflow.parts import build_net


@dataclass(frozen=True)
class LayerRow:
    """A layer: name, module path, dimension after pooling, and whether its weights are new or pretrained (or empty)."""

    layer: str
    module: str
    dim: int
    weights: str


def layers(name: str, cache: Path) -> list[LayerRow]:
    """The layers of a network, recipe or run, in execution order.

    Raises:
        UnknownNameError: it is none of the three.
    """
    if name in NETS:
        return _rows(load("network", NETS, name)(), 224, known=False)
    if name in list_recipes() or name.endswith(".toml"):
        recipe = load_recipe(str(find_recipe(name)), Overrides(settings=("data.root=.",)))  # no image is read
        return _rows(build_net(recipe, cache=cache), recipe.data.image_size, known=True)
    runs = [run.name for run, _ in list_runs(cache)]
    if name not in runs:
        raise UnknownNameError("network, recipe or run", name, [*NETS, *list_recipes(), *runs])
    run = named_run(cache, name)
    record = run.read()
    recipe = recorded_recipe(record, run.record_file)
    net = build_net(recipe)
    trained = Net(net.module, net.layers, net.embedding_dim, frozenset(record["new_parameters"]))
    return _rows(trained, recipe.data.image_size, known=True)


def _rows(net: Net, image_size: int, *, known: bool) -> list[LayerRow]:
    return [
        LayerRow(info.name, info.module, info.dim, _origin(net, info.module) if known else "")
        for info in list_layers(net, image_size)
    ]


def _origin(net: Net, path: str) -> str:
    """Whether a layer's parameters are new. A layer without any, such as a ReLU, takes those before it."""
    named = list(net.module.named_parameters())
    own = [name for name, _ in named if name.startswith(f"{path}.")]
    if not own:
        order = [name for name, _ in net.module.named_modules()]
        before = set(order[: order.index(path) + 1])
        own = [name for name, _ in named if name.rpartition(".")[0] in before][-1:]
    new = [name in net.new_parameters for name in own]
    return "new" if all(new) else "partly new" if any(new) else "pretrained"
