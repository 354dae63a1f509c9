"""What `layerprobe compare` is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from layerprobe.system.options import Cluster, Flag, Memory
from layerprobe.values.intervals import ESTIMANDS, IntervalKind, estimand_of


@dataclass(frozen=True)
class CompareRequest:
    """A call of `layerprobe compare`.

    Args:
        a: [RUN[#epoch]:]LAYER[@pool][/post-processing][~similarity] or RUN[#epoch]; the layer may be a glob.
        b: likewise.
    """

    cache: Path
    a: str
    b: str
    metric: Annotated[str, Flag("R@K, MAP@R, mAP, MRR ...", metavar="METRIC")] = "R@1"
    split: Annotated[str, Flag("train, validation or test.", metavar="SPLIT")] = "test"
    interval: Annotated[
        str, Flag("Generalise to new queries (gallery) or to new classes (redraw).", metavar="|".join(ESTIMANDS))
    ] = "gallery"
    cluster: Cluster = None
    seeds: Annotated[bool, Flag("Compare all trainings of both experiments, paired by seed.")] = False
    memory: Memory = None

    @property
    def kind(self) -> IntervalKind:
        """The kind of the intervals."""
        return IntervalKind(estimand_of(self.interval), self.cluster)
