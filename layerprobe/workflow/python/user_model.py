"""A module in memory: its layers, and its features of given images."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import Dataset

from layerprobe.hooks import (
    LayerInfo,
    Measured,
    execution_order,
    find_classifier,
    find_hooks,
    find_layers,
    list_layers,
    measure_layers,
    member_hooks,
    outlying_tokens,
    skipped_pool_lines,
    without_classifier,
)
from layerprobe.hooks.hooks import parts_by_path
from layerprobe.hooks.layouts import Unclear
from layerprobe.measure import extraction
from layerprobe.measure.extraction import BATCH_SIZE, side_by_side
from layerprobe.nets.blocks import block_names, part_names
from layerprobe.nets.net import Net
from layerprobe.system.computing import require_numbers
from layerprobe.system.errors import RecipeError, names_of, require_type, wrong_type
from layerprobe.tables.formats import PrintedTables
from layerprobe.tables.tables import TextTable
from layerprobe.values.layers import OUTPUT, members_of
from layerprobe.values.network_input import ImageSize, as_size
from layerprobe.values.records import RecordedNetwork
from layerprobe.workflow.python.loaders import ImageShape, image_shape, read_images
from layerprobe.workflow.run.from_recipe import choose_device


def net_of(model: nn.Module | Net) -> Net:
    """A module with named layers: its blocks and their parts by their paths, and `output`."""
    if isinstance(model, Net):
        return model
    require_type("model", model, nn.Module, "a torch.nn.Module")
    require_numbers(model)
    module = model.module if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) else model
    while isinstance(inner := getattr(module, "_orig_mod", None), nn.Module):  # compiled as a whole
        module = inner
    blocks = block_names(module)
    prefix_tokens = getattr(module, "num_prefix_tokens", None)  # timm's
    return Net(
        module=module,
        layers={OUTPUT: ""} | {name: name for name in blocks},
        embedding_dim=0,  # only losses use it
        new_parameters=frozenset(),
        parts={name: name for name in part_names(module, blocks)},
        prefix_tokens=prefix_tokens if isinstance(prefix_tokens, int) else None,
        own_pool=True,
    )


def measure_network(net: Net, shape: ImageShape) -> Measured:
    """The layers of a network for images (C, H, W).

    For a user's model this adds the final norm and the classifier, whose input `output` then is, and drops `output`
    where it is neither map, tokens nor vector.
    """
    channels, *sides = shape
    image_size = as_size(*sides)
    net = replace(net, channels=channels)
    if net.layers.get(OUTPUT) == "":
        net = replace(net, classifier=find_classifier(net.module, image_size, (channels,)))
    try:
        with without_classifier(net.module, net.classifier):
            network = measure_layers(net, image_size)
    except RecipeError as error:
        raise RecipeError(
            error.message, fix="Give images of another size, or of the channels that the model takes"
        ) from error
    if net.layers.get(OUTPUT) != "":
        return network
    unclear = any(isinstance(call.layout, Unclear) for call in network.calls.get("", ()))
    absent = {OUTPUT if unclear else "", net.classifier}
    layers = {name: path for name, path in net.layers.items() if name not in absent}
    return replace(network, net=replace(net, layers=layers, final_norm=_find_final_norm(net, network)))


def network_facts(network: Measured) -> RecordedNetwork | None:
    """The layers of a model and its embedding, which is its output; None where that is no layer."""
    if OUTPUT not in network.net.layers:
        return None
    (embedding, *_) = find_hooks([OUTPUT], network)
    return RecordedNetwork(tuple(execution_order(network.net.layers, network)), embedding.key, {}, None, {})


def _find_final_norm(net: Net, network: Measured) -> str | None:
    """The path of the first norm after the last block that preserves the shape of the block's output."""
    blocks = [call for name, path in net.layers.items() if name != OUTPUT for call in network.calls.get(path, ())]
    block = max(blocks, key=lambda call: call.order, default=None)
    parts = parts_by_path(net.module)
    norms = [
        (call.order, path)
        for path, calls in network.calls.items()
        for call in calls
        if block and call.order > block.order and call.shape == block.shape and "Norm" in type(parts[path]).__name__
    ]
    return min(norms)[1] if norms else None


@contextlib.contextmanager
def place_on_device(module: nn.Module, device: str) -> Iterator[torch.device]:
    """Move a module to a device, which is yielded, and back at the end of the block.

    Args:
        device: auto (where the module is), cpu, cuda, cuda:i or mps.
    """
    devices = list(dict.fromkeys(tensor.device for tensor in (*module.parameters(), *module.buffers())))
    original_device = devices[0] if devices else torch.device("cpu")
    if device == "auto":
        yield original_device
        return
    if len(devices) > 1:
        raise RecipeError(f"the model lies on {', '.join(map(str, devices))}", fix='Leave it there: device="auto"')
    try:
        module.to(choose_device(device))
        yield choose_device(device)
    finally:
        module.to(original_device)


class Layers(tuple[LayerInfo, ...]):
    """The layers of a model in execution order, displayed as a table."""

    __slots__ = ()

    def _table(self) -> PrintedTables:
        rows = tuple((layer.name, str(layer.layout), str(layer.dim), str(layer.calls)) for layer in self)
        columns, notes = ("layer", "output", "dim", "calls"), classifier_notes(layer.classifier for layer in self)
        return PrintedTables((TextTable(columns, rows, numbers=frozenset({2, 3}), notes=notes),))

    def __repr__(self) -> str:
        return str(self._table())

    def _repr_html_(self) -> str:
        return self._table()._repr_html_()


