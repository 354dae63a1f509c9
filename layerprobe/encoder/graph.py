"""A network cut after a layer, from pixels to features, as graphs of torch.export and of ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from layerprobe.hooks import Layer, capture_layers, member_hooks
from layerprobe.hooks.measuring import REFUSALS
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.sources.hub import quiet
from layerprobe.system.errors import LayerprobeError
from layerprobe.system.files import SteadyFile
from layerprobe.system.wording import as_size
from layerprobe.values.layers import LayerKey

if TYPE_CHECKING:
    from torch.export import ExportedProgram
    from torch.fx import GraphModule

_RECORDED_BATCH = 2  # 0 and 1 would be constants of the graph
_OPSET = 20
_MOST_ONNX = 2**31 - 2**24  # bytes of weights: protobuf's limit, less room for the graph


@dataclass(frozen=True, eq=False)
class Parts:
    """What turns pixels into the features of a layer.

    Args:
        net: images as `normalise` gives them -> anything; on the CPU, with its weights.
        layer: where features are taken.
        normalise: uint8 (B, H, W, C) -> the network's input.
        invert: whether pixels are inverted before.
        shape: (H, W, C) of an image.
        finish: pooled features, float64 (B, D) -> (B, D'), such as a fitted post-processing and L2.
    """

    net: nn.Module
    layer: Layer
    normalise: Callable[[Tensor], Tensor]
    invert: bool
    shape: tuple[int, int, int]
    finish: FittedStep

    def pooled(self, images: Tensor) -> Tensor:
        """uint8 (B, H, W, C) -> (B, D) float32, before `finish`; of `A+B` the layers' features side by side.

        Raises:
            NumericError: GeM meets a negative value.
        """
        with capture_layers(self.net, member_hooks([self.layer])) as features_of:
            return self.pooled_by(features_of, images)

    def pooled_by(self, features_of: Callable[[Tensor], dict[LayerKey, Tensor]], images: Tensor) -> Tensor:
        """As `pooled`, by hooks that stand already."""
        features = features_of(self.normalise(~images if self.invert else images))
        members = [features[hook.key] for hook in member_hooks([self.layer])]
        return members[0] if len(members) == 1 else torch.cat(members, dim=1)


class _RecordedModule(nn.Module):
    """What torch.export records: the network is a submodule, so that its weights have their names."""

    def __init__(self, parts: Parts, features_of: Callable[[Tensor], dict[LayerKey, Tensor]]) -> None:
        super().__init__()
        self.net = parts.net
        self._parts, self._features_of = parts, features_of

    def forward(self, images: Tensor) -> Tensor:
        """uint8 (B, H, W, C) -> features, see `apply_map`."""
        return apply_map(self._parts.finish, self._parts.pooled_by(self._features_of, images))


def apply_map(finish: FittedStep, pooled: Tensor) -> Tensor:
    """Features (B, D) through a map, in float64 -> (B, D') float32, float16 or int8, or uint8 of packed bits."""
    features = finish(pooled.double())
    return features.float() if features.dtype == torch.float64 else features


def record_graph(parts: Parts) -> ExportedProgram:
    """The graph from pixels to features, for any number of images, without what the features do not need.

    The whole forward is recorded, as torch.export cannot record one that ends early. Nodes that nothing uses are then
    erased from the last to the first, which `eliminate_dead_code` does not do for operators that it does not know, with
    the weights that only they use. In-place operators are replaced before: one without users may still change a value.

    Raises:
        LayerprobeError: torch.export cannot record this network.
    """
    images = torch.zeros(_RECORDED_BATCH, *parts.shape, dtype=torch.uint8)
    sizes = ({0: torch.export.Dim("batch")},)
    try:
        with quiet(), capture_layers(parts.net, member_hooks([parts.layer]), recorded=True) as features_of:
            module = _RecordedModule(parts, features_of)
            program = torch.export.export(module, (images,), dynamic_shapes=sizes).run_decompositions({})
            needed = _remove_unused(cast("GraphModule", program.module()))
            return torch.export.export(needed, (images,), dynamic_shapes=sizes)
    except REFUSALS as error:
        if isinstance(error, LayerprobeError):
            raise
        reason = " ".join(str(error).split())[:300]
        problem = f"torch.export cannot record the network up to {parts.layer.key}: {reason}"
        raise LayerprobeError(problem, fix="Add --format npz, which exports the map of its features alone") from error


def _remove_unused(graph: GraphModule) -> GraphModule:
    for node in reversed(list(graph.graph.nodes)):
        if node.op not in ("placeholder", "output") and not node.users:
            graph.graph.erase_node(node)
    used = {str(node.target) for node in graph.graph.nodes if node.op == "get_attr"}
    for name, _ in [*graph.named_parameters(), *graph.named_buffers()]:
        if name not in used:
            path, _, attribute = name.rpartition(".")
            delattr(graph.get_submodule(path), attribute)
    graph.recompile()
    return graph


def save_graph(program: ExportedProgram, path: Path) -> None:
    """Write a graph as a .pt2 file."""
    # torch hides the system's error of a full disk behind its own.
    with SteadyFile(path, "w+") as sink, warnings.catch_warnings(action="ignore"):
        torch.export.save(program, sink)
        sink.require_written()


def save_onnx(program: ExportedProgram, path: Path) -> None:
    """Write a graph as an ONNX file, with its weights inside.

    Raises:
        LayerprobeError: they are more than such a file can hold.
    """
    size = sum(tensor.nbytes for tensor in program.state_dict.values())
    if size > _MOST_ONNX:
        problem = f"model.onnx: the weights have {as_size(size)}, and an ONNX file holds at most {as_size(_MOST_ONNX)}"
        raise LayerprobeError(problem, fix="Leave onnx out of --format")
    with quiet():
        converted = torch.onnx.export(program, dynamo=True, opset_version=_OPSET, external_data=False, verbose=False)
        if converted is None:
            raise ValueError("torch.onnx.export gave nothing")
        converted.save(path, external_data=False)
