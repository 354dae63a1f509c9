"""What `layerprobe plot` is asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from layerprobe.plots.options import PlotOptions
from layerprobe.system.options import Flag

if TYPE_CHECKING:
    from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True)
class PlotRequest:
    """A call of `layerprobe plot`.

    Args:
        runs: at least one.
        out: .png, .pdf or .svg file, or a stream for a PNG; None: in the folder of the first run.
        csv: .csv file or stream for the numbers drawn; None writes none.
        lines: run -> the name of its line in figures over trainings; None: by the keys of the recipes.
        note: a line under the figure; empty for none.
    """

    kind: str
    runs: Sequence["Run"]
    out: Annotated[
        Path | None, Flag("Write the figure to this .png, .pdf or .svg file, or to - (stdout).", metavar="FILE")
    ] = None
    csv: Annotated[
        Path | None, Flag("Also write the drawn numbers to this .csv file, or to - (stdout).", metavar="FILE")
    ] = None
    options: PlotOptions = field(default_factory=PlotOptions)
    lines: Mapping[str, str] | None = None
    note: str = ""
