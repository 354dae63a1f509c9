"""What `choose` says of the runs of a report."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from layerprobe.reductions.chain import parse_chain
from layerprobe.system.errors import LayerprobeError
from layerprobe.system.progress import Silent
from layerprobe.values.choice import advice_text, verdict_text
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
    sentences, missing = [], []
    for run in runs:
        if run in names:  # its record can be read
            groups[names[run]].append(run)
    for group in groups.values():
        called = ", ".join(run.name for run in group)
        try:
            if _is_long(group):
                continue
            choice = choose_runs(group, ChooseRequest(device="cpu", metric=metric), Silent())
            sentences.append(f"{called}: {advice_text(choice)} {verdict_text(choice)}")
        except LayerprobeError as error:
            missing.append(f"{called}: no layer is chosen: {error}")
    return Findings(tuple(sentences), tuple(missing))
