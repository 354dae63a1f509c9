"""Tables of scores, and of any rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from layerprobe.system.wording import first_named
from layerprobe.values.best import Best, agreement_lines, agreements, best_layer, best_text, tied_text, worse_text
from layerprobe.values.facts import (
    DataFacts,
    assumed_lines,
    chosen_on_text,
    epoch_text,
    fact_lines,
    split_header,
    split_text,
)
from layerprobe.values.intervals import ShownKind
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, layer_names
from layerprobe.values.scores import SPLITS, Score, is_fraction, is_recall, note_text

_ABSENT = "-"
_BEST = "*"
_BRACKETS = "in brackets"
_FURTHER = 2  # further metrics with a column of their own in an overview
Ends = tuple[str, str]  # of an interval, as text


@dataclass(frozen=True)
class TextTable:
    """A table, in any format.

    Args:
        columns: headers of the C columns; a line feed may divide one.
        numbers: indices of the columns that hold numbers.
        marked: index of the highlighted row, if any.
        intervals: column -> for each row the ends of its cell's interval, if any.
        multiline: indices of the columns whose cells line feeds divide; in others, a line feed belongs to a name.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: frozenset[int] = frozenset()
    heading: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    marked: int | None = None
    intervals: Mapping[int, tuple[Ends | None, ...]] = field(default_factory=dict)
    multiline: frozenset[int] = frozenset()


Remark = tuple[str, LayerKey, str]  # on the scores of a split and layer


def layer_table(  # noqa: PLR0913 - the scores, and all that the lines below them say
    scores: Sequence[Score],
    *,
    metric: str = "R@1",
    data: DataFacts | None = None,
    untrained: Sequence[Score] = (),
    indistinguishable: Collection[RankedLayer] | None = None,
    printed_remarks: Collection[Remark] = (),
) -> TextTable:
    """A table with a row for each layer: the metric on every split, the gap, and the other R@K on test.

    Values are percent with one decimal, with their intervals if all of these are of one kind. The gap is train - test
    in points, from the unrounded fractions. The best layer, by `best_layer`, has a star and is bold. An
    invalid value is replaced by its note; other notes are below the table, after whether training made layers worse.

    Args:
        untrained: the run's scores of epoch 0, where the others are of a later one.
        indistinguishable: the layers not significantly different from the best on its split; None if unknown.
        printed_remarks: remarks that a table above has.
    """
    if len({(score.run, score.epoch) for score in scores}) != 1:
        raise ValueError("a layer table shows the scores of one run and one epoch")
    cells = {(score.ranked, score.split, score.metric): score for score in scores}
    rows = list(dict.fromkeys(score.ranked for score in scores))
    splits = [split for split in SPLITS if any(score.split == split for score in scores)]
    further = list(dict.fromkeys(s.metric for s in scores if s.split == "test" and is_recall(s.metric)))
    further = [name for name in further if name != metric]
    has_gap = {"train", "test"} <= set(splits)
    data = data or DataFacts("", {})
    headers = [f"{split_header(split, [data])}\n{metric}" for split in splits] + ["gap"] * has_gap
    headers += [f"test\n{name}" for name in further]

    chosen_on = data.chosen_on(row.post_processing for row in rows)
    values = {split: [_value(cells.get((row, split, metric))) for row in rows] for split in chosen_on}
    best = best_layer(values)
    names = layer_names(rows)
    before = {score.ranked: score for score in untrained if (score.split, score.metric) == ("test", metric)}
    worse = worse_text(names, [_value(before.get(row)) for row in rows], values["test"], metric, data.start)
    near_names = (
        None
        if indistinguishable is None
        else [n for n, row in zip(names, rows, strict=True) if row in indistinguishable]
    )
    notes = [f"{_BEST} {best_text(best, names, values, near_names)}"] if best else []
    notes += [*([worse] if worse else []), *assumed_lines(data)]
    texts = []
    for index, row in enumerate(rows):
        numbers = [_percent(cells.get((row, split, metric))) for split in splits]
        numbers += [_gap(cells.get((row, "train", metric)), cells.get((row, "test", metric)))] * has_gap
        numbers += [_percent(cells.get((row, "test", name))) for name in further]
        star = _BEST if best and index == best.place else ""
        texts.append((star, names[index], *numbers))
    columns = ("", "layer", *headers)
    compared = [[cells.get((row, split, metric)) for row in rows] for split in splits]
    kind = _kind([score for column in compared for score in column])
    noted = [score for score in scores if is_recall(score.metric)]
    title = _title(scores[0], rows, f"{metric} in %", data)
    return TextTable(
        columns,
        tuple(texts),
        numbers=frozenset(range(2, len(columns))),
        heading=(title, *fact_lines(data), *kind.lines(_BRACKETS)),
        notes=(*notes, *_notes(noted, rows, kind, data, printed_remarks=printed_remarks)),
        marked=best.place if best else None,
        intervals=_intervals(compared, 2, kind),
    )


