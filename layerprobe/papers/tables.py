"""The tables of results of the five papers, as printed."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.values.layers import NO_POST_PROCESSING

_DOUBTFUL = "?"  # after a cell in the files


@dataclass(frozen=True)
class PaperColumn:
    """A column: a metric on a split of a data set; for any other number, both are empty and `metric` is its name."""

    data: str
    split: str
    metric: str


@dataclass(frozen=True)
class PaperCell:
    """A cell as printed, such as `87.8`, `-` or `79.60†`.

    Args:
        doubtful: whether it is a known error of the paper; the row says which.
    """

    text: str
    doubtful: bool = False


@dataclass(frozen=True)
class PaperRow:
    """A row: a method, with the recipe that trains it here.

    Args:
        method: by the paper's name.
        network: by the paper's name.
        dim: the embedding's dimensions.
        error: what is wrong with the doubtful cells; empty without any.
        recipe: `netA-SET`, with SET for the data set; empty for a method that no recipe trains.
        settings: `section.key=value` on top of the recipe.
        layer: its name here; empty for the embedding.
        post_processing: applied to the layer, such as `pca:64+l2`.
    """

    method: str
    network: str
    dim: PaperCell
    cells: tuple[PaperCell, ...]
    error: str = ""
    recipe: str = ""
    settings: tuple[str, ...] = ()
    layer: str = ""
    post_processing: str = NO_POST_PROCESSING

    def recipe_on(self, data: str) -> str:
        """The recipe's name on a data set."""
        return self.recipe.replace("SET", data)


@dataclass(frozen=True)
class PaperTable:
    """A table of results.

    Args:
        paper: `vo-hays-2019`.
        name: `table3`.
        title: authors and year.
        text: the text whose numbers and table numbers these are.
        protocol: how the paper trained and measured.
    """

    paper: str
    name: str
    title: str
    text: str
    caption: str
    protocol: str
    columns: tuple[PaperColumn, ...]
    rows: tuple[PaperRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def data(self) -> tuple[str, ...]:
        """The names of its data sets."""
        return tuple(dict.fromkeys(column.data for column in self.columns if column.data))

    @property
    def network(self) -> str:
        """The network of all rows; empty where they have several."""
        networks = {row.network for row in self.rows}
        return networks.pop() if len(networks) == 1 else ""


def paper_names() -> list[str]:
    """The papers that have tables here."""
    return sorted(path.stem for path in Path(__file__).parent.glob("*.toml"))


def read_tables(paper: str) -> dict[str, PaperTable]:
    """Name -> table of a paper."""
    if paper not in paper_names():
        raise UnknownNameError("paper", paper, paper_names())
    values = tomllib.loads((Path(__file__).parent / f"{paper}.toml").read_text(encoding="utf-8"))
    return {table["name"]: _parse_table(paper, values["title"], values["text"], table) for table in values["table"]}


def find_table(reference: str) -> PaperTable:
    """The table that `vo-hays-2019:table3` names."""
    paper, _, name = reference.partition(":")
    tables = read_tables(paper)
    if name in tables:
        return tables[name]
    message = f"unknown table {name!r} of {paper}" if name else f"{paper}: which table?"
    tables_text = "; ".join(f"{paper}:{table.name} ({table.caption})" for table in tables.values())
    raise RecipeError(message, fix=f"Choose one of {tables_text}")


def _parse_table(paper: str, title: str, text: str, values: Mapping[str, Any]) -> PaperTable:
    columns = tuple(map(_parse_column, values["columns"]))
    rows = tuple(_parse_row(row) for row in values["rows"])
    notes = tuple(values.get("notes", ()))
    return PaperTable(paper, values["name"], title, text, values["caption"], values["protocol"], columns, rows, notes)


def _parse_column(text: str) -> PaperColumn:
    words = text.split()
    return PaperColumn(*words) if len(words) == 3 and words[1] in ("train", "test") else PaperColumn("", "", text)


def _parse_row(values: Mapping[str, Any]) -> PaperRow:
    return PaperRow(
        method=values["method"],
        network=values["network"],
        dim=_parse_cell(values["dim"]),
        cells=tuple(map(_parse_cell, values["values"].split())),
        error=values.get("error", ""),
        recipe=values.get("recipe", ""),
        settings=tuple(values.get("set", ())),
        layer=values.get("layer", ""),
        post_processing=values.get("post_processing", NO_POST_PROCESSING),
    )


def _parse_cell(text: str) -> PaperCell:
    return PaperCell(text.removesuffix(_DOUBTFUL), text.endswith(_DOUBTFUL))
