"""A module's parts by path, and hooks on them that go away."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor, nn

    Hook = Callable[[nn.Module, object, object], None]

_COMPILED = "_orig_mod"  # the name under which torch.compile keeps the module that it compiled


def plain_path(path: str) -> str:
    """A module's path without torch.compile's prefix."""
    return ".".join(name for name in path.split(".") if name != _COMPILED)


def parts_by_path(module: nn.Module) -> dict[str, nn.Module]:
    """Every module by its path, itself under the empty one; of a compiled module that which was compiled."""
    return {plain_path(path): part for path, part in module.named_modules()}


def prepared(images: Tensor, module: nn.Module) -> Tensor:
    """Images in the type that a module computes in and on its device; unchanged if it has no parameters."""
    tensors = chain(module.parameters(), module.buffers())
    floats = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    return images if floats is None else images.to(device=floats.device, dtype=floats.dtype)


@contextlib.contextmanager
def hooked(module: nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """Evaluation mode and a hook on each module path; at the end hooks are removed and all modes restored.

    In the block, compiled modules run as they were before, since hooks see nothing of compiled code, and attention runs
    without torch's fused path, which passes over modules. What a model keeps of a forward in evaluation, and forgets in
    training mode, is computed anew.
    """
    import torch

    modes = [(part, part.training) for part in module.modules()]
    parts = parts_by_path(module)
    with contextlib.ExitStack() as stack:
        for path, hook in hooks.items():
            if path not in parts:
                raise AttributeError(f"there is no module {path!r}")
            stack.callback(parts[path].register_forward_hook(hook).remove)
        # One by one, as train() on the whole module would also put frozen batch normalisation into training mode.
        for part, training in modes:
            stack.callback(setattr, part, "training", training)
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if any(_is_compiled(part) for part in module.modules()):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        # Of blocks under gradient checkpointing, which here have no gradients to lose.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
        # First into training mode, where LeViT drops values cached from weights that may have changed.
        module.train()
        module.eval()
        yield


def _is_compiled(part: nn.Module) -> bool:
    return _COMPILED in part._modules or part._compiled_call_impl is not None
