"""Recall@1 of layers at equal dimensions, and the dimensions of the raw layers."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from layerprobe.plots.dims import MANY
from layerprobe.plots.drawn_scores import match_layers, metric_of, resolve_epoch, scores_of_layers
from layerprobe.plots.plot import PlotOptions
from layerprobe.plots.selected import selected_at
from layerprobe.post_processing.chain import equal_dim_of, parse_chain
from layerprobe.post_processing.post_processing import BITS, NotApplicableError
from layerprobe.summary.post_processed import best_post_processings, eligible_layers
from layerprobe.system.errors import BusyError, DataError, LayerprobeError, RecipeError
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, headline_layers, members_of
from layerprobe.values.scores import Score, over_seeds, trainings
from layerprobe.values.views import PostProcessings, Selected, Sized, equal_dimensions
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.post_processed import (
    in_sample_text,
    post_processing_split,
    processings_of,
    unmeasured_text,
    usual_dimension,
)

_SHOWN = ("test", "validation", "train")  # the first measured at an equal dimension is shown
_NO_BEST = "no best post-processing"
_BEST_ON_TEST = "the best on test, chosen by looking at it"


def stored_post_processings(
    runs: Sequence[Run],
    scores: Sequence[Score],
    options: PlotOptions,
    embeddings: Mapping[str, RankedLayer],
    selected: Mapping[str, Selected] | None = None,
) -> list[PostProcessings]:
    """The layers of runs after post-processing to equal dimensions; trainings of one experiment as one.

    Without an epoch in the options, it is the last one with a layer at an equal dimension. If there is none, it is the
    epoch of the selected candidate, provided that this is post-processed.

    Args:
        selected: run, or mean of trainings -> the selected candidate of its choice.
    """
    chosen = selected_at(selected or {}, options.epoch)
    runs_by_name, epoch = {run.name: run for run in runs}, options.epoch
    merged = over_seeds(scores)
    post_processings = []
    for name, members in trainings(scores).items():
        run = runs_by_name[members[0]]
        run_scores = [score for score in merged if score.run == name]
        values = at_equal_dimensions(run_scores, epoch)
        epoch_shown = (
            values[0].epoch if values else max(score.epoch for score in run_scores) if epoch is None else epoch
        )
        dims = _stored_dims(run, epoch_shown, run_scores)
        if (
            not values
            and options.layers is None
            and (selected_post_processings := _post_processings_of_selected(chosen.get(name), run_scores, dims))
        ):
            post_processings.append(selected_post_processings)
            continue
        if not values:
            message = f"no layer of epoch {epoch_shown} is stored at an equal dimension"
            raise DataError(message, file=run.folder, fix=_fix(run, epoch_shown, dims))
        post_processings.append(post_processings_of(values, dims, *_selection_split(run, values)))
    return select_post_processings(post_processings, merged, options.layers, embeddings, chosen)


def _post_processings_of_selected(
    selected: Selected | None, scores: Sequence[Score], dims: Mapping[LayerKey, int]
) -> PostProcessings | None:
    """The selected candidate beside its layer without post-processing; None if it has none itself."""
    if selected is None or selected.score.ranked.post_processing == NO_POST_PROCESSING:
        return None
    score = selected.score
    key = (score.epoch, score.split, score.ranked.layer, score.metric)
    raw = [
        Sized(raw, dims.get(raw.ranked.layer), False)
        for raw in scores
        if (raw.epoch, raw.split, raw.ranked.layer, raw.metric) == key
        and raw.ranked.post_processing == NO_POST_PROCESSING
    ]
    return PostProcessings(score.run, score.epoch, score.split, (*raw, Sized(score, selected.dim, True)))


def best_of_sizes(runs: Sequence[Run], scores: Sequence[Score], options: PlotOptions) -> list[PostProcessings]:
    """The best layers and post-processing of runs in at most so many bytes, by type of number, at the last epoch.

    They are chosen on the split that `choose` may take; where only test remains, they are the best on test.
    """
    runs_by_name, merged = {run.name: run for run in runs}, over_seeds(scores)
    post_processings = []
    for name, members in trainings(scores).items():
        run = runs_by_name[members[0]]
        of_run = [score for score in merged if score.run == name and score.metric == metric_of(merged)]
        epoch = resolve_epoch(of_run, options.epoch)
        at_epoch = [score for score in scores_of_layers(of_run, options.layers) if score.epoch == epoch]
        chosen_on, note = _selection_split(run, at_epoch, without=_BEST_ON_TEST)
        of_sizes = best_of_each_size(at_epoch, _stored_dims(run, epoch, at_epoch), chosen_on)
        if not of_sizes.values:
            message = f"no layer of epoch {epoch} is measured with a size that is known"
            raise DataError(message, file=run.folder, fix=f"Run {run.command('probe', '--epochs', str(epoch))}")
        post_processings.append(replace(of_sizes, notes=(note,) * bool(note)))
    return post_processings


def best_of_each_size(
    scores: Sequence[Score], dims: Mapping[LayerKey, int], selection_split: str | None
) -> PostProcessings:
    """The best candidates of an epoch in at most so many bytes, by type of number and ascending size.

    A candidate is one of them if none of its type that is as small is as good on the split that is chosen on. Means
    over random draws are skipped: they cannot be used.

    Args:
        scores: of one run, epoch and metric, on all splits; at least one.
        dims: layer -> its number of dimensions without post-processing, where known.
        selection_split: on which they are chosen; None for the split that is shown.
    """
    split = next(split for split in _SHOWN if any(score.split == split for score in scores))
    of_selection = [score for score in scores if score.split == (selection_split or split)]
    layers = [score.ranked for score in of_selection]
    eligible = set(eligible_layers(layers, processings_of(layers), selection_split))
    recalls = {score.ranked: score.value for score in of_selection if score.ranked in eligible}
    candidates = [
        replace(sized, score=score)
        for score in scores
        if score.split == split and score.value is not None and (sized := _sized(score, dims))
    ]
    values: list[Sized] = []
    for number in BITS:
        best = -1.0
        of_number = [sized for sized in candidates if sized.number == number]
        for sized in sorted(of_number, key=lambda x: (x.size or 0, -(recalls.get(x.score.ranked) or 0.0))):
            recall = recalls.get(sized.score.ranked)
            if recall is not None and recall > best:
                best = recall
                values.append(sized)
    return PostProcessings(scores[0].run, scores[0].epoch, split, tuple(values), selection_split)


def _sized(score: Score, dims: Mapping[LayerKey, int]) -> Sized | None:
    """A score with the size of its vectors; None where that is not known, and for a mean over draws."""
    raw_dim = dims.get(score.ranked.layer)
    try:
        chain = parse_chain(score.ranked.post_processing)
        dim = equal_dim_of(score.ranked.post_processing) if raw_dim is None else chain.dim(raw_dim)
    except LayerprobeError:  # registered by another version
        return None
    if dim is None or len(chain.members()) > 1:
        return None
    return Sized(score, dim, False, True, chain.number, chain.bytes_per_image(dim))


def _selection_split(run: Run, values: Sequence[Score], *, without: str = _NO_BEST) -> tuple[str | None, str]:
    """The split on which the best is chosen, None if none can be; and why, or a caveat, if any.

    Args:
        without: what it says where none can be.
    """
    try:
        split, note = post_processing_split(run, values[0].epoch)
    except DataError as error:  # without a record the values can still be shown
        return None, f"{without}: {error.message}"
    if split is None:  # why, and what to do, takes half a page
        return None, f"{without}: only test is left to choose it on; {run.command('summary')} says more"
    post_processed = [score for score in values if score.ranked.post_processing != NO_POST_PROCESSING]
    if post_processed and not any(score.split == split for score in post_processed):
        return None, f"{without}: {unmeasured_text(run, split)}"
    in_sample = in_sample_text(processings_of(score.ranked for score in values), split)
    return split, "; ".join(filter(None, [in_sample, note]))


def _fix(run: Run, epoch: int, dims: Mapping[LayerKey, int]) -> str:
    dim = usual_dimension(dims.values())
    with contextlib.suppress(DataError):
        if run.read().from_python:  # no command does it
            return f'Probe with post=("none", "l2+pca:{dim}+l2")'
    return f"Run {run.command('probe', '--epochs', str(epoch), '--equal-dim', str(dim))}"


def _stored_dims(run: Run, epoch: int, scores: Iterable[Score]) -> dict[LayerKey, int]:
    """Layer -> its number of dimensions, where its features are stored; of `A+B` the sum."""
    dims: dict[LayerKey, int] = {}
    for split in _SHOWN:
        with contextlib.suppress(DataError, BusyError):
            dims |= run.feature_head(epoch, split).dims
    layers = dict.fromkeys(score.ranked.layer for score in scores)
    members = {layer: members_of(layer, dims.keys()) for layer in layers}
    return {
        layer: sum(dims[member] for member in stored_members)
        for layer, stored_members in members.items()
        if stored_members
    }


def at_equal_dimensions(scores: Sequence[Score], epoch: int | None = None) -> list[Score]:
    """Recall@1 at the epoch, on all splits, of raw and post-processed layers.

    Args:
        epoch: None for the last at which a layer was to an equal dimension.

    Returns:
        Empty if no layer was to an equal dimension at that epoch.
    """
    metric_scores = [score for score in scores if score.metric == metric_of(scores)]
    equal = {
        (processing.post_processing, processing.similarity)
        for processing in processings_of(s.ranked for s in metric_scores)
        if processing.dim is not None
    }
    epochs = {
        score.epoch for score in metric_scores if (score.ranked.post_processing, score.ranked.similarity) in equal
    }
    if not epochs or (epoch is not None and epoch not in epochs):
        return []
    return [score for score in metric_scores if score.epoch == (max(epochs) if epoch is None else epoch)]


def post_processings_of(
    scores: Sequence[Score], dims: Mapping[LayerKey, int], selection_split: str | None, note: str = ""
) -> PostProcessings:
    """Recall of layers with their dimensions, and the best post-processing of each.

    Args:
        scores: as `at_equal_dimensions` gives them; at least one.
        dims: layer -> its number of dimensions without post-processing, where known.
        selection_split: on which the best post-processing is chosen; None if none can be.
        note: why, or a caveat of the choice, if any.
    """
    processings = {
        (processing.post_processing, processing.similarity): processing
        for processing in processings_of(score.ranked for score in scores)
    }
    of_selection = [score for score in scores if score.split == selection_split]
    recalls = {score.ranked: score.value for score in of_selection if score.value is not None}
    eligible = eligible_layers(recalls, processings.values(), selection_split)
    post_processed = {ranked.layer for ranked in eligible if ranked.post_processing != NO_POST_PROCESSING}
    best_of_layers = best_post_processings({ranked: recalls[ranked] for ranked in eligible})
    best = {ranked for layer, ranked in best_of_layers.items() if layer in post_processed}
    split = next(
        split
        for split in _SHOWN
        if any(
            s.split == split and processings[s.ranked.post_processing, s.ranked.similarity].dim is not None
            for s in scores
        )
    )
    values = []
    for score in scores:
        processing, ranked = processings[score.ranked.post_processing, score.ranked.similarity], score.ranked
        raw = score.ranked.post_processing == NO_POST_PROCESSING
        if score.split == split and (raw or processing.dim is not None or ranked in best):
            dim, raw_dim = processing.dim, dims.get(ranked.layer)
            if dim is None and raw_dim is not None:
                with contextlib.suppress(LayerprobeError, NotApplicableError):
                    dim = parse_chain(processing.post_processing).dim(raw_dim)
            values.append(Sized(score, dim, processing.dim is not None, ranked in best))
    chosen_on = selection_split if best else None
    return PostProcessings(scores[0].run, scores[0].epoch, split, tuple(values), chosen_on, (note,) * bool(note))


def select_post_processings(
    post_processings: Sequence[PostProcessings],
    scores: Sequence[Score],
    names: Sequence[str] | None,
    embeddings: Mapping[str, RankedLayer],
    selected: Mapping[str, Selected] | None = None,
) -> list[PostProcessings]:
    """Select the requested layers, else those at an equal dimension; a few of these if the figure has a line for each.

    Args:
        embeddings: run -> its embedding layer, where that is known.
        selected: run -> the selected candidate of its choice, whose layer is one of the few.
    """
    requested = match_layers(
        names, [sized.score.ranked for post_processed in post_processings for sized in post_processed.values]
    )
    if requested is not None:
        # A raw layer brings its post-processing; a post-processed one does not.
        raw = {ranked.layer for ranked in requested if ranked.post_processing == NO_POST_PROCESSING}
        selection = [
            post_processed
            for post_processed in (
                _select_layers(post_processed, raw, requested) for post_processed in post_processings
            )
            if _layers_at_equal_dim(post_processed)
        ]
        if not selection:
            available = dict.fromkeys(
                layer.layer
                for post_processed in post_processings
                for layer in sorted(_layers_at_equal_dim(post_processed))
            )
            fix = f"Choose among {', '.join(available)}, or run layerprobe probe --equal-dim"
            raise RecipeError(f"--layers {','.join(names or ())}: not measured at an equal dimension", fix=fix)
        return selection
    has_lines = len(equal_dimensions(post_processings)) >= MANY
    selected_layers = {run: candidate.score.ranked.layer for run, candidate in (selected or {}).items()}
    return [
        _select_layers(
            post_processed,
            _headline_layers(post_processed, scores, embeddings.get(post_processed.run))
            | {selected_layers.get(post_processed.run)}
            if has_lines
            else _layers_at_equal_dim(post_processed),
        )
        for post_processed in post_processings
    ]


def _select_layers(
    post_processings: PostProcessings, layers: Collection[LayerKey | None], ranked: Collection[RankedLayer] = ()
) -> PostProcessings:
    values = (s for s in post_processings.values if s.score.ranked.layer in layers or s.score.ranked in ranked)
    return replace(post_processings, values=tuple(values))


def _layers_at_equal_dim(post_processings: PostProcessings) -> set[LayerKey]:
    """The layers that were to an equal dimension."""
    return {sized.score.ranked.layer for sized in post_processings.values if sized.equal}


def _headline_layers(
    post_processings: PostProcessings, scores: Iterable[Score], embedding: RankedLayer | None
) -> set[LayerKey]:
    equal = _layers_at_equal_dim(post_processings)
    layers = {score.ranked: None for sized in post_processings.values if (score := sized.score).ranked.layer in equal}
    validation = {
        score.ranked: score.value
        for score in scores
        if (score.run, score.epoch, score.split, score.metric)
        == (post_processings.run, post_processings.epoch, "validation", post_processings.values[0].score.metric)
        and score.value is not None
        and score.ranked.post_processing == NO_POST_PROCESSING
        and score.ranked in layers
    }
    return {ranked.layer for ranked in headline_layers(list(layers), validation, embedding)}
