"""The chosen layer's features on test -> what each kind of index of them costs."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import cast

import torch

from layerprobe.measure.index_costs import Searched, index_costs
from layerprobe.post_processing.chain import parse_chain
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.choice import Choice
from layerprobe.values.costs import IndexCosts, IndexKind
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.values.retrieval import Similarity
from layerprobe.values.scores import is_recall, recall_of
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.memory_run import MemoryRun
from layerprobe.workflow.run.references import draws_of
from layerprobe.workflow.run.runs import Run

_TRANSDUCTIVE = "the post-processing of these features is fitted on the test images, as there are no others"
_IN_SAMPLE = (
    "the post-processing of these features is fitted on the test images with their classes, as there are no others:"
    " recall is overestimated, and only its differences from the exact search are meaningful"
)
_SEEN = "ivfpq is trained on train, as is post-processing: there are no classes beside those of test"


def measure_indexes(run: Run, choice: Choice, kinds: tuple[IndexKind, ...], device: torch.device) -> IndexCosts:
    """Indexes of the chosen layer of a run, whose queries find what its groups and ignored items leave.

    Raises:
        DataError: see `read_searched`; or a list says which items are right.
    """
    ranked, epoch = choice.chosen.ranked, choice.chosen.epoch
    searched, notes = read_searched(run, epoch, ranked, choice.chosen.split, device)
    rules = StoredSearch(run, epoch, "test", device).rules
    if rules is not None and rules.positives is not None:
        message = "--index: a list says which test images are right, and recall in an index is by class"
        raise DataError(message, file=run.folder, fix="Leave it out; layerprobe export --index writes an index")
    searched = replace(searched, rules=rules)
    return _measure_costs(searched, notes, kinds, f"{run.name}#{epoch}:{ranked}" if run.name else str(ranked), choice)


def read_searched(  # noqa: PLR0913 - the layer, and where its features are
    run: Run,
    epoch: int,
    ranked: RankedLayer,
    chosen_on: str,
    device: torch.device,
    *,
    memory: int | None = None,
    stack: contextlib.ExitStack | None = None,
) -> tuple[Searched, tuple[str, ...]]:
    """A layer's stored features of test, and those that an index of them is trained on; with notes on both.

    Args:
        chosen_on: the split on which the layer was chosen, which trains an index unless it is test.
        memory: bytes of features of test above which they stay on disk; None: none do.
        stack: closes what these are read from then.

    Raises:
        DataError: features are gone.
        NotApplicableError: the post-processing takes the weights of a classifier.
        RecipeError: the layer is a mean of draws.
    """
    if len(draws := draws_of(ranked)) > 1:
        message = f"{ranked} is a mean of draws, each of which is another map; an index is of one"
        raise RecipeError(message, fix=f"Name one of them, such as --layers {draws[0]}")
    record = run.read()
    fitted_on = FITTED_ON if FITTED_ON in record.manifests else chosen_on
    search = StoredSearch(run, epoch, "test", device, fitted_on, memory=memory)
    raw = replace(ranked, post_processing=NO_POST_PROCESSING, similarity=record.similarity)
    search.require_stored(ranked if fitted_on == FITTED_ON else raw)
    queries, gallery = search.features(ranked) if stack is None else stack.enter_context(search.opened(ranked))
    split = _find_training_split(chosen_on, record)
    training = None if split is None else search.features_of(split, ranked).values
    notes: tuple[str, ...] = ()
    chain = parse_chain(ranked.post_processing)
    if chain.fits_on_train and fitted_on == "test":
        notes += (_IN_SAMPLE if chain.needs_labels else _TRANSDUCTIVE,)
    notes += (_SEEN,) if split not in (None, chosen_on) else ()
    notes += record.notes if isinstance(run, MemoryRun) else ()
    return Searched(queries, gallery, cast("Similarity", ranked.similarity), training), notes


def _find_training_split(split: str, record: RunRecord) -> str | None:
    """The split on which an index is trained: that of the choice, but never test."""
    if split != "test":
        return split
    return FITTED_ON if FITTED_ON in record.manifests else None


def _measure_costs(
    searched: Searched, notes: tuple[str, ...], kinds: tuple[IndexKind, ...], layer: str, choice: Choice
) -> IndexCosts:
    """The costs at the K of the metric, or at 1 if that is not R@K."""
    metric = choice.chosen.metric
    recall = recall_of(metric) if is_recall(metric) else None
    costs = index_costs(searched, kinds, layer=layer, k=recall.k if recall else 1)
    applicable_notes = (note for note in notes if note != _SEEN or "ivfpq" in kinds)
    return replace(costs, notes=(*applicable_notes, *costs.notes))
