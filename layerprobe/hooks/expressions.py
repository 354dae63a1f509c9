"""Layer expressions, `A+B` among them -> the modules, pools and hooks that they name."""

from __future__ import annotations

import contextlib
import difflib
import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from layerprobe.hooks.capture import Hook, default_pools, pooled_dim, possible_pools
from layerprobe.hooks.hooks import hook_modules, parts_by_path, plain_path, prepare_images
from layerprobe.hooks.layouts import Layout, Unclear
from layerprobe.hooks.measuring import REFUSALS, Call, Measured, NamedLayers, measure_layers
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.layers import NO_POOL, OUTPUT, TOKEN_POOLS, LayerKey, require_pool
from layerprobe.values.network_input import ImageSize

if TYPE_CHECKING:
    import torch

MODULES = "modules"  # every named layer and every named part of one
_NORMED = "normed("  # `normed(NAME)`: the layer's output through the model's final norm


@dataclass(frozen=True)
class LayerInfo:
    """A named layer of a network."""

    name: str
    module: str  # its path
    dim: int  # length of the feature vector after max or avg pooling
    kind: str  # map, tokens or vector
    calls: int  # of the module in a forward
    layout: Layout  # as text: shape, prefix tokens, and which part of the output it is
    pools: tuple[str, ...]  # that it can have, the default ones first
    classifier: str | None = None  # path of the model's classifier, of the layer that is its input


def list_layers(net: NamedLayers, image_size: ImageSize) -> list[LayerInfo]:
    """The network's named layers that run, in execution order, found by forwards that change nothing."""
    measured, layers = measure_layers(net, image_size), []
    for name, path in net.layers.items():
        path = plain_path(path)
        if not measured.calls.get(path):
            continue
        last_call = measured.calls[path][-1]
        layout = _require_layout(name, last_call)
        defaults = default_pools(layout, measured.pools)
        pools = tuple(dict.fromkeys((*defaults, *possible_pools(layout, negative=last_call.negative))))
        info = LayerInfo(
            name, path, layout.dim, layout.kind, len(measured.calls[path]), layout, pools, _classifier(path, net)
        )
        layers.append((last_call.order, info))
    return [info for _, info in sorted(layers, key=lambda pair: pair[0])]


def resolve_hooks(
    expressions: Sequence[str], net: NamedLayers, *, pools: Sequence[str] | None = None, image_size: ImageSize
) -> list[Hook]:
    """As `find_hooks`, of a network that was not measured yet.

    Args: as there; `image_size`, that of the images, decides the maps' sizes.
    """
    return find_hooks(expressions, measure_layers(net, image_size), pools=pools)


def find_hooks(expressions: Sequence[str], measured: Measured, *, pools: Sequence[str] | None = None) -> list[Hook]:
    """Layer expressions -> hooks in execution order, each once.

    Args:
        expressions: `NAME[#i][@pool]` or `normed(NAME[#i])[@pool]`. NAME is a layer's name or a glob over those names
            (`*` is all of them); `modules`, which adds the layers' parts; a module path or, where no layer's name
            matches, a glob over module paths, in which `*` matches one step; or `output`, the model's own.
            `#i` is the i-th call of a module, from 1; a glob takes all calls. `normed` is the output through the
            model's final norm. Globs over paths, and `modules`, skip modules that cannot be hooked.
        pools: for expressions without a pool: max, avg, gem (cube root of the mean cube) or grid:s (s x s adaptive
            maxima, C * s * s numbers), of tokens those of the patches; cls and cls+avg, where there is a class token.
            A pool that a layer cannot have is skipped there, if it can have another one. None: `measured.pools`, else
            max for maps, cls and avg for tokens. A vector has one hook, with the pool `none`, whatever is requested.
    """
    hooks: dict[tuple[int, bool, str], Hook] = {}
    for candidate in _candidates(expressions, measured, pools):
        if isinstance(candidate, Hook):
            order = measured.calls[candidate.module][candidate.call - 1].order
            hooks.setdefault((order, candidate.norm is not None, candidate.pool), candidate)
    return [hook for _, hook in sorted(hooks.items(), key=lambda item: item[0][:2])]


