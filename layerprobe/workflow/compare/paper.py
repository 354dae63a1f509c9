"""A run beside a table of a paper: its rows, numbers and differences, as tables and in JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from layerprobe import registry
from layerprobe.papers.tables import PaperCell, PaperColumn, PaperRow, PaperTable
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import Change, load_recipe
from layerprobe.recipe.recipe_files import packaged_recipe
from layerprobe.registry import DATASETS
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.wording import first_named
from layerprobe.tables.tables import TextTable
from layerprobe.values.epochs import epochs_text
from layerprobe.values.facts import DataFacts, fact_lines
from layerprobe.values.layers import NO_POST_PROCESSING, OUTPUT, RankedLayer, matching_layers
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import Score, is_fraction, recall_of, shared_notes
from layerprobe.workflow.compare.compare import stored_dim
from layerprobe.workflow.compare.comparison import number_text
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.references import embedding_among, find_reference, last_two, probe_fix
from layerprobe.workflow.run.runs import Run

_DATASET_SUFFIX = re.compile(rf"-({'|'.join(map(re.escape, DATASETS))})(-code)?\Z")
# Where images come from, and keys that say nothing beside another one.
_OMITTED_KEYS = {("data", "name"), ("train", "seed")}


@dataclass(frozen=True)
class RunRow:
    """A layer of the run beside a row of the paper.

    Args:
        row: its place in the table; None: no row of the table is trained by the run's recipe.
        ranked: None where the run has no such layer, `layer`, at the epoch.
        dim: None if unknown, because the stored features were removed.
        scores: for each of the columns; None where it is not measured.
        caveats: in what the run differs from the row.
        changes: the keys of the recipe that decide the weights and differ; `before` is the run's value.
    """

    row: int | None
    layer: str
    ranked: RankedLayer | None
    dim: int | None
    scores: tuple[Score | None, ...]
    caveats: tuple[str, ...]
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True)
class PaperComparison:
    """A run beside a table of a paper.

    Args:
        columns: of the run's numbers: the table's own if it has the run's data set, else the same metrics on that.
        fix: the command that measures what is not measured; empty if all is.
    """

    table: PaperTable
    run: str
    epoch: int
    epochs: int
    seed: int
    recipe: str
    network: str
    facts: DataFacts
    columns: tuple[PaperColumn, ...]
    rows: tuple[RunRow, ...]
    notes: tuple[str, ...]
    fix: str

    @property
    def is_same_data(self) -> bool:
        """Whether the table has the run's data set."""
        return self.columns[0].data in self.table.data


def compare_with_paper(cache: Path, text: str, table: PaperTable) -> PaperComparison:
    """Put a run, `RUN` or `RUN#epoch`, beside a table."""
    run, reference = find_reference(cache, text)
    if reference.layer is not None:
        raise RecipeError(f"--paper compares a run, not the layer {reference.layer}", fix=f"Write {run.name}")
    record = run.read()
    epoch = record.epochs_done if reference.epoch is None else reference.epoch
    if epoch not in record.epochs:
        raise RecipeError(f"{run.name} has no epoch {epoch}", fix=f"Choose one from {epochs_text(record.epochs)}")
    scores = [score for score in run.scores() if score.epoch == epoch]
    if not scores:
        fix = probe_fix(run, record, epoch, "train,test")
        raise DataError(f"epoch {epoch} is not measured", file=run.folder, fix=fix)
    columns = _run_columns(table, str(record.data.get("name", "")))
    facts = data_facts(run, scores)
    rows = _RowBuilder(table, run, record, epoch, scores, columns, facts).rows()
    scored = [score for row in rows for score in row.scores if score]
    notes = shared_notes([score.notes for score in scored]) if scored else ()
    return PaperComparison(
        table,
        run.name,
        epoch,
        max(record.epochs),
        record.seed,
        record.recipe_name,
        str(record.net.get("name", "")),
        facts,
        columns,
        tuple(rows),
        notes,
        _fix(run, record, epoch, columns, rows),
    )


