"""What `layerprobe choose` is asked for."""

from dataclasses import dataclass
from typing import Annotated

from layerprobe.system.errors import RecipeError
from layerprobe.system.naming import require_device_name
from layerprobe.system.options import Cluster, Device, Flag, Memory, split_names
from layerprobe.values.costs import IndexKind, index_kinds
from layerprobe.values.epochs import require_epochs

NPY = ".npy"
WITHIN = 1.0  # points of the metric that do not matter
NEAR_METRIC = "MAP@R"  # decides between candidates whose Recall@K is nearly the same
FEATURE_SUFFIXES = (".npz", NPY, ".pt", ".pth", ".h5", ".hdf5")  # of files of a user's features


@dataclass(frozen=True)
class ChooseRequest:
    """A call of `layerprobe choose`.

    Args:
        within: 0 to 100.
        layers: `LAYER[@pool][/post_processing]` or globs; empty for all.
        indexes: kinds of indexes of the chosen layer that are compared with the exact search.
        cluster: whose values are the units of intervals and folds, as of `compare`; None for the classes.
        budget: bytes an image at most; None for any number.
    """

    epochs: Annotated[str, Flag("Candidate epochs: all probed ones (all), last, or numbers.", metavar="EPOCH,...")] = (
        "all"
    )
    within: Annotated[float, Flag("Points of the metric that do not matter.", metavar="POINTS")] = WITHIN
    device: Device = "auto"
    layers: Annotated[
        tuple[str, ...],
        Flag("Candidates, such as pool5.*,fc6/*; default: all probed ones.", metavar="LAYER,...", parse=split_names),
    ] = ()
    metric: Annotated[str, Flag("The metric that decides: R@1, R@10, MAP@R, mAP ...", metavar="METRIC")] = "R@1"
    indexes: Annotated[
        tuple[IndexKind, ...],
        Flag(
            "Also compare indexes of the choice: flat, ivfpq, hnsw (by faiss).",
            name="--index",
            metavar="KIND,...",
            parse=lambda text: index_kinds(split_names(text)),
        ),
    ] = ()
    cluster: Cluster = None
    budget: Annotated[
        int | None, Flag("Bytes an image at most; smaller maps and codes are tried, too.", metavar="BYTES")
    ] = None

    memory: Memory = None

    def __post_init__(self) -> None:
        from layerprobe.workflow.run.metric_values import require_mean_over_queries  # it imports numpy and h5py

        if not 0 <= self.within <= 100:
            message = f"within {self.within:g}: not a number of points from 0 to 100"
            raise RecipeError(message, fix=f"Leave it out for {WITHIN:g}")
        if self.budget is not None and self.budget < 1:
            raise RecipeError(f"budget {self.budget}: not a number of bytes", fix="Give at least 1, such as 128")
        require_mean_over_queries(self.metric)
        require_epochs(self.epochs, ("all", "last"))
        require_device_name(self.device)
