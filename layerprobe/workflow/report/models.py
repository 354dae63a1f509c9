"""The table of several models of a report, by the choices that they keep."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from layerprobe.report.values import ShownChoice
from layerprobe.system.errors import DataError
from layerprobe.values.models import LeftOut
from layerprobe.workflow.choose.choose_models import compare_models
from layerprobe.workflow.choose.models_text import models_rows, models_table
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import stored_choice


def shown_models(runs: Sequence[Run]) -> tuple[ShownChoice | None, tuple[str, ...]]:
    """The table of the runs that measure a network as it is, as `choose` of several models shows it.

    Returns:
        None with fewer than two of them that keep a choice on the same queries; and then why others are left out.
    """
    frozen = [run for run in runs if _is_frozen(run)]
    if len(frozen) < 2:
        return None, ()
    stored = [(run, stored_choice(run)) for run in frozen]
    chosen = [(run, kept.choice) for run, kept in stored if kept is not None and len(kept.states) == 1]
    left_out = [
        LeftOut(run.name, f"no choice of it alone is stored; {run.command('choose')} makes one")
        for run in frozen
        if run not in [other for other, _ in chosen]
    ]
    if len(chosen) < 2:
        return None, ()
    table = compare_models(chosen, left_out)
    if len(table.models) < 2:
        return None, tuple(f"{model.name} is not compared: {model.reason}" for model in table.left_out)
    text = models_table(table)
    sentence, *lines = text.heading
    head = tuple(name.replace("\n", " ") for name in text.columns)
    return ShownChoice(sentence, head, models_rows(text), notes=(*lines, *text.notes)), ()


def _is_frozen(run: Run) -> bool:
    """Whether a run trains nothing."""
    with contextlib.suppress(DataError):  # scores can be shown when the record cannot be read
        return run.read().recipe.get("train", {}).get("epochs") == 0
    return False
