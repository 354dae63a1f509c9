"""Scores and matrices, the names of their metrics, their means over trainings, and scores.csv."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

from layerprobe.registry import PLAIN_METRICS, SHARE_METRICS
from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file, write_text
from layerprobe.system.wording import command_text
from layerprobe.values.facts import DataFacts
from layerprobe.values.intervals import Interval, IntervalKind, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer, network_order

_RECALL = re.compile(r"R@([1-9][0-9]*)(?:\(G=([0-9]+)\))?", re.ASCII)


@dataclass(frozen=True)
class Recall:
    """Recall@K: `R@1`, `R@1(G=1000)` in a smaller gallery.

    Args:
        gallery: number of searched items; None for the whole gallery.
    """

    k: int
    gallery: int | None = None

    def __str__(self) -> str:
        return f"R@{self.k}" + ("" if self.gallery is None else f"(G={self.gallery})")


@cache
def recall_of(metric: str) -> Recall | None:
    """The Recall@K of a name; None for another metric."""
    match = _RECALL.fullmatch(metric)
    return match and Recall(int(match[1]), None if match[2] is None else int(match[2]))


def is_recall(metric: str) -> bool:
    """Whether a metric is R@K of a whole gallery, which is invalid only for features that are not finite."""
    recall = recall_of(metric)
    return recall is not None and recall.gallery is None


def is_fraction(metric: str) -> bool:
    """Whether a metric is shown in percent; `NAME-sd` and the like follow NAME, an unknown one is a share."""
    return not any(metric == name or metric.startswith(f"{name}-") for name in PLAIN_METRICS)


SPLITS = ("train", "validation", "test")  # of queries, in the order of rows and columns
SEEN, UNSEEN = GAP_SPLITS = "train", "test"  # the gap is the first less the second
_BETWEEN_NOTES = "; "
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LEAST = {"AMI": -1.0}  # of shares that may be below 0
_ROUNDING = 1e-9  # of a share that is 0 or 1
_LAST_EPOCH = 10**9 - 1  # weights files may be numbered by their steps or dates


@dataclass(frozen=True)
class Score:
    """One number and how it was obtained.

    Args:
        run: the run's name; the experiment's for a mean over seeds.
        seed: the run's seed; None for a mean over seeds.
        epoch: 0 = before any step.
        split: train, validation or test.
        ranked: the layer, as it was ranked.
        metric: R@1, MAP@R ...
        value: a fraction; None where there is no valid number, with the reason in `notes`.
        interval: 95 %, over `units`; None if there is none.
        units: also where there are too few for an interval; None for a number that is no mean over queries.
    """

    run: str
    experiment: str
    seed: int | None
    epoch: int
    split: str
    ranked: RankedLayer
    metric: str
    value: float | None
    interval: Interval | None
    n: int
    notes: tuple[str, ...] = ()
    units: SamplingUnits | None = None

    @property
    def low(self) -> float | None:
        """The lower end of the interval, if any."""
        return self.interval.low if self.interval else None

    @property
    def high(self) -> float | None:
        """The upper end of the interval, if any."""
        return self.interval.high if self.interval else None

    @property
    def kind(self) -> IntervalKind:
        """The kind of the interval."""
        return self.units.kind if self.units else IntervalKind()

    @property
    def remarks(self) -> tuple[str, ...]:
        """The notes, and whether the units of the interval are few."""
        return (*self.notes, *(self.units.remarks if self.units else ()))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """The notes, the kind of the interval, unless default, and whether its units are few."""
        return (*self.notes, *(self.units.notes if self.units else ()))

    def as_json(self) -> dict[str, Any]:
        """The fields in files and JSON, with the notes joined as `note`."""
        before = {"run": self.run, "experiment": self.experiment, "seed": self.seed, "epoch": self.epoch}
        number = {"metric": self.metric, "value": self.value, "low": self.low, "high": self.high}
        units = None if self.units is None else str(self.units)
        after = {**number, "interval": units, "n": self.n, "note": note_text(self.notes)}
        return {**before, "split": self.split, **self.ranked.as_columns(), **after}


@dataclass(frozen=True)
class Subject:
    """The provenance of a Score without its number."""

    run: str
    experiment: str
    seed: int | None
    epoch: int
    split: str
    ranked: RankedLayer
    notes: tuple[str, ...] = ()

    def score(  # noqa: PLR0913 - the number and all that is said of it
        self,
        metric: str,
        value: float | None,
        n: int,
        notes: Sequence[str] = (),
        *,
        interval: Interval | None = None,
        units: SamplingUnits | None = None,
    ) -> Score:
        """A Score of the subject; `value` is None where there is no valid number, with the reason in `notes`."""
        return Score(
            run=self.run,
            experiment=self.experiment,
            seed=self.seed,
            epoch=self.epoch,
            split=self.split,
            ranked=self.ranked,
            metric=metric,
            value=value,
            interval=interval,
            n=n,
            notes=(*notes, *self.notes),
            units=units,
        )


@dataclass(frozen=True)
class Matrix:
    """Numbers by two lists of names: similarities of pairs of layers.

    Args:
        values: (R, C) numbers; None where there is no valid one, with the reason in `notes`; never NaN.
    """

    run: str
    split: str
    measure: str
    title: str
    row_axis: str
    column_axis: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    n: int
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        lengths = [len(row) for row in self.values]
        if lengths != [len(self.columns)] * len(self.rows):
            raise ValueError(f"expected {len(self.rows)} rows of {len(self.columns)} values, got {lengths}")
        if any(value is not None and math.isnan(value) for row in self.values for value in row):
            raise ValueError("NaN among the values: use None for invalid numbers")


COLUMNS = (
    *("run", "experiment", "seed", "epoch", "split", "layer", "pool", "post_processing", "similarity"),
    *("metric", "value", "low", "high", "interval", "n", "note"),
)
_NUMBERS = {"seed": int, "epoch": int, "n": int, "value": float, "low": float, "high": float}


def note_text(notes: Iterable[str]) -> str:
    """Notes as one text, for a cell of a file or table."""
    # A note that contains the separator would be read as two.
    return _BETWEEN_NOTES.join(note.replace(_BETWEEN_NOTES, ", ") for note in notes)


def shared_notes(notes: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The notes that all of some scores share, each once, in the first one's order."""
    first_notes, *further_notes = notes
    return tuple(note for note in dict.fromkeys(first_notes) if all(note in other for other in further_notes))


