"""report: stored values of some runs, and how they were made -> one page of HTML, written again while they grow."""

from __future__ import annotations

import contextlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from layerprobe import __version__
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.report.page import render
from layerprobe.report.values import Report, RunPage
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.files import sha256
from layerprobe.system.progress import Listener, stoppable
from layerprobe.system.wording import as_moment
from layerprobe.values.facts import split_header
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer, headline_layers, names_by_layer
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.finding import METRIC, best_on_validation, findings
from layerprobe.workflow.explain.explain_text import stored_figure
from layerprobe.workflow.report.by_class import ByClass, compare_by_class
from layerprobe.workflow.report.choices import Choices, choices
from layerprobe.workflow.report.models import shown_models
from layerprobe.workflow.report.report_gallery import Galleries, galleries_of
from layerprobe.workflow.report.request import ReportRequest
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.metric_values import metric_flags
from layerprobe.workflow.run.opened_run import equal_layers
from layerprobe.workflow.run.outputs import stream_of, write_output
from layerprobe.workflow.run.references import embedding_among
from layerprobe.workflow.run.runs import Run, command_line
from layerprobe.workflow.run.seen import weights_text

Provenance = tuple[tuple[str, str], ...]  # headings and texts

MOST_SCORES = 50_000  # on a page; one takes about 80 characters, with its interval and note
REFRESH = 10  # seconds between two readings by the browser
_NAMED = 3  # runs in a title
_PAUSE = 1.0  # seconds between two looks at the files
_NO_IMAGES = "no images are shown: a probe from Python keeps none"
_RULES = (
    "R@K is the share of queries that have a right item among"
    " their K nearest. Each query is searched for exactly, among all items. Ties"
    f" count with their expected value under a random order; two similarities are tied if they differ by at most"
    f" {TIE_WINDOW:g} in float64. A query without another right item counts as a miss."
)


@dataclass(frozen=True)
class ResultPage:
    """How the page of a result in Python differs from that of the command.

    Args:
        chosen: what is chosen among its features.
        lasting: whether its run is kept.
    """

    chosen: Choices
    lasting: bool


def write_report(request: ReportRequest, result: ResultPage | None = None) -> Report:
    """Write the page of some runs, and return what it shows."""
    report = build_report(request.runs, metric=request.metric, result=result)
    write_output(request.page, render(report).encode())
    return report


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
        metric: of the findings, and first shown; a mean over queries.
        result: whose page it is; None: that of the command.
    """
    runs = list({run.folder: run for run in runs}.values())
    scores, left_out = _scores_of_page(runs, metric)
    chosen = choices(runs, metric) if result is None else result.chosen
    is_kept = result is None or result.lasting
    pages = [_page(run, scores[run.name], chosen.selected.get(run.name), is_kept=is_kept) for run in runs]
    run_findings, (models, uncompared) = findings(runs, metric), shown_models(runs)
    galleries, by_class = Galleries(notes=() if result is None else (_NO_IMAGES,)), ByClass()
    if gallery and result is None:
        galleries = galleries_of(list(zip(runs, pages, strict=True)))
        if len(runs) == 1:
            by_class = compare_by_class(runs[0], pages[0], galleries)
    return Report(
        title=_title(pages),
        findings=(*([models.text] if models else []), *chosen.sentences, *run_findings.sentences),
        choices=chosen.shown,
        answers=chosen.answers,
        models=models,
        runs=tuple(pages),
        galleries=galleries.galleries,
        pictures=galleries.pictures + by_class.pictures,
        made=page_provenance(time.time(), in_python=result is not None),
        notes=(
            *left_out,
            *chosen.missing,
            *uncompared,
            *run_findings.missing,
            *experiments_of(runs).notes,
            *galleries.notes,
            *by_class.notes,
        ),
        refresh=refresh,
        metric=metric,
        classes=by_class.shown,
    )


def _scores_of_page(runs: Sequence[Run], first_metric: str) -> tuple[dict[str, list[Score]], list[str]]:
    """The scores that the page has room for: complete metrics, the first one first; and a line on the omitted ones."""
    scores = {run.name: run.scores() for run in runs}
    counts = {first_metric: 0}
    for score in (score for run_scores in scores.values() for score in run_scores):
        counts[score.metric] = counts.get(score.metric, 0) + 1
    if first_metric != METRIC and not counts[first_metric]:
        fix = f"Run {runs[0].command('probe', *metric_flags(first_metric))}"
        raise DataError(f"no scores of {first_metric}", file=runs[0].scores_file, fix=fix)
    kept_metrics, room = set[str](), MOST_SCORES
    for metric, count in counts.items():
        if not kept_metrics or count <= room:
            kept_metrics.add(metric)
            room -= count
    omitted = [metric for metric in counts if metric not in kept_metrics]
    note = f"omitted to keep the page small: {', '.join(omitted)}; scores.csv of each run has them"
    page_scores = {run: [s for s in run_scores if s.metric in kept_metrics] for run, run_scores in scores.items()}
    return page_scores, [note] if omitted else []


def _page(run: Run, scores: Sequence[Score], selected: RankedLayer | None, *, is_kept: bool) -> RunPage:
    layers, last_epoch = list(dict.fromkeys(score.ranked for score in scores)), max(score.epoch for score in scores)
    embedding = None
    with contextlib.suppress(DataError):  # scores can be shown when the record cannot be read
        embedding = embedding_among(run.read(), layers)
    # Without other names of the embedding, such as the module that gives the output.
    equal_names = equal_layers(run, last_epoch, "test", (embedding or layers[-1]).layer.layer)
    key = (last_epoch, "validation", METRIC, NO_POST_PROCESSING)
    validation = [s for s in scores if (s.epoch, s.split, s.metric, s.ranked.post_processing) == key]
    headline = headline_layers(
        [ranked for ranked in layers if ranked.layer not in equal_names],
        {score.ranked: score.value for score in validation if score.value is not None},
        embedding,
    )
    best = best_on_validation(run, scores, names_by_layer(layers))
    return RunPage(
        name=run.name,
        data=data_facts(run, scores),
        layers=tuple(layers),
        few=tuple(index for index, ranked in enumerate(layers) if ranked in headline or ranked == selected),
        embedding=None if embedding is None else layers.index(embedding),
        scores=tuple(scores),
        made=((("best layer", best),) if best else ()) + run_provenance(run, is_kept=is_kept),
        training=is_training(run),
        explanation=stored_figure(run),
        selected=layers.index(selected) if selected in layers else None,
    )


def _title(pages: Sequence[RunPage]) -> str:
    names = [page.name for page in pages]
    split_names = dict.fromkeys(split_header("train", [page.data]) for page in pages)
    rest_text = f" and {len(names) - _NAMED} more runs" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{rest_text}: {', '.join(split_names)} and test recall of every layer"


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
    recipe = []  # a line for each section, as TOML; keys without a value are omitted
    for name, section in record.recipe.items():
        keys = [f"{key} = {json.dumps(x, ensure_ascii=False)}" for key, x in section.items() if x is not None]
        recipe += [f"[{name}] {', '.join(keys)}"] if keys else []
    experiment = record.experiment and f"experiment {record.experiment}, "
    fields = {
        "command": record.command,
        "state": f"{record.state}, {_count_text(record.epochs_done, 'epoch')} done",
        "recipe": f"{record.recipe_name}, {experiment}seed {record.seed}",
        "recipe in full": "\n".join(recipe),
        "versions": ", ".join(f"{name} {version}" for name, version in record.versions.items()),
        "device": ", ".join(
            filter(None, (record.device, _count_text(record.threads, "thread") if record.threads else ""))
        ),
        "input": record.transform,
        "weights": _weights(run, record),
        "images": _hashes(record.contents),
        "images and classes": _hashes(record.manifests),
        "notes": "\n".join(record.notes),
    }
    return (*((heading, str(text)) for heading, text in fields.items() if text), *scores)


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _weights(run: Run, record: RunRecord) -> str:
    """The hash of the last epoch's weights, or of the files that they came from."""
    numbered = not weights_text(record)
    files = [f"epoch {file.epoch}: " * numbered + f"{file.path}, sha256 {file.sha256}" for file in record.weights_files]
    name = run.checkpoint_file(record.epochs_done).name
    digest = record.hashes.get(name)
    return "\n".join([*files, *([f"{name}, sha256 {digest}"] if digest else [])])


