"""report: stored values of some runs, and how they were made -> one page of HTML."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from layerprobe import __version__
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.report.page import render
from layerprobe.report.values import Report, RunPage
from layerprobe.system.errors import DataError
from layerprobe.system.files import sha256
from layerprobe.system.wording import as_moment
from layerprobe.values.facts import split_header
from layerprobe.values.layers import NO_REDUCTION, RankedLayer, headline_layers, names_by_layer
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.finding import METRIC, best_on_validation, findings
from layerprobe.workflow.explain.explain_text import stored_figure
from layerprobe.workflow.report.choices import Choices, choices
from layerprobe.workflow.report.report_gallery import Galleries, galleries_of
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.metric_values import metric_flags, require_mean_over_queries
from layerprobe.workflow.run.opened_run import equal_layers
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.references import embedding_among
from layerprobe.workflow.run.runs import Run, command_line
from layerprobe.workflow.run.seen import weights_text

Provenance = tuple[tuple[str, str], ...]  # headings and texts

_RULES = (
    "R@K is the share of queries that have a right item among"
    " their K nearest. Each query is searched for exactly, among all items. Ties"
    f" count with their expected value under a random order; two similarities are tied if they differ by at most"
    f" {TIE_WINDOW:g} in float64. A query without another right item counts as a miss."
)


def page_provenance(seconds: float, *, in_python: bool = False) -> Provenance:
    """How the page was made.

    Args:
        seconds: since 1970, now.
        in_python: by the report of a result, not by the command.
    """
    source = "the result's scores" if in_python else "scores.csv, in its run's folder"
    return (
        ("command", "layerprobe.probe(...).report(...)" if in_python else command_line()),
        ("made by", f"layerprobe {__version__}, Python {platform.python_version()}"),
        ("made at", as_moment(seconds)),
        ("how numbers are made", f"Every number is one of {source}. {_RULES}"),
    )


def run_provenance(run: Run, *, is_kept: bool = True) -> Provenance:
    """How a run was made, as its record says; of a record that cannot be read, why.

    Args:
        is_kept: whether its files last, and are named.
    """
    scores = (("scores", f"{run.scores_file}, sha256 {sha256(run.scores_file)}"),) if is_kept else ()
    try:
        record = run.read()
    except DataError as error:
        return (("record", str(error)), *scores)
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    threads = record.threads
    device = ", ".join(str(value) for value in (record.device, threads and _count_text(threads, "thread")) if value)
    experiment = record.experiment and f"experiment {record.experiment}, "
    fields = {
        "command": record.command,
        "state": f"{record.state}, {_count_text(record.epochs_done, 'epoch')} done",
        "recipe": f"{record.recipe_name}, {experiment}seed {record.seed}",
        "recipe in full": _recipe(record.recipe),
        "versions": versions,
        "device": device,
        "input": record.transform,
        "weights": _weights(run, record),
        "images": _hashes(record.contents),
        "images and classes": _hashes(record.manifests),
        "notes": "\n".join(record.notes),
    }
    return (*((heading, str(text)) for heading, text in fields.items() if text), *scores)


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _recipe(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each section, as TOML; keys without a value are omitted."""
    lines = []
    for name, section in sections.items():
        keys = [f"{key} = {json.dumps(x, ensure_ascii=False)}" for key, x in section.items() if x is not None]
        lines += [f"[{name}] {', '.join(keys)}"] if keys else []
    return "\n".join(lines)


def _weights(run: Run, record: RunRecord) -> str:
    """The hash of the last epoch's weights, or of the files that they came from."""
    numbered = not weights_text(record)
    files = [f"epoch {file.epoch}: " * numbered + f"{file.path}, sha256 {file.sha256}" for file in record.weights_files]
    name = run.checkpoint_file(record.epochs_done).name
    digest = record.hashes.get(name)
    return "\n".join([*files, *([f"{name}, sha256 {digest}"] if digest else [])])


def _hashes(splits: Mapping[str, str]) -> str:
    return "\n".join(f"{split}: sha256 {value}" for split, value in splits.items() if value)


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
