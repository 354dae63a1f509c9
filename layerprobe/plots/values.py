"""Scores as points, points and matrices as CSV, and the notes under a plot of scores."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from layerprobe.system.errors import LayerprobeError
from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import Interval, IntervalKind, SamplingUnits, ShownKind
from layerprobe.values.layers import NO_REDUCTION, RankedLayer, names_by_layer
from layerprobe.values.scores import SPLITS, Matrix, Score, note_text, shared_notes

_DEFAULT = "R@1"  # of a plot of scores of several metrics
_KEY = ("run", "layer", "pool", "reduction", "similarity", "epoch")


@dataclass(frozen=True)
class Point:
    """One layer at one epoch: a metric on every split.

    Args:
        epoch: 0 = before any step.
        values: split -> fraction; None if the value is invalid; only splits that were scored.
        notes: split -> notes on the value, or why it is invalid.
        units: split -> what its interval is over.
        intervals: split -> the 95 % interval of the value, if any.
        chosen_on: splits that may name the best layer.
    """

    run: str
    ranked: RankedLayer
    epoch: int
    values: Mapping[str, float | None]
    notes: Mapping[str, tuple[str, ...]]
    units: Mapping[str, SamplingUnits | None]
    intervals: Mapping[str, Interval] = field(default_factory=dict)
    metric: str = _DEFAULT
    chosen_on: tuple[str, ...] = ("validation", "test")

    def kind(self, split: str) -> IntervalKind:
        """What the interval of a split says."""
        units = self.units[split]
        return units.kind if units else IntervalKind()

    def remarks(self, split: str) -> tuple[str, ...]:
        """The notes of a split without those on the kind of its interval."""
        return tuple(note for note in self.notes[split] if note not in self.kind(split).notes)

    def percent(self, split: str) -> float | None:
        """The value of a split in percent; None without a valid one."""
        value = self.values.get(split)
        return None if value is None else 100 * value

    def ends(self, split: str) -> tuple[float, float] | None:
        """Lower and upper end of a split's interval in percent; None without one."""
        interval = self.intervals.get(split)
        return None if interval is None else interval.percent


Series = dict[str, list[Point]]  # label of a layer -> its points by epoch; layers in network order


def make_points(scores: Iterable[Score], data: Mapping[str, DataFacts] | None = None) -> list[Point]:
    """A point for each run, layer and epoch: runs and layers in the order of the scores, epochs ascending.

    It is of R@1, or of the only metric of the scores.
    """
    scores = list(scores)
    metric = metric_of(scores)
    chosen: dict[tuple[object, ...], dict[str, Score]] = {}
    for score in scores:
        if score.metric == metric:
            chosen.setdefault((score.run, score.ranked, score.epoch), {})[score.split] = score
    if not chosen:
        metrics = ", ".join(dict.fromkeys(score.metric for score in scores))
        raise LayerprobeError(f"no scores of {metric}", fix=f"There is {metrics}" if metrics else "Probe a layer first")
    order = {key[:-1]: position for position, key in reversed(list(enumerate(chosen)))}
    layer_points = [_make_point(splits) for splits in chosen.values()]
    facts = data or {}
    layer_points = [
        replace(p, chosen_on=facts[p.run].chosen_on([p.ranked.reduction])) if p.run in facts else p
        for p in layer_points
    ]
    runs = list(dict.fromkeys(point.run for point in layer_points))
    return sorted(layer_points, key=lambda p: (runs.index(p.run), order[_run_and_layer(p)], p.epoch))


def metric_of(scores: Iterable[Score]) -> str:
    """The metric that a plot of some scores draws: R@1, or theirs if they have one other metric."""
    metrics = {score.metric for score in scores}
    return metrics.pop() if len(metrics) == 1 else _DEFAULT


def _make_point(splits: Mapping[str, Score]) -> Point:
    score = next(iter(splits.values()))
    values = {split: score.value for split, score in splits.items()}
    notes = {split: score.all_notes for split, score in splits.items()}
    units = {split: score.units for split, score in splits.items()}
    intervals = {split: s.interval for split, s in splits.items() if s.interval and s.value is not None}
    return Point(score.run, score.ranked, score.epoch, values, notes, units, intervals, score.metric)


