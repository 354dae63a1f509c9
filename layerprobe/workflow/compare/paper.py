"""A run beside a table of a paper: which of its rows the run trains, its numbers, and in what it differs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from layerprobe import registry
from layerprobe.papers.tables import PaperColumn, PaperRow, PaperTable
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import Change, load_recipe
from layerprobe.recipe.recipe_files import packaged_recipe
from layerprobe.registry import DATASETS
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.wording import first_named
from layerprobe.values.facts import DataFacts
from layerprobe.values.layers import NO_REDUCTION, OUTPUT, RankedLayer, matching_layers
from layerprobe.values.records import RunRecord, epochs_text
from layerprobe.values.scores import Score, recall_of, shared_notes
from layerprobe.workflow.compare.compare import stored_dim
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
        "--reduce": dict.fromkeys(row.layer.partition("/")[2] or NO_REDUCTION for row, _ in pairs),
        "--k": ks,
        "--metrics": dict.fromkeys(metric for metric in metrics if not recall_of(metric)),
    }
    flags = {flag: ",".join(words) for flag, words in parts.items() if words and list(words) != [NO_REDUCTION]}
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
        text = layer if row.reduction == NO_REDUCTION else f"{layer}/{row.reduction}"
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
