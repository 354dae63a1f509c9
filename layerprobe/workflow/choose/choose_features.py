"""choose: a user's own features of several layers -> which layer to ship."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from numbers import Integral, Real
from typing import Any, Protocol, runtime_checkable

from layerprobe.system.errors import DataError, UnknownNameError, names_of, require_type
from layerprobe.system.memory import memory_faults_told
from layerprobe.system.progress import Listener, Silent
from layerprobe.values.choice import Choice, Ship, replace_parts
from layerprobe.values.costs import IndexKind
from layerprobe.values.layers import NO_REDUCTION, LayerKey, RankedLayer, matching_layers
from layerprobe.values.scores import Score
from layerprobe.workflow.choose.choose import choose_candidates
from layerprobe.workflow.choose.features_run import SIMILARITY, LayersOfFeatures, rows_by_split, run_of_features
from layerprobe.workflow.choose.request import WITHIN, ChooseRequest
from layerprobe.workflow.choose.user_features import UserFeatures, check_features
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
    seed: int = 0,
) -> Choice:
    """Choose the layer to ship from features of any origin, without looking at the classes that judge it.

    Candidates are each layer raw and half-whitened (`l2+whiten:D:0.5+l2`, where D is the minimum of 128, its dimensions
    and the rank of the features that it is fitted on). The best mean is preferred; within half of a standard error of
    it MAP@R decides. The verdicts say how sure that is. Each image is searched among the others of its
    split, by cosine similarity. The last layer is taken as the embedding that is used today; it is selected where it
    cannot be told whether to switch from it.

    `splits` decide which rows are chosen on:

    - with validation rows, these; reductions are fitted on the train rows.
    - with train and test rows, the test rows, cross-fitted over 5 folds of classes: each fold scores what is chosen on
      the other four. Reductions are fitted on the train rows. Nothing is chosen on these, as a network that was trained
      on them has memorised them in its last layers.
    - with train and test rows and `seen=False`, the train rows.
    - without splits, or with a single one, all rows, cross-fitted.

    Where there are no other train rows to fit on, each fold of classes is searched in itself, with reductions that are
    fitted on the other four. A layer whose rows are all one vector, up to its length, and one whose Recall@1 is not
    above chance are skipped with a note.

    >>> import numpy as np, layerprobe
    >>> rng, labels = np.random.default_rng(0), np.repeat(np.arange(30), 4)
    >>> classes = rng.normal(size=(30, 16))[labels]
    >>> noisy, clear = (classes + rng.normal(size=classes.shape) * noise for noise in (2, 0.3))
    >>> choice = layerprobe.choose({"early": noisy, "late": clear}, labels)
    >>> choice.ship.layer, choice.ship.bytes_per_image, choice.test.value
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
        seed: of folds and resamples.

    Returns:
        What to ship, its gain over the embedding on test, and how sure the choice is; `print` shows the command's text.

    Raises:
        DataError: no features, shapes or types that do not fit, fewer than 2 classes, a class in two splits, or every
            layer collapsed to one vector or at chance.
        NumericError: NaN or Inf.
        RecipeError: `within` is not from 0 to 100, all are train rows that may have been seen, or the metric is not a
            mean over queries.
        UnknownNameError: a split, metric or layer of another name.
        TypeError: an argument of another type.
    """
    require_type("metric", metric, str, "a name")
    require_type("within", within, Real, "a number of points")
    require_type("seed", seed, Integral, "a whole number")
    cluster = None if clusters is None else "clusters"
    candidates = tuple(filter(None, names_of("layers", layers)))
    request = ChooseRequest(within=float(within), metric=metric, layers=candidates, cluster=cluster, device="cpu")
    if not isinstance(features, HasFeatures):
        require_type("features", features, Mapping, "(N, D) arrays by the names of layers, or a result of probe")
        return _choose(check_features(features, labels, splits, clusters=clusters), request, seen=seen, seed=seed)
    if labels is not None or splits is not None or clusters is not None:
        raise DataError("a result of probe has labels and splits of its own", fix="Give the result alone")
    return _choose(features.user_features(), request, seen=seen, seed=seed)


def choose_file(  # noqa: PLR0913 - as `choose`
    features: UserFeatures,
    *,
    seen: bool = True,
    within: float = WITHIN,
    metric: str = "R@1",
    layers: Sequence[str] = (),
    indexes: tuple[IndexKind, ...] = (),
    seed: int = 0,
    listener: Listener | None = None,
) -> Choice:
    """Choose among the features of a file, as `choose` does.

    Args:
        features: as `read_user_features` reads it.
        layers: the candidates, as names or globs; empty for all.
        indexes: kinds of indexes of the chosen layer that are compared with the exact search.
    """
    cluster = None if features.clusters is None else features.cluster or "clusters"
    request = ChooseRequest(
        within=within, metric=metric, layers=tuple(layers), indexes=indexes, cluster=cluster, device="cpu"
    )
    with memory_faults_told(features.file):
        return _choose(features, request, seen=seen, seed=seed, listener=listener)


def _choose(
    user_features: UserFeatures,
    request: ChooseRequest,
    *,
    seen: bool,
    seed: int,
    listener: Listener | None = None,
) -> Choice:
    run, notes = run_of_features(user_features, seen=seen, seed=seed), tuple[str, ...]()
    split, rows = split_to_choose_on(run, run.record, run.record.epochs), rows_by_split(user_features)
    collapsed = user_features.find_collapsed(rows[split])
    if collapsed:
        names = ", ".join(map(str, collapsed))
        if len(collapsed) == len(user_features.features):
            message = f"every layer has collapsed to one vector: {names}"
            raise DataError(message, file=user_features.file, fix="Give features that differ between images")
        user_features = replace(
            user_features, features={x: values for x, values in user_features.features.items() if x not in collapsed}
        )
        run, notes = (
            run_of_features(user_features, seen=seen, seed=seed),
            (f"skipped: collapsed to one vector: {names}",),
        )
    requested, listener = _match_layers(user_features, request.layers), listener or Silent()
    layers = LayersOfFeatures(user_features, run, request, requested, listener, notes)
    further = layers.half_whitened if layers.is_folded else ()
    choice = choose_candidates([layers.candidates()], request, listener, further)
    # The run in memory has an epoch and a seed, which are not those of the features.
    epoch = user_features.epoch
    choice = replace_parts(choice, Ship, lambda ship: replace(ship, epoch=epoch))
    return replace_parts(choice, Score, lambda score: replace(score, epoch=epoch or 0, seed=None))


def _match_layers(user_features: UserFeatures, layers: Sequence[str]) -> set[LayerKey]:
    layers_by_ranked = {RankedLayer(layer, NO_REDUCTION, SIMILARITY): layer for layer in user_features.features}
    requested = set() if layers else set(layers_by_ranked.values())
    for text in layers:
        matching = {layers_by_ranked[ranked] for ranked in matching_layers(text, layers_by_ranked)}
        if not matching:
            raise UnknownNameError("layer", text, [str(ranked) for ranked in layers_by_ranked], file=user_features.file)
        requested |= matching
    return requested
