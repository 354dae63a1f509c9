"""What `layerprobe summary` is asked for."""

from dataclasses import dataclass
from typing import Annotated

from layerprobe.system.options import Cluster, Flag


@dataclass(frozen=True)
class SummaryRequest:
    """A call of `layerprobe summary`.

    Args:
        cluster: the column whose texts are the units of resampling; None for the classes.
        metric: R@1, or another stored mean over queries.
    """

    cluster: Cluster = None
    metric: Annotated[str, Flag("Mean over queries to show: R@1, R@10, MAP@R, mAP ...", metavar="METRIC")] = "R@1"

    def __post_init__(self) -> None:
        from layerprobe.workflow.run.metric_values import require_mean_over_queries  # it imports numpy and h5py

        require_mean_over_queries(self.metric)
