"""What `layerprobe probe` is asked for."""

from __future__ import annotations

from dataclasses import dataclass

from layerprobe.registry import METRICS
from layerprobe.system.errors import UnknownNameError
from layerprobe.system.naming import require_device_name
from layerprobe.values.epochs import require_epochs
from layerprobe.values.keys import VECTOR_SIMILARITIES
from layerprobe.values.metric_names import recall_of
from layerprobe.values.pooling import require_pool
from layerprobe.values.scores import SPLITS
from layerprobe.workflow.probe.reducing import FITTED_ON, parse_reductions


@dataclass(frozen=True)
class ProbeRequest:
    """A call of `layerprobe probe`; None takes the recipe's [probe], or everything.

    Args:
        pools: max, avg, gem, grid:s, cls or cls+avg.
        epochs: all, last, best, or epochs with commas between.
        similarity: cosine, euclidean or dot; binary codes are searched by hamming all the same.
        device: auto, cpu, cuda or cuda:i.
        memory: bytes that a ranking may allocate; None for no limit.
        cluster: the column whose texts are the units of intervals, or `parent`; None for the classes.
        gallery_size: how many items a query searches in a smaller gallery, thinned by image, in which Recall@K is
            measured too; None for none.
        fit: the split on which reductions are fitted: train, or gallery, the searched items.
        equal_dim: the dimension to which layers are also brought, in several ways; None for none.
        model: the run's network as the user names it, as for `Recipe.at`; None where the user names none.
    """

    layers: tuple[str, ...] | None = None
    pools: tuple[str, ...] | None = None
    epochs: str = "all"
    splits: tuple[str, ...] | None = None
    similarity: str | None = None
    ks: tuple[int, ...] | None = None
    metrics: tuple[str, ...] | None = None
    device: str = "auto"
    workers: int | None = None
    memory: int | None = None
    cluster: str | None = None
    gallery_size: int | None = None
    reduce: tuple[str, ...] | None = None
    fit: str = FITTED_ON
    equal_dim: int | None = None
    model: str | None = None

    def __post_init__(self) -> None:
        if self.similarity not in (None, *VECTOR_SIMILARITIES):
            raise UnknownNameError("similarity", self.similarity or "", VECTOR_SIMILARITIES)
        for name in self.metrics or ():
            if name not in METRICS and recall_of(name) is None and not name.startswith("R@"):
                raise UnknownNameError("metric", name, METRICS)
        for name in self.pools or ():
            require_pool(name)
        for name in self.splits or ():
            if name not in SPLITS:
                raise UnknownNameError("split", name, SPLITS)
        require_epochs(self.epochs, ("all", "last", "best"))
        require_device_name(self.device)
        parse_reductions(self.reduce or (), self.fit, self.equal_dim)