def in_network_order(scores: Iterable[Score], layer_order: Sequence[str]) -> list[Score]:
    """Sort scores by their layers, as `keys.network_order` does; stable within a layer."""
    scores = list(scores)
    order = network_order((score.ranked for score in scores), layer_order)
    positions = {ranked: position for position, ranked in enumerate(order)}
    return sorted(scores, key=lambda score: positions[score.ranked])


class ScoreTable:
    """All scores of a run, as in scores.csv: each measurement once, by epoch, split and layer.

    An epoch is formatted again only if one of its scores has changed, so that writing after every epoch takes linear
    time in all.

    Args:
        stored: the scores of the file, in its order; None for those given.
    """

    def __init__(
        self, scores: Iterable[Score] = (), *, layer_order: Sequence[str] = (), stored: Sequence[Score] | None = None
    ) -> None:
        self.layer_order = layer_order
        self._epochs: dict[int, dict[tuple[object, ...], Score]] = {}
        self._texts: dict[int, str] = {}
        self.add(scores)
        self._changed = stored is not None and self.scores() != stored

    def add(self, scores: Iterable[Score]) -> None:
        """Add scores, each replacing the one of the same measurement."""
        for score in scores:
            of_epoch = self._epochs.setdefault(score.epoch, {})
            key = (score.run, score.split, score.ranked, score.metric)
            if of_epoch.get(key) != score:
                of_epoch[key] = score
                self._texts.pop(score.epoch, None)
                self._changed = True

    def drop(self, epoch: int, split: str, layers: Collection[RankedLayer]) -> int:
        """Remove every score of some layers of an epoch and split; return their number."""
        of_epoch = self._epochs.get(epoch, {})
        gone = [key for key, score in of_epoch.items() if score.split == split and score.ranked in layers]
        for key in gone:
            del of_epoch[key]
        if gone:
            self._texts.pop(epoch, None)
            self._changed = True
        return len(gone)

    def write(self, path: Path) -> None:
        """Write the file unless it exists and no score has changed; the cells of None are empty."""
        if not self._changed and path.exists():
            return
        for epoch in self._epochs:
            if epoch not in self._texts:
                self._texts[epoch] = _lines(score.as_json().values() for score in self._of_epoch(epoch))
        write_text(path, _lines([COLUMNS]) + "".join(self._texts[epoch] for epoch in sorted(self._texts)))
        self._changed = False

    def scores(self) -> list[Score]:
        """All scores, in the order of the file."""
        return [score for epoch in sorted(self._epochs) for score in self._of_epoch(epoch)]

    def _of_epoch(self, epoch: int) -> list[Score]:
        scores = in_network_order(self._epochs[epoch].values(), self.layer_order)
        return sorted(scores, key=lambda score: [*SPLITS, score.split].index(score.split))


