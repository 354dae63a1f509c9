"""The layers of a run after their post-processing, from stored ranks, and their post-processing to one dimension."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from layerprobe.post_processing.chain import equal_dim_of, parse_chain
from layerprobe.summary.cells import Cells
from layerprobe.summary.post_processed import BestProcessing, Processing, post_processing
from layerprobe.system.errors import BusyError, DataError, LayerprobeError, RecipeError
from layerprobe.values.facts import SELECTION
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import split_to_choose_on

_NONE = "no post-processing can be chosen without the classes of test"
_SAME_CLASSES = (
    "post-processing is fitted on the classes that they are chosen on here; layerprobe choose fits them on others"
)
_USUAL = 128  # dimensions, or those of the smallest layer


def processings_of(layers: Iterable[RankedLayer]) -> list[Processing]:
    """The post-processings of some layers, those without post-processing first, else in the layers' order."""
    names = dict.fromkeys((ranked.post_processing, ranked.similarity) for ranked in layers)
    processings = [_processing(*name) for name in names]
    return sorted(processings, key=lambda processing: processing.post_processing != NO_POST_PROCESSING)


def _processing(post_processing: str, similarity: str) -> Processing:
    try:
        chain, dim = parse_chain(post_processing), equal_dim_of(post_processing)
    except LayerprobeError:  # registered by another version
        return Processing(post_processing, similarity)
    return Processing(post_processing, similarity, dim, len(chain.members()), chain.on_gallery, chain.needs_labels)


def processed_layers(
    run: Run, layers: Sequence[RankedLayer], processings: Sequence[Processing], splits: Mapping[str, Cells]
) -> BestProcessing | None:
    """Each layer after its best post-processing; None where no layer is post-processed.

    It is chosen on validation, else on train if the network was not trained on it.
    """
    post_processed = [ranked for ranked in layers if ranked.post_processing != NO_POST_PROCESSING]
    if not post_processed:
        return None
    last_epoch = max(
        (epoch for cells in splits.values() for ranked in post_processed for epoch in cells.epochs(ranked)), default=0
    )
    choose_on, reason = post_processing_split(run, last_epoch)
    if choose_on is None:
        return BestProcessing(notes=(f"{_NONE}: {reason}",))
    in_sample = in_sample_text(processings, choose_on)
    processed = post_processing(layers, processings, splits, choose_on)
    if processed is None:
        return BestProcessing(notes=(f"{_NONE}: {in_sample or unmeasured_text(run, choose_on)}",))
    return replace(processed, notes=(*processed.notes, *filter(None, [in_sample, reason])))


def in_sample_text(processings: Iterable[Processing], split: str | None) -> str:
    """That post-processing is fitted with a split's classes, so that it is not chosen there; empty without any."""
    names = [processing.post_processing for processing in processings if processing.needs_labels and split == FITTED_ON]
    return f"in-sample on the {SELECTION}, so not chosen there: {', '.join(dict.fromkeys(names))}" if names else ""


def unmeasured_text(run: Run, split: str) -> str:
    """That no post-processed layer is measured on a split, and the command that measures it."""
    fix = f"{run.command('probe', '--splits', split)} with the same --post does it"
    return f"no post-processed layer is measured on {split}; {fix}"


def post_processing_split(run: Run, epoch: int) -> tuple[str | None, str]:
    """The split on which post-processing is chosen, with a note; None where only test remains, with the reason."""
    try:
        choose_on = split_to_choose_on(run, run.read(), [epoch])
    except RecipeError as error:
        return None, str(error)
    if choose_on == "test":
        return None, f"there are no others; {run.command('choose')} cross-fits over them"
    return choose_on, "" if choose_on == "validation" else _SAME_CLASSES


def usual_dimension(dims: Collection[int]) -> int:
    """The default of an equal dimension for layers of some dimensions."""
    return min([*dims, _USUAL])


def dimension_hint(run: Run, layers: Sequence[RankedLayer], epoch: int, splits: Iterable[str]) -> list[str]:
    """The command that post-processes layers to an equal dimension, if no such post-processing is stored.

    Returns:
        At most one line; none where features are missing, or the model came from Python.
    """
    if any(processing.dim is not None for processing in processings_of(layers)) or run.read().from_python:
        return []
    known_dims: dict[LayerKey, int] = {}
    for split in splits:
        with contextlib.suppress(DataError, BusyError):
            known_dims |= run.feature_head(epoch, split).dims
    dims = [known_dims[layer] for layer in dict.fromkeys(ranked.layer for ranked in layers) if layer in known_dims]
    if len(set(dims)) < 2:
        return []
    fewest = min(dims)
    command = run.command("probe", "--epochs", str(epoch), "--equal-dim", str(usual_dimension(dims)))
    return [f"the layers have {fewest:,} to {max(dims):,} dimensions; {command} compares them at one"]
