"""The duration of a probe, estimated from a few of its images."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from layerprobe import store
from layerprobe.data.contents import FOLDER as CONTENTS
from layerprobe.data.contents import pending_reads
from layerprobe.data.loading import batches_of
from layerprobe.data.pixel_cache import FOLDER, is_small
from layerprobe.hooks import Hook, member_hooks
from layerprobe.measure.extraction import BATCH_SIZE, extract
from layerprobe.recipe.recipe import Recipe
from layerprobe.system.computing import default_workers
from layerprobe.system.errors import RecipeError
from layerprobe.system.files import free_bytes
from layerprobe.system.memory import peak_memory
from layerprobe.values.costs import Estimate
from layerprobe.workflow.probe.probe import resolve_selection
from layerprobe.workflow.probe.probed_run import ProbedRun, open_for_probing, open_new_run
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.probe.selection import select_epochs
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.features import Missing, features_of, key_text
from layerprobe.workflow.run.runs import Run

_FILES = 16  # that are hashed


def estimate_probe(run: Run, request: ProbeRequest) -> Estimate:
    """Time a few images through all that the probe will do before it ranks them, and extend it to all that is missing.

    The images are assumed to be those of the run.
    """
    _require_raw(request)
    opened, to_hash = _without_images(open_for_probing(run, request))
    selection, dataset = resolve_selection(opened), opened.dataset
    contents = opened.record.contents  # the images are not hashed
    features = features_of(
        run, opened.recipe, dataset, dtype=request.store, precision=request.precision, shard_rows=request.shard_rows
    )
    features = replace(features, manifest_sha256=lambda split: contents.get(split, ""))
    epochs = select_epochs(request.epochs, features, opened.record, selection.deciding, None)
    splits = selection.extracted_splits
    missing = [features.missing(epoch, split, selection.hooks) for epoch in epochs for split in splits]
    return _estimate(opened, to_hash, [item for item in missing if item.hooks])


def estimate_new_probe(run: Run, recipe: Recipe, request: ProbeRequest, epochs: int) -> Estimate:
    """As `estimate_probe`, of a run that there is not yet."""
    _require_raw(request)
    opened, to_hash = _without_images(open_new_run(run, recipe, request))
    selection, dataset = resolve_selection(opened), opened.dataset
    hooks = tuple(member_hooks(selection.hooks))
    stored: Any = {"dtype": key_text(request.store), "precision": key_text(request.precision)}
    missing = [
        replace(_all_missing(run, epoch, split, hooks, len(dataset.splits[split])), **stored)
        for epoch in range(epochs)
        for split in selection.extracted_splits
    ]
    return _estimate(opened, to_hash, missing)


def _require_raw(request: ProbeRequest) -> None:
    if request.store_post is not None:
        raise RecipeError("--dry-run does not estimate --store-post", fix="Leave one of the two out")


def _all_missing(run: Run, epoch: int, split: str, hooks: tuple[Hook, ...], images: int) -> Missing:
    part = store.Part(run.feature_file(epoch, split), range(images), frozenset(hook.key for hook in hooks))
    return Missing(epoch, split, hooks, {hook.key: hook.dim for hook in hooks}, store.Plan((part,)))


def _without_images(opened: ProbedRun) -> tuple[ProbedRun, Sequence[Callable[[], object]]]:
    """The run with its data set, of which no image is read; and the calls that would hash the files not yet hashed."""
    decoding, loaded = opened.decoding, from_recipe.load_dataset(opened.recipe.data, opened.decoding.cache)
    to_hash = pending_reads(loaded, decoding.cache / FOLDER / CONTENTS)
    # Decoded images are known by the hashes of their files.
    dataset = from_recipe.build_dataset(opened.recipe, None if to_hash else decoding, loaded)
    return replace(opened, given=dataset), to_hash


def _estimate(opened: ProbedRun, to_hash: Sequence[Callable[[], object]], missing: Sequence[Missing]) -> Estimate:
    seconds = _seconds_each([to_hash[i] for i in _spread_rows(len(to_hash), _FILES)]) * len(to_hash)
    if missing:
        reading, running = _seconds_an_image(opened, missing[0])
        images = sum(item.images for item in missing)
        seconds += running * images + reading * _images_read(opened, images)
    disk = sum(item.disk for item in missing)
    return Estimate(seconds, peak_memory(opened.device), disk, free_bytes(opened.run.folder))


def _images_read(opened: ProbedRun, images: int) -> float:
    """Number of images read in sequence; images that processes read in parallel count as one."""
    workers = from_recipe.choose_workers(opened.request.workers, opened.device)
    in_memory, on_disk = workers == 0 and is_small(opened.dataset), opened.recipe.data.cache == "auto"
    if in_memory or on_disk:  # every image is decoded once, and kept
        images = sum(map(len, opened.dataset.splits.values()))
    if on_disk and not in_memory:
        workers = default_workers() if opened.request.workers is None else opened.request.workers
    return images / max(1, workers)


def _seconds_an_image(opened: ProbedRun, item: Missing) -> tuple[float, float]:
    """Seconds to read an image of a split, and seconds to run it through the network."""
    split = opened.dataset.splits[item.split]
    rows = _spread_rows(len(split), BATCH_SIZE)
    reader = batches_of(split, [rows], workers=0)
    started = time.perf_counter()
    batch = next(reader)
    reading = (time.perf_counter() - started) / len(rows)
    normalise = from_recipe.build_normalise(opened.recipe, opened.net.channels)
    bfloat16 = item.precision == "bfloat16"
    run = partial(extract, opened.net.module, item.hooks, [batch], normalise, bfloat16=bfloat16)
    running = _seconds_each([lambda: list(run(device=opened.device))] * 2) / len(rows)
    return reading, running


def _spread_rows(count: int, most: int) -> np.ndarray:
    """At most `most` row numbers, evenly spaced."""
    return np.unique(np.linspace(0, count - 1, min(count, most)).astype(np.int64))


def _seconds_each(calls: Sequence[Callable[[], object]]) -> float:
    """Mean seconds of a call, without the first one, which also allocates and caches."""
    if not calls:
        return 0.0
    calls[0]()
    started = time.perf_counter()
    for call in calls[1:] or calls:
        call()
    return (time.perf_counter() - started) / max(1, len(calls) - 1)
