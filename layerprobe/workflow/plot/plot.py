"""plot: scores or features of runs, and the choice that they keep -> a figure and its numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from layerprobe import registry
from layerprobe.plots.drawn_scores import metric_of, scores_of_layers, scores_until_epoch
from layerprobe.plots.figure import FORMATS, add_note, encode_figure
from layerprobe.plots.plot import LOSS, Drawing, NotProbedError, Plot, PlotOptions, ReadImage
from layerprobe.plots.selected import selected_text
from layerprobe.post_processing.chain import parse_chain
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import NO_POOL, RankedLayer, spoken_name
from layerprobe.values.scores import (
    Matrix,
    Score,
    facts_over_seeds,
    is_fraction,
    over_seeds,
    recall_of,
    shared_notes,
    trainings,
)
from layerprobe.values.views import (
    Curve,
    ErrorRates,
    GradientSizes,
    Histogram,
    OverTrainings,
    PlaneFeatures,
    PostProcessings,
    Projection,
    QueryNeighbours,
    Selected,
)
from layerprobe.workflow.plot.dims import best_of_sizes, stored_post_processings
from layerprobe.workflow.plot.feature_views import (
    LayerSelection,
    ReadFeatures,
    histograms_of,
    open_stored,
    select_layers,
    selected_error_rates,
    selected_histograms,
    spectra_of,
    stored_error_rates,
)
from layerprobe.workflow.plot.gallery_sizes import stored_curves
from layerprobe.workflow.plot.matrices import COMPARED, comparable_scores, layers_of, matrices_of
from layerprobe.workflow.plot.over_trainings import (
    TrainingScores,
    differing_keys,
    learnt_parameters,
    losses_over_key,
    place_runs,
    recall_at_k,
    scores_over_key,
    training_losses,
)
from layerprobe.workflow.plot.request import PlotRequest
from layerprobe.workflow.run.experiments import scores_of
from layerprobe.workflow.run.facts import data_facts, find_indistinguishable
from layerprobe.workflow.run.metric_values import metric_flags
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.references import embedding_among
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import stored_choice

S = TypeVar("S", bound=Histogram | ErrorRates)
SelectedOfRun = tuple[Run, Sequence[Score], Selected]  # with the run's scores


def stored_selected(name: str, runs: Sequence[Run], scores: Sequence[Score]) -> Selected | None:
    """The selected candidate of a run, or of several trainings that keep one choice; None without one.

    Args:
        name: of the run, or of the mean over trainings, in the scores.
        scores: of one metric, or R@1 among others.
    """
    stored = [stored_choice(run) for run in runs]
    first_stored = stored[0]
    if first_stored is None or any(
        other is None or other.choice.chosen != first_stored.choice.chosen for other in stored
    ):
        return None
    choice, metric = first_stored.choice, metric_of(scores)
    epoch, ranked = choice.chosen.epoch, choice.chosen.ranked
    has_several_pools = (
        len({score.ranked.layer.pool for score in scores if score.ranked.layer.layer == ranked.layer.layer} - {NO_POOL})
        > 1
    )
    layer_text, dim = spoken_name(ranked, pool=has_several_pools), choice.selected.dim
    number, size = parse_chain(ranked.post_processing).number, choice.selected.bytes_per_image
    for split in ("test", choice.chosen.split):
        for score in scores:
            key = (score.run, score.epoch, score.split, score.ranked, score.metric)
            if key == (name, epoch, split, ranked, metric) and score.value is not None:
                return Selected(layer_text, score, dim, number=number, size=size)
    # Without such a score, the score of the choice is shown, if the choice is of exactly these trainings.
    of_choice = choice.test or choice.chosen
    if of_choice.metric != metric or set(first_stored.states) != {run.name for run in runs}:
        return None
    is_within_folds = choice.test is not None and choice.within_folds
    embedding = choice.embedding.test if choice.embedding is not None and is_within_folds else None
    score = replace(of_choice, run=name)
    return Selected(layer_text, score, dim, is_within_folds, embedding, number, size)


def add_selected(
    values: Sequence[S],
    options: PlotOptions,
    selected: Sequence[SelectedOfRun],
    values_of: Callable[[Run, Sequence[Score], Selected], Sequence[S]],
) -> list[S]:
    """The values of a plot, then those of the selected candidates that it lacks, unless layers are requested.

    Args:
        values_of: gives the values of a selected candidate. If it raises, a note on all other values says why.
    """
    drawn = {(value.run, value.epoch, value.ranked) for value in values}
    added: list[S] = []
    notes: list[str] = []
    for run, scores, candidate in selected if options.layers is None else ():
        epoch, ranked = candidate.score.epoch, candidate.score.ranked
        if options.epoch in (None, epoch) and (run.name, epoch, ranked) not in drawn:
            try:
                added += values_of(run, scores, candidate)
            except LayerprobeError as error:
                notes.append(f"{run.name}: {selected_text(candidate, epoch)} is not drawn: {error.message}")
    return [*(replace(value, notes=(*value.notes, *notes)) for value in values), *added]


_DEFAULTS = PlotOptions()


def plot(request: PlotRequest) -> Path:
    """Draw a plot, write its files, and return the path of the figure."""
    out = request.out or request.runs[0].plot_file(request.kind)
    require_output(out, *FORMATS)
    if request.csv:
        require_output(request.csv, "csv")
    drawing = draw_plot(request.kind, request.runs, request.options, request.lines)
    if request.note:
        add_note(drawing.figure, request.note)
    write_output(out, encode_figure(drawing.figure, out.suffix.lower().removeprefix(".") or "png"))
    if request.csv:
        write_output(request.csv, drawing.csv.encode())
    return out


def draw_plot(
    kind: str, runs: Sequence[Run], options: PlotOptions = _DEFAULTS, lines: Mapping[str, str] | None = None
) -> Drawing:
    """Draw a plot of one or more runs, whose lines have names as in `PlotRequest`; nothing is written."""
    registered: Plot = registry.load("plot", registry.PLOTS, kind)
    require_options(kind, registered, options)
    try:
        return _draw(registered, runs, options, lines)
    except NotProbedError as error:
        lacking = [run for run in runs if run.name == error.run] or runs
        fix = "; then ".join(f"run {run.command('probe', *error.flags)}" for run in lacking)
        raise DataError(error.message, fix=f"R{fix[1:]}") from error


def _draw(registered: Plot, runs: Sequence[Run], options: PlotOptions, lines: Mapping[str, str] | None) -> Drawing:
    if registered.any_metric and options.metric == LOSS:
        return registered.draw(StoredRuns(runs, (), lines), options)
    scores = scores_of([run for run in runs if registered.scored or run.has_scores])
    if not scores and registered.scored:
        raise DataError("no scores", file=runs[0].scores_file, fix=f"Run {runs[0].command('probe')} first")
    if options.metric:
        fix = f"Run {runs[0].command('probe', *metric_flags(options.metric))}"
        scores = of_metric(scores, options.metric, fix, any_metric=registered.any_metric)
    return registered.draw(StoredRuns(runs, scores, lines), options)


def require_options(kind: str, registered: Plot, options: PlotOptions) -> None:
    """Check that a plot has the options that are set."""
    unknown = [name for name, value in vars(options).items() if value is not None and name not in registered.options]
    if unknown:
        flags = ", ".join(f"--{name}" for name in registered.options)
        fix = f"Its options are {flags}" if flags else "Leave it out"
        raise RecipeError(f"plot {kind} has no option --{unknown[0]}", fix=fix)


def of_metric(scores: Sequence[Score], metric: str, fix: str, *, any_metric: bool = False) -> list[Score]:
    """The scores of a metric that is a share.

    Args:
        fix: how to measure it.
        any_metric: whether metrics that are no share are allowed.
    """
    metric_scores = [score for score in scores if score.metric == metric]
    drawable = dict.fromkeys(score.metric for score in scores if any_metric or is_fraction(score.metric))
    if metric_scores and metric not in drawable:
        raise RecipeError(f"{metric} is no share, and cannot be drawn in percent", fix=f"Choose {', '.join(drawable)}")
    if not metric_scores and metric not in registry.METRICS and recall_of(metric) is None:
        raise UnknownNameError("metric", metric, drawable)
    if not metric_scores:
        raise DataError(f"no scores of {metric}", fix=fix)
    return metric_scores


@dataclass(frozen=True, eq=False)
class StoredRuns:
    """The values of runs from their files; a `layerprobe.plots.plot.PlotSource`."""

    runs: Sequence[Run]
    scores_of_runs: Sequence[Score]
    lines: Mapping[str, str] | None = None

    @cached_property
    def scores(self) -> Sequence[Score]:
        """Those of a single run, or their mean over the trainings of an experiment."""
        return over_seeds(self.scores_of_runs)

    def data(self, runs: Iterable[str]) -> Mapping[str, DataFacts]:
        """Run, or mean of trainings -> its data."""
        facts = {run.name: data_facts(run, self.scores_of_runs) for run in self.runs}
        if metric_of(self.scores_of_runs) != "R@1":
            facts = {name: run_facts.without_chance() for name, run_facts in facts.items()}
        return facts_over_seeds(facts, {name: self._members.get(name, ()) for name in runs})

    def embeddings(self) -> Mapping[str, RankedLayer]:
        """Run, or mean of trainings -> its embedding layer, that of the first training."""
        by_run = {}
        for run in self.runs:
            layers = dict.fromkeys(score.ranked for score in self._scores_of_run(run))
            with contextlib.suppress(DataError):  # without a record nothing is known
                by_run[run.name] = embedding_among(run.read(), layers)
        by_name = {name: by_run.get(members[0]) for name, members in self._members.items()}
        return {name: embedding for name, embedding in by_name.items() if embedding is not None}

    def selected(self) -> Mapping[str, Selected]:
        """Run, or mean of trainings -> the selected candidate of the choice that it keeps."""
        return self._selected

    @cached_property
    def _selected(self) -> dict[str, Selected]:
        runs_by_name = {run.name: run for run in self.runs}
        scores = [*self.scores_of_runs, *self.scores]
        candidates = {
            name: stored_selected(name, [runs_by_name[member] for member in members], scores)
            for name, members in self._members.items()
        }
        return {name: candidate for name, candidate in candidates.items() if candidate is not None}

    def indistinguishable(self, scores: Sequence[Score], metric: str) -> Collection[RankedLayer] | None:
        """The layers indistinguishable from the best of one run and epoch; None where unknown."""
        runs_by_name = {run.name: run for run in self.runs}
        run = runs_by_name.get(scores[0].run)  # the folder of a run may have been renamed
        return None if run is None else find_indistinguishable(run, scores, metric, data_facts(run, scores))

    def matrices(self, options: PlotOptions) -> Sequence[Matrix]:
        """CKA of every two layers of each run, of each layer with its earlier epochs, and of every two runs' layers."""
        run_layers = []
        for run in self.runs:
            scores = scores_of_layers(
                scores_until_epoch(comparable_scores(run, self.scores_of_runs), options.epoch), options.layers
            )
            tested = [score.notes for score in self._scores_of_run(run) if score.split == COMPARED]
            run_layers.append(layers_of(run, scores, shared_notes(tested) if tested else ()))
        return matrices_of(run_layers)

    def gallery_sizes(self, options: PlotOptions) -> Sequence[Curve]:
        """Recall@1 of each run by number of items searched."""
        scores = scores_until_epoch(self.scores_of_runs, options.epoch)
        return stored_curves(self.runs, scores, options.layers, self.embeddings())

    def post_processings(self, options: PlotOptions) -> Sequence[PostProcessings]:
        """The layers of each run at equal dimensions."""
        return stored_post_processings(self.runs, self.scores_of_runs, options, self.embeddings(), self.selected())

    def best_of_sizes(self, options: PlotOptions) -> Sequence[PostProcessings]:
        """The best layers and post-processing of each run in at most so many bytes, by type of number."""
        return best_of_sizes(self.runs, self.scores_of_runs, options)

    def over_key(self, options: PlotOptions) -> OverTrainings:
        """A metric, or the training loss, over a key of the recipe."""
        key = options.key
        if not key:
            names = ", ".join(differing_keys(self.runs))
            fix = f"Add --key KEY; the runs differ in {names}" if names else "Name runs that differ, and add --key KEY"
            raise RecipeError("plot over-key needs a key of the recipe", fix=fix)
        training_scores = self._training_scores(key)
        if options.metric == LOSS:
            return losses_over_key(training_scores, {run.name: run for run in self.runs}, options, key)
        return scores_over_key(training_scores, options, key)

    def recall_at_k(self, options: PlotOptions) -> OverTrainings:
        """Recall@K over K."""
        return recall_at_k(self._training_scores(None), options)

    def neighbours(self, options: PlotOptions) -> tuple[Sequence[QueryNeighbours], ReadImage]:
        """The items nearest to some test queries."""
        from layerprobe.workflow.plot.panels import panels_of  # it imports torch, which other plots do without

        return panels_of(self.runs, self.scores_of_runs, options, self.embeddings(), self.selected())

    def histograms(self, options: PlotOptions) -> Sequence[Histogram]:
        """Similarities of images of the same and of different classes, by layer."""
        histograms = [histogram for features in self._features(options) for histogram in histograms_of(*features)]
        return add_selected(histograms, options, self._selected_runs, selected_histograms)

    def spectra(self, options: PlotOptions) -> Sequence[Curve]:
        """Variance of the features by dimension, by layer."""
        return [curve for features in self._features(options) for curve in spectra_of(*features)]

    def losses(self) -> Sequence[Score]:
        """The training loss by epoch, and the metric of the scores of the embedding on test where it was measured."""
        return over_seeds(training_losses(self.runs, self.scores_of_runs))

    def learnt(self) -> Sequence[Score]:
        """The parameters of the loss other than class weights, by epoch."""
        return over_seeds(learnt_parameters(self.runs))

    def plane_features(self, options: PlotOptions) -> Sequence[PlaneFeatures]:
        """The features of layers of two dimensions, those of a layer one after another."""
        from layerprobe.workflow.plot.classifier_views import stored_plane_features  # likewise

        selection = select_layers([scores for _, scores in self._scored_runs], options, self.embeddings())
        return [x for run, scores in self._scored_runs for x in stored_plane_features(run, scores, selection)]

    def projections(self, options: PlotOptions) -> Sequence[Projection]:
        """The features of layers in two dimensions, of the same test images; those of a run one after another."""
        from layerprobe.workflow.plot.maps import projections_of  # likewise

        return projections_of(self._scored_runs, options, self.embeddings())

    def gradients(self, options: PlotOptions) -> Sequence[GradientSizes]:
        """Gradients with respect to the feature, by alpha and by norm, those of a run one after another."""
        from layerprobe.workflow.plot.classifier_views import stored_gradients  # likewise

        embeddings = self.embeddings()
        return [
            sizes
            for run, scores in self._scored_runs
            for sizes in stored_gradients(run, scores, options.epoch, embeddings.get(run.name))
        ]

    def error_rates(self, options: PlotOptions) -> Sequence[ErrorRates]:
        """False accept and false reject rates on test classes, by layer."""
        layers = select_layers([scores for _, scores in self._scored_runs], options, self.embeddings())
        all_rates = [rates for run, scores in self._scored_runs for rates in stored_error_rates(run, scores, layers)]
        return add_selected(all_rates, options, self._selected_runs, selected_error_rates)

    def _training_scores(self, key: str | None) -> TrainingScores:
        plotted, notes = place_runs(self.runs, key, self.lines)
        return TrainingScores(plotted, self.scores_of_runs, notes, self.embeddings())

    def _features(self, options: PlotOptions) -> list[tuple[list[Score], ReadFeatures, LayerSelection]]:
        runs = [open_stored(run, scores, options.epoch) for run, scores in self._scored_runs]
        layers = select_layers([scores for scores, _ in runs], options, self.embeddings())
        return [(*features, layers) for features in runs]

    @property
    def _selected_runs(self) -> list[SelectedOfRun]:
        return [
            (run, self._scores_of_run(run), self.selected()[run.name])
            for run in self.runs
            if run.name in self.selected()
        ]

    @property
    def _scored_runs(self) -> list[tuple[Run, list[Score]]]:
        """The runs that have scores, with these."""
        return [(run, scores) for run in self.runs if (scores := self._scores_of_run(run))]

    def _scores_of_run(self, run: Run) -> list[Score]:
        return [score for score in self.scores_of_runs if score.run == run.name]

    @cached_property
    def _members(self) -> dict[str, tuple[str, ...]]:
        """Run, or mean of trainings -> the runs of which it is the mean."""
        return {run.name: (run.name,) for run in self.runs} | trainings(self.scores_of_runs)
