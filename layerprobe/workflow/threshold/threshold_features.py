"""threshold: a user's own features -> thresholds at false accept rates, and their rates on other classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.measure.analysis import Features
from layerprobe.measure.pair_thresholds import Units
from layerprobe.ranking.all_pairs import AllPairs, all_pairs
from layerprobe.reductions.chain import parse_chain
from layerprobe.system.errors import DataError
from layerprobe.system.progress import Listener
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.retrieval import SearchRules
from layerprobe.values.thresholds import MeasuredThresholds, require_rates
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.features_run import ranked_of_rows, rows_by_split, run_of_features
from layerprobe.workflow.choose.indexed_layer import read_searched
from layerprobe.workflow.choose.user_features import UserFeatures
from layerprobe.workflow.probe.reducing import FITTED_ON
from layerprobe.workflow.run.memory_run import EPOCH
from layerprobe.workflow.run.seen import split_to_choose_on
from layerprobe.workflow.run.units import folders_note
from layerprobe.workflow.threshold.threshold import ThresholdsOf, measure_thresholds

_DIVIDED = 4  # classes, of which two set a threshold and two measure it
_SEED = 0


def threshold_of_features(
    features: UserFeatures, layer: str | None, rates: Sequence[float], listener: Listener
) -> MeasuredThresholds:
    """Set thresholds on the validation rows, and measure them on the test rows.

    Without `splits`, a random half of the classes, or of their clusters, sets the thresholds, and the other half
    measures them.

    Args:
        layer: LAYER[/reduction]; None: the one that `choose` says.
        rates: each between 0 and 1.

    Raises:
        DataError: there are no rows to set a threshold on but those of test, or a split without genuine or impostor
            pairs.
        RecipeError: a rate out of range, or a layer that is not one map.
    """
    require_rates(tuple(rates))
    file = "features" if features.file is None else features.file.name
    halved = features.splits is None
    if halved:
        features = split_in_halves(features)
        units = IntervalKind(cluster=features.cluster).units_text()
        listener.say(f"no `split`: thresholds are set on a random half of the {units}, and measured on the other half")
    run, rows = run_of_features(features, seen=True, seed=_SEED), rows_by_split(features)
    split = split_to_choose_on(run, run.record, [EPOCH])
    if split == "test" or "test" not in rows:
        message = "no rows to set a threshold on but those of test" if len(features.rows_of("test")) else "no test rows"
        fix = "Call rows of classes that the network has not seen `validation`, and others of them `test`"
        raise DataError(message, file=features.file, fix=fix)
    if layer is None:
        layer = choose_file(features, seed=_SEED, listener=listener).ship.name
        on_half = " on that half; on all classes it may select another" if halved else ""
        listener.say(f"layer {layer}, as layerprobe choose selects{on_half}")
    ranked = ranked_of_rows(features, layer)
    searched, _ = read_searched(run, EPOCH, ranked, split, torch.device("cpu"))
    fitted_on_it = FITTED_ON not in rows and parse_chain(ranked.reduction).fits
    subject = ThresholdsOf(file, features.epoch, ranked, split, fitted_on_it, *_test_clusters(features, rows["test"]))
    of_split = Features(searched.training, features.labels[rows[split]], ())
    setting = _pair_rows(features, of_split, rows[split], ranked.similarity)
    testing = _pair_rows(features, searched.queries, rows["test"], ranked.similarity)
    return measure_thresholds(subject, setting, testing, rates, listener)


def split_in_halves(features: UserFeatures) -> UserFeatures:
    """The rows with a random half of the classes, or of their clusters, as validation, and the other as test."""
    units = np.random.default_rng(_SEED).permutation(np.unique(features.units))
    if len(units) < _DIVIDED:
        kind = IntervalKind(cluster=features.cluster)
        message = f"{kind.units_text(len(units))}; 2 to set a threshold and 2 to measure it are needed"
        raise DataError(message, file=features.file, fix=f"Give rows of {kind.units_text(_DIVIDED)} or more")
    chosen = np.isin(features.units, units[: len(units) // 2])
    return replace(features, splits=np.where(chosen, "validation", "test"))


def _test_clusters(
    features: UserFeatures, test: NDArray[np.intp]
) -> tuple[str | None, tuple[Units, Units] | None, tuple[str, ...]]:
    """The column of clusters, the clusters of the test rows, and a note where classes lie in folders."""
    if features.cluster is not None:
        return features.cluster, (features.units[test], features.units[test]), ()
    names = (features.class_names[label] for label in np.unique(features.labels[test]).tolist() if features.class_names)
    return None, None, tuple(filter(None, [folders_note(names)]))


def _pair_rows(features: UserFeatures, split_features: Features, rows: NDArray[np.intp], similarity: str) -> AllPairs:
    rules = None if features.groups is None else SearchRules(groups=features.groups[rows])
    return all_pairs(
        torch.as_tensor(split_features.values),
        split_features.labels,
        similarity=similarity,  # type: ignore[arg-type] # checked where the layer is named
        rules=rules,
    )
