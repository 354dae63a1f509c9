"""Watch as a callback of Lightning."""

from __future__ import annotations

from collections.abc import Callable

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn

from layerprobe.system.errors import RecipeError


class WatchCallback(Callback):
    """Measures on the main process, and gives the values to the trainer's loggers.

    Args:
        measure: network and epoch -> values.
        network: name of the submodule to measure.
    """

    def __init__(
        self,
        network: str | None,
        measure: Callable[[nn.Module, int], dict[str, float]],
        close: Callable[[], None],
    ) -> None:
        self._network, self._watch, self._close = network, measure, close

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the state before training, unless it is resumed."""
        if trainer.global_step == 0:
            self._measure(trainer, pl_module, 0)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the state after an epoch."""
        self._measure(trainer, pl_module, trainer.current_epoch + 1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002 - Lightning's signature
        """Record the run as finished."""
        self._close()

    def _measure(self, trainer: Trainer, module: LightningModule, epoch: int) -> None:
        if trainer.is_global_zero:
            values = self._watch(_network(module, self._network), epoch)
            for logger in trainer.loggers if values else ():
                logger.log_metrics(values, trainer.global_step)


def _network(module: LightningModule, name: str | None) -> nn.Module:
    """The submodule of a name, or the only one with parameters."""
    children = [child for child, submodule in module.named_children() if next(submodule.parameters(), None) is not None]
    if name is None and len(children) != 1:
        message = f"{type(module).__name__} has {len(children)} submodules with parameters: {', '.join(children)}"
        raise RecipeError(message, fix='Name the network, such as watch.lightning("encoder"); "" is the whole module')
    network = module if name == "" else getattr(module, name or children[0], None)
    if not isinstance(network, nn.Module):
        raise RecipeError(f"{type(module).__name__} has no submodule {name!r}", fix=f"Known: {', '.join(children)}")
    return network
