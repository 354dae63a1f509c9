"""choose: a user's own features of several layers -> which layer to use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Protocol, runtime_checkable

from layerprobe.system.errors import DataError, names_of, require_type
from layerprobe.system.memory import memory_faults_told
from layerprobe.system.progress import Listener, Silent
from layerprobe.values.choice import Choice, SelectedLayer, replace_parts
from layerprobe.values.scores import Score
from layerprobe.workflow.choose.choose import choose_candidates
from layerprobe.workflow.choose.features_run import open_features, rows_by_split, run_of_features
from layerprobe.workflow.choose.request import WITHIN, ChooseRequest
from layerprobe.workflow.choose.user_features import UserFeatures, are_one_vector, check_features
from layerprobe.workflow.run.seen import split_to_choose_on


@runtime_checkable
class HasFeatures(Protocol):
    """The result of `layerprobe.probe`."""

    def user_features(self) -> UserFeatures:
        """Its features, labels and splits."""


def choose(  # noqa: PLR0913 - the rows, their relation to the network, and the rule
    features: Mapping[str, Any] | HasFeatures,
    labels: Any = None,
    *,
    splits: Any = None,
    clusters: Any = None,
    seen: bool = True,
    within: float = WITHIN,
    metric: str = "R@1",
    layers: str | Sequence[str] = (),
    budget: int | None = None,
    seed: int = 0,
) -> Choice:
    """Choose the layer to use from features of any origin, without looking at the classes that judge it.

    Candidates are each layer raw, partially whitened (`l2+whiten:D:0.5+l2`, where D is the minimum of 128, its
    dimensions and the rank of the features that it is fitted on) and, where each fit has 16 classes of two rows or
    more, after learned whitening to as many and to 64 dimensions (`l2+lwhiten:D:lw+l2`). The best mean is preferred;
    within half of a standard error of it MAP@R decides. The verdicts say how sure that is. Each image is searched among
    the others of its split, by cosine similarity. The last layer is taken as the embedding in use; it is selected where
    whether to switch from it is inconclusive.

    `splits` decide which rows are chosen on:

    - with validation rows, these; post-processing is fitted on the train rows.
    - with train and test rows, the test rows, cross-fitted over 5 folds of classes: each fold scores what is chosen on
      the other four. Post-processing is fitted on the train rows. Nothing is chosen on these, as a network that was
      trained on them has memorised them in its last layers.
    - with train and test rows and `seen=False`, the train rows.
    - without splits, or with a single one, all rows, cross-fitted.

    Where there are no other train rows to fit on, each fold of classes is searched in itself, with post-processing that
    are fitted on the other four. A layer whose rows are all one vector, up to its length, and one whose Recall@1 is not
    above chance are skipped with a note.

    >>> import numpy as np, layerprobe
    >>> rng, labels = np.random.default_rng(0), np.repeat(np.arange(30), 4)
    >>> classes = rng.normal(size=(30, 16))[labels]
    >>> noise = rng.normal(size=(2, *classes.shape))
    >>> noisy, clear = classes + 2 * noise[0], classes + 0.3 * noise[1]
    >>> choice = layerprobe.choose({"early": noisy, "late": clear}, labels)
    >>> choice.selected.layer, choice.selected.bytes_per_image, choice.test.value
    ('late', 64, 1.0)

    Args:
        features: name of a layer -> (N, D) real numbers, an array or tensor each; in network order, as of layers of
            equal size the earlier one is cheaper. Or the result of `layerprobe.probe`, with its labels and splits.
        labels: (N,) integers or strings, the class of each row; not of a result.
        splits: (N,) train, validation or test for each row; None for a single split. No class may be in two splits.
        clusters: (N,) integers or strings, the cluster of classes of each row: the units of intervals and folds, where
            classes of a cluster are alike. None for the classes.
        seen: whether the network may have been trained on the train rows.
        within: points of the metric that do not matter, 0 to 100.
        metric: that decides: R@K, or another mean over queries such as MAP@R.
        layers: the candidates, as names or globs; empty for all.
        budget: bytes a row at most, for which smaller maps and codes of each layer are candidates, too; None for any
            number.
        seed: of folds and resamples.

    Returns:
        What is selected, its gain over the embedding on test, and how sure the choice is; `print` shows the command's
        text.

    Raises:
        DataError: no features, shapes or types that do not fit, fewer than 2 classes, a class in two splits, or every
            layer collapsed to one vector or at chance.
        NumericError: NaN or Inf.
        RecipeError: `within` is not from 0 to 100, `budget` below 1, all are train rows that may have been seen, or the
            metric is not a mean over queries.
        UnknownNameError: a split, metric or layer of another name.
        TypeError: an argument of another type.
    """
    require_type("metric", metric, str, "a name")
    require_type("within", within, Real, "a number of points")
    require_type("seed", seed, Integral, "a whole number")
    cluster = None if clusters is None else "clusters"
    candidates = tuple(filter(None, names_of("layers", layers)))
    if budget is not None:
        require_type("budget", budget, Integral, "a number of bytes")
    request = ChooseRequest(
        within=float(within), metric=metric, layers=candidates, cluster=cluster, device="cpu", budget=budget
    )
    if not isinstance(features, HasFeatures):
        require_type("features", features, Mapping, "(N, D) arrays by the names of layers, or a result of probe")
        return _choose(check_features(features, labels, splits, clusters=clusters), request, seen=seen, seed=seed)
    if labels is not None or splits is not None or clusters is not None:
        raise DataError("a result of probe has labels and splits of its own", fix="Give the result alone")
    return _choose(features.user_features(), request, seen=seen, seed=seed)


def choose_file(
    features: UserFeatures,
    request: ChooseRequest | None = None,
    *,
    seen: bool = True,
    seed: int = 0,
    listener: Listener | None = None,
) -> Choice:
    """Choose among the features of a file, as `choose` does, on the CPU.

    Args:
        features: as `read_user_features` reads it.
        request: whose `cluster` is that of the features.
    """
    cluster = None if features.clusters is None else features.cluster or "clusters"
    request = replace(request or ChooseRequest(), device="cpu", cluster=cluster)
    with memory_faults_told(features.file):
        return _choose(features, request, seen=seen, seed=seed, listener=listener)


def _choose(
    features: UserFeatures, request: ChooseRequest, *, seen: bool, seed: int, listener: Listener | None = None
) -> Choice:
    run, notes = run_of_features(features, seen=seen, seed=seed), tuple[str, ...]()
    rows = rows_by_split(features)[split_to_choose_on(run, run.record, run.record.epochs)]
    if collapsed := [layer for layer, values in features.features.items() if are_one_vector(values, rows)]:
        names = ", ".join(map(str, collapsed))
        if len(collapsed) == len(features.features):
            message = f"every layer has collapsed to one vector: {names}"
            raise DataError(message, file=features.file, fix="Give features that differ between images")
        others = {layer: values for layer, values in features.features.items() if layer not in collapsed}
        features, notes = replace(features, features=others), (f"skipped: collapsed to one vector: {names}",)
        run = run_of_features(features, seen=seen, seed=seed)
    listener = listener or Silent()
    candidate_run, further = open_features(features, run, request, listener, notes)
    choice = choose_candidates([candidate_run], request, listener, further)
    # The run in memory has an epoch and a seed, which are not those of the features.
    epoch = features.epoch
    choice = replace_parts(choice, SelectedLayer, lambda selected: replace(selected, epoch=epoch))
    return replace_parts(choice, Score, lambda score: replace(score, epoch=epoch or 0, seed=None))
