"""Watch as a callback of the Trainer of transformers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import Trainer, TrainerCallback

from layerprobe.system.errors import RecipeError


class WatchCallback(TrainerCallback):
    """Measures on the main process, and gives the values to the trainer's log.

    Args:
        measure: network and epoch -> values.
        network: path of the submodule to measure.
    """

    def __init__(
        self,
        trainer: Trainer,
        network: str,
        measure: Callable[[nn.Module, int], dict[str, float]],
        close: Callable[[], None],
    ) -> None:
        self._trainer, self._network, self._watch, self._close = trainer, network, measure, close

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Measure the state before training, unless it is resumed."""
        if self._trainer.state.global_step == 0:
            self._measure(0)

    def on_epoch_end(self, *_: Any, **__: Any) -> None:
        """Measure the state after an epoch; one that the last step cut short counts."""
        self._measure(math.ceil(round(self._trainer.state.epoch or 0, 6)))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """Record the run as finished."""
        self._close()

    def _measure(self, epoch: int) -> None:
        if not self._trainer.is_world_process_zero():
            return
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        try:
            network = model.get_submodule(self._network)
        except AttributeError as error:
            fix = f"Known: {', '.join(name for name, _ in model.named_children())}"
            raise RecipeError(f"{type(model).__name__} has no submodule {self._network!r}", fix=fix) from error
        if values := self._watch(network, epoch):
            self._trainer.log(values)
