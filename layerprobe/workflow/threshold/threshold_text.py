"""The table of thresholds."""

from __future__ import annotations

from layerprobe.tables.tables import TextTable
from layerprobe.values.facts import chosen_on_text, split_header
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.thresholds import MeasuredThresholds, PairedSplit, Rate

_MEASURES = {
    "cosine": "the cosine",
    "dot": "the dot product",
    "euclidean": "minus the Euclidean distance",
    "hamming": "minus the number of bits that differ",
}


def threshold_table(thresholds: MeasuredThresholds) -> TextTable:
    """A row for each false accept rate: the threshold, and the rates on the classes it was set on and on test."""
    header = split_header(chosen_on_text(thresholds.set_on.split), [])
    rows = [
        (
            f"{row.asked:g}",
            f"{row.similarity:.6g}",
            *(_format_percent(rate.value) for rate in (row.set_far, row.set_tar, row.far, row.tar)),
        )
        for row in thresholds.thresholds
    ]
    numbers = range(4, 6)
    rates = [(row.far, row.tar) for row in thresholds.thresholds]
    ends = {column: tuple(_format_interval(pair[column - 4]) for pair in rates) for column in numbers}
    measure = _MEASURES[thresholds.ranked.similarity]
    units = IntervalKind(cluster=thresholds.cluster).units_text()
    intervals = f" [95 % over {units}]" if any(map(any, ends.values())) else ""
    return TextTable(
        ("asked\nFAR", "threshold", f"{header}\nFAR", f"{header}\nTAR", "test\nFAR", "test\nTAR"),
        tuple(rows),
        numbers=frozenset(range(6)),
        heading=(
            f"{thresholds.name}: accept if {measure} is at least the threshold",
            f"false and true accept rates (FAR, TAR) in %{intervals}",
        ),
        notes=(
            *(_pairs_text(split) for split in (thresholds.set_on, thresholds.test)),
            _transfer_text(thresholds),
            *(["; ".join(thresholds.notes)] if thresholds.notes else []),
        ),
        intervals={column: texts for column, texts in ends.items() if any(texts)},
    )


def _format_percent(value: float) -> str:
    return f"{100 * value:.1f}" if value >= 0.1 else f"{100 * value:.3g}"


def _format_interval(rate: Rate) -> tuple[str, str] | None:
    return None if rate.low is None or rate.high is None else (_format_percent(rate.low), _format_percent(rate.high))


def _pairs_text(split: PairedSplit) -> str:
    """`test: 6,334 genuine and 2,582,616 impostor pairs of 350 classes, EER 16.2 %`."""
    size = f"{split.classes:,} classes" if split.gallery is None else f"{split.images:,} x {split.gallery:,} images"
    return (
        f"{chosen_on_text(split.split)}: {split.genuine:,} genuine and {split.impostor:,} impostor pairs of {size},"
        f" EER {_format_percent(split.equal_error_rate)} %"
    )


def _transfer_text(thresholds: MeasuredThresholds) -> str:
    """Whether the false accept rates where thresholds are set lie in the intervals on test."""
    rows = [row for row in thresholds.thresholds if row.set_far.accepted]
    with_intervals = [
        (row, row.far.low, row.far.high) for row in rows if row.far.low is not None and row.far.high is not None
    ]
    if not with_intervals:
        return "whether the thresholds hold on other classes cannot be told from these"
    name = chosen_on_text(thresholds.set_on.split)
    # Of the rate where it is set: where similarities tie, that is well below the asked one.
    apart = [
        f"{row.far.value / row.set_far.value:.2g} times that of {name} at {row.asked:g}"
        for row, low, high in with_intervals
        if not low <= row.set_far.value <= high
    ]
    if apart:
        return f"not transferred: FAR on test is {', '.join(apart)}"
    return f"the FAR of {name} lies in the interval on test; other kinds of images may differ"
