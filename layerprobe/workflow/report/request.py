"""What `layerprobe report` is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from layerprobe.system.options import Flag

if TYPE_CHECKING:
    from layerprobe.workflow.run.runs import Run


@dataclass(frozen=True)
class ReportRequest:
    """A call of `layerprobe report`.

    Args:
        runs: at least one.
    """

    runs: Sequence["Run"]
    out: Annotated[
        Path | None,
        Flag(
            "Write the page to this .html file, or to - (stdout).",
            metavar="FILE",
            default="report.html in the first run's folder",
        ),
    ] = None
    metric: Annotated[str, Flag("Metric of the findings, and first shown: R@1, MAP@R ...", metavar="METRIC")] = "R@1"
    watch: Annotated[bool, Flag("Rewrite the page after every epoch while a run is trained or probed.")] = False

    def __post_init__(self) -> None:
        from layerprobe.workflow.run.metric_values import require_mean_over_queries  # it imports numpy and h5py
        from layerprobe.workflow.run.outputs import require_output

        require_mean_over_queries(self.metric)
        require_output(self.page, "html")

    @property
    def page(self) -> Path:
        """The file or stream that the page is written to."""
        return self.runs[0].folder / "report.html" if self.out is None else self.out
