"""layerprobe.explain: which pixels make two images similar at layers of a module in memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from layerprobe.attribution.explaining import explain as explain_pair
from layerprobe.attribution.maps import ScoredLayer
from layerprobe.hooks import find_layers
from layerprobe.hooks.hooks import prepare_images
from layerprobe.nets.net import Net
from layerprobe.system.errors import RecipeError, UnknownNameError, names_of, require_type
from layerprobe.values.explanations import Explanation
from layerprobe.values.layers import NO_POST_PROCESSING, VECTOR_SIMILARITIES, RankedLayer
from layerprobe.workflow.python.loaders import image_shape, require_images
from layerprobe.workflow.python.user_model import measure_network, net_of, place_on_device

_SEED = 2018  # one that few have drawn their own weights with
_RESETS = ("reset_parameters", "_reset_parameters")


def explain(  # noqa: PLR0913 - a model, two images, layers, and how they are compared
    model: nn.Module | Net,
    query: Tensor,
    neighbour: Tensor,
    layers: str | Sequence[str],
    *,
    similarity: str = "cosine",
    untrained: nn.Module | None = None,
) -> dict[str, Explanation]:
    """Which pixels make two images similar at some layers: integrated gradients and Grad-CAM, over each image.

    The model runs in evaluation mode on its own device, and is not changed. The baseline of integrated gradients is an
    image of zeros, the mean colour of the usual normalisation.

    >>> import torch, layerprobe
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    >>> query, neighbour = torch.rand(2, 3, 8, 8)
    >>> explanations = layerprobe.explain(model, query, neighbour, "1@avg")
    >>> explained = explanations["1@avg"].query
    >>> explained.pixels.shape, explained.places.shape
    ((8, 8), (6, 6))
    >>> bool(explained.error < 0.01)
    True

    Args:
        model: any module of float32 that takes images (B, C, H, W).
        query: floats (C, H, W), preprocessed for the model.
        neighbour: another image of the same size.
        layers: layer expressions, as of `extract`.
        similarity: cosine, dot or euclidean (minus the distance).
        untrained: the same model with random weights, to which maps are compared; None: a copy whose modules draw
            their parameters anew (`reset_parameters`) by a fixed seed. Where a module cannot, such as one with a class
            token of its own, the comparison is missing, and `notes` say so.

    Returns:
        Layer with its pool -> the similarity, and for each image `pixels` (H, W), which sum to `difference` up to the
        relative completeness `error`, `places` (h, w) of Grad-CAM, and the rank correlations of both with the maps of
        random weights; in execution order.

    Raises:
        UnknownNameError: unknown layer or similarity; the message names the nearest.
        RecipeError: a model of another precision, or a pool that a layer cannot have.
        DataError: images of another type or shape.
        NumericError: GeM of a layer that has values below 0.
        TypeError: an argument of another type.
    """
    require_type("similarity", similarity, str, "a name")
    if similarity not in VECTOR_SIMILARITIES:
        raise UnknownNameError("similarity", similarity, VECTOR_SIMILARITIES)
    net, expressions = net_of(model), names_of("layers", layers)
    for argument, image in (("query", query), ("neighbour", neighbour)):
        require_type(argument, image, Tensor, "floats (C, H, W)")
    if untrained is not None:
        require_type("untrained", untrained, nn.Module, "a torch.nn.Module")
    query_batch = require_images(query[None], "`query`")
    neighbour_batch = require_images(neighbour[None], "`neighbour`", image_shape(query_batch))
    dtypes = {parameter.dtype for parameter in net.module.parameters() if parameter.is_floating_point()}
    if other_dtypes := dtypes - {torch.float32}:
        problem = f"the model computes in {str(other_dtypes.pop()).removeprefix('torch.')}"
        raise RecipeError(problem, fix="Give model.float(), as gradients need its precision")
    random_module, random_notes = (untrained, ()) if untrained is not None else _randomize_weights(net.module)
    with place_on_device(net.module, "auto"):
        network = measure_network(net, image_shape(query_batch))
        pair = prepare_images(query_batch, net.module), prepare_images(neighbour_batch, net.module)
        explanations = {}
        for layer in find_layers(expressions, network):
            scored = ScoredLayer(layer, RankedLayer(layer.key, NO_POST_PROCESSING, similarity))
            explanation = explain_pair(network, scored, pair, random=random_module)
            explanations[str(layer.key)] = replace(explanation, notes=(*random_notes, *explanation.notes))
    return explanations


def _randomize_weights(module: nn.Module) -> tuple[nn.Module | None, tuple[str, ...]]:
    """A copy with random weights, or a line on why there is none."""
    for name, submodule in module.named_modules():
        parameter_names = [parameter_name for parameter_name, _ in submodule.named_parameters(recurse=False)]
        if parameter_names and not any(hasattr(submodule, reset) for reset in _RESETS):
            path = ".".join(filter(None, (name, parameter_names[0])))
            return None, (f"no check against random weights: {path} cannot be drawn anew; give `untrained`",)
    random_module = copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(_SEED)
        for submodule in random_module.modules():
            for reset in _RESETS:
                if hasattr(submodule, reset):
                    getattr(submodule, reset)()
                    break
    return random_module, ()
