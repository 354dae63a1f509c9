"""The requested epochs, splits, layers, K and metrics of a probe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from layerprobe.data.splits import Dataset
from layerprobe.recipe.recipe import Recipe
from layerprobe.reductions.chain import Chain, parse_chain
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.progress import Listener
from layerprobe.system.wording import first_named
from layerprobe.taps import (
    Layer,
    Measured,
    Tap,
    find_layers,
    is_computed,
    keep_calls_without,
    member_taps,
    outlying_tokens,
)
from layerprobe.values.epochs import named_epochs
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.workflow.probe.measures import Measures, build_measures, with_gallery_size
from layerprobe.workflow.probe.reducing import (
    FITTED_ON,
    InapplicableReduction,
    asked_chains,
    left_out,
    require_fitting,
    require_some,
)
from layerprobe.workflow.probe.request import ProbeRequest as ProbeRequest
from layerprobe.workflow.probe.resampling import Resampling, resampling_of
from layerprobe.workflow.probe.right_items import require_right_items
from layerprobe.workflow.run.damage import whole_epochs
from layerprobe.workflow.run.features import RunFeatures
from layerprobe.workflow.run.kept import kept_epochs


@dataclass(frozen=True)
class Selection:
    """What is measured of a run.

    Args:
        stored_splits: the splits above and the galleries that they are searched in.
        unclassified: why no layer has a classifier; empty where the embedding has one.
    """

    taps: Sequence[Layer]
    splits: Sequence[str]
    stored_splits: Sequence[str]
    measures: Measures
    embedding: Tap
    similarity: str
    resampling: Resampling
    reductions: Sequence[str] = (NO_REDUCTION,)
    unclassified: str = ""

    @property
    def chains(self) -> list[Chain]:
        """The reductions."""
        return [parse_chain(text) for text in self.reductions]

    @property
    def extracted_splits(self) -> list[str]:
        """The splits whose features must be stored: those above, and the one that a reduction is fitted on."""
        fitted = [FITTED_ON for chain in self.chains if chain.fits_on_train]
        return list(dict.fromkeys([*self.stored_splits, *fitted]))

    @property
    def ranked(self) -> list[RankedLayer]:
        """Every layer by each applicable reduction."""
        return ranked_layers(self.taps, self.chains, self.unfit, self.similarity)

    @property
    def unfit(self) -> list[InapplicableReduction]:
        """The inapplicable reductions of layers that are known before anything is fitted."""
        return left_out(self.taps, self.chains, self.embedding.key, self.unclassified)

    @property
    def deciding(self) -> RankedLayer:
        """The layer that decides which epoch is best: the embedding."""
        return RankedLayer(self.embedding.key, NO_REDUCTION, self.similarity)


def ranked_layers(
    taps: Sequence[Layer], chains: Sequence[Chain], unfit: Sequence[InapplicableReduction], similarity: str
) -> list[RankedLayer]:
    """Every layer by each applicable reduction.

    Args:
        similarity: unless the reduction prescribes one.
    """
    without = {(item.layer, item.reduction) for item in unfit}
    return [
        RankedLayer(tap.key, chain.text, chain.similarity or similarity)
        for tap in taps
        for chain in chains
        if (tap.key, chain.text) not in without
    ]


def doubts_of(selection: Selection) -> list[str]:
    """What the user should know of a selection before it is measured, in a line each."""
    dropped = ", ".join(map(str, selection.measures.dropped))
    found = [f"K = {dropped} skipped: fewer items to search"] if dropped else []
    found += map(str, selection.unfit)
    return found + outlying_tokens(member_taps(selection.taps))


def select_taps(
    request: ProbeRequest, recipe: Recipe, measured: Measured, lacking: Collection[str] = ()
) -> list[Layer]:
    """The requested layers, without those of a glob that need tensors that the weights lack.

    Args:
        lacking: names of these tensors.
    """
    layers, pools = request.layers or recipe.probe.layers, request.pools or recipe.probe.pool
    taps = storable(find_layers(layers, measured, pools=pools))
    if not lacking:
        return taps
    computed = keep_calls_without(measured, lacking)
    kept = {layer.key for layer in taps if all(is_computed(tap, computed) for tap in member_taps([layer]))}
    for text in layers:
        if not any(layer.key in kept for layer in find_layers([text], measured, pools=pools)):
            names = first_named([key.removeprefix(f"{measured.net.root}.") for key in lacking])
            what = f"layer {text}: the file of weights has no {names}, which it needs"
            raise RecipeError(what, fix="Choose an earlier layer, or a file with all weights")
    return [layer for layer in taps if layer.key in kept]


def storable(taps: list[Layer]) -> list[Layer]:
    """The layers themselves, if features can be stored under their names."""
    for tap in member_taps(taps):
        if "/" in tap.layer:
            what = f"layer {tap.layer}: features cannot be stored under a name with '/'"
            raise RecipeError(what, fix="Leave the layer out, or rename the module in the model's code")
    return taps


def select_splits(asked: Sequence[str] | None, dataset: Dataset) -> list[str]:
    """The splits of queries, without galleries."""
    known = dataset.searched
    for name in asked or ():
        if name not in known:
            raise UnknownNameError("split", name, known)
    return [name for name in known if name in (asked or known)]


def select(  # noqa: PLR0913 - the request and its run
    request: ProbeRequest,
    recipe: Recipe,
    taps: Sequence[Layer],
    embedding: Tap,
    dataset: Dataset,
    *,
    unclassified: Callable[[], str],
) -> Selection:
    """What is measured of these layers on this data set.

    Args:
        unclassified: why no layer has a classifier; empty where the embedding has one. Asked only for a reduction that
            needs one.
    """
    splits = select_splits(request.splits, dataset)
    require_right_items(dataset, splits, source=recipe.data.root or recipe.data.name)
    measures = select_measures(request, recipe, dataset, splits)
    names = recipe.probe.reduce if request.reduce is None else request.reduce
    chains = asked_chains(names, request.fit, request.equal_dim)
    require_fitting(chains, dataset)
    reason = unclassified() if any(chain.needs_classifier for chain in chains) else ""
    require_some(taps, chains, left_out(taps, chains, embedding.key, reason))
    return Selection(
        taps,
        splits,
        splits_to_store(splits, dataset),
        measures,
        embedding,
        request.similarity or recipe.probe.similarity,
        resampling_of(dataset, splits, IntervalKind(cluster=request.cluster)),
        tuple(chain.text for chain in chains),
        unclassified=reason,
    )


def splits_to_store(splits: Sequence[str], dataset: Dataset) -> list[str]:
    """The splits whose features are needed: those given and the galleries that they are searched in."""
    return list(dict.fromkeys([*splits, *(dataset.search_in.get(name, name) for name in splits)]))


def select_epochs(
    text: str, features: RunFeatures, record: RunRecord, deciding: RankedLayer, listener: Listener | None
) -> list[int]:
    """The epochs of `--epochs`, ascending."""
    run, done = features.run, record.epochs_done

    def kept() -> list[int]:
        found = kept_epochs(run, record)
        if not found:
            fix = "Name epochs whose features are stored, like --epochs 0,5, or train it again with --fresh"
            raise RecipeError("all checkpoints were removed", file=run.folder, fix=fix)
        return found

    words = {"all": kept, "last": lambda: [done], "best": lambda: [_best(features, kept(), deciding, listener)]}
    return named_epochs(text, words, record.epochs, run.name)


def _best(features: RunFeatures, kept: Sequence[int], deciding: RankedLayer, listener: Listener | None) -> int:
    if "validation" not in features.dataset.splits:
        raise RecipeError("--epochs best needs validation classes, which this run has none of", fix="Use last")
    run = features.run
    layer = deciding.layer.layer
    wanted = (layer, "validation", deciding.reduction, deciding.similarity, "R@1")
    rows = [
        score
        for score in (run.scores() if run.has_scores else [])
        if (score.ranked.layer.layer, score.split, score.ranked.reduction, score.ranked.similarity, score.metric)
        == wanted
        and score.epoch in kept
    ]
    unmeasured = sorted({*kept} - {score.epoch for score in rows})
    # An epoch whose checkpoint is damaged cannot be measured.
    if whole_epochs(features, unmeasured, listener, alone=not rows):
        what = f"--epochs best needs {layer} measured on the validation split at every epoch, by {deciding.similarity}"
        similarity = deciding.similarity
        command = run.command("probe", "--layers", layer, "--splits", "validation", "--similarity", similarity)
        raise RecipeError(what, fix=f"First {command}")
    return max(rows, key=lambda score: (score.value or 0.0, -score.epoch)).epoch


def select_measures(request: ProbeRequest, recipe: Recipe, dataset: Dataset, splits: Sequence[str]) -> Measures:
    """What to measure: the K that every gallery is large enough for, a recipe's others dropped, and the metrics."""
    names = request.metrics if request.metrics is not None else recipe.probe.metrics
    sizes = {name: len(dataset.splits[name]) for name in (dataset.search_in.get(split, split) for split in splits)}
    may_drop = not request.ks
    found = build_measures(names, request.ks or recipe.probe.k, sizes, options=recipe.metrics, may_drop=may_drop)
    if request.gallery_size is not None:
        found = with_gallery_size(found, request.gallery_size, dataset, splits)
    return replace(found, memory=request.memory)
