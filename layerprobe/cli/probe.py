"""layerprobe probe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from layerprobe.cli.options import DEFAULT_CACHE, Cache, DryRun, Format, Log, ModelOptions, Output, RunName, Unseen
from layerprobe.cli.output import Terminal, error_values, show_error
from layerprobe.cli.requests import with_options
from layerprobe.cli.tracking import require_trackers, tracking_of
from layerprobe.system.launch import Launch
from layerprobe.system.options import Flag
from layerprobe.workflow.probe.request import ProbeRequest

if TYPE_CHECKING:
    from layerprobe.values.scores import Score
    from layerprobe.workflow.run.runs import Run
    from layerprobe.workflow.train.frozen_request import FrozenRequest


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(with_options(probe, "model weights data"))


def probe(
    *,
    context: typer.Context,
    name: RunName = None,
    model: ModelOptions,
    unseen: Unseen = False,
    request: ProbeRequest,
    full: Annotated[bool, Flag("Also show every layer, metric and post-processing, and what `summary` shows.")] = False,
    log: Log = (),
    dry_run: DryRun = False,
    form: Format = None,
    cache: Cache = DEFAULT_CACHE,
    output: Output,
) -> None:
    """Measure every layer's recall on training and unseen classes.

    Defaults of layers, pools, post-processing, similarity, K and metrics come from [probe] of the recipe. It ends with
    the best layer of the last epoch against the embedding, a few other layers, and how sure that is; --full shows
    everything.

    With --model and no RUN, a pretrained model is measured on the images of --data.
    """
    from layerprobe.workflow.run.runs import find_run, require_free

    require_trackers(log)
    terminal, request = output.terminal(form), replace(request, launch=context.ensure_object(Launch))
    frozen: FrozenRequest | None = None
    if model.model is None or name is not None:
        model.require_absent()
        request = replace(request, model=model.model)
        run = find_run(cache, name)
        if not dry_run:
            require_free(run)
    else:
        options = {"device": request.device, "workers": request.workers, "launch": request.launch}
        frozen = model.request(name, unseen=unseen, cache=cache, **options)
        if not dry_run:
            frozen.require_ready()

    # All that takes long to import comes after what can be refused without it.
    from layerprobe.workflow.run.seen import state_seen
    from layerprobe.workflow.train.ensemble import estimate_probe_of

    if frozen is not None:
        from layerprobe.workflow.train.frozen import estimate_frozen, frozen_run

        if dry_run:
            terminal.estimate(*estimate_frozen(frozen, request))
            return
        run = frozen_run(frozen, terminal)
    elif unseen and not dry_run:
        state_seen(run, seen=False)
    if name is None:
        terminal.say(f"run {run.name}")
    if dry_run:
        terminal.estimate(run.name, estimate_probe_of(run, request))
        return
    _measure_and_show(run, request, terminal, log, full=full)


def _measure_and_show(run: Run, request: ProbeRequest, terminal: Terminal, log: Sequence[str], *, full: bool) -> None:
    """Measure a run and show the answer, also where an epoch or a post-processing cannot be measured.

    Raises:
        typer.Exit: some could not be measured, or a recall has no value.
    """
    from layerprobe.summary.table import summary_tables, summary_values
    from layerprobe.values.best import agreements
    from layerprobe.values.scores import is_recall
    from layerprobe.workflow.compare.answer import answer_of, probe_answer
    from layerprobe.workflow.run.facts import score_tables
    from layerprobe.workflow.run.features import PartlyMeasuredError, PartlyPostProcessedError
    from layerprobe.workflow.run.tracking import log_epochs
    from layerprobe.workflow.summary.request import SummaryRequest
    from layerprobe.workflow.summary.summary import stored_summary
    from layerprobe.workflow.train.ensemble import probe_any

    damaged: PartlyMeasuredError | PartlyPostProcessedError | None = None
    try:
        scores = probe_any(run, request, terminal)
    except (PartlyMeasuredError, PartlyPostProcessedError) as error:
        damaged, scores = error, error.scores
        if not scores:
            raise
    with tracking_of(log, terminal)(run, run.read().recipe) as trackers:
        log_epochs(trackers, run)
    values: dict[str, object] = {"run": run.name, "scores": scores, "label_free": agreements(scores)}
    answer = replace(
        answer_of(run, scores),
        every=request.layers is not None,
        metrics=(*(f"R@{k}" for k in request.ks or ()), *(request.metrics or ())),
        post_processed=bool(request.post or request.equal_dim),
        full=full,
    )
    tables = [probe_answer(run, answer), *(score_tables(run, scores) if full else ())]
    if full or terminal.as_json:
        summary = stored_summary(run, SummaryRequest(request.cluster))
        values["summary"] = summary_values(summary)
        tables = [*tables, *(summary_tables(summary) if full else ())]
    damage = {} if damaged is None else {"error": error_values(damaged)}
    terminal.result(values | damage, *tables)
    commands = [run.command(*command.split()) for command in _next(run, scores)]
    terminal.say(f"{len(scores)} scores in {run.scores_file}; next: {' or '.join(commands)}")
    without = [score for score in scores if score.value is None]
    if without:
        terminal.say(f"without a value: {len(without)} of these; the notes say why")
    if damaged is not None:
        if not terminal.as_json:
            show_error(damaged, as_json=False)
        raise typer.Exit(damaged.exit_code)
    # A further metric may not be defined on features that are finite.
    if any(is_recall(score.metric) for score in without):
        raise typer.Exit(4)


def _next(run: Run, scores: Sequence[Score]) -> list[str]:
    """The commands that fit next: a choice, where there are classes to select a layer on."""
    from layerprobe.workflow.run.facts import data_facts

    facts = data_facts(run, scores)
    if set(facts.splits) & set(facts.chosen_on([])):
        return ["choose", "plot curves" if len({score.epoch for score in scores}) > 1 else "report"]
    return ["probe --splits test" if "test" in run.read().manifests else "plot layers"]
