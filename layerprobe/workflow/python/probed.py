"""Probed: the result of `layerprobe.probe`, and the choice that its run keeps."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from layerprobe import registry
from layerprobe.plots.plot import Plot, PlotOptions
from layerprobe.system.errors import NumericError, RecipeError, UnknownNameError, names_of
from layerprobe.tables.formats import PrintedTables
from layerprobe.values.choice import Choice, SelectedLayer, replace_parts
from layerprobe.values.layers import NO_POST_PROCESSING, OUTPUT, LayerKey, RankedLayer, is_glob, matching_layers
from layerprobe.values.retrieval import Ranks
from layerprobe.values.scores import Score, recall_of
from layerprobe.workflow.choose.choose_features import choose
from layerprobe.workflow.choose.choose_once import request_of
from layerprobe.workflow.choose.request import WITHIN, ChooseRequest
from layerprobe.workflow.choose.user_features import UserFeatures, check_features
from layerprobe.workflow.compare.compare import compare_layers
from layerprobe.workflow.compare.comparison import Comparison
from layerprobe.workflow.plot.plot import StoredRuns, of_metric, require_options
from layerprobe.workflow.python.loaders import EPOCH, SEED
from layerprobe.workflow.python.stored_probe import MemoryProbe
from layerprobe.workflow.report.choices import describe_choice
from layerprobe.workflow.report.report import ResultPage, write_report
from layerprobe.workflow.report.request import ReportRequest
from layerprobe.workflow.run.facts import data_facts, epoch_tables
from layerprobe.workflow.run.metric_values import require_mean_over_queries
from layerprobe.workflow.run.opened_run import score_frame
from layerprobe.workflow.run.outputs import require_output
from layerprobe.workflow.run.references import RankedSplit, find_layers, open_ranked_split, parse_reference
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import RULE, StoredChoice, run_state, store_choice, stored_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from pandas import DataFrame


def keep_choice(measurement: MemoryProbe, choice: Choice, request: ChooseRequest, *, seen: bool, seed: int) -> None:
    """Store the choice of a result in the run that keeps it; nothing where none does.

    A run of more layers or post-processing than the result has keeps the names of the layers that were candidates.
    """
    run = measurement.features.run
    if not (measurement.cached and run.exists()):
        return
    ranked_layers = _list_ranked_layers(measurement.results.scores, choice.chosen.split)
    single = {x for x in ranked_layers if x.post_processing == NO_POST_PROCESSING and "+" not in x.layer.layer}
    if not request.layers and single != set(_list_ranked_layers(run.scores(), choice.chosen.split)):
        request = replace(request, layers=tuple(str(x.layer) for x in ranked_layers if x in single))
    options = {**request_of(request), **({} if seen else {"seen": seen}), **({} if seed == SEED else {"seed": seed})}
    states = {run.name: run_state(run, request.metric)}
    stored = StoredChoice(RULE, options, True, states, _assign_to_run(choice, run))
    store_choice(stored, [run], lambda text: warnings.warn(text, stacklevel=4))


def _list_ranked_layers(scores: Sequence[Score], split: str) -> dict[RankedLayer, None]:
    return dict.fromkeys(score.ranked for score in scores if score.split == split)


def _assign_to_run(choice: Choice, run: Run) -> Choice:
    """A choice of features as one of a run: with its name, experiment, seed and epoch."""
    record = run.read()
    choice = replace_parts(choice, SelectedLayer, lambda selected: replace(selected, epoch=EPOCH))
    choice = replace_parts(
        choice, Score, lambda score: replace(score, run=run.name, experiment=record.experiment, seed=record.seed)
    )
    return replace(choice, run=run.name)


T = TypeVar("T")


class ByLayer(dict[tuple[str, str], T]):
    """Values by split and layer: `values["test", "blocks.5@avg"]`, or `"blocks.5"` where that has a single pool.

    Those of a post-processed layer are `values["test", "blocks.5@avg/l2+pca:8"]`, or `"blocks.5/l2+pca:8"`.

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

    def on_split(self, split: str) -> dict[RankedLayer, T]:
        """The values of a split by layer; none where it was not probed."""
        layers = self._layers.get(split, ())
        return {ranked: self[split, str(ranked)] for ranked in layers if (split, ranked) not in self._absent}

    def __missing__(self, key: tuple[str, str]) -> T:
        if not isinstance(key, tuple) or len(key) != 2:
            raise RecipeError(f"{key!r} is not a split and a layer", fix='Write ["test", "blocks.5@avg"]')
        split, text = key
        if split not in self._layers:
            raise UnknownNameError("split", split, self._layers)
        candidates = self._layers[split]
        matches = [] if is_glob(text) else matching_layers(text, candidates)
        if not matches:
            raise UnknownNameError("layer", text, map(str, candidates))
        if len(matches) > 1:
            raise RecipeError(f"{text} names several layers", fix=f"Choose one of {', '.join(map(str, matches))}")
        if reason := self._absent.get((split, matches[0])):
            raise NumericError(f"{matches[0]!s} has none on {split}: {reason}")
        return self[split, str(matches[0])]


