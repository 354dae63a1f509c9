"""What `layerprobe labels` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from layerprobe.system.options import Flag, split_names


@dataclass(frozen=True)
class LabelsRequest:
    """A call of `layerprobe labels`.

    Args:
        layers: None: the six that find the right class most often.
        splits: None: all whose features are stored.
        epoch: None: the last.
        csv: file or stream for a row for each image to look at; None writes none.
    """

    layers: Annotated[
        tuple[str, ...] | None,
        Flag("Layers whose neighbours vote (default: the six of highest R@1).", metavar="LAYER,...", parse=split_names),
    ] = None
    splits: Annotated[
        tuple[str, ...] | None,
        Flag(
            "Splits whose images are compared with one another (default: all).", metavar="SPLIT,...", parse=split_names
        ),
    ] = None
    epoch: Annotated[int | None, Flag("Epoch (default: the last).", metavar="N", min=0)] = None
    csv: Annotated[
        Path | None, Flag("Also write every image to look at to this .csv file, or to - (stdout).", metavar="FILE")
    ] = None