def execution_order(names: Iterable[str], measured: Measured) -> list[str]:
    """Sort layers by the order in which the network runs them; unknown names are dropped."""
    orders: dict[str, tuple[float, bool]] = {}
    for name in names:
        plain, normed = _without_normed(name)
        target, _, number = plain.partition("#")
        path = _path(target, measured)
        calls = () if path is None else measured.calls.get(path, ())
        call_number = int(number) if number.isdecimal() else 1
        if path is None or not 1 <= call_number <= len(calls):
            continue
        # The input of a classifier comes just before that.
        classifier = _classifier(path, measured.net)
        done = calls[call_number - 1].order if classifier is None else measured.calls[classifier][0].order - 0.5
        orders[name] = (done, normed)
    return sorted(orders, key=orders.__getitem__)


_Skipped = tuple[LayerKey, RecipeError]  # a layer with a pool that it cannot have, and why


def _candidates(
    expressions: Sequence[str], measured: Measured, pools: Sequence[str] | None
) -> Iterator[Hook | _Skipped]:
    for expression in expressions:
        layer, _, pool = expression.partition("@")
        for kind in [pool] if pool else pools or ():
            require_pool(kind)
        yield from _candidates_of_layer(layer, [pool] if pool else pools, measured)


def _candidates_of_layer(layer: str, pools: Sequence[str] | None, measured: Measured) -> list[Hook | _Skipped]:
    """What an expression without its pool names; at least one hook is among it."""
    plain, normed = _without_normed(layer)
    target, _, number = plain.partition("#")
    path = _path(target, measured)
    if path is not None:
        return _require_hook(_at_call(path, number, normed, pools, measured))
    globbed, lenient = _expand_glob(target, measured)
    ran = [path for path in globbed if measured.calls.get(path)] or globbed
    calls = [
        (path, call)
        for path in ran
        for call in ([number] if number else [str(i + 1) for i in range(len(measured.calls.get(path, ())))] or [""])
    ]
    candidates: list[Hook | _Skipped] = []
    problems = []
    for path, call in calls:
        try:
            of_call = _at_call(path, call, normed, pools, measured)
            candidates += of_call if lenient else _require_hook(of_call)
        except RecipeError as error:
            if not lenient:
                raise
            problems.append(error)
    if not candidates:
        raise problems[0]
    return _require_hook(candidates)


def _require_hook(candidates: list[Hook | _Skipped]) -> list[Hook | _Skipped]:
    problems = [candidate[1] for candidate in candidates if not isinstance(candidate, Hook)]
    if len(problems) == len(candidates):
        raise problems[0]
    return candidates


def _at_call(
    path: str, number: str, normed: bool, pools: Sequence[str] | None, measured: Measured
) -> list[Hook | _Skipped]:
    """One call of a module, the only one or that of `#number`, by each pool."""
    name, calls = _name(path, measured.net), measured.calls.get(path, ())
    if not calls:
        raise _does_not_run(name, path, measured)
    listed = ", ".join(f"#{i} {call.structure}" for i, call in enumerate(calls, start=1))
    if not number and len(calls) > 1:
        raise RecipeError(f"{name} is called {len(calls)} times: {listed}", fix=f"Choose one, like {name}#1")
    if number and number not in map(str, range(1, len(calls) + 1)):
        raise RecipeError(f"{name}#{number}: there is no such call", fix=f"Known: {listed}")
    call_number = int(number or 1)
    call = calls[call_number - 1]
    layout = _require_layout(name, call)
    name = name if len(calls) == 1 else f"{name}#{call_number}"
    norm = _final_norm(name, call, measured) if normed else None
    name = f"{_NORMED}{name})" if normed else name
    candidates: list[Hook | _Skipped] = []
    for pool in pools or default_pools(layout, measured.pools):
        pool = NO_POOL if layout.kind == "vector" else pool
        try:
            dim = pooled_dim(name, layout, pool, negative=call.negative or normed)
            candidates.append(Hook(name, path, call_number, pool, dim, layout, norm, _classifier(path, measured.net)))
        except RecipeError as error:
            candidates.append((LayerKey(name, pool), error))
    return candidates


def _does_not_run(name: str, path: str, measured: Measured) -> RecipeError:
    from torch import nn

    above = parts_by_path(measured.net.module).get(path.rpartition(".")[0])
    if isinstance(above, nn.MultiheadAttention):
        problem = f"{name} does not run as a module, as nn.MultiheadAttention computes with its weights itself"
        return RecipeError(problem, fix="Choose the attention, whose first output has gone through it")
    return RecipeError(f"{name} does not run in evaluation", fix="Choose another layer")


