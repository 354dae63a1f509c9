"""Candidates that no probe has ranked: whitened layers, and post-processing refitted within folds."""

from __future__ import annotations

import contextlib
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import cache, partial

import torch

from layerprobe.measure.selection_folds import QueryValues
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.pca import MOST_DIMENSIONS, partially_whitened
from layerprobe.post_processing.post_processing import NotApplicableError
from layerprobe.post_processing.supervised import LEARNED_DIMENSIONS, learned_whitened
from layerprobe.statistics.choice import folds_of_queries
from layerprobe.statistics.units import UnitSums, mean_of, stack_means, unit_sums
from layerprobe.system.computing import OfEach, in_threads
from layerprobe.system.errors import DataError, LayerprobeError, NumericError
from layerprobe.system.progress import Listener, stoppable
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.choose.candidates import (
    CandidateKey,
    CandidateRun,
    StoredValues,
    mean_over_trainings,
    shared_keys,
    skipped_notes,
    whole_units,
)
from layerprobe.workflow.choose.choose_among import Candidate
from layerprobe.workflow.choose.request import NEAR_METRIC
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.post_processed_features import query_index
from layerprobe.workflow.probe.rerank import StoredSearch, whitening_fits
from layerprobe.workflow.run.memory_run import MemoryRun
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import split_to_choose_on


def whitened_layers(  # noqa: PLR0913 - the layers of a run, and how they are brought to a size
    run: Run,
    split: str,
    layers: Sequence[RankedLayer],
    epoch: int,
    *,
    cluster: str | None = None,
    budget: int | None = None,
) -> list[RankedLayer]:
    """The layers that partial or learned whitening suits, whitened to as many dimensions as all its fits leave.

    It is fitted on all classes of the split; where the layer is chosen on this split, also without each fold of them.

    Args:
        split: whose stored features are fitted on.
        layers: without post-processing.
        cluster: whose values the folds divide; None for the classes.
        budget: bytes an image, to which layers are brought instead, by numbers of each kind; None for 128 and 64
            dimensions.
    """
    record, cpu = run.read(), torch.device("cpu")
    units = whole_units(run, split, *query_index(run, epoch, split), cluster)
    folds = folds_of_queries(units, seed=int(record.seed))
    on_all = split_to_choose_on(run, record, record.epochs) != split
    whitened = []
    for learned in (False, True):
        for ranked in layers:
            fits = whitening_fits(run, epoch, split, ranked.layer, folds, cpu, learned=learned, on_all=on_all)
            if fits is not None:
                sizes = dict.fromkeys(min(size, fits.dim) for size in (LEARNED_DIMENSIONS if learned else [fits.dim]))
                name_of = learned_whitened if learned else partially_whitened
                whitened += [replace(ranked, post_processing=name_of(size)) for size in sizes]
    if budget is None:
        return whitened
    dims = run.feature_head(epoch, split).dims
    within = [ranked for raw in layers for ranked in _within_budget(raw, dims[raw.layer], budget)]
    for ranked in whitened:
        within += _within_budget(ranked, dims[ranked.layer], budget)
    return list(dict.fromkeys(within))


