"""Tables of scores, and of any rows."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from layerprobe.system.wording import first_named, wrapped
from layerprobe.values.best import Best, agreement_lines, agreements, best_layer, best_text, tied_text, worse_text
from layerprobe.values.facts import (
    DataFacts,
    assumed_lines,
    caveat_lines,
    chosen_on_text,
    epoch_text,
    fact_lines,
    level_text,
    split_header,
    split_text,
)
from layerprobe.values.intervals import FEW_UNITS, FEWEST_UNITS, Difference, ShownKind
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey, RankedLayer, layer_names
from layerprobe.values.scores import SEEN, SPLITS, UNSEEN, Score, is_fraction, is_recall, note_text

_ABSENT = "-"
_BEST = "*"
_BRACKETS = "in brackets"
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


@dataclass(frozen=True)
class Lead:
    """The mean of the best layer minus that of the embedding, over the same queries.

    Args:
        simultaneous: of how many layers the interval holds for all pairs at once, as the best was selected on this
            split; 0 where it was selected on another one.
    """

    split: str
    difference: Difference
    simultaneous: int = 0


@dataclass(frozen=True)
class Answer:
    """What a probe says of the layers of a run, at its last epoch.

    Args:
        scores: of one run and epoch.
        metric: by which the layers are compared.
        embedding: None if it is not known, or not among the scores.
        embedding_name: also of one that is not among them; empty if it is not known.
        before: the layer before the embedding; None likewise.
        lead: of the best layer over the embedding; None where they are not compared.
        indistinguishable: the layers not significantly different from the best on its split; None if unknown.
        command: that compares the best layer with the embedding alone.
        every: whether every layer is a row.
        metrics: further ones with a column on test.
        post_processed: whether the best layer after each post-processing is named.
        full: whether everything else follows, so that nothing says where it is.
    """

    scores: Sequence[Score]
    metric: str
    data: DataFacts
    embedding: RankedLayer | None = None
    embedding_name: str = ""
    before: RankedLayer | None = None
    lead: Lead | None = None
    indistinguishable: Collection[RankedLayer] | None = None
    command: str = ""
    every: bool = False
    metrics: tuple[str, ...] = ()
    post_processed: bool = False
    full: bool = False

    @property
    def further(self) -> list[str]:
        """The further metrics that are measured on test."""
        measured = {score.metric for score in self.raw if score.split == UNSEEN}
        return [metric for metric in dict.fromkeys(self.metrics) if metric in measured - {self.metric}]

    @property
    def raw(self) -> list[Score]:
        """The scores of the layers as they are; all scores if every layer is post-processed."""
        return [score for score in self.scores if score.ranked.post_processing == NO_POST_PROCESSING] or list(
            self.scores
        )

    @property
    def names(self) -> dict[RankedLayer, str]:
        """The layers with their names in the table."""
        rows = list(dict.fromkeys(score.ranked for score in self.raw))
        return dict(zip(rows, layer_names(rows), strict=True))

    @property
    def splits(self) -> list[str]:
        """The splits that are measured, in order."""
        return [split for split in SPLITS if any(score.split == split for score in self.raw)]

    @property
    def cells(self) -> dict[tuple[RankedLayer, str], Score]:
        """Layer and split -> its score of the metric."""
        return {(score.ranked, score.split): score for score in self.raw if score.metric == self.metric}

    @property
    def best(self) -> tuple[RankedLayer, Best] | None:
        """The best layer, on the first split that may select it; None without one."""
        rows = list(self.names)
        selecting = self.data.chosen_on(row.post_processing for row in rows)
        best = best_layer({split: self.values(split) for split in selecting})
        return None if best is None else (rows[best.place], best)

    @property
    def has_gap(self) -> bool:
        """Whether the network may have been trained on the training classes, and both splits are measured."""
        return self.data.seen and {SEEN, UNSEEN} <= set(self.splits)

    def values(self, split: str) -> list[float | None]:
        """The values of the layers on a split, in order."""
        return [_value(self.cells.get((row, split))) for row in self.names]

    def gap(self, row: RankedLayer) -> str:
        """The generalisation gap of a layer: `+7.0`, in percentage points."""
        return _gap(self.cells.get((row, SEEN)), self.cells.get((row, UNSEEN)))


_FEW_ROWS = 5  # up to so many layers are all shown
_TOP = 3  # of the best ones


def answer_table(answer: Answer) -> TextTable:
    """The answer of a probe: a sentence, a few layers, how sure it is, and what else there is.

    The rows are the three best layers, the embedding and, of a trained network, the layer before it; all layers of at
    most five, and if asked. The interval is that of test, else that of the only split.
    """
    names, splits, cells = answer.names, answer.splits, answer.cells
    best, rows = answer.best, rows_shown(answer)
    with_ends = UNSEEN if UNSEEN in splits else (splits or [UNSEEN])[-1]
    compared = {split: [cells.get((row, split)) for row in rows] for split in splits}
    kind = _kind(compared.get(with_ends, []))
    measured = {(score.ranked, score.metric): score for score in answer.raw if score.split == UNSEEN}
    headers = [f"{split_header(split, [answer.data])}\n{answer.metric}" for split in splits]
    columns = [list(map(_percent, column)) for column in compared.values()]
    if answer.has_gap:
        headers, columns = [*headers, "gap"], [*columns, [answer.gap(row) for row in rows]]
    headers += [f"test\n{metric}" for metric in answer.further]
    columns += [[_number(measured.get((row, metric))) for row in rows] for metric in answer.further]
    best_row = best[0] if best else None
    best_word = ["best"] * (len(names) > 1)
    words = [", ".join(best_word * (row == best_row) + ["embedding"] * (row == answer.embedding)) for row in rows]
    ends = 1 + splits.index(with_ends) if with_ends in splits else 0
    return TextTable(
        ("layer", *headers, ""),
        tuple(zip((names[row] for row in rows), *columns, words, strict=True)),
        numbers=frozenset(range(1, len(headers) + 1)),
        heading=(*wrapped(answer_sentence(answer)), "", _answer_title(answer)),
        notes=tuple(_answer_notes(answer, rows, kind)),
        marked=rows.index(best_row) if best_row in rows else None,
        intervals=_intervals([compared[with_ends]], ends, kind) if ends else {},
    )


def _answer_title(answer: Answer) -> str:
    """`glyphs: R@1 in % (chance on test 1.6 %), cosine`."""
    similarities = {row.similarity for row in answer.names}
    facts = answer.data.splits.get(UNSEEN)
    is_known = answer.metric == "R@1" and facts is not None and facts.chance is not None
    chance = f" (chance on test {level_text(100 * facts.chance)})" if is_known and facts and facts.chance else ""
    title = f"{answer.metric} in %{chance}{', '.join(['', *similarities]) if len(similarities) == 1 else ''}"
    return f"{answer.data.name}: {title}" if answer.data.name else title


def rows_shown(answer: Answer) -> list[RankedLayer]:
    """The layers that are rows, in network order."""
    rows, best = list(answer.names), answer.best
    if answer.every or len(rows) <= _FEW_ROWS:
        return rows
    split = best[1].split if best else (answer.splits or [UNSEEN])[-1]
    values = dict(zip(rows, answer.values(split), strict=True))
    shown = set(sorted((row for row in rows if values[row] is not None), key=lambda row: -(values[row] or 0))[:_TOP])
    references = (answer.embedding, answer.before) if answer.data.seen else (answer.embedding,)
    return [row for row in rows if row in shown or row in references] or rows[-_TOP:]


def answer_sentence(answer: Answer) -> str:
    """Which layer is best, by how much it beats the embedding, and the generalisation gap of both.

    `a, epoch 2: c5 is the best of 9 layers on the validation classes; on test, +2.3 percentage points of R@1 [0.4, 4.2]
    against the embedding, fc6 (significant).`
    """
    names, best, first = answer.names, answer.best, answer.raw[0]
    head = f"{first.run}, {epoch_text(first.epoch, answer.data)}:"
    if best is None:
        if any(value is not None for split in answer.splits for value in answer.values(split)):
            return (
                f"{head} no layer is selected, as only classes that the network may have been trained on are measured."
            )
        return f"{head} no layer has a valid {answer.metric}."
    row, place = best
    classes = classes_text(place.split)
    rank = f"the best of {len(names)} layers on the {classes}" if len(names) > 1 else "the only layer measured"
    tied = f", {tied_text(place.equals)}" if place.equals > 1 else ""
    if row == answer.embedding:
        text = f"{head} {names[row]}, the embedding, is {rank}{tied}: {_level_text(answer, row, place.split)}."
    elif answer.lead is None:
        known = f", {answer.embedding_name}," if answer.embedding_name else ""
        why = "is not among the layers measured" if known else "is not known"
        text = (
            f"{head} {names[row]} is {rank}{tied}: {_level_text(answer, row, place.split)}. The embedding{known} {why}."
        )
    else:
        on = "" if answer.lead.split == place.split else " on test,"
        joint = ":" if not on else ";"
        text = f"{head} {names[row]} is {rank}{tied}{joint}{on} {_lead_text(answer, answer.lead)}."
    gaps = dict.fromkeys([row, *([answer.embedding] if answer.embedding else [])])
    texts = [f"{answer.gap(layer)} points at {names[layer]}" for layer in gaps if answer.gap(layer) != _ABSENT]
    return f"{text} Generalisation gap (train - test): {', '.join(texts)}." if answer.has_gap and texts else text


def classes_text(split: str) -> str:
    """`test classes`, `validation classes`, or the selection classes where train is unseen."""
    text = chosen_on_text(split)
    return text if text.endswith(" classes") else f"{text} classes"


def _level_text(answer: Answer, row: RankedLayer, selected_on: str) -> str:
    """`R@1 47.5 % [43.7, 51.3] on test`."""
    split = UNSEEN if UNSEEN in answer.splits else selected_on
    where = "" if split == selected_on and len(answer.names) > 1 else f" on {split_text(split, [answer.data])}"
    score = answer.cells.get((row, split))
    if score is None or score.value is None:
        return f"without a valid {answer.metric}{where}"
    ends = _ends(score)
    interval = f" [{ends[0]}, {ends[1]}]" if ends else ""
    return f"{answer.metric} {_share(score.value)} %{interval}{where}"


def _lead_text(answer: Answer, lead: Lead) -> str:
    """`+2.3 percentage points of R@1 [0.4, 4.2] against the embedding, fc6 (significant)`."""
    difference = lead.difference
    points = f"{100 * difference.value:+.1f}".replace("-0.0", "+0.0")
    name = answer.names[answer.embedding] if answer.embedding else ""
    text = f"{points} percentage points of {answer.metric}"
    if difference.low is None or difference.high is None:
        return f"{text} against the embedding, {name} (no interval)"
    verdict = "not significant" if difference.low <= 0 <= difference.high else "significant"
    return f"{text} [{_share(difference.low)}, {_share(difference.high)}] against the embedding, {name} ({verdict})"


def _answer_notes(answer: Answer, rows: Sequence[RankedLayer], kind: ShownKind) -> list[str]:
    """How sure the answer is, what is assumed, and what `--full` also has."""
    names, best = answer.names, answer.best
    notes = wrapped(f"How sure: {' '.join(_sure_texts(answer, kind))}") if best else []
    if answer.lead is not None and answer.lead.simultaneous > 2 and answer.command:
        low, high = (_share(end or 0.0) for end in (answer.lead.difference.low, answer.lead.difference.high))
        notes += wrapped(
            f"The interval [{low}, {high}] holds for all pairs of the {answer.lead.simultaneous} layers at once, as the"
            " best is selected on these classes. The interval of this pair alone is narrower, and can be significant"
            " where this one is not:"
        )
        notes.append(f"  {answer.command}")
    if answer.post_processed:
        lines = _post_processed_line(answer.scores, answer.metric, answer.embedding, best[1] if best else None)
        notes += [line for text in lines for line in wrapped(text)]
    sizes = [facts.gallery or facts.queries for facts in map(answer.data.splits.get, (SEEN, UNSEEN)) if facts]
    if answer.has_gap and len({*sizes}) > 1:
        notes += wrapped(
            f"The gap compares galleries of {sizes[0]:,} and {sizes[1]:,} images; --full has it in galleries of one"
            " size, where it can."
        )
    notes += [line for text in (*assumed_lines(answer.data), *caveat_lines(answer.data)) for line in wrapped(text)]
    remarks = [replace(score, units=None) for score in answer.raw if is_recall(score.metric)]
    shown = [score for score in remarks if score.ranked in rows]
    caveats = _notes(shown, rows, kind, answer.data, common_last=True)
    notes += wrapped(f"{caveats[0]}{_more(caveats[1:], 'note')}") if caveats else []
    further = list(dict.fromkeys(s.metric for s in answer.scores if s.metric not in (answer.metric, *answer.further)))
    processed = {score.ranked.post_processing for score in answer.scores} - {row.post_processing for row in names}
    left = len(names) - len(rows)
    omitted = [
        *([f"{left} more layer{'s' * (left > 1)}"] if left else []),
        *further,
        *([f"{len(processed)} post-processing{'s' * (len(processed) > 1)}"] if processed else []),
        "the summary",
    ]
    listed = " and ".join(filter(None, [", ".join(omitted[:-1]), omitted[-1]]))
    return notes if answer.full else [*notes, *wrapped(f"--full also shows {listed}.")]


def how_sure(answer: Answer) -> tuple[str, ...]:
    """How sure an answer is, and what is assumed, a text each."""
    split = UNSEEN if UNSEEN in answer.splits else (answer.splits or [UNSEEN])[-1]
    kind = _kind([answer.cells.get((row, split)) for row in answer.names])
    sure = " ".join(_sure_texts(answer, kind))
    return (*([f"How sure: {sure}"] if sure else []), *assumed_lines(answer.data), *caveat_lines(answer.data))


def _sure_texts(answer: Answer, kind: ShownKind) -> list[str]:
    """Sentences on the classes, the intervals and the other layers."""
    if answer.best is None:
        return []
    row, best = answer.best
    on = _counted(answer, best.split)
    if best.split == UNSEEN:
        texts = [f"selected and measured on the same {on}, so the {answer.metric} of the best is optimistic."]
    elif UNSEEN in answer.splits:
        texts = [f"selected on {on}, measured on {_counted(answer, UNSEEN)}."]
    else:
        texts = [f"selected on {on}; no test classes are measured."]
    texts[0] = texts[0] if len(answer.names) > 1 else f"measured on {_counted(answer, answer.splits[-1])}."
    texts += [f"Brackets: {kind.kind.text}."] if kind.kind else []
    score = answer.cells.get((row, UNSEEN if UNSEEN in answer.splits else best.split))
    units = score.units if score else None
    if units is not None and units.count < FEW_UNITS:
        number = units.kind.units_text(units.count)
        texts += [
            f"{number} are too few for an interval ({FEWEST_UNITS} are needed), so the order of the layers is"
            " inconclusive."
            if units.count < FEWEST_UNITS
            else f"{number} are few, so intervals are rough."
        ]
    others = len(answer.names) - 1
    if answer.indistinguishable is not None and others:
        lower = others - len(answer.indistinguishable)
        beaten = f"{lower} of the {others} other layers" if others > 1 else "the other layer"
        beaten = beaten if lower or others == 1 else f"any of the {others} other layers"
        beaten = f"all {others} other layers" if lower == others > 1 else beaten
        negated = "not " * (not lower)
        where = f"On the {classes_text(best.split)}, {answer.names[row]}"
        texts.append(f"{where} is {negated}significantly better than {beaten}.")
    return texts


def _counted(answer: Answer, split: str) -> str:
    """`60 test classes`; without the number where it is unknown."""
    facts = answer.data.splits.get(split)
    number = "" if facts is None or facts.classes is None else f"{facts.classes:,} "
    return f"{number}{classes_text(split)}"


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
    return [f"best on {split} after {'; '.join(parts[:2])}{_more(parts[2:], 'post-processing')}"]


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
