"""Stored features -> faiss indexes that a search engine can load."""

from __future__ import annotations

from typing import cast

from layerprobe.errors import NumericError
from layerprobe.progress import Listener
from layerprobe.ranking import export_index
from layerprobe.retrieval import Similarity
from layerprobe.workflow.features import RunFeatures
from layerprobe.workflow.selection import Selection
from layerprobe.workflow.signals import Stop


def export(features: RunFeatures, selection: Selection, epoch: int, listener: Listener, stop: Stop) -> None:
    """Write an index and its ids for every selected layer and stored split of an epoch.

    A layer with features that are not finite gets none, and loses an older one.

    Raises:
        InterruptedRun: a signal came; the indexes written are whole.
    """
    for split in selection.stored_splits:
        for tap in stop.between(
            selection.taps, "export stopped; the indexes written are whole, the same command goes on"
        ):
            values = features.read_values(epoch, split, tap.key)
            path = features.run.index_file(epoch, split, tap.key, selection.similarity)
            ids = features.dataset.splits[split].ids
            facts = {
                "run": features.run.name,
                "epoch": epoch,
                "split": split,
                "layer": tap.layer,
                "pool": tap.pool,
                "weights_sha256": features.weights_sha256(epoch),
            }
            try:
                # What ProbeRequest and [probe] let pass.
                similarity = cast("Similarity", selection.similarity)
                export_index(path, values, ids, similarity=similarity, facts=facts)
            except NumericError as error:
                for old in (path, path.with_name(f"{path.name}.json")):
                    old.unlink(missing_ok=True)
                listener.say(f"no index of {tap.key} on {split}: {error.message}")
            else:
                listener.say(f"index {path}, its ids in {path.name}.json")