def _within_budget(ranked: RankedLayer, dim: int, budget: int) -> list[RankedLayer]:
    """A layer, raw or whitened, by numbers of each kind, of as many dimensions as a budget of bytes allows.

    Args:
        ranked: whitened to 128 dimensions, or to fewer, which is then the rank of what it is fitted on.
        dim: of the layer.
    """
    chains = []
    if ranked.post_processing == NO_POST_PROCESSING:
        chains = [chain for chain in _CODES if parse_chain(chain).bytes_per_image(dim) <= budget]
    else:
        rank = parse_chain(ranked.post_processing).dim(dim)
        most = dim if rank >= min(MOST_DIMENSIONS, dim) else rank
        map_of = "l2+lwhiten:{}:lw" if parse_chain(ranked.post_processing).needs_labels else "l2+whiten:{}:0.5"
        for bits, end in _ENDS.items():
            if count := min(8 * budget // bits, most):
                chains.append(f"{map_of.format(count)}+{end}")
    return [
        replace(ranked, post_processing=chain, similarity=parse_chain(chain).similarity or ranked.similarity)
        for chain in chains
    ]


_CODES = "l2+float16", "int8", "layernorm+binary"  # of a layer as it is
_ENDS = {32: "l2", 16: "l2+float16", 8: "int8", 1: "binary"}  # bits of a number -> what makes it


def ranked_raw(run: Run, split: str) -> list[RankedLayer]:
    """The single layers that a split has scores of without post-processing, in network order."""
    scores = [score for score in run.scores() if score.split == split and score.value is not None]
    every = dict.fromkeys(score.ranked for score in scores)
    return [x for x in every if x.post_processing == NO_POST_PROCESSING and "+" not in x.layer.layer]


@dataclass(frozen=True, eq=False)
class Refits:
    """Ranks candidates from stored features, with post-processing fitted by fold of classes."""

    device: torch.device
    seed: int
    metric: str
    listener: Listener
    memory: int | None = None

    def search_within_folds(
        self, experiments: Mapping[str, Sequence[CandidateRun]], further: Sequence[RankedLayer] = ()
    ) -> tuple[Mapping[str, Sequence[CandidateRun]], bool, list[str]]:
        """The values of each query among the classes of its fold, where a candidate is fitted.

        Args:
            experiments: see `group_by_experiment`.
            further: fitted candidates that are not stored.

        Returns:
            The experiments, whether they are searched within folds, and notes on what is left out. The experiments as
            they are if no candidate is fitted; without the fitted candidates if others cannot be searched within folds.
        """
        keys = {name: shared_keys(trainings) for name, trainings in experiments.items()}
        added = {name: _list_further_keys(stored, further) for name, stored in keys.items()}
        if not any(_is_fitted(key) for name in experiments for key in [*keys[name], *added[name]]):
            return experiments, False, []
        steps = sum((len(keys[name]) + len(added[name])) * len(runs) for name, runs in experiments.items())
        skipped, rules, folded = (
            list[tuple[str, str]](),
            dict[str, SearchRules | None](),
            dict[str, list[CandidateRun]](),
        )
        with stoppable() as stop, self.listener.task("searching within folds", steps, "layers") as task:

            def search(candidate_run: CandidateRun, key: CandidateKey) -> QueryValues | tuple[str, str]:
                stop.raise_if_asked("ranking stopped; nothing was changed")
                try:
                    return self._search_folds(candidate_run, key, rules)
                except (DataError, NotApplicableError, NumericError) as error:
                    return f"{candidate_run.run.name}#{key[0]}:{key[1]}", _reason(error, key[1].post_processing)
                finally:
                    task.advance()

            for name, trainings in experiments.items():
                searched, values_by_run = [*keys[name], *added[name]], list[dict[CandidateKey, QueryValues]]()
                for candidate_run in trainings:
                    # The embedding, with which the choice is compared, is searched alike.
                    with_embeddings = list(dict.fromkeys([*searched, *_list_embeddings(candidate_run)]))
                    with _of_each_candidate(candidate_run.run) as of_each:
                        results = list(of_each(partial(search, candidate_run), with_embeddings))
                    skipped += [result for result in results if isinstance(result, tuple)]
                    by_key = zip(with_embeddings, results, strict=True)
                    values_by_run.append({key: x for key, x in by_key if not isinstance(x, tuple)})
                lost = {key for key in searched if any(key not in values for values in values_by_run)}
                if not all(map(_is_fitted, lost)):
                    # Others than fitted ones cannot be searched within folds: all keep their stored values.
                    unfitted = {name: _drop_fitted(runs) for name, runs in experiments.items()}
                    return unfitted, False, skipped_notes(skipped)
                folded[name] = [
                    self._replace_values(candidate_run, values, lost, added[name])
                    for candidate_run, values in zip(trainings, values_by_run, strict=True)
                ]
        return folded, True, skipped_notes(skipped)

    def _search_folds(
        self, candidate_run: CandidateRun, key: CandidateKey, rules: dict[str, SearchRules | None]
    ) -> QueryValues:
        """The values of a candidate's queries; the data set is read once for the rules of searches that are alike."""
        epoch, ranked = key
        chain = parse_chain(ranked.post_processing)
        if chain.needs_classifier or chain.on_gallery:
            raise NotApplicableError(f"{chain.text} cannot be fitted on other classes of the same split")
        search = StoredSearch(candidate_run.run, epoch, candidate_run.split, self.device, memory=self.memory)
        search.require_plain()
        search.require_stored(ranked)
        if search.rules_sha256 not in rules:
            rules[search.rules_sha256] = search.rules
        units = candidate_run.selection.units
        return search.within_folds(ranked, self.seed, self.metric, rules=rules[search.rules_sha256], units=units)

    def _replace_values(
        self,
        candidate_run: CandidateRun,
        values: Mapping[CandidateKey, QueryValues],
        lost: Set[CandidateKey],
        added: Sequence[CandidateKey],
    ) -> CandidateRun:
        """The run with values within folds where it is chosen on, and without the lost candidates.

        On test, the added candidates are measured by the map that is fitted on all that is chosen on.
        """
        stored, test = candidate_run.selection, candidate_run.test
        layers = {ranked.layer for _, ranked in candidate_run.candidates}
        new = {key for key in values if key not in stored.query_values and key[1].layer in layers}
        kept, gone = (
            stored.query_values,
            set(_list_embeddings(candidate_run)) - values.keys() - candidate_run.candidates,
        )
        if gone:  # else nothing is read, as it may be computed late
            kept = {key: stored_values for key, stored_values in kept.items() if key not in gone}
        selection = replace(stored, query_values=_first_of(values, kept))
        changed = replace(candidate_run, selection=selection, candidates=(candidate_run.candidates | new) - lost)
        if test is stored:
            baseline = candidate_run.baseline if candidate_run.baseline in values else None
            return replace(changed, test=selection, whole_gallery=test, baseline=baseline)
        if test is None:
            return changed
        on_test = {}
        for key in added:
            if key in selection.query_values and key not in test.query_values:
                search = StoredSearch(
                    candidate_run.run, key[0], "test", self.device, candidate_run.split, memory=self.memory
                )
                on_test[key] = search.values(key[1], self.metric)
        return replace(changed, test=replace(test, query_values=_first_of(on_test, test.query_values)))

    def measure_average_precisions(
        self, experiments: Mapping[str, Sequence[CandidateRun]], folded: bool, notes: list[str]
    ) -> Callable[[Sequence[Candidate]], UnitSums | None]:
        """MAP@R of candidates by unit, from stored features; of each that is asked for, once.

        Args:
            folded: whether each fold of units is searched in itself.
            notes: to which is added why there is none.
        """
        measured = dict[Candidate, UnitSums]()

        @cache
        def open_search(run: Run, epoch: int, split: str) -> StoredSearch:
            return StoredSearch(run, epoch, split, self.device, memory=self.memory)

        def sums_of(candidate_run: CandidateRun, key: CandidateKey) -> UnitSums:
            search, units = open_search(candidate_run.run, key[0], candidate_run.split), candidate_run.selection.units
            if folded:
                return unit_sums(search.within_folds(key[1], self.seed, NEAR_METRIC, units=units).values, units)
            search.require_stored(key[1])
            return unit_sums(search.values(key[1], NEAR_METRIC).values, units)

        def average_precisions(candidates: Sequence[Candidate]) -> UnitSums | None:
            try:
                for candidate in candidates:
                    if candidate not in measured:
                        trainings, sums = experiments[candidate.run], partial(sums_of, key=candidate.key)
                        measured[candidate] = mean_over_trainings(trainings, sums)
            except (DataError, NotApplicableError, NumericError) as error:
                notes.append(f"near ties are decided by the mean alone, without {NEAR_METRIC}: {error.message}")
                return None
            return stack_means([measured[candidate] for candidate in candidates])

        return average_precisions

    def measure_permuted(
        self, experiments: Mapping[str, Sequence[CandidateRun]], folded: bool
    ) -> Callable[[Candidate], UnitSums | None]:
        """The values of a candidate on test by maps that are fitted with permuted classes.

        Args:
            folded: whether each fold of units is searched in itself.
        """

        def sums_of(candidate_run: CandidateRun, key: CandidateKey, test: StoredValues) -> UnitSums:
            fitted_on = candidate_run.split if candidate_run.is_fitted_on else FITTED_ON
            search = StoredSearch(
                candidate_run.run, key[0], "test", self.device, fitted_on, permuted=True, memory=self.memory
            )
            search.require_stored(key[1])
            if folded and candidate_run.split == "test":
                return unit_sums(
                    search.within_folds(key[1], self.seed, self.metric, units=test.units).values, test.units
                )
            return unit_sums(search.values(key[1], self.metric).values, test.units)

        def permuted(candidate: Candidate) -> UnitSums | None:
            trainings = experiments[candidate.run]
            try:
                return mean_of([sums_of(run, candidate.key, run.test) for run in trainings if run.test is not None])
            except (DataError, NotApplicableError, NumericError):
                return None

        return permuted


def _of_each_candidate(run: Run) -> AbstractContextManager[OfEach]:
    """Candidates in threads, where their features lie in memory in any case; else one after the other."""
    if isinstance(run, MemoryRun):
        return in_threads()
    return contextlib.nullcontext(lambda function, items: list(map(function, items)))


def _first_of(
    values: Mapping[CandidateKey, QueryValues], others: Mapping[CandidateKey, QueryValues]
) -> Mapping[CandidateKey, QueryValues]:
    """The values, and those that only the others have, which may be computed when they are read."""
    return ChainMap(dict(values), others)  # type: ignore[arg-type] # it is never written


def _reason(error: LayerprobeError, post_processing: str) -> str:
    """The message without the step of the post-processing that it begins with: the name of the candidate has it."""
    step = next((step for step in post_processing.split("+") if error.message.startswith(f"{step}: ")), None)
    return error.message if step is None else error.message.removeprefix(f"{step}: ")


def _list_embeddings(candidate_run: CandidateRun) -> list[CandidateKey]:
    """The baseline and the embeddings that are no candidates, on the classes that are chosen on."""
    baseline = [key for key in [candidate_run.baseline] if key in candidate_run.selection.query_values]
    return [*filter(None, baseline), *candidate_run.embeddings]


def _drop_fitted(trainings: Sequence[CandidateRun]) -> list[CandidateRun]:
    fitted = frozenset(filter(_is_fitted, shared_keys(trainings)))
    return [replace(run, candidates=run.candidates - fitted) for run in trainings]


def _is_fitted(key: CandidateKey) -> bool:
    return parse_chain(key[1].post_processing).fits_on_train


def _list_further_keys(keys: Sequence[CandidateKey], layers: Sequence[RankedLayer]) -> list[CandidateKey]:
    """Further layers at the epochs at which they are ranked without post-processing."""
    raw = {(epoch, ranked.layer) for epoch, ranked in keys}
    epochs = sorted({epoch for epoch, _ in raw})
    return [(epoch, ranked) for epoch in epochs for ranked in layers if (epoch, ranked.layer) in raw]