def keep_one_kind(points: Sequence[Point], is_drawn: Callable[[Point, str], bool]) -> tuple[list[Point], ShownKind]:
    """The points with the intervals to draw, and the kind of these intervals; none if they are of different kinds.

    Ranges over trainings take precedence over other intervals. The points' notes lose those that the kind implies.

    Args:
        is_drawn: whether the figure draws the interval of a point on a split.
    """
    drawn = [
        replace(point, intervals={split: ends for split, ends in point.intervals.items() if is_drawn(point, split)})
        for point in points
    ]
    if any(point.kind(split).trainings for point in drawn for split in point.intervals):
        drawn = [
            replace(point, intervals={split: x for split, x in point.intervals.items() if point.kind(split).trainings})
            for point in drawn
        ]
    kind = ShownKind.of(point.kind(split) for point in drawn for split in point.intervals)
    if kind.kind is None:
        drawn = [replace(point, intervals={}) for point in drawn]
    if not kind.mixed:
        drawn = [replace(point, notes={split: point.remarks(split) for split in point.notes}) for point in drawn]
    return drawn, kind


def drawn_percents(points: Sequence[Point], splits: Sequence[str]) -> list[float]:
    """The valid values and the ends of intervals of some splits, in percent."""
    values = [value for point in points for split in splits if (value := point.percent(split)) is not None]
    return values + [end for point in points for split in splits for end in point.ends(split) or ()]


def points_csv(scores: Iterable[Score]) -> str:
    """The points as CSV, a line each: run, layer, pool ..., the fractions of all splits, their intervals and notes.

    The cells of invalid values and absent intervals are empty. The notes have the intervals' kind.
    """
    layer_points = make_points(scores)
    splits, metric = _splits(layer_points), layer_points[0].metric
    ends = [f"{split} {metric} {end}" for split in splits for end in ("low", "high")]
    notes = [f"{split} note" for split in splits]
    rows: list[list[object]] = [[*_KEY, *(f"{split} {metric}" for split in splits), *ends, *notes]]
    for point in layer_points:
        key = [point.run, *point.ranked.as_columns().values(), point.epoch]
        values = map(point.values.get, splits)
        intervals = [point.intervals.get(split) for split in splits]
        bounds = [
            end for interval in intervals for end in ((interval.low, interval.high) if interval else (None, None))
        ]
        rows.append([*key, *values, *bounds, *(note_text(point.notes.get(split, ())) for split in splits)])
    return _as_csv(rows)


def matrices_csv(matrices: Iterable[Matrix]) -> str:
    """Matrices as CSV, a line for each number with the notes of its matrix; an invalid number is an empty cell."""
    rows: list[list[object]] = [["run", "split", "comparison", "row", "column", "value", "note"]]
    for matrix in matrices:
        for name, values in zip(matrix.rows, matrix.values, strict=True):
            for column, value in zip(matrix.columns, values, strict=True):
                rows.append([matrix.run, matrix.split, matrix.title, name, column, value, note_text(matrix.notes)])
    return _as_csv(rows)


def _as_csv(rows: Iterable[Iterable[object]]) -> str:
    from layerprobe.plots.figure import csv_text  # it imports matplotlib, which a report does without

    return csv_text(rows)


def group_by_run(points: Sequence[Point]) -> dict[str, Series]:
    """Run -> name of a layer -> points."""
    labels = names_by_layer(point.ranked for point in points)
    runs: dict[str, Series] = {}
    for point in points:
        runs.setdefault(point.run, {}).setdefault(labels[point.ranked], []).append(point)
    return runs


def layer_names_of(series: Series) -> list[str]:
    """The measured layers without their pools and reductions, in network order; `A+B` is A and B."""
    return list(dict.fromkeys(name for layer in series.values() for name in layer[0].ranked.layer.layer.split("+")))