@dataclass(frozen=True, eq=False)
class Probed:
    """Scores, ranks and features of a model's layers.

    Args:
        scores: as in scores.csv; layers in execution order.
        ranks: `ranks["test", "blocks.5@avg"]` -> rank of each query's nearest item of its class. Post-processing
            follows the layer: `ranks["test", "blocks.5@avg/l2+pca:8"]`; a mean over draws has the ranks of each draw,
            `blocks.5@avg/random:8` and `blocks.5@avg/random:8:1`.
        features: `features["test", "blocks.5@avg"]` -> float32 (N, D), in the loader's order; post-processed ones as
            for `ranks`, those of `float16` and `int8` in that type, binary codes as uint8.
        labels: split -> (N,) the loader's labels, in the same order; of texts their numbers in sorted order.
        gallery: split -> the split that it is searched in, where that is not itself.
    """

    name: str
    scores: tuple[Score, ...]
    ranks: ByLayer[Ranks]
    features: ByLayer[NDArray[np.float32]]
    labels: Mapping[str, NDArray[np.int64]]
    gallery: Mapping[str, str]
    measurement: MemoryProbe = field(repr=False)

    def table(self) -> PrintedTables:
        """The tables of `layerprobe probe`: text if printed, HTML in a notebook."""
        run = self.measurement.run
        table, *further_tables = epoch_tables(run, self.scores, data_facts(run, self.scores))
        return PrintedTables((replace(table, notes=(*table.notes, *self.measurement.notes)), *further_tables))

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
        scores = self.scores if metric is None else tuple(of_metric(self.scores, metric, _suggest_probe(metric)))
        return plot.draw(StoredRuns([self.measurement.run], scores), options).figure

    def choose(
        self,
        *,
        seen: bool = True,
        within: float = WITHIN,
        metric: str = "R@1",
        layers: str | Sequence[str] = (),
        seed: int = 0,
    ) -> Choice:
        """Choose the layer to use among the probed ones, raw and partially whitened, as `layerprobe.choose` does.

        Where the result is kept as a run (`cache=`), the run keeps the choice, for `layerprobe export` and the others.

        Args: as there; `seen` is whether the model may have been trained on the train split.

        Raises:
            RecipeError: test is searched in a gallery, or only concatenated layers were probed.
            LayerprobeError: as there.
        """
        choice = choose(self, seen=seen, within=within, metric=metric, layers=layers, seed=seed)
        patterns = tuple(filter(None, names_of("layers", layers)))
        request = ChooseRequest(within=within, layers=patterns, metric=metric)
        keep_choice(self.measurement, choice, request, seen=seen, seed=seed)
        return choice

    def compare(self, a: str, b: str, *, metric: str = "R@1", split: str = "test") -> Comparison:
        """Compare two layers on the same queries: the difference and its confidence interval.

        Args:
            a: a measured layer, `LAYER[@pool][/post_processing][~similarity]`.
            metric: R@K, or another measured mean over queries such as MAP@R.

        Raises:
            UnknownNameError: unknown split or metric.
            RecipeError: not one measured layer each.
            DataError: the metric was not measured.
            NumericError: features of a layer are not finite.
        """
        require_mean_over_queries(metric)
        if recall_of(metric) is None:  # Recall at any K follows from the ranks
            of_metric(self.scores, metric, _suggest_probe(metric))
        ranked_split = open_ranked_split(self.measurement.run, None, split)
        pair = _find_layer(ranked_split, a), _find_layer(ranked_split, b)
        return compare_layers([(ranked_split, ranked_split)], [pair], metric)[0]

    def report(self, path: str | Path, *, metric: str = "R@1", seen: bool = True) -> None:
        """Write the page of `layerprobe report`: findings, choice, tables and plots, without images.

        Args:
            path: an .html file, which is replaced.
            metric: of the findings and the choice, and first shown.
            seen: whether the model may have been trained on the train split, as in `choose`.

        Raises:
            DataError: the metric was not measured.
            RecipeError: the metric is not a mean over queries.
            LayerprobeError: the file cannot be written.
        """
        out = Path(path)
        require_output(out, "html")
        require_mean_over_queries(metric)
        of_metric(self.scores, metric, _suggest_probe(metric))
        stored = stored_choice(self.measurement.run)
        choice = None if stored is None else stored.choice
        chosen = describe_choice([self.name], lambda: choice or choose(self, metric=metric, seen=seen))
        lasting = self.measurement.cached and seen
        request = ReportRequest([self.measurement.run_to_report(seen=seen)], out, metric)
        write_report(request, ResultPage(chosen, lasting=lasting))

    def user_features(self) -> UserFeatures:
        """The raw features of single layers, the embedding last, with a row for each image of all splits."""
        if self.gallery:
            problem = f"{next(iter(self.gallery))} is searched in a gallery, and choose searches each split in itself"
            raise RecipeError(problem, fix="Probe without the gallery")
        layers, infinite = self._split_single_layers()
        splits = np.concatenate([np.full(len(labels), split) for split, labels in self.labels.items()])
        arrays = {
            str(layer): np.concatenate([self.features[split, str(layer)] for split in self.labels]) for layer in layers
        }
        validated = check_features(arrays, np.concatenate(list(self.labels.values())), splits)
        features = dict(zip(layers, validated.features.values(), strict=True))
        notes = tuple(f"skipped: its features are not finite: {layer}" for layer in infinite)
        contents = [hashes for x in self.labels if (hashes := self.measurement.features.splits[x].contents) is not None]
        image_hashes = np.concatenate(contents) if len(contents) == len(self.labels) else None
        return replace(validated, features=features, notes=notes, contents=image_hashes)

    def _split_single_layers(self) -> tuple[list[LayerKey], list[LayerKey]]:
        """The layers that are no concatenation: those with finite features, and the others."""
        raw = dict.fromkeys(
            ranked.layer
            for split in self.labels
            for ranked in self.features.on_split(split)
            if ranked.post_processing == NO_POST_PROCESSING and "+" not in ranked.layer.layer
        )
        ranked_by_split = [{ranked.layer for ranked in self.ranks.on_split(split)} for split in self.labels]
        finite = [layer for layer in raw if all(layer in ranked_layers for ranked_layers in ranked_by_split)]
        finite.sort(key=lambda layer: layer.layer == OUTPUT)
        if not raw:
            raise RecipeError("only concatenated layers were probed", fix='Probe single ones, such as layers="*"')
        return finite, [layer for layer in raw if layer not in finite]

    def __repr__(self) -> str:
        layers = {score.ranked.layer for score in self.scores}
        splits = dict.fromkeys(score.split for score in self.scores)
        return f"Probed({self.name}: {len(layers)} layers on {' and '.join(splits)}, {len(self.scores)} scores)"

    def _repr_html_(self) -> str:
        return self.table()._repr_html_()


def _suggest_probe(metric: str) -> str:
    recall = recall_of(metric)
    if recall is None:
        return f"Probe with metrics={metric!r}"
    return f"Probe with ks={tuple(sorted({1, recall.k}))}"


def _find_layer(ranked_split: RankedSplit, text: str) -> RankedLayer:
    reference = parse_reference(text, bare="layer")
    if reference.run is not None or reference.epoch is not None:
        raise RecipeError(f"{text} names a run", fix="Name a layer of this result")
    if reference.is_glob:
        raise RecipeError(f"{text} may name several layers", fix="Name one")
    (layer,) = find_layers(ranked_split, reference)
    return layer
