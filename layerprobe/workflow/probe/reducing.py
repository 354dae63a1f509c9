"""The requested reductions, the split on which they are fitted, and the layers that they do not apply to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from layerprobe.data.splits import Dataset
from layerprobe.reductions.chain import ON_GALLERY, Chain, equal_dimension, parse_chain
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.layers import LayerKey

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.reductions.reduction import Reduce
    from layerprobe.store import FeatureKey
    from layerprobe.taps import Layer

FITTED_ON = "train"  # the split that reductions learn from
FITS = (FITTED_ON, "gallery")
AFTER_RELU = "after the loss's own ReLU"
TRANSDUCTIVE = "transductive: fitted on the images searched"


@dataclass(frozen=True)
class InapplicableReduction:
    """A reduction that a layer cannot take.

    Args:
        fix: what can be done about it; empty where nothing can.
    """

    layer: LayerKey
    reduction: str
    reason: str
    fix: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"{self.reduction} skipped for {self.layer}: {self.reason}"


def parse_reductions(texts: Sequence[str], fit: str = FITTED_ON, equal_dim: int | None = None) -> list[Chain]:
    """The chains of some names, each once.

    Args:
        equal_dim: the dimension to which layers are brought besides, by each of `equal_dimension`; None for none.
    """
    if fit not in FITS:
        raise UnknownNameError("split to fit on", fit, FITS)
    equal = () if equal_dim is None else equal_dimension(equal_dim)
    chains = [parse_chain(text) for text in (*texts, *equal)]
    if fit != FITTED_ON:
        chains = [parse_chain(f"{c.text}{ON_GALLERY}") if c.fits_on_train else c for c in chains]
    return list({chain.text: chain for chain in chains}.values())


def require_fitting(chains: Sequence[Chain], dataset: Dataset) -> None:
    """Check that the data set has the images that reductions are fitted on."""
    fitted = [chain.text for chain in chains if chain.fits_on_train]
    if fitted and FITTED_ON not in dataset.splits:
        raise RecipeError(
            f"{fitted[0]} is fitted on training classes, and there is no {FITTED_ON} split",
            fix="Add --fit gallery, which fits it on the images that are searched",
        )


def find_inapplicable(
    taps: Sequence[Layer], chains: Sequence[Chain], classified: LayerKey, unclassified: str
) -> list[InapplicableReduction]:
    """The inapplicable reductions of layers that are known before anything is fitted.

    Args:
        unclassified: why there is no classifier; empty where there is one.
    """
    inapplicable = []
    for tap in taps:
        for chain in chains:
            reason, fix = _why_not(tap, chain, classified, unclassified)
            if reason:
                inapplicable.append(InapplicableReduction(tap.key, chain.text, reason, fix))
    return inapplicable


def _why_not(tap: Layer, chain: Chain, classified: LayerKey, unclassified: str) -> tuple[str, str]:
    """Why a layer cannot take a chain, and what can be done about it; empty where it can."""
    try:
        chain.dim(tap.dim)
    except NotApplicableError as error:
        return error.message, error.fix
    if not chain.needs_classifier:
        return "", ""
    if unclassified:
        return f"it needs a classifier's weights: {unclassified}", ""
    if tap.key != classified:
        return f"it needs a classifier's weights, which multiply {classified} alone", f"Add {classified} to --layers"
    return "", ""


def fit_text(chain: Chain, fitted_on: Callable[[], FeatureKey], seed: int) -> str:
    """What a reduction is fitted on, and with which seed it draws; empty where it does neither."""
    fitted = [str(fitted_on())] if chain.fits else []
    drawn = [f"seed {seed}"] if chain.fits or chain.draws else []
    return " ".join([*fitted, *drawn])


class _Relu:
    """A loss's own ReLU, before the classifier whose weights a reduction takes."""

    fits = draws = needs_classifier = False
    similarity: str | None = None
    members: tuple[str, ...] = ()

    def dim(self, dim: int) -> int:
        return dim

    def fit(self, batches: Iterable[Tensor], dim: int, *, seed: int, classifier_weight: Tensor | None) -> Reduce:  # noqa: ARG002 - nothing is learnt
        import torch

        return torch.relu


def prepend_relu(chain: Chain) -> Chain:
    """A chain that follows a ReLU."""
    return replace(chain, parts=(_Relu(), *chain.parts))


def require_applicable(
    layers: Sequence[Layer], chains: Sequence[Chain], unfit: Sequence[InapplicableReduction]
) -> None:
    """Check that every chain can be applied to a layer."""
    for chain in chains:
        inapplicable = [item for item in unfit if item.reduction == chain.text]
        if inapplicable and len(inapplicable) == len(layers):
            raise inapplicable_error(inapplicable)


def refusal_lines(refused: Sequence[tuple[int, InapplicableReduction]]) -> list[str]:
    """What could not be fitted, in a line for each layer and reduction, with its epochs."""
    epochs: dict[tuple[LayerKey, str], dict[int, InapplicableReduction]] = {}
    for epoch, item in refused:
        epochs.setdefault((item.layer, item.reduction), {}).setdefault(epoch, item)
    return [
        f"{next(iter(by_epoch.values()))} (epoch{'s' * (len(by_epoch) > 1)} {', '.join(map(str, by_epoch))})"
        for by_epoch in epochs.values()
    ]


def inapplicable_error(unfit: Sequence[InapplicableReduction]) -> NotApplicableError:
    """The error that no layer can take a reduction.

    Args:
        unfit: that of each layer; at least one.
    """
    reasons = dict.fromkeys(item.reason for item in unfit)
    fix = next((item.fix for item in reversed(unfit) if item.fix), "Choose another reduction")
    return NotApplicableError(f"no layer can take {unfit[0].reduction}: {list(reasons)[-1]}", fix=fix)
