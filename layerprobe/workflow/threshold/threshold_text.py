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


def threshold_table(found: MeasuredThresholds) -> TextTable:
    """A row for each false accept rate: the threshold, and the rates on the classes it was set on and on test."""
    short = split_header(chosen_on_text(found.set_on.split), [])
    rows = [
        (f"{row.asked:g}", f"{row.similarity:.6g}", *map(_percent, (row.set_far, row.set_tar, row.far, row.tar)))
        for row in found.thresholds
    ]
    numbers = range(4, 6)
    rates = [(row.far, row.tar) for row in found.thresholds]
    ends = {column: tuple(_ends(pair[column - 4]) for pair in rates) for column in numbers}
    measure = _MEASURES[found.ranked.similarity]
    units = IntervalKind(cluster=found.cluster).units_text()
    intervals = f" [95 % over {units}]" if any(map(any, ends.values())) else ""
    return TextTable(
        ("asked\nFAR", "threshold", f"{short}\nFAR", f"{short}\nTAR", "test\nFAR", "test\nTAR"),
        tuple(rows),
        numbers=frozenset(range(6)),
        heading=(
            f"{found.name}: accept if {measure} is at least the threshold",
            f"false and true accept rates (FAR, TAR) in %{intervals}",
        ),
        notes=(
            *(_pairs_text(one) for one in (found.set_on, found.test)),
            _transfer(found),
            *(["; ".join(found.notes)] if found.notes else []),
        ),
        intervals={column: own for column, own in ends.items() if any(own)},
    )


def _percent(rate: Rate) -> str:
    return _shown(rate.value)


def _shown(value: float) -> str:
    return f"{100 * value:.1f}" if value >= 0.1 else f"{100 * value:.3g}"


def _ends(rate: Rate) -> tuple[str, str] | None:
    return None if rate.low is None or rate.high is None else (_shown(rate.low), _shown(rate.high))


def _pairs_text(one: PairedSplit) -> str:
    """`test: 6,334 genuine and 2,582,616 impostor pairs of 350 classes, EER 16.2 %`."""
    of = f"{one.classes:,} classes" if one.gallery is None else f"{one.images:,} x {one.gallery:,} images"
    return (
        f"{chosen_on_text(one.split)}: {one.genuine:,} genuine and {one.impostor:,} impostor pairs of {of},"
        f" EER {_shown(one.equal_error_rate)} %"
    )


def _transfer(found: MeasuredThresholds) -> str:
    """Whether the rates at which thresholds accept where they are set hold on test, as far as the intervals tell."""
    rows = [row for row in found.thresholds if row.set_far.accepted]
    known = [(row, row.far.low, row.far.high) for row in rows if row.far.low is not None and row.far.high is not None]
    if not known:
        return "whether the thresholds hold on other classes cannot be told from these"
    name = chosen_on_text(found.set_on.split)
    # Of the rate where it is set: where similarities tie, that is well below the asked one.
    apart = [
        f"{row.far.value / row.set_far.value:.2g} times that of {name} at {row.asked:g}"
        for row, low, high in known
        if not low <= row.set_far.value <= high
    ]
    if apart:
        return f"not transferred: FAR on test is {', '.join(apart)}"
    return f"the FAR of {name} lies in the interval on test; other kinds of images may differ"
