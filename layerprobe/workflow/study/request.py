"""What `layerprobe study` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from layerprobe.system.options import Device, Flag

if TYPE_CHECKING:
    from layerprobe.workflow.study.study_file import Study


@dataclass(frozen=True)
class StudyRequest:
    """A call of `layerprobe study`.

    Args:
        scores: it gets the scores of all trainings.
    """

    study: "Study"
    cache: Path
    jobs: Annotated[int, Flag("Trainings at once, each with one CPU thread.", min=1)] = 1
    device: Device = "auto"
    data: Annotated[tuple[str, ...], Flag("Where a data set of its recipes lies; repeatable.", metavar="NAME:DIR")] = ()
    scores: Annotated[Path | None, Flag("CSV of finished trainings' scores: read, and completed.", metavar="FILE")] = (
        None
    )
