from __future__ import annotations

import torch
from torch import nn

from layerprobe.hooks.hooks import hook_modules


class Cyclic(nn.Module):
    """Its part knows it, and puts nothing but itself into a mode."""

    def __init__(self) -> None:
        super().__init__()
        self.part: nn.Module = nn.Linear(2, 2)
        self.part.owner = self

    def train(self, mode: bool = True) -> Cyclic:
        self.training = self.part.training = mode
        return self


def test_a_module_that_contains_itself_is_hooked() -> None:
    module, seen = Cyclic(), []
    with hook_modules(module, {"part": lambda *_: seen.append(module.part.training)}):
        module.part(torch.ones(1, 2))
    assert seen == [False]
    assert module.training
    assert module.part.training


class Fusing(nn.Linear):
    """Makes something for evaluation."""

    ready = False

    def eval(self) -> Fusing:
        self.ready = True
        super().eval()
        return self


def test_a_modules_own_eval_is_called() -> None:
    module = Fusing(2, 2)
    with hook_modules(module, {}):
        assert module.ready
