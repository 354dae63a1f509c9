"""Net: a network whose layers have the papers' names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layerprobe.values.network_input import ImageSize, OwnInput

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True, eq=False)
class Net:
    """A network that maps images to embeddings.

    Args:
        module: (B, C, H, W) -> (B, D).
        layers: the papers' names -> module paths, in execution order.
        new_parameters: names of the module's parameters that were not loaded from anywhere.
        parts: names of parts of these layers, such as a block's attention -> module paths; not among the layers.
        root: path of the model from elsewhere that the module wraps; module paths that a user writes lie below it.
        image_size: of the images that this model was built for; None where any will do.
        channels: C, 3 for colour images and 1 for grey ones.
        own_input: the images that this model was trained on; None where nothing is known of them.
        final_norm: path of the norm that the model applies after its last block; None where it has none.
        prefix_tokens: how many tokens before the patches the model says it has; None where it says nothing.
        classifier: path of the final classifier, whose input stands for the model's output; None where it gives an
            embedding.
        own_pool: whether layers are pooled by default as the model itself pools its last map or tokens; False: the
            papers' max.
        versions: the packages that the model comes from, each with its version.
        files: of a user's own code, path from the file's folder -> SHA-256 of all that was imported from there; the
            file itself under the empty path.
        own_weights: gives the model's weights that come with it, by its names; None where the module wraps none.
        convert: gives tensors by the names of the model's author those of the model; None where nothing does.
    """

    module: nn.Module
    layers: Mapping[str, str]
    embedding_dim: int
    new_parameters: frozenset[str]
    notes: tuple[str, ...] = ()
    parts: Mapping[str, str] = field(default_factory=dict)
    root: str = ""
    image_size: ImageSize | None = None
    channels: int = 3
    own_input: OwnInput | None = None
    final_norm: str | None = None
    prefix_tokens: int | None = None
    classifier: str | None = None
    own_pool: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    own_weights: Callable[[], Mapping[str, Tensor]] | None = None
    convert: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
