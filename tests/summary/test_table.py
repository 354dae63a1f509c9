from __future__ import annotations

from dataclasses import replace

import pytest

from layerprobe.summary.cells import Faults
from layerprobe.summary.layers import GapOnset, LayerSummary, Level, RunSummary
from layerprobe.summary.table import summary_table, summary_values
from layerprobe.system.wording import encoded
from layerprobe.tables.formats import as_csv, as_markdown
from layerprobe.values.best import Agreement
from layerprobe.values.facts import DataFacts, SplitFacts
from layerprobe.values.intervals import Difference, Interval, IntervalKind
from layerprobe.values.layers import RankedLayer
from tests.summary.made_up import FC6, POOL5

DATA = DataFacts("glyphs", {"train": SplitFacts(400, 40, None, 0.02), "test": SplitFacts(100, 40, None, 0.01)})
LAYER = LayerSummary(
    POOL5,
    {
        "train": Level(9, 0.9, Interval(0.88, 0.92), 0.94, Interval(0.92, 0.96)),
        "test": Level(9, 0.7, Interval(0.66, 0.74)),
    },
    Difference(0.24, 0.21, 0.27, 0.001),
    Difference(0.15, 0.1, 0.2, 0.001),
    GapOnset(4),
    {"train": 9, "test": 7},
    10,
    {},
    {},
)
OTHER = replace(LAYER, ranked=FC6, gap=None, best_epochs={"train": 9})
SUMMARY = RunSummary("one", IntervalKind(), DATA, {"train": 40, "test": 40}, (LAYER, OTHER), gap_metric="R@1(G=99)")


def cell(summary: RunSummary, column: str, row: int = 0) -> str:
    table = summary_table(summary)
    return table.rows[row][table.columns.index(column)]


def test_json_has_the_fields_of_the_contract() -> None:
    values = encoded(summary_values(SUMMARY))
    facts = {"queries": 100, "classes": 40, "gallery": None, "chance": 0.01, "lone": 0, "identical": None}
    assert values["splits"]["test"] == facts
    assert values["layers"][0] == {
        "layer": "pool5",
        "pool": "max",
        "post_processing": "none",
        "similarity": "cosine",
        "train": {
            "value": 0.9,
            "low": 0.88,
            "high": 0.92,
            "epoch": 9,
            "thinned": {"metric": "R@1(G=99)", "value": 0.94, "low": 0.92, "high": 0.96},
        },
        "validation": None,
        "test": {
            "value": 0.7,
            "low": 0.66,
            "high": 0.74,
            "epoch": 9,
            "thinned": None,
        },
        "gap": {"value": 0.24, "low": 0.21, "high": 0.27, "metric": "R@1(G=99)"},
        "gap_over_untrained": {"value": 0.15, "low": 0.1, "high": 0.2, "metric": "R@1(G=99)"},
        "opens_at": 4,
        "opens_at_metric": "R@1(G=99)",
        "best_epoch": {"train": 9, "test": 7},
        "notes": [],
    }


def test_what_is_not_known_is_null_in_json() -> None:
    bare = replace(LAYER, levels={}, gap=None, gap_over_start=None, opening=None, best_epochs={})
    values = summary_values(replace(SUMMARY, layers=(bare,)))["layers"][0]
    names = ("train", "validation", "test", "gap", "gap_over_untrained", "opens_at", "opens_at_metric")
    assert [values[name] for name in names] == [None] * 7


def test_a_row_has_percents_points_and_epochs() -> None:
    columns = ("train\nR@1", *(f"{name}\nR@1(G=99)" for name in ("train", "gap", "gap - untrained", "opens at")))
    assert [cell(SUMMARY, column) for column in columns] == ["90.0", "94.0", "+24.0", "+15.0", "4"]
    assert cell(SUMMARY, "best epoch\ntrain/test") == "9/7"
    table = summary_table(SUMMARY)
    assert "test\nR@1(G=99)" not in table.columns
    assert table.intervals[table.columns.index("gap\nR@1(G=99)")] == (("21.0", "27.0"), None)


