"""What `choose` says of the runs of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence

from layerprobe.reductions.chain import parse_chain
from layerprobe.system.errors import LayerprobeError
from layerprobe.system.progress import Silent
from layerprobe.values.choice import Choice, advice_text, verdict_text
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.compare.finding import Findings
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.runs import Run


def _is_long(group: Sequence[Run]) -> bool:
    """Whether choosing would rank layers anew, or nothing can be chosen on: without classes that are held out."""
    splits = group[0].read().manifests
    if "validation" in splits:
        return False
    fitted = any(parse_chain(score.reduction).fits_on_train for run in group for score in run.scores())
    return fitted or "train" in splits or "test" not in splits


def choices(runs: Sequence[Run], metric: str = "R@1") -> Findings:
    """The advice and the verdict of `choose` by a metric on each experiment, unless layers would be ranked anew."""
    names = experiments_of(runs).names
    groups: dict[str, list[Run]] = defaultdict(list)
    sentences: list[str] = []
    missing: list[str] = []
    for run in runs:
        if run in names:  # its record can be read
            groups[names[run]].append(run)
    request = ChooseRequest(device="cpu", metric=metric)
    for group in groups.values():
        found = _of_group(group, request)
        sentences += found.sentences
        missing += found.missing
    return Findings(tuple(sentences), tuple(missing))


def _of_group(group: Sequence[Run], request: ChooseRequest) -> Findings:
    called = ", ".join(run.name for run in group)
    return told(called, lambda: None if _is_long(group) else choose_runs(group, request, Silent()))


def told(called: str, choose: Callable[[], Choice | None]) -> Findings:
    """The advice and the verdict of a choice, or why there is none; nothing where None is chosen."""
    try:
        choice = choose()
    except LayerprobeError as error:
        return Findings((), (f"{called}: no layer is chosen: {error}",))
    return Findings(() if choice is None else (f"{called}: {advice_text(choice)} {verdict_text(choice)}",), ())