def _without_normed(layer: str) -> tuple[str, bool]:
    """The name in `normed(...)`, and whether it is such an expression."""
    normed = layer.startswith(_NORMED) and layer.endswith(")")
    return (layer.removeprefix(_NORMED)[:-1], True) if normed else (layer, False)


def _classifier(path: str, net: NamedLayers) -> str | None:
    """The classifier that stands between a module's output and what is measured of it."""
    return net.classifier if path == net.root else None


def _name(path: str, net: NamedLayers) -> str:
    """What a module is called: by its registered name, else by its path below the model."""
    names = {plain_path(registered_path): name for name, registered_path in [*net.parts.items(), *net.layers.items()]}
    if path in names:
        return names[path]
    if path == net.root:
        return OUTPUT
    return path.removeprefix(f"{net.root}.") if net.root else path


def _path(target: str, measured: Measured) -> str | None:
    """The path of the one module that a name or path names; None where it names none."""
    net = measured.net
    registered = net.layers.get(target, net.parts.get(target))
    if registered is not None:
        return plain_path(registered)
    path = ".".join(filter(None, (net.root, plain_path(target))))
    if path in measured.calls:
        return path
    return net.root if target == OUTPUT else None


def _expand_glob(target: str, measured: Measured) -> tuple[list[str], bool]:
    """The module paths that a glob names, and whether those that cannot be hooked are skipped."""
    net = measured.net
    if target == MODULES:
        return [plain_path(path) for path in {**net.layers, **net.parts}.values()], True
    matching_layers = [plain_path(path) for name, path in net.layers.items() if fnmatch.fnmatchcase(name, target)]
    if matching_layers:
        return matching_layers, False
    root = f"{net.root}." if net.root else ""
    below = {path.removeprefix(root): path for path in measured.calls if path.startswith(root) and path != net.root}
    steps = target.split(".")
    matching = [
        path
        for name, path in below.items()
        if len(name.split(".")) == len(steps) and all(map(fnmatch.fnmatchcase, name.split("."), steps))
    ]
    if not matching:
        near = difflib.get_close_matches(target, list(below), n=1)
        raise UnknownNameError("layer", target, [*net.layers, *(name for name in near if name not in net.layers)])
    return matching, True


def _require_layout(name: str, call: Call) -> Layout:
    if isinstance(call.layout, Unclear):
        problem = f"the output of {name} is {call.structure}: {call.layout.reason}"
        raise RecipeError(problem, fix="Choose a module inside or after it")
    return call.layout


def _final_norm(name: str, call: Call, measured: Measured) -> str:
    """The path of the model's final norm, if it takes the output of a call."""
    import torch

    net = measured.net
    if net.final_norm is None:
        raise RecipeError(f"{_NORMED}{name}): the network has no final norm", fix=f"Leave it out: {name}")
    path = plain_path(net.final_norm)
    forward: Callable[[torch.Tensor], object] = parts_by_path(net.module)[path].forward
    output: object = None
    with hook_modules(net.module, {}), torch.inference_mode(), contextlib.suppress(*REFUSALS):
        output = forward(prepare_images(torch.zeros(call.shape), net.module))
    # It normalises channels if they are the last axis, or that which its own output has.
    layouts = [norm_call.layout for norm_call in measured.calls[path] if len(norm_call.shape) == len(call.shape)]
    axes = {len(call.shape) - 1, *(layout.channels for layout in layouts if isinstance(layout, Layout))}
    over_channels = isinstance(call.layout, Layout) and call.layout.channels in axes
    if not isinstance(output, torch.Tensor) or output.shape != call.shape or not over_channels:
        problem = f"{_NORMED}{name}): the final norm {_name(path, net)} does not take {call.structure}"
        raise RecipeError(problem, fix="Choose a layer of as many channels as the last")
    return path


