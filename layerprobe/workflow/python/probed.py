"""Probed: the result of `layerprobe.probe`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerprobe import registry
from layerprobe.measure.cka import layer_cka
from layerprobe.measure.error_rates import error_rates
from layerprobe.measure.pair_similarities import Labelled
from layerprobe.metrics.recall import positives_and_negatives
from layerprobe.plots.plot import Plot, PlotOptions, ReadImage
from layerprobe.plots.values import metric_of
from layerprobe.ranking.all_pairs import AllPairs, all_pairs
from layerprobe.system.errors import DataError, NumericError, RecipeError, UnknownNameError
from layerprobe.tables.formats import Shown
from layerprobe.values.facts import DataFacts
from layerprobe.values.keys import NO_REDUCTION, RankedLayer, is_glob, named
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Matrix, Score
from layerprobe.values.views import Curve, ErrorRates, Histogram, Neighbours, Reductions
from layerprobe.workflow.plot.dims import at_equal_dimensions, best_on_validation, python_fix, reductions_of, shown
from layerprobe.workflow.plot.error_rates import subjects_of
from layerprobe.workflow.plot.feature_views import histograms_of, shown_layers, spectra_of
from layerprobe.workflow.plot.gallery_sizes import RECALL, QueriesSearched, curves_of, layers_shown
from layerprobe.workflow.plot.gallery_sizes import SPLIT as SEARCHED
from layerprobe.workflow.plot.matrices import COMPARED
from layerprobe.workflow.plot.plot import of_metric, require_options
from layerprobe.workflow.run.facts import epoch_tables, split_facts
from layerprobe.workflow.run.indistinguishable import QueryRanks, alike_of
from layerprobe.workflow.run.opened_run import score_frame
from layerprobe.workflow.run.reduction_draws import ranked_as

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame

T = TypeVar("T")


class ByLayer(dict[tuple[str, str], T]):
    """Values by split and layer: `values["test", "blocks.5@avg"]`, or `"blocks.5"` where that has a single pool.

    Those of a reduced layer are `values["test", "blocks.5@avg/l2+pca:8"]`, or `"blocks.5/l2+pca:8"`.

    Args:
        absent: split and layer -> why it has no value.
    """

    def __init__(
        self,
        values: Mapping[tuple[str, RankedLayer], T],
        absent: Mapping[tuple[str, RankedLayer], str] | None = None,
    ) -> None:
        super().__init__({(split, str(ranked)): value for (split, ranked), value in values.items()})
        self._absent = dict(absent or {})
        self._layers: dict[str, list[RankedLayer]] = {}
        for split, ranked in (*values, *self._absent):
            self._layers.setdefault(split, []).append(ranked)

    def of(self, split: str) -> dict[RankedLayer, T]:
        """The values of a split by layer; none where it was not probed."""
        layers = self._layers.get(split, ())
        return {ranked: self[split, str(ranked)] for ranked in layers if (split, ranked) not in self._absent}

    def __missing__(self, key: tuple[str, str]) -> T:
        if not isinstance(key, tuple) or len(key) != 2:
            raise RecipeError(f"{key!r} is not a split and a layer", fix='Write ["test", "blocks.5@avg"]')
        split, text = key
        if split not in self._layers:
            raise UnknownNameError("split", split, self._layers)
        known = self._layers[split]
        found = [] if is_glob(text) else named(text, known)
        if not found:
            raise UnknownNameError("layer", text, map(str, known))
        if len(found) > 1:
            raise RecipeError(f"{text} names several layers", fix=f"Choose one of {', '.join(map(str, found))}")
        if reason := self._absent.get((split, found[0])):
            raise NumericError(f"{found[0]!s} has none on {split}: {reason}")
        return self[split, str(found[0])]


@dataclass(frozen=True, eq=False)
class Probed:
    """Scores, ranks and features of a model's layers.

    Args:
        scores: as in scores.csv; layers in execution order.
        ranks: `ranks["test", "blocks.5@avg"]` -> rank of each query's nearest item of its class. A reduction follows
            the layer: `ranks["test", "blocks.5@avg/l2+pca:8"]`; a mean over draws has the ranks of each draw,
            `blocks.5@avg/random:8` and `blocks.5@avg/random:8:1`.
        features: `features["test", "blocks.5@avg"]` -> float32 (N, D), in the loader's order; reduced ones as for
            `ranks`, binary codes as uint8.
        labels: split -> (N,) the loader's labels, in the same order.
        gallery: split -> the split that it is searched in, where that is not itself.
    """

    name: str
    scores: tuple[Score, ...]
    ranks: ByLayer[Ranks]
    features: ByLayer[NDArray[np.float32]]
    labels: Mapping[str, NDArray[np.int64]]
    gallery: Mapping[str, str]

    def table(self) -> Shown:
        """The tables of `layerprobe probe`: text if printed, HTML in a notebook."""
        return Shown(tuple(epoch_tables(self.scores, self.data_facts(), self.query_ranks)))

    def frame(self) -> DataFrame:
        """A row for each score, with the columns of scores.csv.

        Raises:
            EnvironmentFault: pandas is not installed.
        """
        return score_frame(self.scores)

    def plot(self, kind: str, metric: str | None = None) -> Figure:
        """Draw a registered plot, such as `layers`, `train-vs-test` or `cka`.

        Args:
            metric: a share that was measured, of plots of scores; None for R@1.

        Raises:
            UnknownNameError: unknown plot or metric.
            LayerprobeError: the plot needs other scores, or draws none.
        """
        plot: Plot = registry.load("plot", registry.PLOTS, kind)
        options = PlotOptions(metric=metric)
        require_options(kind, plot, options)
        scores = (
            self.scores if metric is None else tuple(of_metric(self.scores, metric, f"Probe with metrics={metric!r}"))
        )
        return plot.draw(_ProbedSource(replace(self, scores=scores)), options).figure

    def __repr__(self) -> str:
        layers = {score.layer_key for score in self.scores}
        splits = dict.fromkeys(score.split for score in self.scores)
        return f"Probed({self.name}: {len(layers)} layers on {' and '.join(splits)}, {len(self.scores)} scores)"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()

    def data_facts(self) -> DataFacts:
        """What the scores were measured on."""
        splits = dict.fromkeys(score.split for score in self.scores)
        searched = {split: self.labels[self.gallery[split]] for split in splits if split in self.gallery}
        facts = {split: split_facts(self.labels[split], searched.get(split)) for split in splits}
        return DataFacts("", facts, start="epoch 0")

    def query_ranks(self, epoch: int, split: str, cluster: str | None) -> QueryRanks | None:  # noqa: ARG002 - only one
        """The ranks of a split's queries; None with a cluster, whose texts are not kept."""
        return None if cluster is not None else QueryRanks(self.labels[split], self.ranks.of(split))