def overview_table(
    scores: Sequence[Score],
    *,
    metric: str,
    data: DataFacts,
    indistinguishable: Collection[RankedLayer] | None = None,
    embedding: RankedLayer | None = None,
) -> TextTable:
    """The table with which `probe` ends: a row for each raw layer, with the metric on every split.

    The first two further metrics have columns on test. At most five lines below it: the best layer, how the embedding
    compares with it, the best layer after each post-processing, what is assumed of weights, and the first of the notes.

    Args:
        scores: of one run at its last epoch, and of epoch 0 where test before training is to be shown; post-processed
            layers are rows if there are no others.
        indistinguishable: the layers not significantly different from the best on its split; None if unknown.
        embedding: None if unknown.
    """
    last_epoch = max(score.epoch for score in scores)
    epoch_scores = [score for score in scores if score.epoch == last_epoch]
    raw = [score for score in epoch_scores if score.ranked.post_processing == NO_POST_PROCESSING] or epoch_scores
    before = {s.ranked: s for s in scores if (s.epoch, s.split, s.metric) == (0, "test", metric) and last_epoch > 0}
    cells = {(score.ranked, score.split): score for score in raw if score.metric == metric}
    rows = list(dict.fromkeys(score.ranked for score in raw))
    names = dict(zip(rows, layer_names(rows), strict=True))
    splits = [split for split in SPLITS if any(score.split == split for score in raw)]
    compared = [[cells.get((row, split)) for row in rows] for split in splits]
    values = {split: list(map(_value, column)) for split, column in zip(splits, compared, strict=True)}
    chosen_on = data.chosen_on(row.post_processing for row in rows)
    best = best_layer({split: column for split, column in values.items() if split in chosen_on})
    kind = _kind([score for column in compared for score in column])
    best_row = rows[best.place] if best else None
    words = [", ".join(["best"] * (row == best_row) + ["embedding"] * (row == embedding)) for row in rows]
    start = [before.get(row) for row in rows]
    further = list(dict.fromkeys(s.metric for s in raw if s.split == "test" and not is_recall(s.metric)))
    measured = {(s.ranked, s.metric): s for s in raw if s.split == "test"}
    columns = [list(map(_percent, column)) for column in compared + [start] * bool(before)]
    columns += [[_number(measured.get((row, name))) for row in rows] for name in further[:_FURTHER]]
    headers = [f"{split_header(split, [data])}\n{metric}" for split in splits] + [f"test,\n{data.start}"] * bool(before)
    headers += [f"test\n{name}" for name in further[:_FURTHER]]
    worse = worse_text(
        list(names.values()), list(map(_value, start)), values.get("test", [None] * len(rows)), metric, data.start
    )
    recalls = [score for score in raw if is_recall(score.metric)]
    notes = _notes(recalls, rows, kind, data, common_last=True)
    notes = [*([worse] if worse else []), *notes]
    notes += [f"--full also has {', '.join(further[_FURTHER:])}"] if further[_FURTHER:] else []
    return TextTable(
        ("layer", *headers, ""),
        tuple(zip(names.values(), *columns, words, strict=True)),
        numbers=frozenset(range(1, len(headers) + 1)),
        heading=(_title(raw[0], rows, f"{metric} in %", data), *fact_lines(data), *kind.lines(_BRACKETS)),
        notes=(
            *([_best_line(best, names, values, indistinguishable)] if best else []),
            *(
                [_embedding_line(best, embedding, names, values, indistinguishable)]
                if best and embedding in names
                else []
            ),
            *_post_processed_line(epoch_scores, metric, embedding, best),
            *assumed_lines(data),
            *([f"{notes[0]}{_more(notes[1:], 'note')}"] if notes else []),
        ),
        marked=best.place if best else None,
        intervals=_intervals(compared, 1, kind),
    )


def _best_line(
    best: Best,
    names: Mapping[RankedLayer, str],
    values: Mapping[str, Sequence[float | None]],
    indistinguishable: Collection[RankedLayer] | None,
) -> str:
    """`best on test (chosen on test): layer2.0@avg, 40.4 %; significantly better than 5 of the 8 others`."""
    other_count = len(names) - 1
    line = best_text(best, list(names.values()), values)
    if indistinguishable is None or not other_count:
        return line
    on = "" if best.split == "test" else f" on {chosen_on_text(best.split)}"
    lower = other_count - len(indistinguishable)
    worse = f"{lower} of the {other_count} others" if lower else "none of the others"
    worse = "all others" if lower == other_count else worse
    return f"{line}; significantly better than {worse}{on}"