@dataclass(frozen=True)
class Concatenated:
    """`A+B`: layers whose features are put side by side, each normalised first. They are made of stored features.

    Args:
        members: two or more, in execution order. All but vectors have the same pool.
    """

    members: tuple[Hook, ...]

    @property
    def layer(self) -> str:
        """The members' names with `+` between."""
        return "+".join(hook.layer for hook in self.members)

    @property
    def pool(self) -> str:
        """Of the members that are no vectors; none where all are."""
        return next((hook.pool for hook in self.members if hook.pool != NO_POOL), NO_POOL)

    @property
    def dim(self) -> int:
        """Length of an image's feature vector."""
        return sum(hook.dim for hook in self.members)

    @property
    def key(self) -> LayerKey:
        """The layer with its pool."""
        return LayerKey(self.layer, self.pool)


Layer = Hook | Concatenated


def find_layers(expressions: Sequence[str], measured: Measured, *, pools: Sequence[str] | None = None) -> list[Layer]:
    """Layer expressions -> layers in execution order, each once; `A+B` comes after the last of its layers.

    Args:
        expressions: see `find_hooks`; or several such names joined by `+` with one pool at the end, none of them a
            glob: `pool5.2+pool5.3@max`. Their order does not matter.
        pools: see `find_hooks`; for `A+B` those that apply to all its layers but vectors. None: the default pools of
            its layers.
    """
    joint = [text for text in expressions if _is_joint(text, measured)]
    layers: list[Layer] = [*find_hooks([text for text in expressions if text not in joint], measured, pools=pools)]
    layers += [layer for text in joint for layer in _joints(text, pools, measured)]
    by_key = {layer.key: layer for layer in layers}
    names = [hook.layer for hook in member_hooks(layers)]
    places = {name: index for index, name in enumerate(execution_order(names, measured))}
    # `A+B` stands after B and before whatever follows B.
    return sorted(by_key.values(), key=lambda layer: [places[hook.layer] for hook in reversed(member_hooks([layer]))])


def skipped_pool_lines(
    expressions: Sequence[str], measured: Measured, *, pools: Sequence[str] | None = None
) -> list[str]:
    """A line for each pool that `find_layers` skips for some layers, with the reason of the first."""
    reasons: dict[str, dict[str, str]] = {}  # pool -> layer -> why
    for candidate in _candidates([text for text in expressions if not _is_joint(text, measured)], measured, pools):
        if not isinstance(candidate, Hook):
            key, error = candidate
            reasons.setdefault(key.pool, {}).setdefault(key.layer, error.message)
    return [f"{pool} skipped for {', '.join(why)}: {next(iter(why.values()))}" for pool, why in reasons.items()]


def member_hooks(layers: Iterable[Layer]) -> list[Hook]:
    """The hooks that layers are made of, each once."""
    hooks = (hook for layer in layers for hook in (layer.members if isinstance(layer, Concatenated) else [layer]))
    return list({hook.key: hook for hook in hooks}.values())


def _is_joint(expression: str, measured: Measured) -> bool:
    layer, _, pool = expression.partition("@")
    if layer in measured.net.layers or layer in measured.net.parts:
        layer = ""
    return "+" in layer or ("+" in pool and pool not in TOKEN_POOLS)


def _joints(expression: str, pools: Sequence[str] | None, measured: Measured) -> list[Concatenated]:
    """What `A+B` names: one for each pool that all its layers can have."""
    layer, _, pool = expression.partition("@")
    names = layer.split("+")
    ambiguous = [name for name in names if name == MODULES or any(sign in name for sign in "*?[")]
    if ambiguous or not all(names):
        problem = f"{ambiguous[0]} may be several layers" if ambiguous else "a layer is missing beside +"
        raise RecipeError(f"{expression}: {problem}", fix="Name every layer of A+B itself")
    if "+" in pool and pool not in TOKEN_POOLS:
        raise RecipeError(f"{expression}: A+B has one pool", fix="Write it once, at the end, like A+B@max")
    defaults = [hook.pool for hook in find_hooks(names, measured) if hook.pool != NO_POOL]
    joints: dict[LayerKey, Concatenated] = {}
    problems = []
    for kind in [pool] if pool else list(pools or defaults) or [NO_POOL]:
        require_pool(kind)
        try:
            members = find_hooks([f"{name}@{kind}" for name in names], measured)
        except RecipeError as error:
            problems.append(error)
            continue
        if len(members) < len(names):
            raise RecipeError(f"{expression}: a layer stands there twice", fix="Name each layer once")
        joint = Concatenated(tuple(members))
        joints[joint.key] = joint
    if not joints:
        raise problems[0]
    return list(joints.values())
