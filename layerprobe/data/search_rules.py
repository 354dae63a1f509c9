"""The keys `group`, `positives`, `ignore` and `queries` of [data] -> the rules and the queries of each search."""

from __future__ import annotations

import csv
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from layerprobe.data.csv_file import read_text, relative, rows_of, separator_of, spellings
from layerprobe.data.image_files import Files
from layerprobe.data.splits import NOTE, Dataset, Split
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.retrieval import SearchRules

_HEADER = ["query", "item"]
_EXPECTED = "Expected the columns query,item and an image's id in each cell"


@dataclass(frozen=True, eq=False)
class PairList:
    """What a file lists.

    Args:
        pairs: the id of a query and the id of an item that it is searched among, each pair once.
    """

    name: str
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Searching:
    """By what rules images are searched for, before it is known which images are left.

    Args:
        group: a column. Items that share class and group with a query are taken out of its results; an item whose cell
            is empty shares its group with none. None: no groups.
        positives: the right items of each query, whatever their class. It holds for every split that has a query named
            in it; there, a query that it does not name has no right item. None: the items of its class are right.
        ignored: items that are taken out of a query's results, whatever their class; None: none.
        queries: how many test images are searched for; None: all.
    """

    group: str | None = None
    positives: PairList | None = None
    ignored: PairList | None = None
    queries: int | None = None


def read_searching(
    dataset: Dataset, *, group: str | None, positives: str | None, ignore: str | None, queries: int | None = None
) -> Searching:
    """The rules, checked against a data set with all its images.

    Args:
        group: name of a column; None or empty for none.
        positives: path of a csv file with the columns `query` and `item`; None or empty for none.
        queries: see `Searching`.
    """
    columns = dict.fromkeys(column for split in dataset.splits.values() for column in split.columns)
    if group and not columns:
        fix = "Leave it out, or list the images with such a column in a csv file"
        raise RecipeError(f"data.group = {group!r}: nothing is known of these images but their classes", fix=fix)
    if group and group not in columns:
        raise UnknownNameError("column in data.group:", group, columns)
    right, ignored = (_read(Path(file), dataset) if file else None for file in (positives, ignore))
    if right and not right.pairs:  # the class would decide again, and nothing would say so
        raise DataError("no right item is listed", file=positives, fix="List some, or leave data.positives out")
    return Searching(group or None, right, ignored, queries)


def with_search_rules(dataset: Dataset, searching: Searching) -> Dataset:
    """The data set with the rules of its searches, as rows of its splits, and the test images that are drawn."""
    if searching == Searching() and dataset.label_sets is None:
        return dataset
    all_rules, all_notes, drawn = {}, {}, {}
    for name in dataset.searched:
        queries, gallery = dataset.splits[name], dataset.splits[dataset.search_in.get(name, name)]
        rules = replace(_rules_of(queries, gallery, searching), label_sets=dataset.label_sets)
        notes = [] if rules.groups is None else [f"group: {searching.group}"]
        if rules.positives is not None and searching.positives:
            notes.append(f"positives: {searching.positives.name}")
        if rules.ignored is not None and searching.ignored:
            notes.append(f"ignore: {searching.ignored.name}")
        if rules.label_sets is not None:
            notes.append(NOTE)
        has_rules, count = bool(notes), len(queries) if searching.queries is None else searching.queries
        if name == "test" and count < len(queries):
            drawn[name] = draw_queries(queries.labels, count)
            rules = rules.of_rows(drawn[name])
            notes.append(f"{count:,} of {len(queries):,} queries")
        if has_rules:
            all_rules[name] = rules
        if notes:
            all_notes[name] = tuple(notes)
    return replace(dataset, search_rules=all_rules, search_notes=all_notes, drawn=drawn)


def draw_queries(labels: NDArray[np.int64], count: int) -> NDArray[np.int64]:
    """(count,) rows of images, ascending: those of classes in random order, of the last class perhaps not all.

    The order is the same for all seeds, so that the runs of an experiment have the same queries.

    Args:
        labels: (N,) classes, N at least `count`.
    """
    rng, (classes, places) = np.random.default_rng(0), np.unique(labels, return_inverse=True)
    of_class, of_image = rng.permutation(len(classes))[places], rng.permutation(len(labels))
    last = np.searchsorted(np.cumsum(np.bincount(of_class)), count)  # the class that completes the number
    rows = np.flatnonzero(of_class <= last)
    drawn: NDArray[np.int64] = rows[np.lexsort((of_image[rows], of_class[rows]))[:count]]
    return np.sort(drawn)


