"""probe: a model and loaders in memory -> features, ranks and scores of its layers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn
from torch.utils.data import Dataset

from layerprobe.data.splits import IN_GALLERY, require_retrieval
from layerprobe.hooks import (
    execution_order,
    find_layers,
    member_hooks,
    outlying_tokens,
    skipped_pool_lines,
)
from layerprobe.nets.net import Net
from layerprobe.post_processing.chain import Chain
from layerprobe.system.errors import RecipeError, UnknownNameError, names_of, require_type, wrong_type
from layerprobe.values.layers import NO_POST_PROCESSING, VECTOR_SIMILARITIES, RankedLayer, network_order
from layerprobe.values.scores import SPLITS
from layerprobe.workflow.probe.chains import (
    FITTED_ON,
    find_inapplicable,
    parse_chains,
    require_applied,
    require_fitting,
)
from layerprobe.workflow.probe.measures import build_measures, check_right_items
from layerprobe.workflow.probe.scoring import Searches
from layerprobe.workflow.probe.selection import ranked_layers, require_storable
from layerprobe.workflow.python.loaders import (
    SEED,
    Batch,
    BatchOf,
    ImageShape,
    ProbeInputs,
    image_shape,
    progress,
    read_batches,
    require_loaders,
    weights_sha256,
)
from layerprobe.workflow.python.memory_features import (
    MemoryFeatures,
    SearchResults,
    SplitFeatures,
    extract_features,
    search,
)
from layerprobe.workflow.python.probed import ByLayer, Probed
from layerprobe.workflow.python.stored_probe import MemoryProbe, read_layer_order, store_probe
from layerprobe.workflow.python.user_model import (
    classifier_notes,
    measure_network,
    net_of,
    network_facts,
    place_on_device,
)
from layerprobe.workflow.run.runs import Run, named_run

T = TypeVar("T")
_NO_CLASSIFIER = "a model from Python brings none"
_ONE_SPLIT = (
    "Put all images of a class into one split. A number means the same class in every split: where loaders number their"
    " classes on their own, add the number of training classes to the others"
)


def probe(  # noqa: PLR0913 - the flags of `layerprobe probe`
    model: nn.Module | Net,
    splits: Mapping[str, Iterable[Any] | Dataset[Any]],
    *,
    layers: str | Sequence[str] = "*",
    pools: str | Sequence[str] | None = None,
    post: str | Sequence[str] = (NO_POST_PROCESSING,),
    fit: str = FITTED_ON,
    similarity: str = "cosine",
    ks: Sequence[int] = (1, 2, 4, 8),
    metrics: str | Sequence[str] | Mapping[str, Mapping[str, Any]] = (),
    device: str | torch.device = "auto",
    cache: str | Path | None = None,
    batch: BatchOf | None = None,
) -> Probed:
    """Measure how well each layer of a model separates classes, those of training and unseen ones.

    The numbers are those of `layerprobe probe`. Each loader is read once and may shuffle. The model runs in evaluation
    mode and is not changed: afterwards its modules are in their own modes again, without hooks.

    >>> import torch, layerprobe
    >>> _ = torch.manual_seed(0)
    >>> first, last = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 8, 3)
    >>> model = torch.nn.Sequential(first, torch.nn.ReLU(), last)
    >>> labels = torch.tensor([0, 0, 1, 1, 2, 2])
    >>> colours = torch.eye(3)[labels].reshape(6, 3, 1, 1).expand(-1, -1, 8, 8)
    >>> splits = {"test": [(colours, labels)]}
    >>> result = layerprobe.probe(model, splits, layers="0,2", ks=[1], metrics="MAP@R")
    >>> result
    Probed(Sequential: 2 layers on test, 4 scores)
    >>> result.ranks["test", "0@avg"].recall(1)
    1.0
    >>> result.frame()[["layer", "metric", "value"]].values.tolist()[:2]
    [['0', 'R@1', 1.0], ['0', 'MAP@R', 1.0]]
    >>> result.features["test", "2"].shape
    (6, 8)

    Concatenated layers and post-processed features:

    >>> chains = "none,binary"
    >>> both = layerprobe.probe(model, splits, layers="0+2", post=chains, ks=[1])
    >>> both.ranks["test", "0+2@avg/binary"].recall(1)
    1.0
    >>> both.features["test", "0+2"].shape
    (6, 12)

    Args:
        model: any module that takes images (B, C, H, W).
        splits: train, validation or test, at least one of them, and optionally `gallery`, in which test is searched ->
            a DataLoader or other batches, or a Dataset (map-style), read in batches of 64. `val` is validation. A batch
            is a tuple of images, labels and at most two further parts, which are ignored, or a dict with one of
            `pixel_values`, `image`, `images` and one of `labels`, `label`, `targets`: floats (B, C, H, W), preprocessed
            for the model, and (B,) integers or texts. A label means the same class in every split; no class is in two
            splits, except for test and gallery.
        layers: layer expressions, as on the command line: names that `layerprobe.layers` lists, globs, module paths,
            each with a pool (`blocks.5@avg`) or without. `*` is the blocks and the model's own output, of a model that
            ends in a classifier the classifier's input;
            `blocks.5+blocks.11` concatenates two layers, each L2-normalised.
        pools: of expressions without a pool: max, avg, gem, grid:s, cls, cls+avg. None: the pool by which the model
            itself makes a vector of its last map or tokens, cls, avg or max, else avg. Layers that give vectors are
            not pooled.
        post: post-processing of the features before the search, each evaluated separately: names in
            `layerprobe.registry.POST_PROCESSING` joined by `+`, such as `l2+whiten:64:0.5+l2`, or `none`. Random ones
            use the seed 0. A layer that post-processing cannot be applied to is skipped with a warning.
        fit: features that post-processing is fitted on: train, or gallery, those that are searched, without their
            labels; a note of the scores says so.
        similarity: cosine, euclidean or dot; binary codes always use hamming.
        ks: K of Recall@K, less than the number of images that are searched.
        metrics: names in `layerprobe.registry.METRICS`, or a mapping from these to their options.
        device: where the model runs and features are ranked: auto (the model's device), cpu, cuda, cuda:i or mps. The
            model is moved back at the end.
        cache: folder of runs. The result is written to a run of this model and these images, or added to it where it
            exists: `layerprobe plot` draws it beside others, and `open_run` reads it. Its name is the result's.
            Images in another order than before replace what is stored, with a warning if scores are lost. Models of
            one class with the same `repr` and weights count as one: give each a folder of its own if only the code of
            `forward` differs. None: no file is written.
        batch: reads other batches: what a loader gives -> (images, labels).

    Returns:
        Scores, ranks and features in memory. A layer whose features are not finite has no value, and its scores a note.

    Raises:
        UnknownNameError: unknown split, layer, pool, post-processing, metric or similarity; the message names the
        nearest. RecipeError: no layer, a pool that a layer cannot have, an invalid K, a metric that
            needs a classifier, an unknown option of a metric; post-processing that is fitted on train where there is
            none, or that cannot be applied to any layer.
        DataError: invalid batches, a split of fewer than 2 classes, a class in two splits, or no query of validation
            or test has a right item to find.
        NumericError: GeM of a layer that has values below 0.
        BusyError: another process uses the run in `cache`.
        TypeError: an argument of another type.
    """
    require_types(ks=ks, device=device, cache=cache, batch=batch)
    for argument, name in (("similarity", similarity), ("fit", fit)):
        require_type(argument, name, str, "a name")
    if similarity not in VECTOR_SIMILARITIES:
        raise UnknownNameError("similarity", similarity, VECTOR_SIMILARITIES)
    metric_names, options = parse_metrics(metrics)
    measures = partial(build_measures, metric_names, ks, options=options, may_drop=False)
    measures({})  # refuses unknown metrics before the work
    net, loaders = net_of(model), _require_searchable(require_loaders(splits, (*SPLITS, *IN_GALLERY.values())))
    expressions, pool_names = names_of("layers", layers), None if pools is None else names_of("pools", pools)
    chains = _parse_chains(names_of("post", post), fit, loaders)
    ignored: dict[str, None] = {}
    with place_on_device(net.module, str(device)) as run_device, progress() as track:
        read = partial(read_batches, batch=batch, note=ignored.setdefault, track=track)
        shape, batches = _read_ahead(loaders, read)
        network = measure_network(net, shape)
        hooks = find_layers(expressions, network, pools=pool_names)
        if cache is not None:
            require_storable(hooks)
        if not hooks:
            raise RecipeError("layers is empty", fix='Name some, such as layers="*"')
        inapplicable = find_inapplicable(hooks, chains, hooks[0].key, _NO_CLASSIFIER)
        ranked = ranked_layers(hooks, chains, inapplicable, similarity)
        require_applied([chain.text for chain in chains], {x.post_processing for x in ranked}, inapplicable)
        members = member_hooks(hooks)
        skipped = skipped_pool_lines(expressions, network, pools=pool_names)
        pool_messages = [*skipped, *network.unknown_pool(pool_names)]
        for message in [*pool_messages, *outlying_tokens(members), *map(str, inapplicable)]:
            warnings.warn(message, stacklevel=2)
        features_by_split = {
            name: extract_features(net.module, members, batches[name], run_device, hashed=cache is not None)
            for name in batches
        }
        for message in ignored:
            warnings.warn(message, stacklevel=2)
        features = _make_features(net.module, features_by_split, cache)
        dataset = features.dataset
        require_retrieval(dataset, fix=_ONE_SPLIT)
        for problem in check_right_items(dataset):
            warnings.warn(problem, stacklevel=2)
        sizes = {name: len(dataset.splits[name]) for name in (dataset.search_in.get(x, x) for x in dataset.searched)}
        searches = Searches(features, features.inputs.experiment, SEED, lambda: run_device)
        layer_order = execution_order([hook.layer for hook in members], network)
        rows = network_order(ranked, layer_order)
        results = search(searches, measures(sizes), rows, track)
        measurement = MemoryProbe(
            features,
            results,
            tuple(layer_order),
            str(run_device),
            network_facts(network),
            (*net.notes, *classifier_notes([network.net.classifier])),
            cache is not None,
        )
        if cache is not None:
            stored_order = execution_order(dict.fromkeys([*read_layer_order(features.run), *layer_order]), network)
            store_probe(features, searches, results, stored_order, record=measurement.record(stored_order))
    _warn_of_inapplicable(rows, results)
    return _make_result(measurement, rows)


def _make_features(module: nn.Module, splits: Mapping[str, SplitFeatures], cache: str | Path | None) -> MemoryFeatures:
    """The features, with the run in which a cache keeps them."""
    model, images = type(module).__name__, {name: split.digests for name, split in splits.items()}
    if cache is None:
        return MemoryFeatures(Run(Path(model)), ProbeInputs(model, "", images), splits)
    inputs = ProbeInputs(model, weights_sha256(module), images)
    return MemoryFeatures(named_run(Path(cache), inputs.run_name), inputs, splits)


def _make_result(measurement: MemoryProbe, rows: Sequence[RankedLayer]) -> Probed:
    features, results = measurement.features, measurement.results
    layers = dict.fromkeys(ranked.layer for ranked in rows)
    raw = {
        name: {RankedLayer(layer, NO_POST_PROCESSING, ""): split.layer(layer) for layer in layers}
        for name, split in features.splits.items()
    }
    layer_features = {**_flatten(raw), **_flatten(results.post_processed)}
    entries = _flatten(results.entries)
    invalid = {key: entry.invalid for key, entry in entries.items() if entry.ranks is None}
    return Probed(
        features.run.name,
        tuple(results.scores),
        ByLayer({key: entry.ranks for key, entry in entries.items() if entry.ranks is not None}, invalid),
        ByLayer(layer_features, {key: reason for key, reason in invalid.items() if key not in layer_features}),
        features.labels,
        dict(features.dataset.search_in),
        measurement,
    )


def _flatten(values: Mapping[str, Mapping[RankedLayer, T]]) -> dict[tuple[str, RankedLayer], T]:
    return {(split, ranked): value for split, layer_values in values.items() for ranked, value in layer_values.items()}


def require_types(*, ks: object, device: object, cache: object, batch: object) -> None:
    """Check the types of what has no names in it."""
    if isinstance(ks, str) or not isinstance(ks, Iterable):
        raise wrong_type("ks", ks, "whole numbers, such as (1, 10)")
    require_type("device", device, (str, torch.device), "a name such as cpu, or a torch.device")
    if cache is not None:
        require_type("cache", cache, (str, Path), "a folder")
    if batch is not None and not callable(batch):
        raise wrong_type("batch", batch, "a function of what a loader gives that returns (images, labels)")


def parse_metrics(metrics: object) -> tuple[list[str], Mapping[str, Mapping[str, Any]]]:
    """Names of metrics, and the options of some."""
    names = names_of("metrics", metrics)
    options: Mapping[str, Mapping[str, Any]] = metrics if isinstance(metrics, Mapping) else {}
    for name, metric_options in options.items():
        require_type(f"metrics[{name!r}]", metric_options, Mapping, "options by their names")
    if "accuracy" in names:
        raise RecipeError("accuracy needs the classifier of a training run", fix="Leave it out")
    return names, options


def _require_searchable(loaders: Mapping[str, Iterable[Any]]) -> Mapping[str, Iterable[Any]]:
    """The loaders of the splits, the gallery last, of which one can be searched for."""
    if not loaders or any(gallery in loaders and query not in loaders for query, gallery in IN_GALLERY.items()):
        splits = "only a gallery" if loaders else "no split"
        raise RecipeError(f"there is {splits}, and nothing to search for", fix="Give a test split")
    return loaders


def _read_ahead(
    loaders: Mapping[str, Iterable[Any]], read: Callable[..., Iterator[Batch]]
) -> tuple[ImageShape, dict[str, Iterable[Batch]]]:
    """(C, H, W) of the first batch, and the batches of all loaders, which must have the same."""
    (name, loader), *other_loaders = loaders.items()
    batches = read(loader, name)
    first_batch = next(batches)
    shape = image_shape(first_batch.images)
    other_batches = {split: read(other_loader, split, shape) for split, other_loader in other_loaders}
    return shape, {name: chain([first_batch], batches), **other_batches}


def _parse_chains(names: Sequence[str], fit: str, splits: Collection[str]) -> list[Chain]:
    """The post-processing, checked to have a split to fit on."""
    chains = parse_chains(names, fit)
    if not chains:
        raise RecipeError("post is empty", fix='post="none" keeps the features raw')
    require_fitting(chains, splits, 'fit="gallery"')
    return chains


def _warn_of_inapplicable(rows: Sequence[RankedLayer], results: SearchResults) -> None:
    """Warn of post-processing that could not be applied to a layer, or raise where one could be applied to none."""
    applied = {score.ranked.post_processing for score in results.scores}
    require_applied([ranked.post_processing for ranked in rows], applied, results.inapplicable)
    for item in results.inapplicable:
        warnings.warn(str(item), stacklevel=3)
