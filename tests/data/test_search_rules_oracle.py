"""Columns and list files, through ranks, mAP and chance, against a plain loop over ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.data.search_rules import read_searching, with_search_rules
from layerprobe.data.splits import Dataset, Image, Split
from layerprobe.metrics.precision import precision_of_queries
from layerprobe.metrics.recall import chance_recall
from layerprobe.ranking import nearest_positive_ranks, retrieval

Rng = np.random.Generator
Row = tuple[str, int, str]  # id, class, camera


def black(index: int) -> Image:
    return np.zeros((2, 2, 3), np.uint8)


def split(name: str, rows: Sequence[Row]) -> Split:
    ids, labels, cameras = zip(*rows, strict=True)
    return Split(name, np.array(labels, np.int64), ids, black, columns={"camera": cameras})


def random_rows(rng: Rng, letter: str, count: int) -> list[Row]:
    cameras = rng.choice(["", "north", "south"], count).tolist()
    return [(f"{letter}{i}", int(rng.integers(3)), cameras[i]) for i in range(count)]


def random_dataset(rng: Rng) -> tuple[Dataset, Split, Split]:
    """Queries that are searched among themselves, or in a gallery that may have some of them."""
    items = random_rows(rng, "g", int(rng.integers(3, 15)))
    if rng.random() < 0.4:
        gallery = split("test", items)
        return Dataset({"test": gallery}, tuple("abc")), gallery, gallery
    both = items[: rng.integers(0, 3)]
    queries, gallery = split("test", [*random_rows(rng, "q", int(rng.integers(1, 8))), *both]), split("gallery", items)
    return Dataset({"test": queries, "gallery": gallery}, tuple("abc"), {"test": "gallery"}), queries, gallery


def random_list(rng: Rng, file: Path, queries: Split, gallery: Split) -> set[tuple[str, str]] | None:
    """A list in a file; None for no file."""
    pairs = [(query, item) for query in queries.ids for item in gallery.ids if rng.random() < 0.3]
    if not pairs or rng.random() < 0.5:
        return None
    file.write_text("query,item\n" + "".join(f"{query},{item}\n" for query, item in pairs))
    return set(pairs)


@pytest.mark.parametrize("seed", range(3))
def test_what_is_right_and_taken_out_agrees_with_a_loop(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    for _ in range(25):
        dataset, queries, gallery = random_dataset(rng)
        grouped = bool(rng.random() < 0.6)
        files = {"positives": tmp_path / "positives.csv", "ignore": tmp_path / "ignore.csv"}
        lists = {name: random_list(rng, file, queries, gallery) for name, file in files.items()}
        paths = {name: str(files[name]) if pairs else None for name, pairs in lists.items()}
        column = "camera" if grouped else None
        searching = read_searching(dataset, group=column, positives=paths["positives"], ignore=paths["ignore"])
        made = with_search_rules(dataset, searching)
        rules = made.search_rules.get("test")
        itself = queries is gallery
        sides = rng.normal(size=(len(queries), 4)), rng.normal(size=(len(gallery), 4))
        unit = [side / np.linalg.norm(side, axis=1, keepdims=True) for side in (sides[0], sides[0 if itself else 1])]
        place: dict[str, Any] = {}
        if not itself:
            place = {"gallery_labels": gallery.labels, "ids": queries.ids, "gallery_ids": gallery.ids}
        searched: dict[str, Any] = place if itself else {"gallery": sides[1], **place}
        ranks = nearest_positive_ranks(sides[0], queries.labels, **searched, rules=rules, resolve="all")
        found = precision_of_queries(retrieval(sides[0], queries.labels, **searched, rules=rules))[0]["mAP"]
        chances = []
        for q, query in enumerate(queries.ids):
            left = []
            for i, item in enumerate(gallery.ids):
                same_class = queries.labels[q] == gallery.labels[i]
                camera = queries.columns["camera"][q]
                together = grouped and same_class and camera and camera == gallery.columns["camera"][i]
                if item != query and not together and (query, item) not in (lists["ignore"] or ()):
                    right = same_class if lists["positives"] is None else (query, item) in lists["positives"]
                    left.append((-float(unit[0][q] @ unit[1][i]), bool(right)))
            in_order = [right for _, right in sorted(left)]
            hits = [n for n, right in enumerate(in_order) if right]
            assert ranks.closer[q] == (hits[0] if hits else len(in_order))
            assert ranks.tied_positives[q] == bool(hits)
            precisions = [(count + 1) / (n + 1) for count, n in enumerate(hits)]
            assert found[q] == pytest.approx(np.mean(precisions) if hits else 0, abs=1e-12)
            chances.append(len(hits) / len(in_order) if hits else 0)
        chance = chance_recall(queries.labels, 1, **place, rules=rules)
        assert chance == pytest.approx(np.mean(chances), abs=1e-12)
