"""A module's parts by path, and hooks on them that go away."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
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
    return {plain_path(path): submodule for path, submodule in module.named_modules()}


def part_at(module: nn.Module, path: str) -> nn.Module:
    """The module at one of the paths of `parts_by_path`, without a walk over all of them."""
    submodule = _uncompile(module)
    for name in path.split(".") if path else ():
        child = _child(submodule, name)
        if child is None:
            raise AttributeError(f"there is no module {path!r}")
        submodule = _uncompile(child)
    return submodule


def prepare_images(images: Tensor, module: nn.Module) -> Tensor:
    """Images in the type that a module computes in and on its device; unchanged if it has no parameters."""
    tensors = chain(module.parameters(), module.buffers())
    floats = next((tensor for tensor in tensors if tensor.is_floating_point()), None)
    return images if floats is None else images.to(device=floats.device, dtype=floats.dtype)


@contextlib.contextmanager
def hook_modules(module: nn.Module, hooks: Mapping[str, Hook]) -> Iterator[None]:
    """Evaluation mode and a hook on each module path; at the end hooks are removed and all modes restored.

    In the block, compiled modules run as they were before, since hooks see nothing of compiled code, and attention runs
    without torch's fused path, which passes over modules. What a model keeps of a forward in evaluation, and forgets in
    training mode, is computed anew.
    """
    import torch
    from torch import nn

    # What `module.modules()` lists, in a fraction of its time: a GPU waits.
    parts = [module]
    listed = {id(module)}
    for submodule in parts:
        for child in submodule._modules.values():
            if child is not None and id(child) not in listed:
                listed.add(id(child))
                parts.append(child)
    with contextlib.ExitStack() as stack:
        for path, hook in hooks.items():
            stack.callback(part_at(module, path).register_forward_hook(hook).remove)
        # One by one, as train() on the whole module would also put frozen batch normalisation into training mode.
        stack.callback(_set_modes, [(submodule, submodule.training) for submodule in parts])
        stack.callback(torch.backends.mha.set_fastpath_enabled, torch.backends.mha.get_fastpath_enabled())
        torch.backends.mha.set_fastpath_enabled(False)
        if any(_COMPILED in part._modules or part._compiled_call_impl is not None for part in parts):
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        # Of blocks under gradient checkpointing, which here have no gradients to lose.
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", "None of the inputs have requires_grad")
        mode_setters = [submodule.train for submodule in parts] + [module.eval]
        if any(getattr(mode, "__func__", None) not in (nn.Module.train, nn.Module.eval) for mode in mode_setters):
            # First into training mode, where LeViT drops values cached from weights that may have changed.
            module.train()
            module.eval()
        else:  # what train() would do, in a hundredth of its time
            _set_modes([(submodule, False) for submodule in parts])
        yield


def _set_modes(modes: Iterable[tuple[nn.Module, bool]]) -> None:
    """Training or evaluation mode of each module alone."""
    for submodule, training in modes:
        if "training" in submodule.__dict__:
            submodule.__dict__["training"] = training  # nn.Module's __setattr__ takes thirty times as long
        else:
            submodule.training = training  # of a ScriptModule


def _child(submodule: nn.Module, name: str) -> nn.Module | None:
    if name not in submodule._modules:  # a ScriptModule's have no get()
        return None
    return submodule._modules[name]


def _uncompile(submodule: nn.Module) -> nn.Module:
    inner = _child(submodule, _COMPILED)
    return submodule if inner is None else _uncompile(inner)
