"""What `layerprobe choose` is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from layerprobe.system.errors import RecipeError
from layerprobe.system.naming import require_device_name
from layerprobe.values.epochs import require_epochs
from layerprobe.values.indexes import IndexKind
from layerprobe.workflow.run.metric_values import require_mean_over_queries

NPY = ".npy"
NEAR_METRIC = "MAP@R"  # decides between candidates whose Recall@K is nearly the same
FEATURE_SUFFIXES = (".npz", NPY, ".pt", ".pth", ".h5", ".hdf5")  # of files of a user's features


@dataclass(frozen=True)
class ChooseRequest:
    """A call of `layerprobe choose`.

    Args:
        epochs: all, which are all ranked ones; last; or numbers separated by commas.
        within: points of the metric that do not matter, 0 to 100.
        layers: the candidates, `LAYER[@pool][/reduction]` or globs; empty for all.
        metric: that decides: R@K, or another mean over queries.
        indexes: kinds of indexes of the chosen layer that are compared with the exact search.
        cluster: whose values are the units of intervals and folds, as of `compare`; None for the classes.
    """

    epochs: str = "all"
    within: float = 1.0
    device: str = "auto"
    layers: tuple[str, ...] = ()
    metric: str = "R@1"
    indexes: tuple[IndexKind, ...] = ()
    cluster: str | None = None

    def __post_init__(self) -> None:
        require_points(self.within)
        require_mean_over_queries(self.metric)
        require_epochs(self.epochs, ("all", "last"))
        require_device_name(self.device)


def require_points(within: float) -> None:
    """Check the points of the metric that do not matter."""
    if not 0 <= within <= 100:
        raise RecipeError(f"within {within:g}: not a number of points from 0 to 100", fix="Leave it out for 1")