def _embedding_line(
    best: Best,
    embedding: RankedLayer | None,
    names: Mapping[RankedLayer, str],
    values: Mapping[str, Sequence[float | None]],
    indistinguishable: Collection[RankedLayer] | None,
) -> str:
    """`embedding: output, 32.8 % on test, 7.6 points below the best, not significant`."""
    index = list(names).index(embedding)  # type: ignore[arg-type] # it is among them
    line = f"embedding: {list(names.values())[index]}"
    value, best_value = values[best.split][index], values[best.split][best.place]
    if index == best.place:
        return f"{line}, the best"
    if value is None or best_value is None:
        return f"{line}, without a value on {chosen_on_text(best.split)}"
    sure = "" if indistinguishable is None else f", {'not ' * (embedding in indistinguishable)}significant"
    below = f"{_share(best_value - value)} points below the best"
    return f"{line}, {_share(value)} % on {chosen_on_text(best.split)}, {below}{sure}"


def _post_processed_line(
    scores: Sequence[Score], metric: str, embedding: RankedLayer | None, best: Best | None
) -> list[str]:
    """The best layer after each post-processing, where raw layers are the rows."""
    by_post_processing: dict[str, dict[RankedLayer, float]] = {}
    split = "validation" if best and best.split == "validation" else "test"  # post-processing is fitted on train
    for score in scores:
        if (score.metric, score.split) == (metric, split) and score.value is not None:
            by_post_processing.setdefault(score.ranked.post_processing, {})[score.ranked] = score.value
    if best is None or by_post_processing.pop(NO_POST_PROCESSING, None) is None or not by_post_processing:
        return []
    parts = []
    for post_processing, layers in by_post_processing.items():
        best_layer_after = max(layers, key=layers.__getitem__)
        embedding_values = [value for row, value in layers.items() if embedding and row.layer == embedding.layer]
        beside = (
            f" (embedding {_share(embedding_values[0])} %)"
            if embedding_values and embedding and best_layer_after.layer != embedding.layer
            else ""
        )
        equals = list(layers.values()).count(layers[best_layer_after])
        tie_text = f", {tied_text(equals)}" if equals > 1 else ""
        parts.append(
            f"{post_processing}: {best_layer_after.layer}, {_share(layers[best_layer_after])} %{tie_text}{beside}"
        )
    return [f"best on {split} after {'; '.join(parts[:2])}{_more(parts[2:], 'post_processing')}"]


def _more(items: Sequence[str], noun: str) -> str:
    return f"; {len(items)} more {noun}{'s' * (len(items) > 1)}: --full" if items else ""


def metric_table(
    scores: Sequence[Score], data: DataFacts | None = None, *, printed_remarks: Collection[Remark] = ()
) -> TextTable | None:
    """A table of the metrics other than R@K, with a row for each metric and layer; None without such a metric.

    Shares are percent with one decimal, other numbers have three digits. Values have their intervals if all of these
    are of one kind. An invalid value is replaced by its note. Notes that no R@K has are below the table, with the
    rank correlations of label-free metrics with recall.

    Args:
        printed_remarks: remarks that a table above has.
    """
    further = [score for score in scores if not is_recall(score.metric)]
    if not further:
        return None
    cells = {(score.ranked, score.split, score.metric): score for score in further}
    splits = [split for split in SPLITS if any(score.split == split for score in further)]
    data = data or DataFacts("", {})
    metrics = list(dict.fromkeys(score.metric for score in further))
    rows = list(dict.fromkeys(score.ranked for score in further))
    names = dict(zip(rows, layer_names(rows), strict=True))
    columns = ("metric", "layer", *(split_header(split, [data]) for split in splits))
    shares = "shares in %" if any(map(is_fraction, metrics)) else ""
    lines = [(metric, row) for metric in metrics for row in rows]
    by_split = [[cells.get((row, split, metric)) for metric, row in lines] for split in splits]
    kind = _kind([score for column in by_split for score in column])
    printed_remarks = {
        *printed_remarks,
        *(remark for score in scores if is_recall(score.metric) for remark in remarks_of(score)),
    }
    return TextTable(
        columns,
        tuple(
            (metric, names[row], *map(_number, cells_of_row))
            for (metric, row), *cells_of_row in zip(lines, *by_split, strict=True)
        ),
        numbers=frozenset(range(2, len(columns))),
        heading=(_title(further[0], rows, shares, data), *kind.lines(_BRACKETS)),
        notes=(
            *_notes(further, rows, kind, data, printed_remarks=printed_remarks),
            *agreement_lines(agreements(scores), [data]),
        ),
        intervals=_intervals(by_split, 2, kind),
    )


