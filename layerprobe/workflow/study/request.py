"""What `layerprobe study` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from layerprobe.system.naming import device_names
from layerprobe.system.options import Flag

if TYPE_CHECKING:
    from layerprobe.workflow.study.study_file import Study


@dataclass(frozen=True)
class StudyRequest:
    """A call of `layerprobe study`.

    Args:
        jobs: None for one for each of the devices.
        scores: it gets the scores of all trainings.
    """

    study: "Study"
    cache: Path
    jobs: Annotated[
        int | None,
        Flag("Trainings at once, each with one CPU thread.", metavar="N", min=1, default="one for each device"),
    ] = None
    devices: Annotated[
        tuple[str, ...],
        Flag(
            "Devices that the trainings take in turn, such as cuda:0,cuda:1.",
            name="--device",
            metavar="DEVICE,...",
            parse=device_names,
        ),
    ] = ("auto",)
    data: Annotated[tuple[str, ...], Flag("Where a data set of its recipes lies; repeatable.", metavar="NAME:DIR")] = ()
    scores: Annotated[Path | None, Flag("CSV of finished trainings' scores: read, and completed.", metavar="FILE")] = (
        None
    )

    @property
    def at_once(self) -> int:
        """How many trainings may run at once."""
        return len(self.devices) if self.jobs is None else self.jobs
