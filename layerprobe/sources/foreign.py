"""What a library, or a user's file, gives: a model without its classifier, and what it says of itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from layerprobe.values.network_input import ImageSize, OwnInput

if TYPE_CHECKING:
    from torch import Tensor, nn

NO_OWN_SIZE = 224  # of a model that does not state its input


@dataclass(frozen=True, eq=False)
class Foreign:
    """A model as its library builds it.

    Args:
        module: images (B, C, H, W) -> the model's output without classifier.
        image_size: of the images that it was built for; None for its own.
        final_norms: paths of modules that may be the norm after its last block; the first that is one counts.
        prefix_tokens: how many tokens before the patches it says it has, if it says so.
        classifier: path at which the model had one, whose input its output now is; empty where it had none.
        files: of a user's own code, path from the file's folder -> SHA-256 of all that was imported from there; the
            file itself under the empty path.
        convert: as in `nets.conversion.fit_or_convert`.
    """

    module: nn.Module
    own_input: OwnInput | None = None
    image_size: ImageSize | None = None
    final_norms: tuple[str, ...] = ()
    prefix_tokens: int | None = None
    notes: tuple[str, ...] = ()
    classifier: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    convert: Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]] | None = None