def layers(model: nn.Module | Net, image_size: ImageSize | ImageShape = 224) -> Layers:
    """List a model's layers: its blocks, which `layers="*"` of `probe` takes, and its own output.

    Any other module can be probed by its path.

    >>> import layerprobe
    >>> from torch import nn
    >>> first, second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3)
    >>> model = nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), nn.Flatten())
    >>> listing = layerprobe.layers(model, image_size=8)
    >>> [(layer.name, layer.kind, layer.dim) for layer in listing]
    [('1', 'map', 4), ('3', 'map', 8), ('output', 'vector', 128)]

    Args:
        model: any module that takes images (B, C, H, W); it is not changed.
        image_size: side of square images in pixels, (H, W), or (C, H, W). C is 3 where it is not given, or 1 for a
            model that takes no images of 3 channels.

    Returns:
        A tuple that is displayed as a table; each layer has `name`, `module` (its path), `dim` (length of an image's
        feature vector), `kind` (map, tokens or vector), `layout` (its shape) and `calls` (number of calls in a
        forward). An output of another kind, such as boxes, is omitted. `output` is the embedding: of a model that ends
        in a classifier the classifier's input, as a line below the table says; the classifier is a layer by its path.

    Raises:
        RecipeError: the model does not take images of this size.
        TypeError: an argument of another type.
    """
    net = net_of(model)
    *channel_counts, height, width = _parse_image_size(image_size)
    shapes = [(channels, height, width) for channels in channel_counts or (3, 1)]
    network = _measure_first_size(net, shapes).net
    with without_classifier(network.module, network.classifier):
        return Layers(list_layers(network, as_size(height, width)))


def _parse_image_size(image_size: object) -> list[int]:
    """(H, W), or (C, H, W)."""
    numbers = [image_size, image_size] if isinstance(image_size, Integral) else image_size
    of_numbers = isinstance(numbers, tuple | list) and all(isinstance(number, Integral) for number in numbers)
    if not isinstance(numbers, tuple | list) or not of_numbers or isinstance(image_size, bool):
        raise wrong_type("image_size", image_size, "a whole number, (H, W) or (C, H, W), in pixels")
    if len(numbers) not in (2, 3) or min(numbers) < 1:
        raise ValueError(f"image_size is {image_size}: must be a whole number, (H, W) or (C, H, W), each at least 1")
    return list(map(int, numbers))


def _measure_first_size(net: Net, shapes: Sequence[ImageShape]) -> Measured:
    """The layers of a network for the first of some shapes that it takes."""
    first_shape, *other_shapes = shapes
    try:
        return measure_network(net, first_shape)
    except RecipeError:
        for shape in other_shapes:
            with contextlib.suppress(RecipeError):
                return measure_network(net, shape)
        raise


def classifier_notes(paths: Iterable[str | None]) -> tuple[str, ...]:
    """A line on each classifier whose input is taken for the model's output."""
    return tuple(
        f"{OUTPUT} is the input of the model's classifier; layer {path} is what that gives" for path in paths if path
    )


def extract(
    model: nn.Module | Net, layers: str | Sequence[str], images: Tensor | Iterable[Any] | Dataset[Any]
) -> dict[str, NDArray[np.float32]]:
    """Features of images at some layers, pooled to a vector each.

    The model runs in evaluation mode on its own device, and is not changed.

    >>> import torch, layerprobe
    >>> model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU())
    >>> features = layerprobe.extract(model, ["0@max", "1@avg"], torch.ones(5, 3, 8, 8))
    >>> {name: values.shape for name, values in features.items()}
    {'0@max': (5, 4), '1@avg': (5, 4)}

    Args:
        model: any module that takes images (B, C, H, W).
        layers: layer expressions, as on the command line: names that `layers` lists, globs, module paths, each with a
            pool or without (`blocks.5@avg`, `blocks.*`, `*`); `A+B` concatenates layers, each L2-normalised.
        images: floats (N, C, H, W), preprocessed for the model; or batches of these, with labels or without, such as a
            DataLoader gives, or a Dataset of such images.

    Returns:
        Layer with its pool -> float32 (N, D), in execution order.

    Raises:
        UnknownNameError: unknown layer; the message names the nearest.
        RecipeError: a pool that a layer cannot have.
        DataError: images of another type or shape.
        NumericError: GeM of a layer that has values below 0.
        TypeError: an argument of another type.
    """
    net = net_of(model)
    expressions, batches = names_of("layers", layers), read_images(images, BATCH_SIZE)
    first_batch = next(batches)
    with place_on_device(net.module, "auto") as device:
        network = measure_network(net, image_shape(first_batch))
        selected = find_layers(expressions, network)
        hooks = member_hooks(selected)
        for message in [*skipped_pool_lines(expressions, network), *outlying_tokens(hooks)]:
            warnings.warn(message, stacklevel=2)
        feature_batches = list(extraction.extract(net.module, hooks, chain([first_batch], batches), device=device))
    values = {hook.key: np.concatenate([batch[hook.key] for batch in feature_batches]) for hook in hooks}
    return {str(layer.key): side_by_side([values[key] for key in members_of(layer.key, values)]) for layer in selected}
