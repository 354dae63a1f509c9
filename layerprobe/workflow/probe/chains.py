"""The requested post-processing, the split on which it is fitted, and the layers that it does not apply to."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from layerprobe.measure.analysis import InapplicablePostProcessing
from layerprobe.post_processing.chain import ON_GALLERY, Chain, equal_dimension, parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.layers import LayerKey

if TYPE_CHECKING:
    from layerprobe.hooks import Layer

FITTED_ON = "train"  # the split that post-processing learns from
FITS = (FITTED_ON, "gallery")
AFTER_RELU = "after the loss's own ReLU"
TRANSDUCTIVE = "transductive: fitted on the images searched"
IN_SAMPLE = "in-sample: fitted with these classes"


def parse_chains(texts: Sequence[str], fit: str = FITTED_ON, equal_dim: int | None = None) -> list[Chain]:
    """The chains of some names, each once.

    Args:
        equal_dim: the dimension to which layers are brought besides, by each of `equal_dimension`; None for none.
    """
    if fit not in FITS:
        raise UnknownNameError("split to fit on", fit, FITS)
    equal = () if equal_dim is None else equal_dimension(equal_dim)
    chains = [parse_chain(text) for text in (*texts, *equal)]
    if fit != FITTED_ON:
        if with_classes := [chain.text for chain in chains if chain.needs_labels]:
            message = f"{with_classes[0]} is fitted with classes, and what is fitted on the {fit} takes none"
            raise RecipeError(
                message, fix=f"Fit it on {FITTED_ON}, the default, or take post-processing without classes"
            )
        chains = [parse_chain(f"{c.text}{ON_GALLERY}") if c.fits_on_train else c for c in chains]
    return list({chain.text: chain for chain in chains}.values())


def fit_notes(chain: Chain, split: str) -> list[str]:
    """The notes on every number of a split that a chain has seen more of than that of other images."""
    notes = [TRANSDUCTIVE] if chain.on_gallery else []
    return notes + [IN_SAMPLE] * (chain.needs_labels and split == FITTED_ON)


def require_fitting(chains: Sequence[Chain], splits: Collection[str], on_gallery: str) -> None:
    """Check that there are the images that post-processing is fitted on.

    Args:
        on_gallery: what fits them on the images that are searched: `add --fit gallery`.
    """
    fitted = sorted((chain for chain in chains if chain.fits_on_train), key=lambda chain: not chain.needs_labels)
    if fitted and FITTED_ON not in splits:
        without = (
            "take post-processing without classes" if fitted[0].needs_labels
            else f"{on_gallery}, which fits it on the images that are searched"
        )  # fmt: skip
        message = f"{fitted[0].text} is fitted on training classes, and there is no {FITTED_ON} split"
        raise RecipeError(message, fix=f"Give a {FITTED_ON} split, or {without}")


def find_inapplicable(
    hooks: Sequence[Layer], chains: Sequence[Chain], classified: LayerKey, unclassified: str
) -> list[InapplicablePostProcessing]:
    """The inapplicable post-processing of layers that are known before anything is fitted.

    Args:
        unclassified: why there is no classifier; empty where there is one.
    """
    inapplicable = []
    for hook in hooks:
        for chain in chains:
            reason, fix = _why_not(hook, chain, classified, unclassified)
            if reason:
                inapplicable.append(InapplicablePostProcessing(hook.key, chain.text, reason, fix))
    return inapplicable


def _why_not(hook: Layer, chain: Chain, classified: LayerKey, unclassified: str) -> tuple[str, str]:
    """Why a layer cannot take a chain, and what can be done about it; empty where it can."""
    try:
        chain.dim(hook.dim)
    except NotApplicableError as error:
        return error.message, error.fix
    if not chain.needs_classifier:
        return "", ""
    if unclassified:
        return f"it needs a classifier's weights: {unclassified}", ""
    if hook.key != classified:
        return f"it needs a classifier's weights, which multiply {classified} alone", f"Add {classified} to --layers"
    return "", ""


def require_applied(
    post_processings: Iterable[str], applied: Collection[str], inapplicable: Iterable[InapplicablePostProcessing]
) -> None:
    """Check that every post-processing is applied to a layer.

    Args:
        applied: those that some layer can take.
        inapplicable: of the layers that cannot.
    """
    reasons: dict[str, list[InapplicablePostProcessing]] = {}
    for item in inapplicable:
        reasons.setdefault(item.post_processing, []).append(item)
    for post_processing in post_processings:
        if post_processing not in applied and (items := reasons.get(post_processing)):
            fix = next((item.fix for item in reversed(items) if item.fix), "Choose another post-processing")
            *_, reason = dict.fromkeys(item.reason for item in items)
            raise NotApplicableError(f"no layer can take {post_processing}: {reason}", fix=fix)


def inapplicable_lines(inapplicable: Iterable[tuple[int, InapplicablePostProcessing]]) -> list[str]:
    """A line for each layer and post-processing that it cannot take, with the epochs of which this is so."""
    epochs: dict[tuple[LayerKey, str], dict[int, InapplicablePostProcessing]] = {}
    for epoch, item in inapplicable:
        epochs.setdefault((item.layer, item.post_processing), {}).setdefault(epoch, item)
    return [
        f"{next(iter(by_epoch.values()))} (epoch{'s' * (len(by_epoch) > 1)} {', '.join(map(str, by_epoch))})"
        for by_epoch in epochs.values()
    ]
