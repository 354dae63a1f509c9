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
from layerprobe.values.headline_layers import headline_layers
from layerprobe.values.keys import NO_REDUCTION, RankedLayer, names_by_layer
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.finding import METRIC, best_on_validation, findings
from layerprobe.workflow.explain.stored import stored_figure
from layerprobe.workflow.report.choices import Choices, choices
from layerprobe.workflow.report.provenance import made_of_page, made_of_run
from layerprobe.workflow.report.report_gallery import Galleries, galleries_of
from layerprobe.workflow.run.embedding import embedding_among
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.metric_values import metric_flags, require_mean_over_queries
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_layers import equal_layers

MOST_SCORES = 50_000  # on a page; one takes about 80 characters, with its interval and note
_NAMED = 3  # runs in a title
_NO_IMAGES = "no images are shown: a probe from Python keeps none"


@dataclass(frozen=True)
class OfResult:
    """What the page of a result in Python shows otherwise.

    Args:
        chosen: what is chosen among its features.
        lasting: whether its run is kept.
    """

    chosen: Choices
    lasting: bool


def made_report(
    runs: Sequence[Run],
    *,
    gallery: bool = True,
    refresh: int | None = None,
    metric: str = METRIC,
    result: OfResult | None = None,
) -> Report:
    """Everything on the page of some runs.

    Args:
        runs: at least one; each is there once.
        metric: of the findings, and first shown.
        result: whose page it is; None: that of the command.
    """
    require_mean_over_queries(metric)
    runs = list({run.folder: run for run in runs}.values())
    stored = {run.name: run.scores() for run in runs}
    if metric != METRIC and not any(score.metric == metric for own in stored.values() for score in own):
        fix = f"Run {runs[0].command('probe', *metric_flags(metric))}"
        raise DataError(f"no scores of {metric}", file=runs[0].scores_file, fix=fix)
    scores, left_out = _kept(stored, metric)
    chosen = choices(runs, metric) if result is None else result.chosen
    kept = result is None or result.lasting
    pages = [_page(run, scores[run.name], chosen.selected.get(run.name), kept=kept) for run in runs]
    found = findings(runs, metric)
    pages = [_with_best(run, page) for run, page in zip(runs, pages, strict=True)]
    galleries = Galleries(notes=() if result is None else (_NO_IMAGES,))
    if gallery and result is None:
        galleries = galleries_of(list(zip(runs, pages, strict=True)))
    return Report(
        title=_title(pages),
        findings=(*chosen.sentences, *found.sentences),
        choices=chosen.shown,
        runs=tuple(pages),
        galleries=galleries.galleries,
        pictures=galleries.pictures,
        made=made_of_page(time.time(), in_python=result is not None),
        notes=(*left_out, *chosen.missing, *found.missing, *experiments_of(runs).notes, *galleries.notes),
        refresh=refresh,
        metric=metric,
    )


def write_report(runs: Sequence[Run], out: Path, metric: str = METRIC, result: OfResult | None = None) -> Report:
    """Write the page of some runs, and summarise it."""
    require_output(out, "html")
    made = made_report(runs, metric=metric, result=result)
    write_output(out, render(made).encode())
    return made


def is_training(run: Run) -> bool:
    """Whether a run is being trained: its record says so, and nothing shows that its process is gone."""
    try:
        return run.read().state == "training" and run.is_held() is not False
    except DataError:
        return False


def _page(run: Run, scores: Sequence[Score], selected: RankedLayer | None, *, kept: bool) -> RunPage:
    layers = list(dict.fromkeys(score.ranked for score in scores))
    embedding = None
    with contextlib.suppress(DataError):  # scores can be shown when the record cannot be read
        embedding = embedding_among(run.read(), layers)
    few = headline_layers(_distinct(run, scores, layers, embedding or layers[-1]), _validation(scores), embedding)
    return RunPage(
        name=run.name,
        data=data_facts(run, scores),
        layers=tuple(layers),
        few=tuple(place for place, ranked in enumerate(layers) if ranked in few or ranked == selected),
        embedding=None if embedding is None else layers.index(embedding),
        scores=tuple(scores),
        made=made_of_run(run, kept=kept),
        training=is_training(run),
        explanation=stored_figure(run),
        selected=layers.index(selected) if selected in layers else None,
    )


def _with_best(run: Run, page: RunPage) -> RunPage:
    text = best_on_validation(run, page.scores, _labels(page))
    return replace(page, made=(("best layer", text), *page.made)) if text else page


def _distinct(
    run: Run, scores: Sequence[Score], layers: Sequence[RankedLayer], embedding: RankedLayer
) -> list[RankedLayer]:
    """The layers without other names of the embedding."""
    same = equal_layers(run, max(score.epoch for score in scores), "test", embedding.layer.layer)
    return [ranked for ranked in layers if ranked.layer not in same]


def _validation(scores: Sequence[Score]) -> dict[RankedLayer, float]:
    """Validation recall of each unreduced layer at the last epoch."""
    last = max(score.epoch for score in scores)
    place = (last, "validation", METRIC, NO_REDUCTION)
    found = [score for score in scores if (score.epoch, score.split, score.metric, score.ranked.reduction) == place]
    return {score.ranked: score.value for score in found if score.value is not None}


def _labels(page: RunPage) -> Mapping[RankedLayer, str]:
    return names_by_layer(page.layers)


def _title(pages: Sequence[RunPage]) -> str:
    names, seen = [page.name for page in pages], dict.fromkeys(split_header("train", [page.data]) for page in pages)
    more = f" and {len(names) - _NAMED} more runs" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}: {', '.join(seen)} and test recall of every layer"


def _kept(scores: Mapping[str, Sequence[Score]], first: str) -> tuple[dict[str, list[Score]], list[str]]:
    """The scores that the page has room for: complete metrics, R@1 first; and a line on the omitted ones."""
    counts: dict[str, int] = {first: 0}
    for score in (score for own in scores.values() for score in own):
        counts[score.metric] = counts.get(score.metric, 0) + 1
    kept, room = set[str](), MOST_SCORES
    for metric, count in counts.items():
        if not kept or count <= room:
            kept.add(metric)
            room -= count
    gone = [metric for metric in counts if metric not in kept]
    note = f"omitted to keep the page small: {', '.join(gone)}; scores.csv of each run has them"
    return {run: [s for s in own if s.metric in kept] for run, own in scores.items()}, [note] if gone else []
