"""The layer of a user's features that a name such as `deep/l2+pca:64+l2` means."""

from __future__ import annotations

from layerprobe.reductions.chain import parse_chain
from layerprobe.system.errors import RecipeError
from layerprobe.values.layers import LayerKey, RankedLayer, concatenated_layers, find_layer
from layerprobe.workflow.choose.features_run import SIMILARITY
from layerprobe.workflow.choose.user_features import UserFeatures
from layerprobe.workflow.run.references import parse_reference


def ranked_of_rows(features: UserFeatures, text: str) -> RankedLayer:
    """The layer, or layers side by side, with a reduction that is one map for all images.

    Raises:
        RecipeError: a reduction without such a map.
        UnknownNameError: a layer of another name.
    """
    layers = list(features.features)
    if text in map(str, layers):  # a layer of a file may have a slash in its name
        return RankedLayer(LayerKey(text, "none"), "none", SIMILARITY)
    reference = parse_reference(text, bare="layer")
    chain = parse_chain(reference.reduction)
    name = reference.layer or ""
    joined = concatenated_layers(name, layers, [layer.layer for layer in layers])
    layer = joined[0] if joined else find_layer(name, layers)
    ranked = RankedLayer(layer, chain.text, reference.similarity or chain.similarity or SIMILARITY)
    require_one_map(ranked)
    return ranked


def require_one_map(ranked: RankedLayer) -> None:
    """Check that a layer's reduction is one map for all images, which stored features give again."""
    chain = parse_chain(ranked.reduction)
    reason = (
        "a mean over draws" if len(chain.members()) > 1
        else "made with the loss's classifier" if chain.needs_classifier
        else "fitted on the searched images, which other images have not" if chain.fits and chain.on_gallery
        else ""
    )  # fmt: skip
    if reason:
        raise RecipeError(f"{ranked}: {reason}", fix="Name a layer with another reduction, or none")
