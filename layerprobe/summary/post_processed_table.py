"""The post-processing of a summary, as tables and in JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from layerprobe.summary.layers import RunSummary
from layerprobe.summary.post_processed import BestProcessing, PostProcessedSection, Processing
from layerprobe.tables.tables import Ends, TextTable
from layerprobe.values.best import Best, best_text
from layerprobe.values.facts import epoch_text, split_text
from layerprobe.values.intervals import Interval, ShownKind
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, layer_names

_ABSENT, _BEST, _RAW = "-", "*", "raw"
_BRACKETS = "in brackets"


def post_processed_table(summary: RunSummary, section: PostProcessedSection) -> TextTable:
    """A row for each layer and a column for each post-processing, of one epoch and split, with their best layers."""
    cells = section.values[section.split]
    columns = [[cells.get(processing.of(layer)) for layer in section.layers] for processing in section.processings]
    ends = [
        [section.intervals.get(processing.of(layer)) for layer in section.layers] for processing in section.processings
    ]
    names = [str(layer) for layer in section.layers]
    kind = ShownKind(summary.kind if section.intervals else None)
    split = split_text(section.split, [summary.data])
    kind_text = "other kinds of post-processing" if section.dim is None else f"equal dimension {section.dim}"
    title = f"{kind_text} of {summary.run}, {epoch_text(section.epoch, summary.data)}, {split} {summary.metric} in %"
    similarities = list(dict.fromkeys(processing.similarity for processing in section.processings))
    return TextTable(
        ("layer", *(_column_name(processing, similarities) for processing in section.processings)),
        tuple((name, *(share_text(column[index]) for column in columns)) for index, name in enumerate(names)),
        numbers=frozenset(range(1, 1 + len(columns))),
        heading=(", ".join([title, *similarities[: len(similarities) == 1]]), *kind.lines(_BRACKETS)),
        notes=(
            *(
                _best_note(section, processing, names, similarities)
                for processing in section.post_processed
                if section.best(processing)
            ),
            *_column_notes(section.post_processed),
        ),
        intervals={index: tuple(map(ends_text, column)) for index, column in enumerate(ends, 1) if any(column)},
    )


def processed_table(summary: RunSummary, best_processing: BestProcessing) -> TextTable:
    """A row for each layer after its best post-processing: recall on the choice's split and on test, and the gain."""
    layers = [layer.ranked.layer for layer in best_processing.layers]
    names = layer_names(layer.ranked for layer in best_processing.layers)
    chosen_on = split_text(str(best_processing.split), [summary.data])
    values: dict[str, list[float | None]] = {
        chosen_on: [layer.value for layer in best_processing.layers],
        "test": [layer.test for layer in best_processing.layers],
    }
    highest = max(layer.value for layer in best_processing.layers)
    choices = [layer.value for layer in best_processing.layers]
    best = Best(choices.index(highest), chosen_on, choices.count(highest))
    near_names = (
        None
        if best_processing.indistinguishable is None
        else [n for n, key in zip(names, layers, strict=True) if key in best_processing.indistinguishable]
    )
    intervals = [layer.interval for layer in best_processing.layers]
    gains = [layer.gain.interval if layer.gain else None for layer in best_processing.layers]
    similarities = list(dict.fromkeys(layer.ranked.similarity for layer in best_processing.layers))
    kind = ShownKind(summary.kind if any([*intervals, *gains]) else None)
    choice_text = f"chosen on {chosen_on}, {summary.metric} in %"
    title = f"best post-processing of {summary.run}, {epoch_text(best_processing.epoch, summary.data)}, {choice_text}"
    rows = []
    for index, layer in enumerate(best_processing.layers):
        gain = _ABSENT if layer.gain is None else f"{100 * layer.gain.value:+.1f}"
        rows.append(
            (_BEST * (index == best.place), names[index], share_text(layer.value), share_text(layer.test), gain)
        )
    return TextTable(
        (
            "",
            "layer",
            f"{chosen_on}\n{summary.metric}",
            f"test\n{summary.metric}",
            "gain\ntest",
        ),
        tuple(rows),
        numbers=frozenset(range(2, 5)),
        heading=(", ".join([title, *similarities[: len(similarities) == 1]]), *kind.lines(_BRACKETS)),
        notes=(
            f"{_BEST} {best_text(best, names, values, near_names)}",
            "gain: over the same layer without post-processing",
            *best_processing.notes,
        ),
        marked=best.place,
        intervals={
            index: tuple(map(ends_text, column)) for index, column in ((3, intervals), (4, gains)) if any(column)
        },
    )