def names_in_order(runs: Mapping[str, Series]) -> list[str]:
    """Every layer of the runs once, in network order; one that only a later run has follows its predecessor there."""
    names: list[str] = []
    for series in runs.values():
        position = 0
        for name in series:
            if name not in names:
                names.insert(position, name)
            position = names.index(name) + 1
    return names


def add_search_to_run(points: Sequence[Point]) -> list[Point]:
    """The points, with reduction and similarity added to the run's name if there are several."""
    has_several_searches = len({(point.ranked.reduction, point.ranked.similarity) for point in points}) > 1
    return [replace(point, run=search_name(point)) if has_several_searches else point for point in points]


def search_name(point: Point | Score) -> str:
    """Name of the panel of a run, reduction and similarity."""
    reduction = [] if point.ranked.reduction == NO_REDUCTION else [point.ranked.reduction]
    return ", ".join([point.run, *reduction, point.ranked.similarity])


def comparison_text(series: Series) -> str:
    """The similarities of a panel, for its title, after the reduction that all layers share, if any."""
    layer_points = [point for layer in series.values() for point in layer]
    reductions = {point.ranked.reduction for point in layer_points} - {"none"}
    common = reductions if len({point.ranked.reduction for point in layer_points}) == 1 else ()
    return ", ".join([*common, *dict.fromkeys(point.ranked.similarity for point in layer_points)])


def common_lines(runs: Mapping[str, Series]) -> list[str]:
    """The notes that every score of a run has, such as missing images, or every value of a split; a line each.

    Those of all runs come first, once.
    """
    return merge_lines({run: _common_notes(series) for run, series in runs.items()})


def merge_lines(lines: Mapping[str, Sequence[str]]) -> list[str]:
    """The lines of some runs: first those that all share, once, then the others with the run's name."""
    first_run, *other_runs = lines.values()
    common = [line for line in first_run if all(line in other for other in other_runs)]
    return common + [f"{run}: {line}" for run, run_lines in lines.items() for line in run_lines if line not in common]


def _common_notes(series: Series) -> list[str]:
    layer_points = [point for layer in series.values() for point in layer]
    lines = list(everywhere := shared_notes(notes for point in layer_points for notes in point.notes.values()))
    for split in _splits(layer_points):
        # For a split without any valid value, `missing` has the reasons.
        valid = [point.notes[split] for point in layer_points if point.values.get(split) is not None]
        lines += [f"{split}: {note}" for note in (shared_notes(valid) if valid else ()) if note not in everywhere]
    return lines


def missing_lines(runs: Mapping[str, Series], splits: Sequence[str]) -> list[str]:
    """Notes on splits without scores, and on invalid values."""
    lines = []
    for run, series in runs.items():
        prefix = f"{run}: " if len(runs) > 1 else ""
        for split in splits:
            without = [name for name, layer in series.items() if all(split not in point.values for point in layer)]
            if without:
                lines.append(
                    f"{prefix}no {split} scores" + ("" if len(without) == len(series) else f" of {', '.join(without)}")
                )
            lines += [f"{prefix}not valid: {fault}" for fault in _invalid_lines(series, split)]
    return lines


def _invalid_lines(series: Series, split: str) -> list[str]:
    faults: dict[tuple[str, str], list[int]] = {}
    for name, layer in series.items():
        for point in layer:
            if split in point.values and point.values[split] is None:
                faults.setdefault((name, note_text(point.notes[split])), []).append(point.epoch)
    return [
        f"{name}, {split}, epoch{'s' * (len(epochs) > 1)} {_ranges(epochs)}: {note}"
        for (name, note), epochs in faults.items()
    ]


def _ranges(numbers: Sequence[int]) -> str:
    """`3, 12-30` for ascending numbers."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def _run_and_layer(point: Point) -> tuple[str, RankedLayer]:
    return point.run, point.ranked


def _splits(points: Sequence[Point]) -> list[str]:
    names = dict.fromkeys(split for point in points for split in point.values)
    return sorted(names, key=lambda split: [*SPLITS, split].index(split))