def _hashes(splits: Mapping[str, str]) -> str:
    return "\n".join(f"{split}: sha256 {value}" for split, value in splits.items() if value)


def watch_report(request: ReportRequest, listener: Listener) -> Report:
    """Write the page of some runs, and again when their scores or records change, until nobody works on them.

    While a run is worked on, the page has no gallery, and a browser reads it again by itself. Runs that have no scores
    yet are waited for.

    Returns:
        What the last page shows.
    """
    runs, out = request.runs, request.page
    if stream_of(out) is not None:
        raise RecipeError(f"--watch replaces the page, and {out} is a stream", fix="Name a file, or drop --watch")
    files = [path for run in runs for path in (run.scores_file, run.record_file)]
    last_stamps, report = None, None
    with stoppable() as stop:
        if not any(map(is_worked_on, runs)):
            listener.say("no process trains or probes these runs: the page is written once")
        while any(map(is_worked_on, runs)):
            if (stamps := list(map(_stamp, files))) != last_stamps:
                report, last_stamps = _write_growing_page(request, listener) or report, stamps
            time.sleep(_PAUSE)
            if stop and report:
                write_output(out, render(replace(report, refresh=None)).encode())
            stop.raise_if_asked(f"stopped watching; {out} is complete" if report else f"{out} was not written yet")
    return write_report(request)


def _write_growing_page(request: ReportRequest, listener: Listener) -> Report | None:
    """Write the page of the runs that have scores; None where none has."""
    absent = [run.name for run in request.runs if not run.has_scores]
    if absent:
        listener.say(f"no scores yet of {', '.join(absent)}; layerprobe train --probe measures after every epoch")
    measured = [run for run in request.runs if run.name not in absent]
    if not measured:
        return None
    report = build_report(measured, gallery=False, refresh=REFRESH, metric=request.metric)
    note = "images and their neighbours are shown once no process uses the runs"
    report = replace(report, notes=(*report.notes, note))
    write_output(request.page, render(report).encode())
    epochs = [f"{page.name} epoch {max(score.epoch for score in page.scores)}" for page in report.runs]
    listener.say(f"{request.page}: {', '.join(epochs)}")
    return report


def _stamp(path: Path) -> tuple[int, int] | None:
    """Time of change and size of a file; None where it is absent."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size


def is_training(run: Run) -> bool:
    """Whether a run is being trained: its record says so, and nothing shows that its process is gone."""
    try:
        return run.read().state == "training" and run.is_held() is not False
    except DataError:
        return False


def is_worked_on(run: Run) -> bool:
    """Whether a process trains or probes a run; where nobody can tell, whether its record says that it is training."""
    is_held = run.is_held()
    return is_training(run) if is_held is None else is_held
