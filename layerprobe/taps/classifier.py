"""The final classifier of a model: what its library or its name calls one, if that gives the model's output."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from layerprobe.system.memory import memory_faults_told
from layerprobe.taps.hooks import hook_modules, part_at, parts_by_path, prepare_images
from layerprobe.taps.layouts import tensor_at, tensor_part
from layerprobe.taps.measuring import REFUSALS
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

    def hook(path: str, _module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        # What comes later may overwrite it in place.
        seen[path].append((inputs, output.clone() if isinstance(output, Tensor) else output))

    candidates = _candidates(module)
    if not candidates:
        return None
    model_output: object = None
    with hook_modules(module, {path: partial(hook, path) for path in candidates}), torch.inference_mode():
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