def _fix(run: Run, record: RunRecord, epoch: int, columns: Sequence[PaperColumn], rows: Sequence[RunRow]) -> str:
    """The command that measures what is not measured; empty if all is."""
    pairs = [(row, column) for row in rows for column, score in zip(columns, row.scores, strict=True) if score is None]
    if not pairs:
        return ""
    metrics = [column.metric for _, column in pairs]
    layers = dict.fromkeys(row.layer.partition("/")[0] for row, _ in pairs)
    ks = dict.fromkeys(str(recall.k) for metric in metrics if (recall := recall_of(metric)))
    parts = {
        "--layers": layers,
        "--post": dict.fromkeys(row.layer.partition("/")[2] or NO_POST_PROCESSING for row, _ in pairs),
        "--k": ks,
        "--metrics": dict.fromkeys(metric for metric in metrics if not recall_of(metric)),
    }
    flags = {flag: ",".join(words) for flag, words in parts.items() if words and list(words) != [NO_POST_PROCESSING]}
    splits = ",".join(dict.fromkeys(column.split for _, column in pairs))
    return probe_fix(run, record, epoch, splits, *chain.from_iterable(flags.items()))


def _run_columns(table: PaperTable, data: str) -> tuple[PaperColumn, ...]:
    """The table's columns on a data set; if it has none, its splits and metrics on that one."""
    columns = [column for column in table.columns if column.data and column.data == data]
    measured = columns or [PaperColumn(data, column.split, column.metric) for column in table.columns if column.data]
    return tuple(dict.fromkeys(measured))


