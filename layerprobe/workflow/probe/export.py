"""Stored features -> faiss indexes that a search engine can load."""

from __future__ import annotations

from typing import cast

from layerprobe.ranking import export_index
from layerprobe.reductions.reduction import NotApplicableError
from layerprobe.system.errors import NumericError
from layerprobe.system.progress import Listener
from layerprobe.system.signals import Stop
from layerprobe.values.keys import RankedLayer
from layerprobe.values.retrieval import Similarity
from layerprobe.workflow.probe.searches import Searches
from layerprobe.workflow.probe.selection import Selection
from layerprobe.workflow.run.reduction_draws import draws_of

_STOPPED = "export stopped; the written indexes are complete, the same command resumes"


def export(searches: Searches, selection: Selection, epoch: int, listener: Listener, stop: Stop) -> None:
    """Write an index and its ids for every selected layer and stored split of an epoch.

    A layer with features that are not finite gets none, and loses an older one. A mean of draws has none: each of its
    draws is another map.
    """
    for split in selection.stored_splits:
        for ranked in stop.between(selection.ranked, _STOPPED):
            draws = draws_of(ranked)
            if len(draws) > 1:
                reason = f"it is a mean of draws; name one of them, such as {draws[0].reduction}"
                listener.say(f"no index of {ranked.layer} by {ranked.reduction} on {split}: {reason}")
            else:
                _write(searches, epoch, split, ranked, listener)


def _write(searches: Searches, epoch: int, split: str, ranked: RankedLayer, listener: Listener) -> None:
    features, layer = searches.features, ranked.layer
    path = features.run.index_file(epoch, split, ranked)
    facts = {
        "run": features.run.name,
        "epoch": epoch,
        "split": split,
        "layer": layer.layer,
        "pool": layer.pool,
        "reduction": ranked.reduction,
        "weights_sha256": features.key(epoch, split).weights_sha256,
    }
    try:
        found = searches.reduced.layer(epoch, split, ranked)
        # What ProbeRequest and [probe] let pass, or a reduction asks for.
        similarity = cast("Similarity", ranked.similarity)
        export_index(path, found.values, found.ids, similarity=similarity, facts=facts)  # type: ignore[arg-type] # in memory
    except NumericError as error:
        for old in (path, path.with_name(f"{path.name}.json")):
            old.unlink(missing_ok=True)
        listener.say(f"no index of {layer} on {split}: {error.message}")
    except NotApplicableError as error:
        listener.say(f"no index of {layer} by {ranked.reduction} on {split}: {error.message}")
    else:
        listener.say(f"index {path}, its ids in {path.name}.json")