def plain_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, multiline: Collection[int] = ()) -> TextTable:
    """A table of texts."""
    return TextTable(tuple(columns), tuple(map(tuple, rows)), multiline=frozenset(multiline))


def _title(score: Score, rows: Sequence[RankedLayer], unit: str, data: DataFacts | None) -> str:
    """Run and epoch, the unit, and the similarity if all rows share it."""
    similarities = {row.similarity for row in rows}
    parts = [f"{score.run}, {epoch_text(score.epoch, data)}", unit, *(similarities if len(similarities) == 1 else ())]
    return ", ".join(filter(None, parts))


def _value(score: Score | None) -> float | None:
    return None if score is None else score.value


def _percent(score: Score | None) -> str:
    if score is None:
        return _ABSENT
    return note_text(score.notes) if score.value is None else _share(score.value)


def _share(value: float) -> str:
    return f"{100 * value:.1f}"


def _number(score: Score | None) -> str:
    if score is None or score.value is None or is_fraction(score.metric):
        return _percent(score)
    return f"{score.value:.3g}"


def _kind(scores: Sequence[Score | None]) -> ShownKind:
    return ShownKind.of(score.kind for score in scores if score and score.interval and score.value is not None)


def _intervals(
    columns: Sequence[Sequence[Score | None]], first_index: int, kind: ShownKind
) -> dict[int, tuple[Ends | None, ...]]:
    """The ends of the intervals of adjacent columns from `first_index` on, without empty columns."""
    ends = (
        {}
        if kind.kind is None
        else {index: tuple(map(_ends, column)) for index, column in enumerate(columns, first_index)}
    )
    return {index: column for index, column in ends.items() if any(column)}


def _ends(score: Score | None) -> Ends | None:
    if score is None or score.value is None or score.interval is None:
        return None
    low, high = score.interval.low, score.interval.high
    return (_share(low), _share(high)) if is_fraction(score.metric) else (f"{low:.3g}", f"{high:.3g}")


def _gap(train: Score | None, test: Score | None) -> str:
    before, after = _value(train), _value(test)
    return _ABSENT if before is None or after is None else f"{100 * (before - after):+.1f}"


def remarks_of(score: Score) -> list[Remark]:
    """The remarks of a score, each with its split and layer."""
    return [(score.split, score.ranked.layer, note) for note in score.remarks]


def _notes(  # noqa: PLR0913 - the scores, and how they are shown
    scores: Sequence[Score],
    rows: Sequence[RankedLayer],
    kind: ShownKind,
    data: DataFacts,
    *,
    printed_remarks: Collection[Remark] = (),
    common_last: bool = False,
) -> list[str]:
    """A line for each note, with its splits, its layers, and its metrics other than R@K if only some have it.

    Notes of invalid values are in their cells.

    Args:
        printed_remarks: remarks that are left out.
        common_last: whether those of every layer come last.
    """
    metrics = {score.metric for score in scores}
    names = dict(zip(rows, layer_names(rows), strict=True))
    scores_by_note: dict[tuple[str, str], list[Score]] = {}
    for score in scores:
        if score.value is not None:
            for note in score.all_notes if kind.mixed else score.remarks:
                if (score.split, score.ranked.layer, note) in printed_remarks:
                    continue
                scores_by_note.setdefault((score.split, note), []).append(score)
    lines: dict[tuple[bool, str], list[str]] = {}
    for (split, note), noted in scores_by_note.items():
        layers = dict.fromkeys(score.ranked for score in noted)
        is_common = len(layers) == len(rows) > 1
        layers_text = "every layer" if is_common else first_named(list(dict.fromkeys(names[row] for row in layers)))
        noted_metrics = dict.fromkeys(score.metric for score in noted)
        metrics_suffix = (
            "" if noted_metrics.keys() == metrics or all(map(is_recall, metrics)) else f" ({', '.join(noted_metrics)})"
        )
        line = (is_common and common_last, f"{layers_text}: {note}{metrics_suffix}")
        lines.setdefault(line, []).append(split_text(split, [data]))
    in_order = sorted(lines.items(), key=lambda item: item[0][0])
    return [f"{' and '.join(splits)}, {text}" for (_, text), splits in in_order]