@dataclass(frozen=True)
class _RowBuilder:
    table: PaperTable
    run: Run
    record: RunRecord
    epoch: int
    scores: Sequence[Score]
    columns: Sequence[PaperColumn]
    facts: DataFacts

    @property
    def data(self) -> str:
        """The run's data set."""
        return self.columns[0].data

    def rows(self) -> list[RunRow]:
        """The layers that the rows of the run's recipe are about; else its last two."""
        family = _DATASET_SUFFIX.sub("", self.record.recipe_name)
        trained = [
            i for i, row in enumerate(self.table.rows) if row.recipe and row.recipe.removesuffix("-SET") == family
        ]
        changes = {index: self._changes(self.table.rows[index]) for index in trained}
        # What tells the rows of a recipe apart: the run is at those from which it differs in the fewest of these keys.
        keys = {setting.partition("=")[0] for index in trained for setting in self.table.rows[index].settings}
        differing = {
            index: sum(f"{change.section}.{change.key}" in keys for change in changes_of_row)
            for index, changes_of_row in changes.items()
        }
        rows = [
            self._build_row(index, changes[index])
            for index in trained
            if differing[index] == min(differing.values(), default=0)
        ]
        return rows or self._rows_without_recipe()

    def _changes(self, row: PaperRow) -> list[Change]:
        """The differences of the run's recipe from a row's, on the run's data set if the table has it."""
        data = self.data if self.data in self.table.data else self.table.data[0]
        # A variant of the recipe, with the released code's values, trains the row too.
        name = row.recipe_on(data)
        name += "-code" if self.record.recipe_name == f"{name}-code" else ""
        recipe = load_recipe(str(packaged_recipe(name)), Overrides(settings=("data.root=.", *row.settings)))
        changes = [
            change for change in recipe.changes_since(self.record) if (change.section, change.key) not in _OMITTED_KEYS
        ]
        if self.data != data:  # its keys are of another data set, which is told as such
            changes = [change for change in changes if change.section != "data"]
        return changes

    def _build_row(self, index: int, changes: Sequence[Change]) -> RunRow:
        row = self.table.rows[index]
        measured = dict.fromkeys(score.ranked for score in self.scores)
        layer = row.layer or self._embedding(measured)
        text = layer if row.post_processing == NO_POST_PROCESSING else f"{layer}/{row.post_processing}"
        matching = matching_layers(text, measured)
        ranked = min(matching, key=lambda ranked: ranked.similarity != self.record.similarity, default=None)
        dim = None if ranked is None else self._dim(ranked)
        caveats = self._data_caveats()
        changed = {(change.section, change.key) for change in changes}
        if ("net", "name") in changed:
            caveats.append(f"another network ({self.record.net.get('name')}, not {row.network})")
        if dim is not None and row.dim.text.isdecimal() and dim != int(row.dim.text):
            caveats.append(f"another dimension ({dim}, not {row.dim.text})")
        weights = self.record.net.get("weights", "none")
        if weights == "none":
            caveats.append("no pretrained weights, where the paper starts from ImageNet's")
        elif weights != "imagenet":
            caveats.append(f"weights of {weights}, which may not be the paper's")
        other_changes = [
            change for change in changes if (change.section, change.key) not in {("net", "name"), ("net", "weights")}
        ]
        keys = [
            f"{change.section}.{change.key} {_value(change.before)} ({_value(change.after)})"
            for change in other_changes
        ]
        caveats += [f"keys (the row's recipe): {first_named(keys)}"] if keys else []
        return RunRow(index, text, ranked, dim, self._scores_of(ranked), tuple(caveats), tuple(changes))

    def _embedding(self, measured: Iterable[RankedLayer]) -> str:
        """The embedding's name, whether or not it is measured."""
        embedding = embedding_among(self.record, measured)
        if embedding is not None:
            return str(embedding.layer)
        return OUTPUT if self.record.network is None else self.record.network.embedding.layer

    def _rows_without_recipe(self) -> list[RunRow]:
        """The layer before the embedding and the embedding, where no row is trained by the run's recipe."""
        measured = dict.fromkeys(score.ranked for score in self.scores)
        pair, embedding = last_two(self.record, measured), embedding_among(self.record, measured)
        layers = [pair.before, pair.embedding] if pair else [embedding or list(measured)[-1]]
        recipes = dict.fromkeys(row.recipe for row in self.table.rows if row.recipe)
        recipes_text = f"; its recipes: {', '.join(recipes)}" if recipes else ""
        caveats = (
            f"no row of the table is of the recipe {self.record.recipe_name}{recipes_text}",
            *self._data_caveats(),
        )
        return [RunRow(None, str(layer), layer, self._dim(layer), self._scores_of(layer), caveats) for layer in layers]

    def _data_caveats(self) -> list[str]:
        caveats = []
        if self.data not in self.table.data:
            caveats.append(f"another data set ({self.data or 'unknown'}, not {' or '.join(self.table.data)})")
        if self.epoch != (last_epoch := max(self.record.epochs)):
            caveats.append(f"epoch {self.epoch} of {last_epoch}")
        planned = self.record.recipe.get("train", {}).get("epochs", last_epoch)
        if last_epoch < planned:
            caveats.append(f"{last_epoch} of {planned} epochs trained")
        return [*caveats, *self._counts_caveats()]

    def _counts_caveats(self) -> list[str]:
        """The splits that are not the published ones: a part of the images, or other classes."""
        if self.data not in self.table.data or self.record.data.get("protocol") == "classification":
            return []
        published = registry.load("data set", DATASETS, self.data).counts
        caveats = []
        for split, facts in self.facts.splits.items():
            counts = published.get(split)
            if counts and (facts.queries, facts.classes or counts.classes) != (counts.images, counts.classes):
                classes = "" if facts.classes is None else f" of {facts.classes:,} classes"
                caveats.append(f"{facts.queries:,} {split} images{classes}, not the published {counts}")
        return caveats

    def _scores_of(self, ranked: RankedLayer | None) -> tuple[Score | None, ...]:
        scores_by_key = {(score.ranked, score.split, score.metric): score for score in self.scores}
        scores = [
            scores_by_key.get((ranked, column.split, column.metric)) if ranked else None for column in self.columns
        ]
        return tuple(scores)

    def _dim(self, ranked: RankedLayer) -> int | None:
        splits = dict.fromkeys(score.split for score in self.scores if score.ranked == ranked)
        dims = (stored_dim(self.run, self.epoch, split, ranked) for split in splits)
        return next((dim for dim in dims if dim is not None), None)


def _value(value: Any) -> str:
    return "none" if value is None else str(value).replace("'", "")


_ABSENT, _DOUBTFUL, _OURS = "-", "?", ">"
_NARROW = 6  # columns of numbers of a table that holds all data sets


