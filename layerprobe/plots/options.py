"""What `layerprobe plot` is asked for, other than its runs and files."""

from dataclasses import dataclass
from typing import Annotated, Literal

from layerprobe.system.errors import UnknownNameError
from layerprobe.system.options import Flag, split_names
from layerprobe.values.views import PROJECTIONS

BY_BYTES = "bytes"

Option = Literal[
    "layers", "epoch", "metric", "query", "where", "queries", "key", "by", "classes"
]  # the fields of PlotOptions


@dataclass(frozen=True)
class PlotOptions:
    """The options of `layerprobe plot` other than its files.

    Args:
        layers: None leaves the choice to the plot.
        epoch: 0 = before any step; None for the last.
        metric: of the scores drawn, a share unless the plot takes `any_metric`; None for R@1.
    """

    layers: Annotated[
        tuple[str, ...] | None,
        Flag("Layers to show: LAYER[@pool][/post-processing] or a glob.", metavar="LAYER,...", parse=split_names),
    ] = None
    epoch: Annotated[int | None, Flag("Epoch to show (default: the last).", metavar="N", min=0)] = None
    query: Annotated[str | None, Flag("Image to show as the query (panels only).", metavar="ID")] = None
    where: Annotated[
        str | None,
        Flag(
            "Rule for choosing queries, or images in colour: 'LAYER right, LAYER wrong' or 'class NAME' (panels and "
            "map); worst or random (panels).",
            metavar="RULE",
        ),
    ] = None
    queries: Annotated[int | None, Flag("Number of queries to show (panels only).", metavar="N", min=1)] = None
    metric: Annotated[
        str | None,
        Flag("Metric to draw (default: R@1): R@10, MAP@R, NMI ...; loss (over-key only).", metavar="METRIC"),
    ] = None
    key: Annotated[
        str | None, Flag("Key of the recipe on the x axis: net.fc (over-key only).", metavar="SECTION.KEY")
    ] = None
    by: Annotated[
        str | None,
        Flag(
            "bytes: recall by the size of an image's vector (dims). pca, tsne or umap: the projection (map).",
            metavar="NAME",
        ),
    ] = None
    classes: Annotated[
        tuple[str, ...] | None,
        Flag("Classes to show: names or globs (map only).", metavar="CLASS,...", parse=split_names),
    ] = None

    def __post_init__(self) -> None:
        if self.by is not None and self.by not in (BY_BYTES, *PROJECTIONS):
            raise UnknownNameError("--by", self.by, [BY_BYTES, *PROJECTIONS])
