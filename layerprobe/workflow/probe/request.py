"""What `layerprobe probe` is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from layerprobe.registry import METRICS
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.launch import Launch
from layerprobe.system.naming import require_device_name
from layerprobe.system.options import Cluster, Device, Flag, Memory, Workers, split_ks, split_names
from layerprobe.values.epochs import require_epochs
from layerprobe.values.layers import SHARD_ROWS, VECTOR_SIMILARITIES, require_pool
from layerprobe.values.scores import recall_of

if TYPE_CHECKING:
    from layerprobe.post_processing.chain import Chain

_STORED, _PRECISIONS = ("float32", "float16"), ("float32", "bfloat16")


@dataclass(frozen=True)
class ProbeRequest:
    """A call of `layerprobe probe`; None takes the recipe's [probe], or everything.

    Args:
        similarity: binary codes are searched by hamming all the same.
        memory: bytes that a ranking may allocate; None for no limit.
        store_post: images of the sample that the one post-processing is fitted on; None stores layers' own features.
        store: None for the type in which features of the epoch are stored, or float32.
        precision: None for that of the stored features of the epoch, or float32.
        model: the run's network as the user names it, as for `Recipe.at`; None where the user names none.
        launch: the processes that extract and rank together.
    """

    layers: Annotated[
        tuple[str, ...] | None,
        Flag("Layers to probe: names, globs or module paths.", metavar="LAYER,...", parse=split_names),
    ] = None
    pools: Annotated[
        tuple[str, ...] | None,
        Flag("Pooling: max, avg, gem, grid:s, cls or cls+avg.", name="--pool", metavar="POOL,...", parse=split_names),
    ] = None
    epochs: Annotated[str, Flag("Epochs to probe: all, last, best or numbers.", metavar="EPOCH,...")] = "all"
    splits: Annotated[
        tuple[str, ...] | None,
        Flag("Splits to probe: train, validation or test.", metavar="SPLIT,...", parse=split_names),
    ] = None
    post: Annotated[
        tuple[str, ...] | None,
        Flag("Post-processing of the features, such as none,l2+pca:64+l2.", metavar="POST,...", parse=split_names),
    ] = None
    fit: Annotated[str, Flag("Split on which post-processing is fitted.", metavar="train|gallery")] = "train"
    equal_dim: Annotated[
        int | None,
        Flag(
            "Also bring each layer to D dimensions by PCA, partial whitening and random projection.", metavar="D", min=1
        ),
    ] = None
    similarity: Annotated[str | None, Flag("Similarity: cosine, euclidean or dot.", metavar="NAME")] = None
    ks: Annotated[tuple[int, ...] | None, Flag("K of Recall@K.", name="--k", metavar="K,...", parse=split_ks)] = None
    metrics: Annotated[
        tuple[str, ...] | None,
        Flag("Further metrics: MAP@R, mAP, MRR, NMI ...", metavar="METRIC,...", parse=split_names),
    ] = None
    cluster: Cluster = None
    gallery_size: Annotated[int | None, Flag("Also R@K in a gallery thinned to N items.", metavar="N")] = None
    memory: Memory = None
    store: Annotated[
        str | None, Flag("Type in which features are stored.", metavar="float32|float16", default="as stored")
    ] = None
    store_post: Annotated[
        int | None,
        Flag("Fit --post on at most N images, then store post-processed features alone.", metavar="N", min=2),
    ] = None
    precision: Annotated[
        str | None, Flag("Precision of the network's products.", metavar="float32|bfloat16", default="as stored")
    ] = None
    shard_rows: Annotated[
        int, Flag("Images of a split above which its features fill several files.", metavar="N", min=1)
    ] = SHARD_ROWS
    device: Device = "auto"
    workers: Workers = None
    model: str | None = None
    launch: Launch = field(default_factory=Launch, compare=False)

    def __post_init__(self) -> None:
        from layerprobe.values.scores import SPLITS
        from layerprobe.workflow.probe.chains import parse_chains  # it imports numpy

        if self.similarity not in (None, *VECTOR_SIMILARITIES):
            raise UnknownNameError("similarity", self.similarity or "", VECTOR_SIMILARITIES)
        for name in self.metrics or ():
            if name not in METRICS and recall_of(name) is None and not name.startswith("R@"):
                raise UnknownNameError("metric", name, METRICS)
        for name in self.pools or ():
            require_pool(name)
        if self.store not in (None, *_STORED):
            raise UnknownNameError("type", self.store or "", _STORED)
        if self.precision not in (None, *_PRECISIONS):
            raise UnknownNameError("precision", self.precision or "", _PRECISIONS)
        if self.shard_rows != SHARD_ROWS:
            _require_batches(self.shard_rows)
        for name in self.splits or ():
            if name not in SPLITS:
                raise UnknownNameError("split", name, SPLITS)
        require_epochs(self.epochs, ("all", "last", "best"))
        require_device_name(self.device)
        chains = parse_chains(self.post or (), self.fit, self.equal_dim)
        if self.store_post is not None:
            _require_one_map(chains)


def _require_batches(rows: int) -> None:
    """Check that files begin with a batch, so that the features are those of one file bit by bit."""
    from layerprobe.measure.extraction import BATCH_SIZE  # it imports numpy

    if rows % BATCH_SIZE:
        fix = f"Give a multiple of {BATCH_SIZE}, such as {-(-rows // BATCH_SIZE) * BATCH_SIZE:,}"
        raise RecipeError(f"--shard-rows {rows}: each file begins with a batch of {BATCH_SIZE} images", fix=fix)


def _require_one_map(chains: "Sequence[Chain]") -> None:
    """Check that there is one post-processing, whose numbers can be stored in place of a layer's own."""
    if len(chains) != 1 or not chains[0].parts:
        fix = "Give one post-processing, such as --post l2+pca:256+l2"
        raise RecipeError("--store-post stores what one post-processing gives", fix=fix)
    (chain,) = chains
    if chain.number != "float32" or len(chain.members()) > 1:
        what = "several draws" if len(chain.members()) > 1 else chain.number
        raise RecipeError(f"--store-post: {chain.text} gives {what}", fix="Give one that gives float32 numbers once")
