"""The classifier that a run's loss has trained: which layer it multiplies, its weights and its accuracy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from layerprobe.hooks import Hook, Layer
from layerprobe.measure.analysis import Features
from layerprobe.post_processing.applying import Blocks
from layerprobe.post_processing.chain import Chain
from layerprobe.post_processing.post_processing import FitInputs, FittedStep, PostProcessing
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.registry import LOSSES, load
from layerprobe.system.computing import with_float64
from layerprobe.system.errors import RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.layers import LayerKey
from layerprobe.values.retrieval import Classifier
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_checkpoint
from layerprobe.workflow.run.runs import Run

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from layerprobe.losses.loss import Loss


@dataclass(frozen=True, eq=False)
class RunClassifier:
    """The classifier of a run's loss, at each epoch.

    Args:
        layer: the input of the loss; None for a model from Python, which has no loss.
        classes: (C,) training classes, ascending; None if the data set has none.
        device: gives where its weights are put.
    """

    run: Run
    recipe: Recipe
    layer: LayerKey | None
    classes: NDArray[np.int64] | None
    device: Callable[[], torch.device]

    def classifier(self, epoch: int, layer: LayerKey, dim: int) -> Classifier | None:
        """What gives the logits of a layer of so many dimensions; None for a layer that it does not multiply."""
        if self.layer != layer or self.classes is None or why_no_classifier(self.recipe) is not None:
            return None
        import torch

        logits: Callable[[Tensor], Tensor] = self.loss(epoch, dim, self.classes).logits  # type: ignore[assignment] # a Module's attribute
        return Classifier(torch.no_grad()(logits), self.classes)

    def weight(self, epoch: int, layer: LayerKey, dim: int) -> Tensor | None:
        """(C, dim) what multiplies a layer, after the loss's own ReLU if it has one; None for any other layer."""
        if self.layer != layer or self.classes is None or why_no_weight(self.recipe) is not None:
            return None
        weight: Tensor = self.loss(epoch, dim, self.classes).classifier_weight  # type: ignore[assignment] # likewise
        return weight.double()

    @property
    def relu(self) -> bool:
        """Whether the loss has a ReLU of its own before the weights."""
        return bool(getattr(self.recipe.loss, "relu", False))

    def loss(self, epoch: int, dim: int, classes: NDArray[np.integer]) -> Loss:
        """The loss with the weights of an epoch, for embeddings of so many dimensions."""
        # The recipe may be as recorded, and the loss's options unchecked.
        recipe = recorded_recipe(self.run.read(), self.run.record_file)
        loss = from_recipe.build_loss(recipe, embedding_dim=dim, num_classes=len(classes))
        load_checkpoint(self.run, epoch, {"loss": loss})
        return loss.to(with_float64(self.device())).eval()


def classifier_of(
    run: Run, recipe: Recipe, labels: NDArray[np.integer] | None, device: Callable[[], torch.device]
) -> RunClassifier:
    """The classifier of a run's loss.

    Args:
        labels: classes of the training images; None if there are none.
    """
    network = run.read().network
    layer = None if network is None else network.embedding
    classes = None if labels is None else np.unique(labels).astype(np.int64)
    return RunClassifier(run, recipe, layer, classes, device)


def fit_chain(  # noqa: PLR0913 - what, on what, and of which epoch and layer
    chain: Chain,
    features: Features,
    device: torch.device,
    *,
    seed: int,
    epoch: int,
    layer: LayerKey,
    trained: RunClassifier | None,
) -> FittedStep:
    """A chain, fitted on a layer's features, with the weights of the loss's classifier where it takes these.

    Args:
        features: (N, D) to fit on, with their classes.
        trained: the classifier; None if there is none.
    """
    blocks, dim, weight = Blocks(features.values, device), features.values.shape[1], None
    if chain.needs_classifier and trained is not None:
        weight = trained.weight(epoch, layer, dim)
        chain = replace(chain, parts=(_Relu(), *chain.parts)) if trained.relu else chain
    return chain.fit(blocks, dim, seed=seed, classifier_weight=weight, labels=features.labels)


class _Relu(PostProcessing):
    """A loss's own ReLU, before the classifier whose weights post-processing takes."""

    def fit(self, batches: Iterable[Tensor], dim: int, inputs: FitInputs) -> FittedStep:  # noqa: ARG002 - nothing is learnt
        import torch

        return torch.relu


def why_no_weight(recipe: Recipe) -> str | None:
    """Why a run has no classifier whose weights can be used; None where it has one."""
    reason = why_no_classifier(recipe)
    if reason is None and not hasattr(load("loss", LOSSES, recipe.loss.name), "classifier_weight"):
        return f"{recipe.loss.name} has several weights for each class"
    return reason


def why_no_classifier(recipe: Recipe) -> str | None:
    """Why a run has no classifier whose accuracy can be measured; None where it has one."""
    if recipe.train.meta_classes is not None:
        return "this run's classifier was trained on meta-classes, not on the classes"
    if not hasattr(load("loss", LOSSES, recipe.loss.name), "logits"):
        frozen = recipe.train.epochs == 0 and ":" in recipe.net.name  # of a source: its loss was never used
        return f"{'a model that is only probed' if frozen else recipe.loss.name} has no classifier"
    return None


def drop_accuracy(
    request: ProbeRequest, recipe: Recipe, why_none: Callable[[], str | None], listener: Listener | None
) -> ProbeRequest:
    """The request; without accuracy where there is no classifier.

    Args:
        why_none: why there is no classifier; None where there is one. Asked only where accuracy is requested.
    """
    metrics = request.metrics if request.metrics is not None else recipe.probe.metrics
    if "accuracy" not in metrics or (reason := why_none()) is None:
        return request
    if listener:
        listener.say(f"accuracy skipped: {reason}")
    return replace(request, metrics=tuple(name for name in metrics if name != "accuracy"))


def require_accuracy_layer(request: ProbeRequest, recipe: Recipe, embedding: Hook, hooks: Sequence[Layer]) -> None:
    """Check that the layer whose accuracy is requested is among those measured."""
    metrics = request.metrics if request.metrics is not None else recipe.probe.metrics
    if "accuracy" in metrics and embedding.key not in [hook.key for hook in hooks]:
        raise RecipeError(f"accuracy is measured on {embedding.key}", fix=f"Add {embedding.layer} to --layers")
