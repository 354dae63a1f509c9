from __future__ import annotations

import base64
import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layerprobe.report.page import page_data
from layerprobe.report.values import Gallery, GalleryQuery, Report, RunPage
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score, ScoreTable
from layerprobe.values.views import Item
from tests.scores import CLUSTERS, with_layer

PNG = b"\x89PNG\r\n\x1a\n rest"
POOL, FC6 = (RankedLayer(LayerKey(*key), "none", "cosine") for key in (("pool5", "max"), ("fc6", "none")))
SCORE = Score("one", "abc", 0, 1, "test", FC6, "R@1", 0.5, Interval(0.4, 0.6), 4)
DATA = DataFacts("glyphs", {"test": SplitFacts(4, 2, None, 1 / 3)})


def page_of(*scores: Score, name: str = "one") -> RunPage:
    return RunPage(name, DATA, tuple(dict.fromkeys(score.ranked for score in scores)), (0,), None, scores, ())


def report_of(*runs: RunPage, **fields: Any) -> Report:
    return Report("layerprobe", (), runs, **fields)


def gallery_of(found: Sequence[int], items: Sequence[Item] = ()) -> Gallery:
    shown = np.array(found, np.int32).reshape(1, 1, 1, -1)
    items = tuple(items or (Item(f"c{i}/{i}.png", f"c{i}") for i in range(3)))
    pictures = (0, -1, *(0 for _ in items[2:]))
    return Gallery("one", "test", (1,), (FC6,), items, pictures, (GalleryQuery(2, ("worst",)),), shown, shown == 1)


def test_every_number_has_the_digits_of_scores_csv(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((24, 3)).tolist()
    places = [
        (e, s, k, m) for e in (0, 3) for s in ("train", "test") for k in (POOL, FC6) for m in ("R@1", "R@2", "mAP")
    ]
    scores = [
        replace(
            with_layer(SCORE, layer=k.layer.layer, pool=k.layer.pool),
            epoch=e,
            split=s,
            metric=m,
            value=v,
            interval=Interval(low, high),
        )
        for (e, s, k, m), (v, low, high) in zip(places, values, strict=True)
    ]
    ScoreTable(scores).write(tmp_path / "scores.csv")
    written = json.dumps(page_data(report_of(page_of(*scores))))
    (run,) = json.loads(written, parse_float=str)["runs"]
    with (tmp_path / "scores.csv").open(newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 24
    for row in rows:
        layer = [x["layer"] for x in run["layers"]].index(row["layer"])
        epoch = run["epochs"].index(int(row["epoch"]))
        for column in ("value", "low", "high"):
            assert run["scores"][row["metric"]][row["split"]][column][layer][epoch] == row[column]


def test_what_was_not_measured_is_null_and_an_invalid_value_has_its_reason() -> None:
    gone = replace(SCORE, epoch=2, value=None, interval=None, notes=("NaN in features", "partial"))
    (run,) = page_data(report_of(page_of(SCORE, gone, with_layer(SCORE, layer="pool5", pool="max"))))["runs"]
    table = run["scores"]["R@1"]["test"]
    assert table["value"] == [[0.5, None], [0.5, None]]
    assert table["note"] == [[None, 0], [None, None]]
    assert run["remarks"] == ["NaN in features; partial"]


def test_metrics_say_whether_they_are_percent_and_what_their_intervals_say() -> None:
    plain = replace(SCORE, metric="effective-rank", interval=None)
    (run,) = page_data(report_of(page_of(SCORE, plain)))["runs"]
    interval = "95 % interval over classes, against this gallery"
    assert run["metrics"] == [
        {"name": "R@1", "percent": True, "interval": interval},
        {"name": "effective-rank", "percent": False, "interval": None},
    ]
    assert run["scores"]["effective-rank"]["test"].keys() == {"value", "note"}


def test_intervals_of_different_kinds_are_left_out_with_a_note() -> None:
    redrawn = page_of(replace(SCORE, run="two", units=CLUSTERS), name="two")
    data = page_data(report_of(page_of(SCORE), redrawn))
    assert all("low" not in run["scores"]["R@1"]["test"] for run in data["runs"])
    assert data["notes"] == ["intervals of different kinds are not shown together; probe all with one --cluster"]


def test_a_run_says_what_its_splits_are() -> None:
    (run,) = page_data(report_of(page_of(SCORE)))["runs"]
    assert run["splits"] == {"test": {"queries": 4, "classes": 2, "gallery": None, "chance": 1 / 3}}
    assert (run["start"], run["training"], run["embedding"], run["few"]) == ("untrained", False, None, [0])


def test_control_characters_of_names_are_replaced() -> None:
    data = page_data(
        report_of(
            page_of(with_layer(SCORE, layer="fc\x1b[2J")),
            notes=("a\x00b",),
        )
    )
    assert data["runs"][0]["layers"][0]["label"] == "fc\ufffd[2J"
    assert data["notes"] == ["a\ufffdb"]


def test_neighbours_are_read_back_from_base64() -> None:
    report = report_of(page_of(SCORE), galleries=(gallery_of([1, 0, -1]),), pictures=(PNG,))
    data = page_data(report)
    (gallery,) = data["galleries"]
    assert (gallery["run"], gallery["layers"], gallery["epochs"], gallery["k"]) == (0, [0], [1], 3)
    # 1, 0 and -1 as two bytes each, the lower one first
    assert list(base64.b64decode(gallery["found"])) == [1, 0, 0, 0, 255, 255]
    assert list(base64.b64decode(gallery["right"])) == [1, 0, 0]
    assert gallery["items"][1] == {"id": "c1/1.png", "name": "c1", "picture": -1}
    assert gallery["queries"] == [{"item": 2, "rules": ["worst"]}]
    assert data["pictures"] == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]


def test_a_picture_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="JPEG or PNG"):
        page_data(report_of(page_of(SCORE), pictures=(b"<svg>",)))


def test_more_items_than_16_bits_count_are_refused() -> None:
    items = tuple(Item(str(i), "c") for i in range(2**15))
    gallery = gallery_of([1], items)
    with pytest.raises(ValueError, match="32,767 items, got 32768"):
        page_data(report_of(page_of(SCORE), galleries=(gallery,)))