def paper_tables(comparison: PaperComparison) -> list[TextTable]:
    """The paper's rows as printed, and the run's numbers beside those of its recipe; in percent.

    Of a table that has the run's data set, only its columns are shown, with the run's rows below the paper's. Else the
    whole table is shown, and then its rows of the run's recipe beside the run's numbers on its own data set.
    """
    columns = comparison.table.columns
    if comparison.is_same_data:
        tables = [
            _paper_table(
                comparison, [i for i, column in enumerate(columns) if column.data in ("", comparison.columns[0].data)]
            )
        ]
    elif len(columns) <= _NARROW:
        tables = [_paper_table(comparison, range(len(columns))), _beside_table(comparison)]
    else:
        blocks = [
            [i for i, column in enumerate(columns) if column.data in ("", data)] for data in comparison.table.data
        ]
        tables = [*(_paper_table(comparison, block) for block in blocks), _beside_table(comparison)]
    tables[0] = replace(tables[0], heading=(*_heading(comparison), *tables[0].heading))
    tables[-1] = replace(tables[-1], notes=tuple(_notes(comparison)))
    return tables


def _paper_table(comparison: PaperComparison, block: Sequence[int]) -> TextTable:
    """The paper's rows with a value in some columns; below each the run's, if the table has the run's data set."""
    columns = [comparison.table.columns[i] for i in block]
    network = [] if comparison.table.network else ["network"]
    rows: list[tuple[str, ...]] = []

    def add(method: str, network_name: str, *numbers: str) -> None:
        rows.append((method, *(network_name for _ in network), *numbers))

    for index, row in enumerate(comparison.table.rows):
        run_rows = [run_row for run_row in comparison.rows if run_row.row == index and comparison.is_same_data]
        cells = [_cell_text(row.cells[i]) for i in block]
        if run_rows or set(cells) != {_ABSENT}:
            add(row.method, row.network, _cell_text(row.dim), *cells)
        for run_row in run_rows:
            add(*_run_cells(comparison, run_row, columns))
    for run_row in comparison.rows:
        if run_row.row is None and comparison.is_same_data:
            add(*_run_cells(comparison, run_row, columns))
    has_several_sets = len({column.data for column in columns if column.data}) > 1
    headers = ("method", *network, "dim", *(_header(column, with_data=has_several_sets) for column in columns))
    # The network counts as a number, which is not folded: the method is.
    return TextTable(
        headers, tuple(rows), frozenset(range(1, len(headers))), heading=() if has_several_sets else _data(columns)
    )


def _data(columns: Sequence[PaperColumn]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(column.data for column in columns if column.data))


def _run_cells(comparison: PaperComparison, run_row: RunRow, columns: Sequence[PaperColumn]) -> tuple[str, ...]:
    values = {
        column: _score_text(score, column) for column, score in zip(comparison.columns, run_row.scores, strict=True)
    }
    return (
        f"{_OURS} {run_row.layer}",
        comparison.network,
        _dim(run_row),
        *(values.get(column, "") for column in columns),
    )


def _beside_table(comparison: PaperComparison) -> TextTable:
    """A line for each row of the run's recipe and each metric: the paper's values by data set, then the run's."""
    table = comparison.table
    indices = {column: i for i, column in enumerate(table.columns)}
    rows = []
    for run_row in comparison.rows:
        row = None if run_row.row is None else table.rows[run_row.row]
        for column, score in zip(comparison.columns, run_row.scores, strict=True):
            if row is None and score is None:
                continue
            printed = [indices.get(replace(column, data=data)) for data in table.data]
            cells = [_ABSENT if row is None or i is None else _cell_text(row.cells[i]) for i in printed]
            method = _ABSENT if row is None else row.method
            metric = f"{column.split} {column.metric}"
            rows.append((method, metric, *cells, _score_text(score, column), run_row.layer, _dim(run_row)))
    data = comparison.columns[0].data or comparison.run
    headers = ("method", "metric", *table.data, f"{_OURS} {data}", f"{_OURS} layer", f"{_OURS} dim")
    numbers = {*range(2, 3 + len(table.data)), len(headers) - 1}
    return TextTable(headers, tuple(rows), frozenset(numbers))


