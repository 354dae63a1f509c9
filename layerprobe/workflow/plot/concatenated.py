"""Stored ranks of concatenated layers that only `choose` has ranked -> their Recall@K."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from layerprobe import store
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.metric_names import is_recall, recall_of
from layerprobe.values.scores import Score, Subject, shared_notes
from layerprobe.workflow.run.runs import Run


def concatenated_scores(run: Run, scores: Sequence[Score]) -> list[Score]:
    """Recall@K of the concatenated layers without a score, for the K of the scores and without intervals."""
    from layerprobe.measure.analysis import score_recall  # it imports torch, which plots of scores do without

    by_search: dict[tuple[int, str], list[Score]] = defaultdict(list)
    for score in scores:
        if score.run == run.name and is_recall(score.metric):
            by_search[score.epoch, score.split].append(score)
    found: list[Score] = []
    for (epoch, split), scored in by_search.items():
        file, known = run.rank_file(epoch, split), {score.ranked_layer for score in scored}
        ks = list(dict.fromkeys(recall.k for score in scored if (recall := recall_of(score.metric))))
        notes = shared_notes(IntervalKind.without(score.notes) for score in scored)
        for ranked, ranks in (store.read_stored_ranks(file).ranks if file.exists() else {}).items():
            # As in `choose`: ranks that were made from other features than those of the scored layers are stale.
            if ranked not in known and any(store.ranked_alike(file, [ranked, like]) for like in known):
                subject = Subject(run.name, scored[0].experiment, scored[0].seed, epoch, split, ranked, notes)
                found += score_recall(ranks, subject, [k for k in ks if not ranks.open([k]).any()]).scores
    return found
