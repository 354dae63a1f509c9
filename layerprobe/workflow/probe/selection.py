"""The requested epochs, splits, layers, K, metrics and intervals of a probe."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.splits import Dataset
from layerprobe.hooks import (
    Hook,
    Layer,
    Measured,
    find_layers,
    is_computed,
    keep_calls_without,
    member_hooks,
    outlying_tokens,
)
from layerprobe.measure.analysis import InapplicablePostProcessing
from layerprobe.post_processing.chain import Chain, parse_chain
from layerprobe.recipe.recipe import Recipe
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.progress import Listener
from layerprobe.system.wording import first_named
from layerprobe.values.epochs import named_epochs
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.workflow.probe.chains import (
    FITTED_ON,
    find_inapplicable,
    parse_chains,
    require_applied,
    require_fitting,
)
from layerprobe.workflow.probe.measures import Measures, add_gallery_size, build_measures, require_right_items
from layerprobe.workflow.probe.request import ProbeRequest as ProbeRequest
from layerprobe.workflow.run.features import RunFeatures, whole_epochs
from layerprobe.workflow.run.runs import kept_epochs
from layerprobe.workflow.run.units import units_of_splits


@dataclass(frozen=True)
class Selection:
    """What is measured of a run.

    Args:
        stored_splits: the splits above and the galleries that they are searched in.
        units: split -> (Q,) the unit of each of its images, over which intervals are; of galleries too.
        unclassified: why no layer has a classifier; empty where the embedding has one.
    """

    hooks: Sequence[Layer]
    splits: Sequence[str]
    stored_splits: Sequence[str]
    measures: Measures
    embedding: Hook
    similarity: str
    units: Mapping[str, NDArray[np.int64]]
    unit_kind: IntervalKind
    post_processings: Sequence[str] = (NO_POST_PROCESSING,)
    unclassified: str = ""

    @property
    def chains(self) -> list[Chain]:
        """The post-processing."""
        return [parse_chain(text) for text in self.post_processings]

    @property
    def extracted_splits(self) -> list[str]:
        """The splits whose features must be stored: those above, and the one that post-processing is fitted on."""
        fitted = [FITTED_ON for chain in self.chains if chain.fits_on_train]
        return list(dict.fromkeys([*self.stored_splits, *fitted]))

    @property
    def ranked(self) -> list[RankedLayer]:
        """Every layer by each applicable post-processing."""
        return ranked_layers(self.hooks, self.chains, self.inapplicable, self.similarity)

    @property
    def inapplicable(self) -> list[InapplicablePostProcessing]:
        """The inapplicable post-processing of layers that are known before anything is fitted."""
        return find_inapplicable(self.hooks, self.chains, self.embedding.key, self.unclassified)

    @property
    def deciding(self) -> RankedLayer:
        """The layer that decides which epoch is best: the embedding."""
        return RankedLayer(self.embedding.key, NO_POST_PROCESSING, self.similarity)


def ranked_layers(
    hooks: Sequence[Layer], chains: Sequence[Chain], inapplicable: Sequence[InapplicablePostProcessing], similarity: str
) -> list[RankedLayer]:
    """Every layer by each applicable post-processing.

    Args:
        similarity: unless the post-processing prescribes one.
    """
    without = {(item.layer, item.post_processing) for item in inapplicable}
    return [
        RankedLayer(hook.key, chain.text, chain.similarity or similarity)
        for hook in hooks
        for chain in chains
        if (hook.key, chain.text) not in without
    ]


def doubts_of(selection: Selection) -> list[str]:
    """Lines on what a selection leaves out or makes doubtful, for the user before it is measured."""
    dropped = ", ".join(map(str, selection.measures.dropped))
    doubts = [f"K = {dropped} skipped: fewer items to search"] if dropped else []
    doubts += map(str, selection.inapplicable)
    return doubts + outlying_tokens(member_hooks(selection.hooks))


def select_hooks(
    request: ProbeRequest, recipe: Recipe, measured: Measured, lacking: Collection[str] = ()
) -> list[Layer]:
    """The requested layers, without those of a glob that need tensors that the weights lack.

    Args:
        lacking: names of these tensors.
    """
    layers, pools = request.layers or recipe.probe.layers, request.pools or recipe.probe.pool
    hooks = require_storable(find_layers(layers, measured, pools=pools))
    if not lacking:
        return hooks
    computed = keep_calls_without(measured, lacking)
    computed_layers = {
        layer.key for layer in hooks if all(is_computed(hook, computed) for hook in member_hooks([layer]))
    }
    for text in layers:
        if not any(layer.key in computed_layers for layer in find_layers([text], measured, pools=pools)):
            names = first_named([key.removeprefix(f"{measured.net.root}.") for key in lacking])
            message = f"layer {text}: the file of weights has no {names}, which it needs"
            raise RecipeError(message, fix="Choose an earlier layer, or a file with all weights")
    return [layer for layer in hooks if layer.key in computed_layers]


def require_storable(hooks: list[Layer]) -> list[Layer]:
    """The layers themselves, if features can be stored under their names."""
    for hook in member_hooks(hooks):
        if "/" in hook.layer:
            message = f"layer {hook.layer}: features cannot be stored under a name with '/'"
            raise RecipeError(message, fix="Leave the layer out, or rename the module in the model's code")
    return hooks


def select_splits(requested: Sequence[str] | None, dataset: Dataset) -> list[str]:
    """The splits of queries, without galleries."""
    searched = dataset.searched
    for name in requested or ():
        if name not in searched:
            raise UnknownNameError("split", name, searched)
    return [name for name in searched if name in (requested or searched)]


def select(  # noqa: PLR0913 - the request and its run
    request: ProbeRequest,
    recipe: Recipe,
    hooks: Sequence[Layer],
    embedding: Hook,
    dataset: Dataset,
    *,
    unclassified: Callable[[], str],
) -> Selection:
    """What is measured of these layers on this data set.

    Args:
        unclassified: why no layer has a classifier; empty where the embedding has one. Asked only for post-processing
            that needs one.
    """
    splits = select_splits(request.splits, dataset)
    require_right_items(dataset, splits, source=recipe.data.root or recipe.data.name)
    measures = select_measures(request, recipe, dataset, splits)
    names = recipe.probe.post if request.post is None else request.post
    chains = parse_chains(names, request.fit, request.equal_dim)
    require_fitting(chains, dataset.splits, "add --fit gallery")
    reason = unclassified() if any(chain.needs_classifier for chain in chains) else ""
    selection = Selection(
        hooks,
        splits,
        splits_to_store(splits, dataset),
        measures,
        embedding,
        request.similarity or recipe.probe.similarity,
        interval_units(dataset, splits, request.cluster),
        IntervalKind(cluster=request.cluster),
        tuple(chain.text for chain in chains),
        unclassified=reason,
    )
    require_applied(selection.post_processings, {x.post_processing for x in selection.ranked}, selection.inapplicable)
    return selection


def splits_to_store(splits: Sequence[str], dataset: Dataset) -> list[str]:
    """The splits whose features are needed: those given and the galleries that they are searched in."""
    return list(dict.fromkeys([*splits, *(dataset.search_in.get(name, name) for name in splits)]))


def interval_units(dataset: Dataset, splits: Sequence[str], cluster: str | None) -> dict[str, NDArray[np.int64]]:
    """Split -> (Q,) the unit of each of its images; of the galleries of these splits, too.

    Args:
        cluster: None for the classes.
    """
    names = splits_to_store(splits, dataset)
    images = {name: (images.labels, images.ids) for name in names for images in (dataset.search_of(name)[0],)}
    return units_of_splits(dataset, images, cluster)


def select_epochs(
    text: str, features: RunFeatures, record: RunRecord, deciding: RankedLayer, listener: Listener | None
) -> list[int]:
    """The epochs of `--epochs`, ascending."""
    run, done = features.run, record.epochs_done

    def require_kept_epochs() -> list[int]:
        epochs = kept_epochs(run, record)
        if not epochs:
            fix = "Name epochs whose features are stored, like --epochs 0,5, or train it again with --fresh"
            raise RecipeError("all checkpoints were removed", file=run.folder, fix=fix)
        return epochs

    def best() -> list[int]:
        return [_best_epoch(features, require_kept_epochs(), deciding, listener)]

    words = {"all": require_kept_epochs, "last": lambda: [done], "best": best}
    return named_epochs(text, words, record.epochs, run.name)


def _best_epoch(features: RunFeatures, epochs: Sequence[int], deciding: RankedLayer, listener: Listener | None) -> int:
    if "validation" not in features.dataset.splits:
        raise RecipeError("--epochs best needs validation classes, which this run has none of", fix="Use last")
    run = features.run
    layer, similarity = deciding.layer.layer, deciding.similarity
    row_key = (layer, "validation", deciding.post_processing, similarity, "R@1")
    rows = [
        score
        for score in (run.scores() if run.has_scores else [])
        if (score.ranked.layer.layer, score.split, score.ranked.post_processing, score.ranked.similarity, score.metric)
        == row_key
        and score.epoch in epochs
    ]
    unmeasured = sorted({*epochs} - {score.epoch for score in rows})
    # An epoch whose checkpoint is damaged cannot be measured.
    if whole_epochs(features, unmeasured, listener, alone=not rows):
        message = f"--epochs best needs {layer} measured on the validation split at every epoch, by {similarity}"
        command = run.command("probe", "--layers", layer, "--splits", "validation", "--similarity", similarity)
        raise RecipeError(message, fix=f"First {command}")
    return max(rows, key=lambda score: (score.value or 0.0, -score.epoch)).epoch


def select_measures(request: ProbeRequest, recipe: Recipe, dataset: Dataset, splits: Sequence[str]) -> Measures:
    """What to measure: the K that every gallery is large enough for, a recipe's others dropped, and the metrics."""
    names = request.metrics if request.metrics is not None else recipe.probe.metrics
    sizes = {name: len(dataset.splits[name]) for name in (dataset.search_in.get(split, split) for split in splits)}
    may_drop = not request.ks
    measures = build_measures(names, request.ks or recipe.probe.k, sizes, options=recipe.metrics, may_drop=may_drop)
    if request.gallery_size is not None:
        measures = add_gallery_size(measures, request.gallery_size, dataset, splits)
    return replace(measures, memory=request.memory)