def _best_note(
    section: PostProcessedSection, processing: Processing, names: Sequence[str], similarities: Sequence[str]
) -> str:
    best, indistinguishable = section.best(processing), section.indistinguishable[processing]
    if best is None:
        return ""
    near_names = (
        None
        if indistinguishable is None
        else [n for n, layer in zip(names, section.layers, strict=True) if layer in indistinguishable]
    )
    return f"{_column_name(processing, similarities)}: {best_text(best, names, section.column(processing), near_names)}"


def _column_notes(processings: Sequence[Processing]) -> list[str]:
    notes = [
        f"{processing.post_processing}: mean of {processing.draws} draws"
        for processing in processings
        if processing.draws > 1
    ]
    transductive = [processing.post_processing for processing in processings if processing.on_gallery]
    return notes + ([f"transductive, fitted on the images searched: {', '.join(transductive)}"] if transductive else [])


def post_processed_values(section: PostProcessedSection) -> dict[str, Any]:
    """The fields of a section in JSON, without the values of its layers."""
    return {
        "dim": section.dim,
        "epoch": section.epoch,
        "split": section.split,
        "post_processings": [_post_processing_values(section, processing) for processing in section.processings],
    }


def processed_values(best_processing: BestProcessing) -> dict[str, Any]:
    """The fields of the best post-processing in JSON."""
    return {
        "chosen_on": best_processing.split,
        "epoch": best_processing.epoch if best_processing.split else None,
        "not_told_apart": None
        if best_processing.indistinguishable is None
        else list(map(_layer_values, best_processing.indistinguishable)),
        "layers": [
            {
                **ranked_values(layer.ranked),
                "value": layer.value,
                "test": None if layer.test is None else {"value": layer.test, **interval_values(layer.interval)},
                "gain": None
                if layer.gain is None
                else {"value": layer.gain.value, **interval_values(layer.gain.interval)},
            }
            for layer in best_processing.layers
        ],
        "notes": list(best_processing.notes),
    }


def _post_processing_values(section: PostProcessedSection, processing: Processing) -> dict[str, Any]:
    best, indistinguishable = section.best(processing), section.indistinguishable[processing]
    return {
        "post_processing": processing.post_processing,
        "similarity": processing.similarity,
        "best": None if best is None else {"split": best.split, **_layer_values(section.layers[best.place])},
        "not_told_apart": None if indistinguishable is None else list(map(_layer_values, indistinguishable)),
    }


def _layer_values(layer: LayerKey) -> dict[str, str]:
    return {"layer": layer.layer, "pool": layer.pool}


def ranked_values(ranked: RankedLayer) -> dict[str, str]:
    """The fields of a layer in JSON."""
    return {**_layer_values(ranked.layer), "post_processing": ranked.post_processing, "similarity": ranked.similarity}


def interval_values(interval: Interval | None) -> dict[str, float | None]:
    """The fields of an interval in JSON."""
    return {"low": interval.low, "high": interval.high} if interval else {"low": None, "high": None}


def _column_name(processing: Processing, similarities: Sequence[str]) -> str:
    name = _RAW if processing.post_processing == NO_POST_PROCESSING else processing.post_processing
    return name + (f" {processing.similarity}" if len(similarities) > 1 else "")


def share_text(value: float | None) -> str:
    """In percent, with one decimal."""
    return _ABSENT if value is None else f"{100 * value:.1f}"


def ends_text(interval: Interval | None) -> Ends | None:
    """The ends of an interval, in percent or points."""
    return None if interval is None else (f"{100 * interval.low:.1f}", f"{100 * interval.high:.1f}")
