"""Pool the outputs of a network's layers during a forward, with or without its final classifier."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from layerprobe.hooks.hooks import hook_modules, part_at, parts_by_path, prepare_images
from layerprobe.hooks.layouts import Layout, tensor_at, tensor_part
from layerprobe.hooks.measuring import REFUSALS, Measured
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.system.memory import memory_faults_told
from layerprobe.values.layers import NO_POOL, POOLS, TOKEN_POOLS, LayerKey, gem
from layerprobe.values.network_input import ImageSize, height_width

if TYPE_CHECKING:
    from torch import Tensor, nn

# A projection into an embedding cannot be told from a classifier by its shape: `fc` and `head` are classifiers in
# torchvision's own models alone.
_NAMES, _TORCHVISION = ("classifier",), ("fc", "heads", "head")


def find_classifier(module: nn.Module, image_size: ImageSize, channels: Sequence[int] = (3, 1)) -> str | None:
    """The path of the module that makes classes of a model's embedding; None where the output is the embedding.

    It is what timm's `get_classifier` gives, or the last linear layer in an attribute `classifier` of any module or in
    `fc`, `heads` or `head` of one of torchvision's, if one forward shows that its output is the model's.

    Args:
        module: images (B, C, H, W) -> any output; it is not changed.
        channels: C that are tried in this order; the first that the module takes counts.
    """
    import torch
    from torch import Tensor

    seen: dict[str, list[tuple[object, object]]] = defaultdict(list)

    def on_output(path: str, _module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        # What comes later may overwrite it in place.
        seen[path].append((inputs, output.clone() if isinstance(output, Tensor) else output))

    candidates = _candidates(module)
    if not candidates:
        return None
    model_output: object = None
    with hook_modules(module, {path: partial(on_output, path) for path in candidates}), torch.inference_mode():
        for count in channels:
            seen.clear()
            noise = torch.randn(2, count, *height_width(image_size), generator=torch.Generator().manual_seed(0))
            # A refusal of all is told by whoever measures the layers.
            with contextlib.suppress(*REFUSALS), memory_faults_told():
                model_output = module(prepare_images(noise, module))
                break
    tensor_path = tensor_part(model_output)
    if tensor_path is None:
        return None
    final = tensor_at(model_output, tensor_path).flatten(1)
    for path in candidates:
        for inputs, output in seen[path] if len(seen[path]) == 1 else []:
            if (
                embedding_in(inputs) is not None
                and isinstance(output, Tensor)
                and torch.equal(output.flatten(1), final)
            ):
                return path
    return None


def embedding_in(inputs: object) -> Tensor | None:
    """(B, D) what a classifier takes, a vector or a map of one place; None for anything else."""
    from torch import Tensor

    match inputs:
        case (Tensor() as given,) if given.ndim > 1 and given[0].numel() == given.shape[1]:
            return given.flatten(1)
    return None


@contextlib.contextmanager
def without_classifier(module: nn.Module, classifier: str | None) -> Iterator[None]:
    """In the block, a model's output is what its classifier takes; no other module's output changes."""
    if classifier is None:
        yield
        return
    taken_in: list[Tensor | None] = []
    hooks = [
        part_at(module, classifier).register_forward_pre_hook(lambda _, inputs: taken_in.append(embedding_in(inputs))),
        part_at(module, "").register_forward_hook(lambda *_: taken_in.pop()),
    ]
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()


def _candidates(module: nn.Module) -> list[str]:
    parts = parts_by_path(module)
    paths = {id(submodule): path for path, submodule in reversed(parts.items())}
    return [
        paths[id(classifier)]
        for submodule in parts.values()
        for classifier in _declared_classifiers(submodule)
        if id(classifier) in paths
    ]


def _declared_classifiers(submodule: nn.Module) -> list[nn.Module]:
    """What a module calls its classifier."""
    from torch import nn

    libraries = {kind.__module__.partition(".")[0] for kind in type(submodule).__mro__}
    if "timm" in libraries and callable(get_classifier := getattr(submodule, "get_classifier", None)):
        classifier = get_classifier()
        return [classifier] if isinstance(classifier, nn.Module) and not isinstance(classifier, nn.Identity) else []
    names = (*_NAMES, *(_TORCHVISION if "torchvision" in libraries else ()))
    children = [child for name, child in submodule.named_children() if name in names]
    linear = [[x for x in child.modules() if isinstance(x, nn.Linear)] for child in children]
    return [layers[-1] for layers in linear if layers]


_NEGATIVE = "the layer has values below 0, which GeM would raise to 0"


@dataclass(frozen=True)
class Hook:
    """Where features are taken: a layer's output, and how it is pooled.

    Args:
        layer: the paper's name, else the module path; with `#i` if the module is called several times, and in
            `normed(...)` if the output goes through a norm.
        call: number of the call of the module in a forward, from 1.
        pool: max, avg, gem or grid:s for a map and for the patches of tokens, cls or cls+avg for tokens; none for a
            vector.
        norm: path of the module that the output goes through before it is pooled, if it does.
        classifier: path of the classifier whose input stands for the model's output; of that layer alone.
    """

    layer: str
    module: str
    call: int
    pool: str
    dim: int
    layout: Layout
    norm: str | None = None
    classifier: str | None = None

    @property
    def key(self) -> LayerKey:
        """The layer with its pool."""
        return LayerKey(self.layer, self.pool)


class _ForwardEnded(Exception):  # noqa: N818 - no error
    """Ends a forward whose further layers nobody wants."""


@contextlib.contextmanager
def capture_layers(
    module: nn.Module, hooks: Sequence[Hook], *, recorded: bool = False, differentiable: bool = False
) -> Iterator[Callable[[Tensor], dict[LayerKey, Tensor]]]:
    """Hooks on a module that take features for as long as the block lasts.

    The hook pools a map and copies a vector at once, as the next module may overwrite it in place. The last hook ends
    the forward. In the block the module is in evaluation mode and runs in inference mode, compiled modules as they were
    before. Afterwards, also after an error, every hook is removed and every submodule has its own mode again.
    Parameters, statistics, gradients and random generators do not change.

    Args:
        recorded: whether torch.export records the forward: it goes on to its end, in no inference mode, and GeM raises
            negative values without an error, as nothing recorded may depend on values.
        differentiable: not in inference mode: autograd records the features where the caller lets it.

    Yields:
        A function: images -> {hook.key: (B, dim) float32 on the module's device}, computed and pooled in the module's
        own type, under autocast pooled in float32. It raises ValueError if a hook's module did not run, and
        NumericError if GeM meets a negative value.
    """
    import torch

    features: dict[LayerKey, Tensor] = {}
    called: Counter[str] = Counter()
    hooks_by_module: dict[str, list[tuple[LayerKey, Hook]]] = defaultdict(list)
    for hook in hooks:
        hooks_by_module[hook.module].append((hook.key, hook))
    count = len({hook.key for hook in hooks})

    def on_output(path: str, _module: nn.Module, _inputs: object, output: object) -> None:
        called[path] += 1
        for key, hook in hooks_by_module[path]:
            if hook.call == called[path]:
                # Without hooks: the norm's own call is still to come.
                norm = None if hook.norm is None else part_at(module, hook.norm).forward
                features[key] = _features(output, hook, norm, checked=not recorded)
        if len(features) == count and not recorded:
            raise _ForwardEnded

    def features_of(images: Tensor) -> dict[LayerKey, Tensor]:
        features.clear()
        called.clear()
        mode = torch.no_grad() if recorded else torch.inference_mode(not differentiable)
        with mode, contextlib.suppress(_ForwardEnded):
            module(prepare_images(images, module))
        for hook in hooks:
            if hook.key not in features:
                raise ValueError(f"{hook.module} was called {called[hook.module]} times, {hook.key} needs {hook.call}")
        return {hook.key: features[hook.key] for hook in hooks}

    classifier = next((hook.classifier for hook in hooks if hook.classifier), None)
    with (
        without_classifier(module, classifier),
        hook_modules(module, {path: partial(on_output, path) for path in hooks_by_module}),
    ):
        yield features_of


def _features(output: object, hook: Hook, norm: Callable[[Tensor], Tensor] | None, *, checked: bool) -> Tensor:
    """Pool a layer's output to (B, dim) float32 that shares no memory with it."""
    import torch

    tensor = tensor_at(output, hook.layout.part)
    tensor = hook.layout.arranged(tensor if norm is None else norm(tensor))
    if torch.is_autocast_enabled(tensor.device.type):
        tensor = tensor.float()  # else the mean of a map, or its sum, would be rounded to autocast's type
    if hook.pool == NO_POOL:
        return tensor.to(torch.float32, copy=True)
    if hook.pool == "cls":
        return tensor[:, 0].to(torch.float32, copy=True)
    patches = hook.layout.patches(tensor)
    if hook.pool == "cls+avg":
        return torch.cat([tensor[:, 0], patches.mean((2, 3))], dim=1).float()
    if hook.pool == "max":
        return patches.amax((2, 3)).float()
    if hook.pool == "avg":
        return patches.mean((2, 3)).float()
    if hook.pool == "gem":
        if checked and (patches < 0).any():
            raise NumericError(f"{hook.key}: {_NEGATIVE}", fix="Choose another pool")
        # In float32, as cubes of ordinary activations overflow float16.
        return gem(patches.float())
    return torch.nn.functional.adaptive_max_pool2d(patches, _grid_side(hook.pool)).flatten(1).float()


def outlying_tokens(hooks: Sequence[Hook]) -> list[str]:
    """A warning of maxima over tokens, if there are any among some hooks."""
    layers = ", ".join(hook.layer for hook in hooks if hook.pool == "max" and hook.layout.kind == "tokens")
    why = "a few tokens of large norm may decide it; cls and avg are safer"
    return [f"max over the tokens of {layers}: {why}"] if layers else []


def default_pools(layout: Layout, preferred: Sequence[str] = ()) -> tuple[str, ...]:
    """The pools of a layer where nobody chose any.

    Args:
        preferred: the model's, or those that a run was probed with; empty: max for maps, cls and avg for tokens.
    """
    if layout.kind == "vector":
        return (NO_POOL,)
    if preferred:
        possible = [pool for pool in preferred if pool not in TOKEN_POOLS or layout.class_token]
        return tuple(possible) or ("avg",)
    if layout.kind == "map":
        return ("max",)
    return ("cls", "avg") if layout.class_token else ("avg",)


def possible_pools(layout: Layout, *, negative: bool) -> tuple[str, ...]:
    """The pools that an output can have; `none` for a vector.

    Args:
        negative: whether the output may have values below 0.
    """
    if layout.kind == "vector":
        return (NO_POOL,)
    tokens = TOKEN_POOLS if layout.class_token else ()
    grid = ("grid:s",) if layout.in_rows else ()
    return (*tokens, *(pool for pool in POOLS if pool != "gem" or not negative), *grid)


def pooled_dim(name: str, layout: Layout, pool: str, *, negative: bool) -> int:
    """Length of the feature vector that a pool makes of an output.

    Args:
        negative: whether the output may have values below 0.
    """
    if layout.kind == "vector":
        return layout.dim
    choices = ", ".join([*(TOKEN_POOLS if layout.class_token else ()), *POOLS])
    output = f"{'a map' if layout.kind == 'map' else layout.kind} {layout.shape}"
    if pool == NO_POOL:
        problem = f"{name} is {output} and needs a pool"
        raise RecipeError(problem, fix=f"Choose {choices} or grid:s")
    if pool in TOKEN_POOLS and not layout.class_token:
        problem = f"{name}@{pool}: {output} has no class token"
        raise RecipeError(problem, fix=f"Choose {choices} or grid:s")
    if pool == "gem" and negative:
        problem = f"{name}@gem: {_NEGATIVE}"
        raise RecipeError(problem, fix="Choose another pool, or the layer after a ReLU")
    if not pool.startswith("grid:"):
        return layout.dim * (2 if pool == "cls+avg" else 1)
    if not layout.in_rows:
        problem = f"{name}@{pool}: its tokens do not come row by row"
        raise RecipeError(problem, fix="Choose max or avg")
    side = _grid_side(pool)
    if side > min(layout.grid):
        problem = f"{name}@{pool}: the map is {layout.grid[0]} x {layout.grid[1]}"
        raise RecipeError(problem, fix="Choose a smaller grid, or max")
    return layout.dim * side**2


def _grid_side(pool: str) -> int:
    return int(pool.removeprefix("grid:"))


def is_computed(hook: Hook, measured: Measured) -> bool:
    """Whether the call of a hook, and of the norm that it is given to, is among those of a network."""
    called = len(measured.calls.get(hook.module, ())) >= hook.call
    return called and (hook.norm is None or bool(measured.calls.get(hook.norm)))
