"""probe: a run's checkpoints -> stored features of the requested layers -> scores."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from layerprobe.data.splits import Dataset
from layerprobe.hooks import execution_order, member_hooks, skipped_pool_lines
from layerprobe.measure.analysis import InapplicablePostProcessing, Scored
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.system.errors import NotFiniteError, RecipeError
from layerprobe.system.launch import Launch
from layerprobe.system.progress import LONG, Forecast, Listener, Stop, Task, stoppable
from layerprobe.system.wording import as_duration
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.records import RecordedNetwork
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score, ScoreTable, in_network_order, read_scores
from layerprobe.workflow.probe.chains import FITTED_ON, inapplicable_lines, require_applied
from layerprobe.workflow.probe.classifiers import (
    drop_accuracy,
    require_accuracy_layer,
    why_no_classifier,
    why_no_weight,
)
from layerprobe.workflow.probe.post_processed_features import PostProcessedFeatures
from layerprobe.workflow.probe.probed_run import (
    Extractor,
    ProbedRun,
    RunExtractor,
    open_for_probing,
)
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.probe.scoring import Scorer, Searches, searches_of_run, with_intervals
from layerprobe.workflow.probe.selection import Selection, doubts_of, select, select_epochs, select_hooks
from layerprobe.workflow.run.experiments import manifests_of, require_same_images, settled_splits
from layerprobe.workflow.run.features import (
    Missing,
    PartlyPostProcessedError,
    RunFeatures,
    features_of,
    require_measured,
    whole_epochs,
)
from layerprobe.workflow.run.references import draws_of
from layerprobe.workflow.run.run_network import embedding_hook, network_facts, with_layers
from layerprobe.workflow.run.runs import Run, locked, require_kept
from layerprobe.workflow.run.sample_fit import SampleFit

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

OTHER_IMAGES = "Restore them, or train a new run"
_STOPPED = "probing stopped; stored results are complete, the same command resumes"


@dataclass(frozen=True, eq=False)
class Probing:
    """All that measuring a run takes."""

    selection: Selection
    features: RunFeatures
    extractor: Extractor
    scorer: Scorer
    table: ScoreTable
    network: RecordedNetwork
    launch: Launch = field(default_factory=Launch)


Prepare = Callable[[Run, ProbeRequest], Probing]


def prepare(
    run: Run, request: ProbeRequest, dataset: Dataset | None = None, listener: Listener | None = None
) -> Probing:
    """Resolve a request for a single run; nothing is extracted.

    Args:
        dataset: with decoded images; None: that of the run's recipe is loaded.
    """
    opened = open_for_probing(run, request, dataset, listener)
    selection = resolve_selection(opened)
    opened.keep_forwards()
    sample = _sample_fit(opened, selection)
    features = features_of(
        opened.run,
        opened.recipe,
        opened.dataset,
        dtype=request.store,
        precision=request.precision,
        shard_rows=request.shard_rows,
        sample=sample,
    )
    searches = searches_of_run(features, opened.recipe, lambda: opened.device)
    network_record = opened.record.network or network_facts(opened.recipe, opened.net, opened.measured)
    network = with_layers(network_record, lambda: opened.net, opened.recipe.data.image_size, selection.hooks)
    return Probing(
        selection,
        features,
        RunExtractor(
            features,
            opened,
            opened,
            partial(_extract_together, run, request),
            cache(partial(_maps, features, searches)) if sample else None,
        ),
        Scorer(searches, selection.measures, partial(rank_together, prepare, run, request)),
        read_score_table(opened, features, selection),
        network,
        request.launch,
    )


def _sample_fit(opened: ProbedRun, selection: Selection) -> SampleFit | None:
    """The samples on which the one post-processing is fitted, where post-processed features alone are stored."""
    count, dataset = opened.request.store_post, opened.dataset
    if count is None:
        return None
    if concatenated := [
        str(hook.key) for hook in selection.hooks if hook.key not in {x.key for x in member_hooks([hook])}
    ]:
        message = f"--store-post: {concatenated[0]} is made of the raw features of several layers"
        raise RecipeError(message, fix="Leave it out, or probe it without --store-post")
    (chain,) = selection.chains
    searched = {name: dataset.search_in.get(name, name) for name in dataset.splits}
    fitted_on = dict.fromkeys(searched, FITTED_ON) if chain.fits_on_train else searched
    return SampleFit(chain.text, count, opened.record.seed, fitted_on)


def _maps(features: RunFeatures, searches: Searches) -> PostProcessedFeatures:
    """The maps that are fitted on the stored features of samples."""
    if features.sample is None:
        raise ValueError("no sample to fit on")
    fitted_on = features.sample.sample_of(next(iter(features.sample.fitted_on)))
    return replace(
        searches.post_processed, gallery_of=features.sample.sample_of, fitted_on=fitted_on, post_processed=False
    )


def resolve_selection(opened: ProbedRun) -> Selection:
    """Select what is measured of a single run; errors as of `prepare`."""
    recipe, measured, request, listener = opened.recipe, opened.measured, opened.request, opened.listener
    # A misspelt layer is reported before images are decoded.
    lacking = opened.record.new_parameters if opened.record.weights_files else ()
    hooks, embedding = select_hooks(request, recipe, measured, lacking), embedding_hook(recipe, measured)
    if listener is not None:
        layers, pools = request.layers or recipe.probe.layers, request.pools or recipe.probe.pool
        for line in [*skipped_pool_lines(layers, measured, pools=pools), *measured.unknown_pool(pools)]:
            listener.say(line)
    request = drop_accuracy(request, recipe, lambda: why_no_classifier(recipe), listener)
    require_accuracy_layer(request, recipe, embedding, hooks)
    dataset = opened.dataset
    selection = select(request, recipe, hooks, embedding, dataset, unclassified=lambda: why_no_weight(recipe) or "")
    if opened.given is None:
        settled = settled_splits(opened.run, selection.extracted_splits, trains=recipe.train.epochs > 0)
        require_same_images(opened.record, dataset, settled, fix=OTHER_IMAGES)
    return selection


def read_score_table(opened: ProbedRun, features: RunFeatures, selection: Selection) -> ScoreTable:
    """Read a run's scores; the table is empty before the first probe.

    Its layer order has every layer that is selected, was measured or is scored. Scores get the present name and
    experiment of the run, which may have been renamed since.
    """
    stored = read_scores(opened.run.scores_file) if opened.run.scores_file.exists() else []
    scores = [replace(score, run=opened.run.name, experiment=opened.record.experiment) for score in stored]
    scores = features.without_stale(scores, opened.listener)
    names = [*opened.record.layer_order, *(score.ranked.layer.layer for score in scores)]
    names += [hook.layer for hook in member_hooks(selection.hooks)]
    order = execution_order(dict.fromkeys(names), opened.measured)
    return ScoreTable(scores, layer_order=order, stored=stored)


def record_network(
    run: Run, order: Sequence[str], network: RecordedNetwork, dataset: Dataset, splits: Sequence[str]
) -> None:
    """Write the network and the execution order of all layers ever measured to run.json.

    Splits of which nothing is measured yet get their present images: some may have been removed since the run began.
    """
    record = run.read()
    updated = replace(record, layer_order=tuple(order), network=network)
    trains = record.recipe.get("train", {}).get("epochs", 0) > 0
    free = {*splits} - {*settled_splits(run, splits, trains=trains)}
    if free and not record.members:
        some = replace(dataset, splits={name: split for name, split in dataset.splits.items() if name in free})
        manifests, contents = manifests_of(some)
        manifests, contents = {**record.manifests, **manifests}, {**record.contents, **contents}
        updated = replace(updated, manifests=manifests, contents=contents)
    if updated != record:
        run.write(updated)


def find_missing(probing: Probing, epochs: Sequence[int]) -> dict[int, list[Missing]]:
    """Find what is to be extracted: epoch -> its splits. Stored features are checked where scoring will read them."""
    selection, scorer, features = probing.selection, probing.scorer, probing.features
    missing = {}
    for epoch in epochs:
        ranked = {
            layer for split in selection.splits for layer in scorer.layers_to_read(epoch, split, selection.ranked)
        }
        read = {hook.key for hook in member_hooks([hook for hook in selection.hooks if hook.key in ranked])}
        if features.sample is not None:
            missing[epoch] = _find_missing_post_processed(probing, epoch, read)
            continue
        splits = selection.extracted_splits
        missing[epoch] = [features.missing(epoch, split, selection.hooks, read=read) for split in splits]
    return missing


def _find_missing_post_processed(probing: Probing, epoch: int, read: Collection[LayerKey]) -> list[Missing]:
    """The post-processed features that are not stored, and before them the samples that their maps are fitted on."""
    selection, features = probing.selection, probing.features
    applicable = {ranked.layer for ranked in selection.ranked}
    hooks = [hook for hook in selection.hooks if hook.key in applicable]
    post_processed = [features.missing(epoch, split, hooks, read=read) for split in selection.stored_splits]
    samples = features.sample.samples(item.split for item in post_processed if item.hooks) if features.sample else []
    return [*(features.missing(epoch, name, hooks) for name in samples), *post_processed]


def drop_damaged(
    probing: Probing, missing: Mapping[int, Sequence[Missing]], listener: Listener
) -> dict[int, Sequence[Missing]]:
    """Leave out, and report, the epochs whose checkpoint is needed and damaged."""
    selection = probing.selection
    # Metrics may take the classifier, whose weights are in the checkpoint.
    always = bool(selection.measures.metrics) or any(chain.needs_classifier for chain in selection.chains)
    used = [epoch for epoch, items in missing.items() if always or any(item.hooks for item in items)]
    damaged = {*used} - {*whole_epochs(probing.features, used, listener, alone=len(used) == len(missing))}
    return {epoch: items for epoch, items in missing.items() if epoch not in damaged}


def measure(
    probing: Probing, missing_by_epoch: Mapping[int, Sequence[Missing]], listener: Listener, stop: Stop
) -> list[Score]:
    """Extract missing features, score the selection, and write scores.csv after each epoch.

    Args:
        missing_by_epoch: of the epochs that are measured; see `find_missing`.
    """
    selection, features, scorer, table = probing.selection, probing.features, probing.scorer, probing.table
    record_network(features.run, table.layer_order, probing.network, features.dataset, selection.extracted_splits)
    for doubt in doubts_of(selection):
        listener.say(doubt)
    missing = [item for items in missing_by_epoch.values() for item in items]
    images, num_layers = _count_images(probing, missing, listener), len(missing_by_epoch) * len(selection.ranked)
    measured: list[Score] = []
    inapplicable: list[tuple[int, InapplicablePostProcessing]] = []
    with (
        listener.task(f"extracting {features.run.name}", images, "images") as shown,
        listener.task(f"ranking {features.run.name}", num_layers, "layers") as ranking,
    ):
        extraction = Forecast(shown, images, partial(_tell_time, features.run, len(missing_by_epoch), listener))
        for epoch, items in missing_by_epoch.items():
            _drop_stale(probing, epoch, listener)
            for item in items:
                if item.hooks:
                    probing.extractor.extract(item, lambda batches: _advance(batches, extraction, stop, probing.launch))
            layers: list[dict[str, Scored]] = []
            # What is ranked is stored, however the scoring ends.
            with contextlib.closing(scorer.score_epoch(epoch, selection.splits, selection.ranked)) as scored_layers:
                for scored_by_split in stop.between(scored_layers, _STOPPED):
                    layers.append(scored_by_split)
                    ranking.advance()
            for split in selection.splits:
                split_layers = [scored_by_split[split] for scored_by_split in layers]
                inapplicable += [(epoch, scored.inapplicable) for scored in split_layers if scored.inapplicable]
                scores = with_intervals(split_layers, units=selection.units[split], kind=selection.unit_kind)
                table.add(scores)
                measured += in_network_order(scores, table.layer_order)
            table.write(features.run.scores_file)
    for line in inapplicable_lines(inapplicable):
        listener.say(line)
    try:
        applied = {score.ranked.post_processing for score in measured}
        require_applied(selection.post_processings, applied, [item for _, item in inapplicable])
    except NotApplicableError as error:
        raise PartlyPostProcessedError(error.message, fix=error.fix, scores=measured) from None
    return measured


def _tell_time(run: Run, epochs: int, listener: Listener, seconds: float) -> None:
    """Say how long a long extraction takes; of several epochs, also which command measures the last alone."""
    if seconds > LONG:
        last = f"; the last epoch alone: {run.command('probe', '--epochs', 'last')}" if epochs > 1 else ""
        listener.say(f"about {as_duration(seconds)} for the features of {epochs:,} epoch{'s' * (epochs > 1)}{last}")


def _count_images(probing: Probing, missing: Sequence[Missing], listener: Listener) -> int:
    """The images that networks will be run on; says which features are stale.

    An epoch whose checkpoint was removed is refused here, before the work.
    """
    features, images = probing.features, 0
    record = features.run.read()
    for item in missing:
        if count := probing.extractor.images(item):
            require_kept(features.run, record, item.epoch)
            images += count
        if item.hooks and (note := features.stale_note(item.epoch, item.split)):
            listener.say(note)
    return images


def _advance(batches: Iterable[Tensor], task: Task, stop: Stop, launch: Launch) -> Iterator[Tensor]:
    for batch in stop.between(batches, _STOPPED):
        yield batch
        task.advance(len(batch) + launch.images_elsewhere())


def _extract_together(run: Run, request: ProbeRequest, missing: Missing) -> None:
    """Have the other processes of a launch extract their part of missing features."""
    request.launch.call(_extract, run, request, missing)


def rank_together(  # noqa: PLR0913 - the run, and what of it is ranked
    prepare_probing: Prepare,
    run: Run,
    request: ProbeRequest,
    epoch: int,
    split: str,
    ranked: RankedLayer,
    previous: Ranks | None,
) -> ProcessGroup | None:
    """Have the other processes of a launch rank a layer with this one; their group, or None for this one alone."""
    request.launch.call(_rank, prepare_probing, run, request, epoch, split, ranked, previous)
    return request.launch.group


def _extract(launch: Launch, run: Run, request: ProbeRequest, missing: Missing) -> None:
    prepared(prepare, run, replace(request, launch=launch)).extractor.extract(missing, launch.counted)


def _rank(launch: Launch, prepare_probing: Prepare, run: Run, request: ProbeRequest, *layer: Any) -> None:
    scorer = prepared(prepare_probing, run, replace(request, launch=launch)).scorer
    with contextlib.suppress(NotFiniteError):  # the first process makes it a note
        scorer.rank_layer(*layer)


@functools.lru_cache(maxsize=1)
def prepared(prepare_probing: Prepare, run: Run, request: ProbeRequest) -> Probing:
    """In another process than the first: what measuring a run takes, prepared once for all layers and epochs."""
    return prepare_probing(run, request)


def _drop_stale(probing: Probing, epoch: int, listener: Listener) -> None:
    """Remove the scores whose ranks the probe will replace from scores.csv, of metrics that are not requested too.

    Scores of layers that are not selected stay, though an update of torch makes their ranks stale as well.
    """
    searches, table, count = probing.scorer.searches, probing.table, 0
    for split in probing.selection.splits:
        stale = searches.stale(epoch, split)
        count += table.drop(epoch, split, {x for x in probing.selection.ranked if stale.intersection(draws_of(x))})
    if count:
        listener.say(f"{count} scores of epoch {epoch} leave scores.csv: their ranks were counted from something else")
        table.write(searches.features.run.scores_file)


def probe(
    run: Run,
    request: ProbeRequest,
    listener: Listener,
    prepare_probing: Callable[[Run, ProbeRequest, Dataset | None, Listener | None], Probing] = prepare,
) -> list[Score]:
    """Measure a run and return the requested scores; scores.csv keeps all scores."""
    with locked(run):
        run.remove_leftovers()
        # Hashing and decoding catch the signals themselves.
        probing = prepare_probing(run, request, None, listener)
        if run.scores_file.exists():  # `best` must not go by scores that hold no longer
            probing.table.write(run.scores_file)
        with stoppable() as stop:
            record = run.read()
            deciding = probing.selection.deciding
            epochs = select_epochs(request.epochs, probing.features, record, deciding, listener)
            run.write(record)
            missing = drop_damaged(probing, find_missing(probing, epochs), listener)
            stop.raise_if_asked(_STOPPED)
        if any(probing.extractor.images(item) for items in missing.values() for item in items):
            probing.extractor.decode()
        with request.launch.causes_told(), stoppable() as stop:
            scores = measure(probing, missing, listener, stop)
    require_measured(run, [epoch for epoch in epochs if epoch not in missing], scores)
    return scores