@dataclass(frozen=True, eq=False)
class _ProbedSource:
    """The values that plots draw."""

    probed: Probed

    @property
    def scores(self) -> Sequence[Score]:
        return self.probed.scores

    def data(self, _: Iterable[str]) -> Mapping[str, DataFacts]:
        facts = self.probed.data_facts()
        return {self.probed.name: facts if metric_of(self.scores) == "R@1" else facts.without_chance()}

    def embeddings(self) -> Mapping[str, RankedLayer]:
        return {}  # no network is recorded

    def indistinguishable(self, scores: Sequence[Score], metric: str) -> Collection[RankedLayer] | None:
        return alike_of(scores, metric, self.probed.query_ranks)

    def matrices(self, _: PlotOptions) -> Sequence[Matrix]:
        features = {
            ranked.layer: values
            for ranked, values in self.probed.features.of(COMPARED).items()
            if ranked.reduction == NO_REDUCTION and "+" not in ranked.layer.layer
        }
        if not features:
            raise DataError(f"CKA compares features of the {COMPARED} split", fix=f"Probe a {COMPARED} split")
        return [layer_cka(list(features), features.__getitem__, run=self.probed.name, split=COMPARED, epoch=0)]

    def gallery_sizes(self, ask: PlotOptions) -> Sequence[Curve]:
        probed = self.probed
        (layers,) = layers_shown([probed.scores], ask.layers, {})
        if not layers:
            raise DataError(f"no {RECALL} on the {SEARCHED} split", fix=f"Probe a {SEARCHED} split with ks=(1,)")
        labels, known = probed.labels[SEARCHED], probed.ranks.of(SEARCHED)
        gallery = probed.labels[probed.gallery[SEARCHED]] if SEARCHED in probed.gallery else None
        ranks = {ranked: [known[draw] for draw in ranked_as(ranked, known)] for ranked in layers}
        searched = QueriesSearched(labels, positives_and_negatives(labels, gallery), "probe")
        return curves_of(searched, ranks, probed.scores)

    def reductions(self, ask: PlotOptions) -> Sequence[Reductions]:
        values = at_equal_dimensions(self.scores)
        dims = {
            ranked.layer: int(features.shape[1])
            for split in self.probed.labels
            for ranked, features in self.probed.features.of(split).items()
            if ranked.reduction == NO_REDUCTION
        }
        if not values:
            raise DataError("no layer was brought to an equal dimension", fix=python_fix(dims))
        return shown([reductions_of(values, dims, best_on_validation(values))], values, ask.layers, {})

    def neighbours(self, _: PlotOptions) -> tuple[Sequence[Neighbours], ReadImage]:
        fix = "Probe it by layerprobe probe --model python:FILE.py:FUNCTION --data folder:ROOT, then plot panels"
        raise DataError("panels show images, and a probe from Python keeps none", fix=fix)

    def histograms(self, ask: PlotOptions) -> Sequence[Histogram]:
        return histograms_of(self.scores, self._labelled, shown_layers([self.scores], ask, {}))

    def spectra(self, ask: PlotOptions) -> Sequence[Curve]:
        return spectra_of(self.scores, self._labelled, shown_layers([self.scores], ask, {}))

    def error_rates(self, ask: PlotOptions) -> Sequence[ErrorRates]:
        set_on = "validation" if "validation" in self.probed.labels else None
        subjects = subjects_of(self.scores, shown_layers([self.scores], ask, {}))
        return [error_rates(one, partial(self._pairs, one.ranked), set_on) for one in subjects]

    def _pairs(self, ranked: RankedLayer, split: str) -> AllPairs:
        probed, searched = self.probed, self.probed.gallery.get(split)
        return all_pairs(
            probed.features[split, str(ranked)],
            probed.labels[split],
            gallery=None if searched is None else probed.features[searched, str(ranked)],
            gallery_labels=None if searched is None else probed.labels[searched],
            similarity=ranked.similarity,  # type: ignore[arg-type] # checked where it was given
        )

    def _labelled(self, split: str, ranked: RankedLayer) -> Labelled:
        return Labelled(self.probed.features[split, str(ranked)], self.probed.labels[split])
