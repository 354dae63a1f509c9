"""probe: a run's checkpoints -> stored features of the requested layers -> scores."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from layerprobe.data.splits import Dataset
from layerprobe.measure.analysis import Scored
from layerprobe.system.progress import Listener, Stop, Task, stoppable
from layerprobe.taps import execution_order, member_taps, skipped_pool_lines
from layerprobe.values.records import RecordedNetwork
from layerprobe.values.scores import Score, ScoreTable, in_network_order, read_scores
from layerprobe.workflow.probe.classifiers import (
    drop_accuracy,
    require_accuracy_layer,
    why_no_classifier,
    why_no_weight,
)
from layerprobe.workflow.probe.probed_run import (
    Extractor,
    ProbedRun,
    RunExtractor,
    decode_lazily,
    load_hashed_dataset,
    open_for_probing,
)
from layerprobe.workflow.probe.reducing import InapplicableReduction, inapplicable_error, refusal_lines
from layerprobe.workflow.probe.scoring import Scorer
from layerprobe.workflow.probe.searches import searches_of_run
from layerprobe.workflow.probe.selection import (
    ProbeRequest,
    Selection,
    doubts_of,
    select,
    select_epochs,
    select_taps,
)
from layerprobe.workflow.run.experiments import manifests_of, require_same_images, settled_splits
from layerprobe.workflow.run.features import (
    Missing,
    PartlyReducedError,
    RunFeatures,
    features_of,
    require_measured,
    whole_epochs,
)
from layerprobe.workflow.run.references import draws_of
from layerprobe.workflow.run.run_network import embedding_tap, network_facts, with_layers
from layerprobe.workflow.run.runs import Run, locked, require_kept

if TYPE_CHECKING:
    from torch import Tensor

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


def prepare(
    run: Run, request: ProbeRequest, dataset: Dataset | None = None, listener: Listener | None = None
) -> Probing:
    """Resolve a request for a single run; nothing is extracted."""
    opened = open_for_probing(run, request)
    selection, built = resolve_selection(opened, request, dataset, listener)
    opened.keep_forwards()
    features = features_of(opened.run, opened.recipe, built)
    searches = searches_of_run(features, opened.recipe, lambda: opened.device)
    extractor = RunExtractor(features, opened, decode_lazily(opened, request, dataset, listener), request.workers)
    scorer = Scorer(searches, selection.measures, selection.resampling)
    network_record = opened.record.network or network_facts(opened.recipe, opened.net, opened.measured)
    network = with_layers(network_record, lambda: opened.net, opened.recipe.data.image_size, selection.taps)
    table = read_score_table(opened, features, selection, listener)
    return Probing(selection, features, extractor, scorer, table, network)


def resolve_selection(
    opened: ProbedRun, request: ProbeRequest, dataset: Dataset | None, listener: Listener | None
) -> tuple[Selection, Dataset]:
    """Select what is measured, and load the data set with the hashes of its images; errors as of `prepare`."""
    recipe, measured = opened.recipe, opened.measured
    # A misspelt layer is reported before images are decoded.
    lacking = opened.record.new_parameters if opened.record.weights_files else ()
    taps, embedding = select_taps(request, recipe, measured, lacking), embedding_tap(recipe, measured)
    if listener is not None:
        layers, pools = request.layers or recipe.probe.layers, request.pools or recipe.probe.pool
        for line in [*skipped_pool_lines(layers, measured, pools=pools), *measured.unknown_pool(pools)]:
            listener.say(line)
    request = drop_accuracy(request, recipe, lambda: why_no_classifier(recipe), listener)
    require_accuracy_layer(request, recipe, embedding, taps)
    built = dataset or load_hashed_dataset(opened, request, listener)
    selection = select(request, recipe, taps, embedding, built, unclassified=lambda: why_no_weight(recipe) or "")
    if dataset is None:
        settled = settled_splits(opened.run, selection.extracted_splits, trains=recipe.train.epochs > 0)
        require_same_images(opened.record, built, settled, fix=OTHER_IMAGES)
    return selection, built


def read_score_table(
    opened: ProbedRun, features: RunFeatures, selection: Selection, listener: Listener | None
) -> ScoreTable:
    """Read a run's scores; the table is empty before the first probe.

    Its layer order has every layer that is selected, was measured or is scored. Scores get the present name and
    experiment of the run, which may have been renamed since.
    """
    stored = read_scores(opened.run.scores_file) if opened.run.scores_file.exists() else []
    scores = [replace(score, run=opened.run.name, experiment=opened.record.experiment) for score in stored]
    scores = features.without_stale(scores, listener)
    names = [*opened.record.layer_order, *(score.ranked.layer.layer for score in scores)]
    names += [tap.layer for tap in member_taps(selection.taps)]
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
        read = any(scorer.reads_features(epoch, split, selection.ranked) for split in selection.splits)
        splits = selection.extracted_splits
        missing[epoch] = [features.missing(epoch, split, selection.taps, read=read) for split in splits]
    return missing


def drop_damaged(
    probing: Probing, missing: Mapping[int, Sequence[Missing]], listener: Listener
) -> dict[int, Sequence[Missing]]:
    """Leave out, and report, the epochs whose checkpoint is needed and damaged."""
    selection = probing.selection
    # Metrics may take the classifier, whose weights are in the checkpoint.
    always = bool(selection.measures.metrics) or any(chain.needs_classifier for chain in selection.chains)
    used = [epoch for epoch, items in missing.items() if always or any(item.taps for item in items)]
    damaged = {*used} - {*whole_epochs(probing.features, used, listener, alone=len(used) == len(missing))}
    return {epoch: items for epoch, items in missing.items() if epoch not in damaged}


def measure(
    probing: Probing, missing_by_epoch: Mapping[int, Sequence[Missing]], listener: Listener, stop: Stop
) -> list[Score]:
    """Extract missing features, score the selection, and write scores.csv after each epoch.

    Args:
        missing_by_epoch: of the epochs that are measured; see `find_missing`.
    """
    selection, features, extractor = probing.selection, probing.features, probing.extractor
    splits = selection.extracted_splits
    record_network(features.run, probing.table.layer_order, probing.network, features.dataset, splits)
    for doubt in doubts_of(selection):
        listener.say(doubt)
    missing = [item for items in missing_by_epoch.values() for item in items]
    record = features.run.read()
    for item in missing:
        if extractor.images(item):
            require_kept(features.run, record, item.epoch)  # fails before the work, not in the middle of it
        if item.taps and (note := features.stale_note(item.epoch, item.split)):
            listener.say(note)
    work = {(item.epoch, item.split): _SplitProgress.of(probing, item) for item in missing}
    measured: list[Score] = []
    refused: list[tuple[int, InapplicableReduction]] = []
    with listener.task(f"probing {features.run.name}", sum(split.images for split in work.values()), "images") as task:
        for epoch, items in missing_by_epoch.items():
            _drop_stale(probing, epoch, listener)
            for item in items:
                if item.taps:
                    extractor.extract(item, _report_extraction(work[epoch, item.split], task, stop))
            scored_by_split = _score_epoch(probing, epoch, work, task, stop)
            refused += [
                (epoch, InapplicableReduction(ranked.layer, ranked.reduction, error.message, error.fix))
                for scored_layers in scored_by_split.values()
                for ranked, scored in zip(selection.ranked, scored_layers, strict=True)
                if (error := scored.refused)
            ]
            scores: list[Score] = []
            for split, scored_layers in scored_by_split.items():
                scores += in_network_order(selection.resampling.scores(split, scored_layers), probing.table.layer_order)
            probing.table.add(scores)
            probing.table.write(features.run.scores_file)
            measured += scores
    _report_refused(refused, selection, measured, listener)
    return measured


@dataclass(frozen=True)
class _SplitProgress:
    """How the images of an epoch and split advance the progress bar: half when extracted, half when ranked.

    Args:
        extracted: how many of the images count when they are extracted.
        passes: images that run through networks, several times those of the split for an ensemble.
    """

    images: int
    extracted: int
    passes: int

    @classmethod
    def of(cls, probing: Probing, item: Missing) -> _SplitProgress:
        """Missing features are extracted; a split is ranked unless it is a gallery alone."""
        passes, ranked = probing.extractor.images(item), item.split in probing.selection.splits
        images = item.images if passes or ranked else 0
        return cls(images, images if not ranked else images // 2 if passes else 0, passes)


def _score_epoch(
    probing: Probing, epoch: int, work: Mapping[tuple[int, str], _SplitProgress], task: Task, stop: Stop
) -> dict[str, list[Scored]]:
    """Score the layers of an epoch: split -> its layers.

    All splits of a layer are scored before the next layer, so that a map fitted on training features is fitted once.
    """
    selection = probing.selection
    scored_by_split: dict[str, list[Scored]] = {split: [] for split in selection.splits}
    with contextlib.ExitStack() as stack:  # each split's ranks are stored when its scores end, however they end
        scores = [
            stack.enter_context(contextlib.closing(probing.scorer.scores(epoch, split, selection.ranked)))
            for split in selection.splits
        ]
        for number, of_layer in enumerate(stop.between(zip(*scores, strict=True), _STOPPED)):
            for split, scored in zip(selection.splits, of_layer, strict=True):
                progress, num_layers = work[epoch, split], len(selection.ranked)
                images = progress.images - progress.extracted
                task.advance(images * (number + 1) // num_layers - images * number // num_layers)
                scored_by_split[split].append(scored)
    return scored_by_split


def _report_refused(
    refused: Sequence[tuple[int, InapplicableReduction]],
    selection: Selection,
    measured: Sequence[Score],
    listener: Listener,
) -> None:
    applied = {score.ranked.reduction for score in measured}
    for line in refusal_lines(refused):
        listener.say(line)
    for reduction in selection.reductions:
        inapplicable = [item for _, item in refused if item.reduction == reduction]
        if inapplicable and reduction not in applied:
            error = inapplicable_error(inapplicable)
            raise PartlyReducedError(error.message, fix=error.fix, scores=measured)


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


def _report_extraction(work: _SplitProgress, task: Task, stop: Stop) -> Callable[[Iterable[Tensor]], Iterator[Tensor]]:
    done = 0  # over all members of an ensemble

    def tell(batches: Iterable[Tensor]) -> Iterator[Tensor]:
        nonlocal done
        for batch in stop.between(batches, _STOPPED):
            yield batch
            before, done = done, done + len(batch)
            task.advance(work.extracted * done // work.passes - work.extracted * before // work.passes)

    return tell


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
        with stoppable() as stop:
            scores = measure(probing, missing, listener, stop)
    require_measured(run, [epoch for epoch in epochs if epoch not in missing], scores)
    return scores
