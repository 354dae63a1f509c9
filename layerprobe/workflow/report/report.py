"""report: stored values of some runs -> one page of HTML; runs are neither written nor locked."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layerprobe.report.page import render
from layerprobe.report.values import Report, RunPage
from layerprobe.system.errors import DataError
from layerprobe.values.facts import split_header
from layerprobe.values.layers import NO_REDUCTION, RankedLayer, headline_layers, names_by_layer
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.finding import METRIC, best_on_validation, findings
from layerprobe.workflow.explain.stored import stored_figure
from layerprobe.workflow.report.choices import Choices, choices
from layerprobe.workflow.report.provenance import page_provenance, run_provenance
from layerprobe.workflow.report.report_gallery import Galleries, galleries_of
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.metric_values import metric_flags, require_mean_over_queries
from layerprobe.workflow.run.opened_run import equal_layers
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.references import embedding_among
from layerprobe.workflow.run.runs import Run

MOST_SCORES = 50_000  # on a page; one takes about 80 characters, with its interval and note
_NAMED = 3  # runs in a title
_NO_IMAGES = "no images are shown: a probe from Python keeps none"


@dataclass(frozen=True)
class ResultPage:
    """How the page of a result in Python differs from that of the command.

    Args:
        chosen: what is chosen among its features.
        lasting: whether its run is kept.
    """

    chosen: Choices
    lasting: bool


def build_report(
    runs: Sequence[Run],
    *,
    gallery: bool = True,
    refresh: int | None = None,
    metric: str = METRIC,
    result: ResultPage | None = None,
) -> Report:
    """Everything on the page of some runs.

    Args:
        runs: at least one; each is there once.
        metric: of the findings, and first shown.
        result: whose page it is; None: that of the command.
    """
    require_mean_over_queries(metric)
    runs = list({run.folder: run for run in runs}.values())
    scores_by_run = {run.name: run.scores() for run in runs}
    if metric != METRIC and not any(
        score.metric == metric for run_scores in scores_by_run.values() for score in run_scores
    ):
        fix = f"Run {runs[0].command('probe', *metric_flags(metric))}"
        raise DataError(f"no scores of {metric}", file=runs[0].scores_file, fix=fix)
    scores, left_out = _fit_to_page(scores_by_run, metric)
    chosen = choices(runs, metric) if result is None else result.chosen
    is_kept = result is None or result.lasting
    pages = [_page(run, scores[run.name], chosen.selected.get(run.name), is_kept=is_kept) for run in runs]
    run_findings = findings(runs, metric)
    pages = [_add_best_layer(run, page) for run, page in zip(runs, pages, strict=True)]
    galleries = Galleries(notes=() if result is None else (_NO_IMAGES,))
    if gallery and result is None:
        galleries = galleries_of(list(zip(runs, pages, strict=True)))
    return Report(
        title=_title(pages),
        findings=(*chosen.sentences, *run_findings.sentences),
        choices=chosen.shown,
        runs=tuple(pages),
        galleries=galleries.galleries,
        pictures=galleries.pictures,
        made=page_provenance(time.time(), in_python=result is not None),
        notes=(*left_out, *chosen.missing, *run_findings.missing, *experiments_of(runs).notes, *galleries.notes),
        refresh=refresh,
        metric=metric,
    )


def write_report(runs: Sequence[Run], out: Path, metric: str = METRIC, result: ResultPage | None = None) -> Report:
    """Write the page of some runs, and summarise it."""
    require_output(out, "html")
    report = build_report(runs, metric=metric, result=result)
    write_output(out, render(report).encode())
    return report


def is_training(run: Run) -> bool:
    """Whether a run is being trained: its record says so, and nothing shows that its process is gone."""
    try:
        return run.read().state == "training" and run.is_held() is not False
    except DataError:
        return False


def _page(run: Run, scores: Sequence[Score], selected: RankedLayer | None, *, is_kept: bool) -> RunPage:
    layers = list(dict.fromkeys(score.ranked for score in scores))
    embedding = None
    with contextlib.suppress(DataError):  # scores can be shown when the record cannot be read
        embedding = embedding_among(run.read(), layers)
    headline = headline_layers(
        _drop_equal_layers(run, scores, layers, embedding or layers[-1]), _validation(scores), embedding
    )
    return RunPage(
        name=run.name,
        data=data_facts(run, scores),
        layers=tuple(layers),
        few=tuple(index for index, ranked in enumerate(layers) if ranked in headline or ranked == selected),
        embedding=None if embedding is None else layers.index(embedding),
        scores=tuple(scores),
        made=run_provenance(run, is_kept=is_kept),
        training=is_training(run),
        explanation=stored_figure(run),
        selected=layers.index(selected) if selected in layers else None,
    )


def _add_best_layer(run: Run, page: RunPage) -> RunPage:
    text = best_on_validation(run, page.scores, _labels(page))
    return replace(page, made=(("best layer", text), *page.made)) if text else page


def _drop_equal_layers(
    run: Run, scores: Sequence[Score], layers: Sequence[RankedLayer], embedding: RankedLayer
) -> list[RankedLayer]:
    """The layers without other names of the embedding."""
    equal_names = equal_layers(run, max(score.epoch for score in scores), "test", embedding.layer.layer)
    return [ranked for ranked in layers if ranked.layer not in equal_names]


def _validation(scores: Sequence[Score]) -> dict[RankedLayer, float]:
    """Validation recall of each unreduced layer at the last epoch."""
    last_epoch = max(score.epoch for score in scores)
    key = (last_epoch, "validation", METRIC, NO_REDUCTION)
    recalls = [score for score in scores if (score.epoch, score.split, score.metric, score.ranked.reduction) == key]
    return {score.ranked: score.value for score in recalls if score.value is not None}


def _labels(page: RunPage) -> Mapping[RankedLayer, str]:
    return names_by_layer(page.layers)


def _title(pages: Sequence[RunPage]) -> str:
    names, split_names = (
        [page.name for page in pages],
        dict.fromkeys(split_header("train", [page.data]) for page in pages),
    )
    rest_text = f" and {len(names) - _NAMED} more runs" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{rest_text}: {', '.join(split_names)} and test recall of every layer"


def _fit_to_page(scores: Mapping[str, Sequence[Score]], first_metric: str) -> tuple[dict[str, list[Score]], list[str]]:
    """The scores that the page has room for: complete metrics, R@1 first; and a line on the omitted ones."""
    counts: dict[str, int] = {first_metric: 0}
    for score in (score for run_scores in scores.values() for score in run_scores):
        counts[score.metric] = counts.get(score.metric, 0) + 1
    kept_metrics, room = set[str](), MOST_SCORES
    for metric, count in counts.items():
        if not kept_metrics or count <= room:
            kept_metrics.add(metric)
            room -= count
    omitted = [metric for metric in counts if metric not in kept_metrics]
    note = f"omitted to keep the page small: {', '.join(omitted)}; scores.csv of each run has them"
    page_scores = {run: [s for s in run_scores if s.metric in kept_metrics] for run, run_scores in scores.items()}
    return page_scores, [note] if omitted else []