def _dim(run_row: RunRow) -> str:
    return _ABSENT if run_row.dim is None else str(run_row.dim)


def _header(column: PaperColumn, *, with_data: bool) -> str:
    if not column.data:
        return column.metric.replace(" ", "\n")
    return "\n".join([*([column.data] if with_data else []), column.split, column.metric])


def _cell_text(cell: PaperCell) -> str:
    return f"{cell.text}{_DOUBTFUL}" if cell.doubtful else cell.text


def _score_text(score: Score | None, column: PaperColumn) -> str:
    if score is None or score.value is None:
        return _ABSENT
    return number_text(score.value, is_fraction(column.metric))


def _heading(comparison: PaperComparison) -> tuple[str, ...]:
    table = comparison.table
    return (
        f"{table.title} ({table.text}), {table.name.replace('table', 'table ')}",
        table.caption,
        f"paper: {', '.join(filter(None, (table.network, table.protocol)))}",
        f"{_OURS} {comparison.run}: recipe {comparison.recipe}, {comparison.network}, seed {comparison.seed}, epoch"
        f" {comparison.epoch} of {comparison.epochs}",
        *(f"{_OURS} {line}" for line in fact_lines(comparison.facts)),
    )


def _notes(comparison: PaperComparison) -> list[str]:
    doubtful = [f"{_DOUBTFUL} {row.method}: {row.error}" for row in comparison.table.rows if row.error]
    fix = [f"{_ABSENT} is not measured. {comparison.fix}"] if comparison.fix else []
    return [*_claim(comparison), *doubtful, *comparison.table.notes, *comparison.notes, *fix]


def _claim(comparison: PaperComparison) -> list[str]:
    """Lines on how the run differs from its rows; none claims that it reproduces them."""
    shared = [caveat for caveat in comparison.rows[0].caveats if all(caveat in row.caveats for row in comparison.rows)]
    lines = [f"{_OURS} {comparison.run} reproduces no row:"] if any(row.caveats for row in comparison.rows) else []
    lines += [f"  {caveat}" for caveat in shared]
    for row in comparison.rows:
        lines += [f"  {_layer_beside_row(comparison, row)}: {caveat}" for caveat in row.caveats if caveat not in shared]
    if not lines:
        lines = [f"{_OURS} {comparison.run} has its rows' recipe, data set, splits, network and dimensions"]
    return [
        *lines,
        f"{_OURS} is one training (seed {comparison.seed}), and the table has no spread: differences may be chance",
    ]


def _layer_beside_row(comparison: PaperComparison, row: RunRow) -> str:
    return row.layer if row.row is None else f"{row.layer} beside {comparison.table.rows[row.row].method}"


def paper_values(comparison: PaperComparison) -> dict[str, Any]:
    """The fields in JSON: the paper's cells as text, the run's values as fractions."""
    table = comparison.table
    return {
        "paper": table.paper,
        "table": table.name,
        "text": table.text,
        "caption": table.caption,
        "protocol": table.protocol,
        "columns": table.columns,
        "rows": [_row_values(row) for row in table.rows],
        "notes": table.notes,
        "run": comparison.run,
        "epoch": comparison.epoch,
        "seed": comparison.seed,
        "recipe": comparison.recipe,
        "network": comparison.network,
        "splits": comparison.facts.splits,
        "own_columns": comparison.columns,
        "own": [_run_values(row) for row in comparison.rows],
        "note": "; ".join(comparison.notes),
    }


def _row_values(row: PaperRow) -> dict[str, Any]:
    return {
        "method": row.method,
        "network": row.network,
        "dim": row.dim,
        "cells": row.cells,
        "error": row.error or None,
        "recipe": row.recipe or None,
        "set": row.settings,
    }


def _run_values(row: RunRow) -> dict[str, Any]:
    return {
        "row": row.row,
        "layer": row.layer,
        "dim": row.dim,
        "scores": row.scores,
        "caveats": row.caveats,
        "changes": row.changes,
    }