def _lines(rows: Iterable[Iterable[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def read_scores(path: Path, fix: str = "") -> list[Score]:
    """The scores of a scores.csv; none of an empty file.

    Args:
        fix: of a file that is none; empty for that of a run's.
    """
    scores: dict[tuple[object, ...], tuple[Score, int]] = {}
    try:
        require_file(path)
        with path.open(encoding="utf-8", newline="") as stream:
            reader = csv.DictReader(stream)
            if reader.fieldnames is not None and (*reader.fieldnames,) != COLUMNS:
                raise ValueError(f"the columns {', '.join(reader.fieldnames)}")
            for row in reader:
                score, line = _score(row, path, reader.line_num, fix), reader.line_num
                key = score.run, score.epoch, score.split, score.ranked, score.metric
                other, before = scores.setdefault(key, (score, line))
                if other != score:
                    raise _bad(path, line, f"another row of the same number than line {before}", fix)
    except FileNotFoundError as error:
        raise no_scores(path) from error
    except (KeyError, TypeError, ValueError, csv.Error) as error:
        fix = fix or f"Delete it and run {_probe(path)} again"
        raise DataError("not a table of scores", file=path, fix=fix) from error
    return [score for score, _ in scores.values()]


def no_scores(path: Path) -> DataError:
    """The error of a run without scores."""
    return DataError("no scores yet", file=path, fix=f"Run {_probe(path)} first")


def _probe(path: Path) -> str:
    """The command that measures the run whose scores a file holds."""
    return command_text("probe", path.parent.name, cache=path.parent.parent)


def _score(row: Mapping[str, str | None], path: Path, line: int, fix: str) -> Score:
    if None in row or None in row.values():
        raise _bad(path, line, "the row has more or fewer cells than the header", fix)
    values: dict[str, Any] = {}
    for column in COLUMNS:
        text = str(row[column])
        number = _NUMBERS.get(column)
        if text == "" and number is int and column != "seed":
            raise _bad(path, line, f"{column} is empty, expected a whole number", fix)
        if column != "note" and _CONTROL.search(text):  # a note may quote a file's name
            raise _bad(path, line, f"{column} is {text!a}, expected no control characters", fix)
        values[column] = text if number is None else (None if text == "" else number(text))
        if isinstance(values[column], float) and not math.isfinite(values[column]):
            raise _bad(path, line, f"{column} is {text}, expected a finite number or an empty cell", fix)
    ranked = RankedLayer(
        LayerKey(values.pop("layer"), values.pop("pool")), values.pop("post_processing"), values.pop("similarity")
    )
    low, high, units, note = (values.pop(column) for column in ("low", "high", "interval", "note"))
    score = Score(
        **values,
        ranked=ranked,
        interval=None if low is None or high is None else Interval(low, high),
        units=SamplingUnits.parse(units) if units else None,
        notes=tuple(note.split(_BETWEEN_NOTES)) if note else (),
    )
    if fault := _fault(score):
        raise _bad(path, line, fault, fix)
    return score


def _fault(score: Score) -> str:
    """The first value that no score has; empty if there is none."""
    if score.split not in SPLITS:
        return f"split is {score.split!r}, expected {', '.join(SPLITS)}"
    if not 0 <= score.epoch <= _LAST_EPOCH:
        return f"epoch is {score.epoch}, expected 0 to {_LAST_EPOCH:,}"
    if score.n < 0:
        return f"n is {score.n}, expected a number of queries"
    if score.metric.startswith("R@") and recall_of(score.metric) is None:
        return f"metric is {score.metric!r}, expected R@K with a K of at least 1"
    if recall_of(score.metric) or score.metric in SHARE_METRICS:
        numbers = {"value": score.value}
        if score.kind.estimand == "gallery":  # the other intervals are not cut at 0 and 1
            numbers |= {"low": score.low, "high": score.high}
        for name, number in numbers.items():
            if number is not None and not _LEAST.get(score.metric, 0) - _ROUNDING <= number <= 1 + _ROUNDING:
                return f"{name} is {number:g}, expected a fraction"
    if score.low is not None and score.high is not None and score.low > score.high:
        return f"low is {score.low:g}, expected at most high, {score.high:g}"
    return ""


def _bad(path: Path, line: int, why: str, fix: str) -> DataError:
    return DataError(why, file=f"{path}:{line}", fix=fix or f"Delete the file and run {_probe(path)} again")


_Cell = tuple[object, ...]


def over_seeds(scores: Sequence[Score]) -> list[Score]:
    """Replace the scores of an experiment's trainings by their means.

    `low` and `high` are the lowest and the highest training. Numbers missing in some trainings are skipped, with a
    note. A mean is None if a training has no valid value. Its run is named by `trainings`, its seed is None, and its n
    the number of trainings. Scores of a single training are unchanged.
    """
    by_run: dict[str, list[Score]] = {}
    for score in scores:
        by_run.setdefault(score.run, []).append(score)
    means: list[Score] = []
    for name, runs in trainings(scores).items():
        means += by_run[name] if runs == (name,) else _mean(name, [by_run[run] for run in runs])
    return means


def trainings(scores: Iterable[Score]) -> dict[str, tuple[str, ...]]:
    """The runs that `over_seeds` merges, by the name of their mean: `netA-s* (3 seeds)`.

    Runs of the same experiment are merged if they share some number; other runs keep their names.
    """
    scores = list(scores)
    groups: dict[str, dict[str, int | None]] = {}
    for score in scores:
        groups.setdefault(score.experiment, {})[score.run] = score.seed
    cells: dict[str, set[_Cell]] = {run: set() for runs in groups.values() if len(runs) > 1 for run in runs}
    for score in scores:
        if score.run in cells:
            cells[score.run].add(_cell(score))
    names: dict[str, tuple[str, ...]] = {}
    for experiment, runs in groups.items():
        together = len(runs) > 1 and bool(set.intersection(*(cells[run] for run in runs)))
        if not together:
            names |= {run: (run,) for run in runs}
            continue
        name = _name(runs)
        names[name if name not in names else f"{experiment} {name}"] = tuple(runs)
    return names


def facts_over_seeds(data: Mapping[str, DataFacts], groups: Mapping[str, Sequence[str]]) -> dict[str, DataFacts]:
    """The facts that all trainings of a group share.

    Args:
        groups: name -> runs, from `trainings`.
    """
    shared_facts = {}
    for name, runs in groups.items():
        run_facts = [data[run] for run in runs if run in data]
        if run_facts:
            first_facts = run_facts[0]
            same = {
                split: facts
                for split, facts in first_facts.splits.items()
                if all(k.splits.get(split) == facts for k in run_facts)
            }
            shared_facts[name] = replace(first_facts, splits=same)
    return shared_facts


def _name(runs: Mapping[str, int | None]) -> str:
    # Folds of one experiment may have the same seed.
    noun = "seeds" if len(set(runs.values())) == len(runs) else "trainings"
    shared = takewhile(lambda letters: len(set(letters)) == 1, zip(*runs, strict=False))
    prefix = "".join(letters[0] for letters in shared)
    return f"{f'{prefix}*' if prefix else ', '.join(runs)} ({len(runs)} {noun})"


def _cell(score: Score) -> _Cell:
    return score.epoch, score.split, score.ranked, score.metric


def _mean(name: str, runs: Sequence[Sequence[Score]]) -> list[Score]:
    """The means over some trainings, in the order of the first one's scores."""
    tables = [{_cell(score): score for score in run_scores} for run_scores in runs]
    shared = set.intersection(*(set(table) for table in tables))
    kinds: dict[tuple[str, str], list[Score]] = {}
    for score in (score for run_scores in runs for score in run_scores):
        kinds.setdefault(_kind(score), []).append(score)
    notes = {
        kind: (f"mean of {len(runs)} trainings", *_left_out(run_scores, shared)) for kind, run_scores in kinds.items()
    }
    shared_scores = [score for score in runs[0] if _cell(score) in shared]
    return [_mean_of([table[_cell(score)] for table in tables], name, notes[_kind(score)]) for score in shared_scores]


def _kind(score: Score) -> tuple[str, str]:
    """The scores that a figure shows together."""
    return score.metric, score.ranked.post_processing


def _left_out(scores: Sequence[Score], shared: Set[_Cell]) -> list[str]:
    """A note on the epochs without any shared number, and the number of skipped ones at other epochs."""
    shared_epochs = {score.epoch for score in scores if _cell(score) in shared}
    alone = [score for score in scores if _cell(score) not in shared]
    epochs = sorted({score.epoch for score in alone} - shared_epochs)
    skipped = {_cell(score) for score in alone if score.epoch in shared_epochs}
    layers = {score.ranked for score in alone if score.epoch in shared_epochs}
    parts = [f"epoch{'s' * (len(epochs) > 1)} {', '.join(map(str, epochs))}"] if epochs else []
    parts += [f"{_count(len(skipped), 'number')} of {_count(len(layers), 'layer')}"] if skipped else []
    return [f"left out, as not all trainings have them: {' and '.join(parts)}"] if parts else []


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'s' * (number != 1)}"


def _mean_of(scores: Sequence[Score], name: str, notes: Sequence[str]) -> Score:
    values = [score.value for score in scores]
    valid = [value for value in values if value is not None]
    all_valid = len(valid) == len(values)
    common = shared_notes(score.notes for score in scores)
    single = [f"{score.run}: {note}" for score in scores for note in score.notes if note not in common]
    return replace(
        scores[0],
        run=name,
        seed=None,
        value=sum(valid) / len(valid) if all_valid else None,
        interval=Interval(min(valid), max(valid)) if all_valid else None,
        n=len(scores),
        notes=(*common, *single, *notes),
        units=SamplingUnits(IntervalKind(trainings=True), len(scores)) if all_valid else None,
    )