def test_an_opening_that_never_comes_says_so() -> None:
    layers = (replace(LAYER, opening=GapOnset(None)), replace(LAYER, opening=None))
    assert [cell(replace(SUMMARY, layers=layers), "opens at\nR@1(G=99)", row) for row in (0, 1)] == ["never", "-"]


def test_columns_that_say_nothing_are_left_out() -> None:
    frozen = replace(LAYER, gap=None, gap_over_start=None, opening=None, epochs=1, levels={"test": Level(0, 0.7)})
    table = summary_table(replace(SUMMARY, layers=(frozen,)))
    assert table.columns == ("", "layer", "test\nR@1")
    assert table.heading[0] == "summary of one, epoch 0, R@1 in %, cosine"
    assert not any("in brackets" in line for line in table.heading)  # there is no interval


def test_the_best_layer_is_marked_and_told_to_be_chosen_on_test() -> None:
    table = summary_table(SUMMARY)
    assert table.marked == 0
    assert "* best on test (chosen on test): pool5@max, 70.0 %, tied with 1 other" in table.notes
    assert "best epoch on test: chosen on test" in table.notes


@pytest.mark.parametrize(
    ("alike", "told"),
    [((FC6,), "not significantly different: fc6"), ((), "significantly better than all others")],
)
def test_layers_that_are_not_told_apart_from_the_best_are_named(alike: tuple[RankedLayer, ...], told: str) -> None:
    assert summary_table(replace(SUMMARY, indistinguishable=alike)).notes[0].endswith(f"; {told}")
    names = [layer["layer"] for layer in summary_values(replace(SUMMARY, indistinguishable=alike))["not_told_apart"]]
    assert names == [ranked.layer.layer for ranked in alike]


def test_notes_name_the_split_and_the_layers() -> None:
    faults = {"test": Faults(tied=0.62, zeros=3, lone=5)}
    noted = (replace(LAYER, faults=faults), replace(OTHER, faults={"test": Faults(lone=5)}, broken={"train": 2}))
    notes = summary_table(replace(SUMMARY, layers=noted)).notes
    assert "test, pool5@max: collapsed: 62% tied" in notes
    assert "test, pool5@max: 3 zero vectors" in notes
    assert "test, every layer: 5 lone queries count as misses" in notes
    assert "train, fc6: collapsed or without a value at 2 earlier epochs" in notes


@pytest.mark.parametrize(
    ("units", "line"),
    [
        (8, "no interval below 10 classes: test 8"),
        (14, "few classes, so that an interval is rough: test 14"),
    ],
)
def test_few_classes_are_told(units: int, line: str) -> None:
    assert line in summary_table(replace(SUMMARY, units={"train": 40, "test": units})).notes


def test_a_heading_says_what_the_intervals_are() -> None:
    table = summary_table(replace(SUMMARY, kind=IntervalKind(cluster="parent")))
    assert table.heading[-1] == "in brackets: 95 % interval over clusters of classes (parent), against this gallery"


def test_every_format_writes_it() -> None:
    assert "| \\* | pool5@max | 90.0 \\[88.0, 92.0] |" in as_markdown(summary_table(SUMMARY))
    assert (
        as_csv(summary_table(SUMMARY))
        .splitlines()[1]
        .startswith("*,pool5@max,90.0,88.0,92.0,94.0,92.0,96.0,70.0,66.0,74.0,")
    )


def test_the_rank_correlations_of_numbers_without_labels_stand_below_and_in_json() -> None:
    found = (Agreement("two-nn", 9, "test", "none", "cosine", "R@1", 6, 0.5),)
    summary = replace(SUMMARY, label_free=found)
    assert "two-nn at epoch 9: rank correlation with R@1 on test 0.50, over 6 layers" in summary_table(summary).notes
    assert summary_values(summary)["label_free"] == found
