"""The table of several models, and the command that follows it."""

from __future__ import annotations

from pathlib import Path

from layerprobe.system.wording import command_text
from layerprobe.tables.tables import Ends, TextTable
from layerprobe.values.choice import too_few_text
from layerprobe.values.intervals import FEWEST_UNITS
from layerprobe.values.layers import spoken_name
from layerprobe.values.models import ChosenModel, ModelTable, best_text, letters
from layerprobe.values.scores import Score

_ADVICE = {"switch": "yes", "keep": "no", "either": "either", "inconclusive": "?"}
_SELECTED_ON = {
    "validation": "selected on validation classes",
    "train": "selected on training classes, which the network has not seen",
    "test": "cross-fitted, each fold of the test classes by the choice on the others",
}
_NUMBERS = frozenset({2, 4, 5, 6})
_TEST, _EMBEDDING = 2, 4  # columns with intervals


def models_table(table: ModelTable) -> TextTable:
    """A row for each model, the best first; what is preferred of it beside its embedding. A sentence heads it."""
    rows = tuple(
        (
            model.name,
            spoken_name(model.layer.ranked),
            _percent(model.test),
            letters(model.groups) or "-",
            _percent(model.embedding),
            f"{model.layer.bytes_per_image:,}",
            _multiply_adds(model),
            _ADVICE[model.advice],
        )
        for model in table.models
    )
    columns = ("model", "layer", f"test\n{table.metric}", "group", _embedding_name(table), "bytes")
    ends = {
        _TEST: tuple(_ends(model.test) for model in table.models),
        _EMBEDDING: tuple(_ends(model.embedding) for model in table.models),
    }
    return TextTable(
        (*columns, "million\nmult-adds", "switch?"),
        rows,
        numbers=_NUMBERS,
        heading=(best_text(table), *_heading(table)),
        notes=_notes(table),
        marked=0,
        intervals={column: cells for column, cells in ends.items() if any(cells)},
    )


def models_rows(table: TextTable) -> tuple[tuple[str, ...], ...]:
    """The cells of the rows of a table, each with its interval."""
    ends = {
        column: [f" [{', '.join(pair)}]" if pair else "" for pair in pairs] for column, pairs in table.intervals.items()
    }
    return tuple(
        tuple(cell + (ends[column][place] if column in ends else "") for column, cell in enumerate(row))
        for place, row in enumerate(table.rows)
    )


def report_step(table: ModelTable, cache: Path) -> str:
    """The command that writes the page of the models."""
    return f"next: {command_text('report', *(model.run for model in table.models), cache=cache)}"


def _embedding_name(table: ModelTable) -> str:
    """Layer and similarity of every embedding; `embedding` where they differ."""
    layers = {
        (model.embedding.ranked.layer.layer, model.embedding.ranked.similarity)
        for model in table.models
        if model.embedding is not None
    }
    return ",\n".join(layers.pop()) if len(layers) == 1 else "embedding"


def _heading(table: ModelTable) -> tuple[str, ...]:
    """What is measured, and on which classes each layer is selected."""
    where = f"{'fifths of ' * table.within_folds}{table.count:,} test {table.units}"
    best = table.models[0].test
    over = "" if best.interval is None else f", in brackets: {best.kind.over(table.count)}"
    lines = [f"{table.metric} in % on {where}{over}"]
    by_split: dict[str, list[str]] = {}
    for model in table.models:
        by_split.setdefault(_selected_on(model, table.units), []).append(model.name)
    for text, names in by_split.items():
        of_models = "" if len(by_split) == 1 else f" of {', '.join(names)}"
        lines.append(f"layer{of_models}: {text}")
    return tuple(lines)


def _selected_on(model: ChosenModel, units: str) -> str:
    if model.classes >= FEWEST_UNITS:
        return _SELECTED_ON[model.chosen_on]
    return f"the embedding where it is known: {too_few_text(model.classes, model.chosen_on, units)}"


def _notes(table: ModelTable) -> tuple[str, ...]:
    """What a group is, what is assumed, and which models are left out."""
    notes = [f"assumed, not verified: not trained on the test classes: {', '.join(table.assumed)}"] * bool(
        table.assumed
    )
    notes += [f"{left_out.name} is left out: {left_out.reason}" for left_out in table.left_out]
    if len(table.models) < 2:
        return tuple(notes)
    selected = (
        f"the order is that on test: {table.metric} of the highest of {len(table.models)} models is a little too high"
    )
    if table.count < FEWEST_UNITS:
        return (f"no groups: {table.count} {table.units}, and it takes {FEWEST_UNITS}", selected, *notes)
    corrected = f"; p corrected by Holm for {table.comparisons} pairs" if table.comparisons > 1 else ""
    group = (
        "group: models that share a letter do not differ significantly (differences paired by queries, over"
        f" {table.units}{corrected})"
    )
    return (group, selected, *notes)


def _multiply_adds(model: ChosenModel) -> str:
    """`391` up to the layer; the share of the network's where only that is known."""
    share, count = model.share_of_multiply_adds, model.multiply_adds
    if count is not None:
        return f"{count / 1e6:,.0f}" if count >= 1e8 else f"{count / 1e6:.3g}"
    return "?" if share is None else f"{100 * share:.0f} % of all"


def _percent(score: Score | None) -> str:
    return "-" if score is None or score.value is None else f"{100 * score.value:.1f}"


def _ends(score: Score | None) -> Ends | None:
    if score is None or score.interval is None:
        return None
    low, high = score.interval.percent
    return f"{low:.1f}", f"{high:.1f}"
