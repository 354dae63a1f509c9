"""The summary of a run, as tables and in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from layerprobe.summary.cells import Faults
from layerprobe.summary.layers import LayerSummary, Level, RunSummary, end_values
from layerprobe.summary.post_processed import PostProcessedSection
from layerprobe.summary.post_processed_table import (
    ends_text,
    interval_values,
    post_processed_table,
    post_processed_values,
    processed_table,
    processed_values,
    ranked_values,
    share_text,
)
from layerprobe.system.wording import first_named
from layerprobe.tables.tables import TextTable
from layerprobe.values.best import agreement_lines, best_layer, best_text
from layerprobe.values.facts import epoch_text, fact_lines, split_header, split_text
from layerprobe.values.intervals import FEW_UNITS, FEWEST_UNITS, Difference, Interval, ShownKind
from layerprobe.values.layers import layer_names
from layerprobe.values.scores import SPLITS

_ABSENT, _BEST, _NEVER = "-", "*", "never"


_NO_LEVEL = Level(0, None)


@dataclass(frozen=True)
class _Column:
    header: str
    cells: Sequence[str]
    ends: Sequence[Interval | None] = ()  # of the cells' intervals


def summary_tables(summary: RunSummary) -> list[TextTable]:
    """The raw layers, those of each equal dimension or other kinds of post-processing, and the best post-processing."""
    tables = [summary_table(replace(summary, layers=summary.main))]
    for section in summary.sections:
        table = post_processed_table(summary, section)
        tables.append(replace(table, notes=(*table.notes, *_fault_lines_after(summary, section))))
    processed = summary.processed
    if processed and processed.layers:
        tables.append(processed_table(summary, processed))
    elif processed:
        tables[-1] = replace(tables[-1], notes=(*tables[-1].notes, *processed.notes))
    return tables


def summary_table(summary: RunSummary) -> TextTable:
    """A row for each layer: its recalls, its gap, the gap minus that of epoch 0, and its best epochs.

    Values are percent and differences points, with their 95 % interval in brackets. The heading has what all layers
    share; empty columns are omitted. Columns of a thinned gallery say `R@1(G=200)`.
    """
    layers = summary.layers
    names = layer_names(layer.ranked for layer in layers)
    values = end_values(layers, summary.data)
    best = best_layer(values)
    indistinguishable = summary.indistinguishable
    near_names = (
        None
        if indistinguishable is None
        else [n for n, layer in zip(names, layers, strict=True) if layer.ranked in indistinguishable]
    )
    stars = [_BEST if best and index == best.place else "" for index in range(len(layers))]
    words = [_Column("", stars), _Column("layer", names)]
    columns = [*words, *_level_columns(summary), *_gap_columns(summary), *_epoch_columns(summary)]
    kind = ShownKind(summary.kind if any(any(column.ends) for column in columns) else None)
    return TextTable(
        tuple(column.header for column in columns),
        tuple(zip(*(column.cells for column in columns), strict=True)),
        numbers=frozenset(range(len(words), len(columns))),
        heading=(_title(summary), *fact_lines(summary.data), *kind.lines("in brackets")),
        notes=(
            *([f"{_BEST} {best_text(best, names, values, near_names)}"] if best else []),
            *_column_notes(summary),
            *_layer_notes(summary, names),
            *_unit_notes(summary),
            *summary.notes,
            *agreement_lines(summary.label_free, [summary.data]),
        ),
        marked=best.place if best else None,
        intervals={
            index: tuple(map(ends_text, column.ends)) for index, column in enumerate(columns) if any(column.ends)
        },
    )


def summary_values(summary: RunSummary) -> dict[str, Any]:
    """The fields in JSON: fractions, and None for unknown values."""
    return {
        "run": summary.run,
        "interval": summary.kind.text,
        "splits": summary.data.splits,
        "not_told_apart": None
        if summary.indistinguishable is None
        else list(map(ranked_values, summary.indistinguishable)),
        "layers": [_layer_values(summary, layer) for layer in summary.layers],
        "post_processed": [post_processed_values(section) for section in summary.sections],
        "post_processing": None if summary.processed is None else processed_values(summary.processed),
        "label_free": summary.label_free,
        "notes": list(summary.notes),
    }


def _layer_values(summary: RunSummary, layer: LayerSummary) -> dict[str, Any]:
    opening = layer.opening
    return {
        **ranked_values(layer.ranked),
        **{split: _level_values(summary, layer.levels.get(split)) for split in SPLITS},
        "gap": _gap_values(summary, layer.gap),
        "gap_over_untrained": _gap_values(summary, layer.gap_over_start),
        "opens_at": opening.epoch if opening else None,
        "opens_at_metric": summary.gap_metric if opening else None,
        "best_epoch": dict(layer.best_epochs),
        "notes": [f"{split}: {text}" for split in summary.data.splits for text in _caveat_texts(layer, split)],
    }


def _level_values(summary: RunSummary, level: Level | None) -> dict[str, Any] | None:
    if level is None:
        return None
    thinned = {"metric": summary.gap_metric, "value": level.thinned, **interval_values(level.thinned_interval)}
    return {
        "value": level.value,
        **interval_values(level.interval),
        "epoch": level.epoch,
        "thinned": None if level.thinned is None else thinned,
    }


def _gap_values(summary: RunSummary, gap: Difference | None) -> dict[str, Any] | None:
    if gap is None:
        return None
    return {"value": gap.value, **interval_values(gap.interval), "metric": summary.gap_metric}


def _title(summary: RunSummary) -> str:
    similarities = {layer.ranked.similarity for layer in summary.layers}
    epochs = {level.epoch for layer in summary.layers for level in layer.levels.values()}
    epochs_words = epoch_text(epochs.pop(), summary.data) if len(epochs) == 1 else "each layer's last epoch"
    return ", ".join(
        [
            f"summary of {summary.run}",
            epochs_words,
            f"{summary.metric} in %",
            *(similarities if len(similarities) == 1 else ()),
        ]
    )


def _level_columns(summary: RunSummary) -> list[_Column]:
    splits = [split for split in summary.data.splits if any(split in layer.levels for layer in summary.layers)]
    columns = []
    for split in splits:
        levels = [layer.levels.get(split) or _NO_LEVEL for layer in summary.layers]
        header = split_header(split, [summary.data])
        recalls = [share_text(level.value) for level in levels]
        columns.append(_Column(f"{header}\n{summary.metric}", recalls, [level.interval for level in levels]))
        if any(level.thinned is not None for level in levels):
            recalls = [share_text(level.thinned) for level in levels]
            ends = [level.thinned_interval for level in levels]
            columns.append(_Column(f"{header}\n{summary.gap_metric}", recalls, ends))
    return columns


def _gap_columns(summary: RunSummary) -> list[_Column]:
    columns = []
    gaps = [layer.gap for layer in summary.layers]
    over_start = [layer.gap_over_start for layer in summary.layers]
    for name, differences in (("gap", gaps), (f"gap - {summary.data.start}", over_start)):
        if any(differences):
            ends = [gap.interval if gap else None for gap in differences]
            columns.append(_Column(f"{name}\n{summary.gap_metric}", [_points(gap) for gap in differences], ends))
    openings = [layer.opening for layer in summary.layers]
    if any(openings):
        cells = [_ABSENT if not o else _NEVER if o.epoch is None else f"{o.epoch}" for o in openings]
        columns.append(_Column(f"opens at\n{summary.gap_metric}", cells))
    return columns


def _epoch_columns(summary: RunSummary) -> list[_Column]:
    """The best epochs of all splits in one column; none where each layer has one epoch."""
    if all(layer.epochs == 1 for layer in summary.layers):
        return []
    splits = [split for split in summary.data.splits if any(split in layer.best_epochs for layer in summary.layers)]
    short = "/".join(split_header(split, [summary.data]) for split in splits)
    cells = ["/".join(str(layer.best_epochs.get(split, _ABSENT)) for split in splits) for layer in summary.layers]
    return [_Column(f"best epoch\n{short}", cells)]


def _column_notes(summary: RunSummary) -> list[str]:
    notes = []
    if any(layer.opening for layer in summary.layers):
        start = summary.data.start
        notes.append(f"opens at: first measured epoch from which gap - {start} keeps its interval above 0 to the end")
    if any("test" in layer.best_epochs and layer.epochs > 1 for layer in summary.layers):
        notes.append("best epoch on test: chosen on test")
    return notes


def _layer_notes(summary: RunSummary, names: Sequence[str]) -> list[str]:
    """A line for each split and note, with its layers."""
    lines = []
    for split in summary.data.splits:
        noted: dict[str, list[str]] = {}
        for name, layer in zip(names, summary.layers, strict=True):
            for text in _caveat_texts(layer, split):
                noted.setdefault(text, []).append(name)
        for text, noted_layers in noted.items():
            layers_text = "every layer" if len(noted_layers) == len(names) > 1 else first_named(noted_layers)
            lines.append(f"{split_text(split, [summary.data])}, {layers_text}: {text}")
    return lines


def _caveat_texts(layer: LayerSummary, split: str) -> list[str]:
    texts = [*_fault_texts(layer.faults.get(split, Faults()))]
    if broken := layer.broken.get(split):
        texts.append(f"collapsed or without a value at {broken} earlier epoch{'s' * (broken > 1)}")
    return texts


def _fault_lines_after(summary: RunSummary, section: PostProcessedSection) -> list[str]:
    """A line for the layers with the same fault after post-processing of a section."""
    processings = {(processing.post_processing, processing.similarity) for processing in section.post_processed}
    rows = [layer for layer in summary.layers if (layer.ranked.post_processing, layer.ranked.similarity) in processings]
    layers_by_fault: dict[tuple[str, str, str], list[str]] = {}
    for split in summary.data.splits:
        for layer in rows:
            for text in _fault_texts(replace(layer.faults.get(split, Faults()), zeros=0, lone=0)):
                layers_by_fault.setdefault((split, layer.ranked.post_processing, text), []).append(
                    str(layer.ranked.layer)
                )
    return [
        f"{split_text(split, [summary.data])}, {first_named(names)} after {post_processing}: {text}"
        for (split, post_processing, text), names in layers_by_fault.items()
    ]


def _fault_texts(faults: Faults) -> list[str]:
    texts = [faults.invalid] if faults.invalid else []
    texts += [f"collapsed: {faults.tied:.0%} tied"] if faults.tied else []
    texts += [f"{faults.zeros} zero vectors"] if faults.zeros else []
    return texts + ([f"{faults.lone} lone queries count as misses"] if faults.lone else [])


def _unit_notes(summary: RunSummary) -> list[str]:
    units = "classes" if summary.kind.cluster is None else f"clusters ({summary.kind.cluster})"
    counts = [(split_text(split, [summary.data]), count) for split, count in summary.units.items()]
    lacking_texts = [f"{split} {count}" for split, count in counts if count < FEWEST_UNITS]
    few_texts = [f"{split} {count}" for split, count in counts if FEWEST_UNITS <= count < FEW_UNITS]
    notes = [f"no interval below {FEWEST_UNITS} {units}: {', '.join(lacking_texts)}"] if lacking_texts else []
    return notes + ([f"few {units}, so that an interval is rough: {', '.join(few_texts)}"] if few_texts else [])


def _points(difference: Difference | None) -> str:
    return _ABSENT if difference is None else f"{100 * difference.value:+.1f}"