def _rules_of(queries: Split, gallery: Split, searching: Searching) -> SearchRules:
    groups = gallery_groups = None
    if searching.group is not None:
        texts = queries.columns[searching.group]
        if gallery is queries:
            groups = _numbers(texts)
        else:
            numbers = _numbers([*texts, *gallery.columns[searching.group]])
            groups, gallery_groups = numbers[: len(queries)], numbers[len(queries) :]
    lists, places = (searching.ignored, searching.positives), list[dict[str, int]]()
    if any(lists):
        places = [{name: row for row, name in enumerate(split.ids)} for split in (queries, gallery)]
    ignored, positives = (None if listed is None else _rows(listed, *places) for listed in lists)
    return SearchRules(groups, gallery_groups, ignored, positives)


def _numbers(texts: Sequence[str]) -> NDArray[np.int64]:
    """(N,) a number for each text, equal for equal texts; every empty text has one of its own."""
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    return np.array([numbers[text] if text else -1 - row for row, text in enumerate(texts)], np.int64)


def _rows(listed: PairList, queries: Mapping[str, int], items: Mapping[str, int]) -> NDArray[np.int64] | None:
    """(P, 2) rows of the pairs that are there; None where a list names no query."""
    if not any(query in queries for query, _ in listed.pairs):
        return None
    rows = [(queries[query], items[item]) for query, item in listed.pairs if query in queries and item in items]
    return np.array(rows, np.int64).reshape(-1, 2)


def _read(file: Path, dataset: Dataset) -> PairList:
    pairs: dict[tuple[str, str], None] = {}
    ids_by_split = {name: set(split.ids) for name, split in dataset.splits.items()}
    ids = set().union(*ids_by_split.values())
    # Those in which accents can be written otherwise.
    named = (name for split in dataset.splits.values() for name in split.ids if not name.isascii())
    composed = {unicodedata.normalize("NFC", name): name for name in named}
    roots = {split.image.root for split in dataset.splits.values() if isinstance(split.image, Files)}
    folders = [name for root in roots for name in spellings(root)]

    def id_of(text: str) -> str:
        """An id, where need be from another spelling of its path, as csv tables are read."""
        if text in ids:
            return text
        path = relative(text, folders)
        return path if path in ids else composed.get(unicodedata.normalize("NFC", path), path)

    def bad(line: int, problem: str, splits: Iterable[str]) -> DataError:
        example = next((dataset.splits[name].ids[0] for name in splits if dataset.splits[name].ids), "")
        fix = f"Write an image's id, such as {example!r}, or leave the row out"
        return DataError(problem, file=f"{file}:{line}", fix=fix)

    for line, query_text, item_text in _lines(file):
        query, item = id_of(query_text), id_of(item_text)
        splits = [name for name in dataset.searched if query in ids_by_split[name]]
        if len(splits) != 1:
            why = f"is in {' and '.join(splits)}" if splits else "is no image that is searched for"
            raise bad(line, f"query {query!r} {why}", dataset.searched)
        gallery = dataset.search_in.get(splits[0], splits[0])
        if item not in ids_by_split[gallery]:
            problem = f"item {item!r} is not among the {gallery} images, in which {splits[0]} is searched"
            raise bad(line, problem, [gallery])
        pairs[query, item] = None
    return PairList(file.name, tuple(pairs))


def _lines(file: Path) -> Iterator[tuple[int, str, str]]:
    """Line, query and item of each row."""
    try:
        text = read_text(file)
    except OSError as error:
        raise DataError.unreadable(error, file=file) from error
    rows = rows_of(text, separator_of(text, _HEADER))
    try:
        header = [cell.strip() for cell in next(rows, [])]
        if [name.casefold() for name in header] != _HEADER:
            raise DataError(f"the first line is {','.join(header)[:99]!r}", file=f"{file}:1", fix=_EXPECTED)
        for row in rows:
            cells = [cell.strip() for cell in row]
            if not cells:
                continue
            if len(cells) != len(_HEADER) or not all(cells):
                problem = f"{','.join(cells)[:99]!r} is not a query and an item"
                raise DataError(problem, file=f"{file}:{rows.line_num}", fix=_EXPECTED)
            yield rows.line_num, cells[0], cells[1]
    except csv.Error as error:
        raise DataError(str(error), file=f"{file}:{rows.line_num}", fix="Save the file as plain csv") from error
