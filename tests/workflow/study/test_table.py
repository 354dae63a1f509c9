from __future__ import annotations

from dataclasses import replace

import pytest
from scipy import stats

from layerprobe.values.intervals import Interval
from layerprobe.workflow.study.plan import Cell
from layerprobe.workflow.study.study_file import About, End, Runs, Study, Variant
from layerprobe.workflow.study.table import (
    Over,
    Row,
    StudyTable,
    about_lines,
    plan_table,
    table_values,
    text_table,
    verdicts,
)

STUDY = Study(
    "s",
    About(title="T", paper="P", claim="C"),
    Runs(recipe="quick", seeds=(0, 1)),
    {"loss.name": ("softmax",), "net.fc": ([8],)},
    End(table="R@1", layers=("fc6", "pool5")),
)
OVERS = (Over(0.5, Interval(0.25, 0.75), (0.4, 0.6)), Over(None, None, (0.4, None), ("collapsed",)))
TABLE = StudyTable(STUDY, (Row(Cell({"loss.name": "softmax", "net.fc": [8]}, ()), 3, OVERS),))


def test_a_row_has_the_cells_keys_and_the_mean_of_each_layer_in_percent() -> None:
    table = text_table(TABLE)
    assert table.columns == ("loss.name", "net.fc", "fc6", "pool5")
    assert table.rows == (("softmax", "[8]", "50.0", "collapsed"),)
    assert table.intervals == {2: (("25.0", "75.0"),)}
    assert table.notes == ("the paper says: C (P)",)


def judged(first: tuple[float | None, ...], second: tuple[float | None, ...], **about: str) -> StudyTable:
    """A study that asks whether fc6 is above pool5, at epoch 3, after an epoch at which they are equal."""
    layers = Over(0.5, None, first), Over(0.5, None, second)
    study = replace(STUDY, about=About(title="T", **about), end=replace_end(compare=(("fc6", "pool5"),)))
    cell = TABLE.rows[0].cell
    return StudyTable(study, (Row(cell, 3, layers), Row(cell, 0, (layers[0], layers[0]))))


def replace_end(**values: object) -> End:
    return End.model_validate({"table": "R@1", "layers": ("fc6", "pool5"), **values})


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((0.6, 0.7, 0.65), (0.5, 0.61, 0.54), "holds here"),
        ((0.5, 0.61, 0.54), (0.6, 0.7, 0.65), "the contrary"),
        ((0.6, 0.5, 0.65), (0.5, 0.61, 0.54), "does not show"),
    ],
)
def test_a_verdict_is_by_the_paired_interval(first: tuple[float, ...], second: tuple[float, ...], said: str) -> None:
    low, high = stats.ttest_rel(first, second).confidence_interval()
    table = judged(first, second, question="Q?", paper="P", claim="C")
    mean = 100 * (sum(first) - sum(second)) / 3
    assert text_table(table).notes == (
        "question: Q?",
        f"verdict, epoch 3: fc6 above pool5: {said}, {mean:+.1f} points [{100 * low:+.1f}, {100 * high:+.1f}]",
        "a verdict is by the 95 % interval of the mean difference, paired by training",
        "the paper says: C (P)",
    )
    (value,) = table_values(table)["verdicts"]
    assert (value["verdict"], value["layers"], value["epoch"]) == (said, ["fc6", "pool5"], 3)
    assert (value["interval"].low, value["interval"].high) == pytest.approx((low, high))


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ((0.75,), (0.5,), "does not show, +25.0 points, without an interval"),
        ((0.75, 0.75), (0.5, 0.5), "does not show, +25.0 points, without an interval"),
        ((0.75, None), (0.5, 0.5), "does not show, a value is missing"),
    ],
)
def test_without_an_interval_nothing_holds(
    first: tuple[float | None, ...], second: tuple[float | None, ...], said: str
) -> None:
    assert text_table(judged(first, second)).notes[0] == f"verdict, epoch 3: fc6 above pool5: {said}"


def test_each_cell_has_its_verdict_and_each_variant_its_layers() -> None:
    variants = Variant(name="A"), Variant(name="B", layers=("pool5",), compare=())
    study = replace(judged((0.6,), (0.5,)).study, variants=variants)
    cells = [Cell({"loss.name": "softmax", "net.fc": [8]}, (), name) for name in "AB"]
    table = StudyTable(study, (Row(cells[0], 3, OVERS), Row(cells[1], 3, (None, OVERS[0]))))
    (only,) = verdicts(table)
    assert only.cell == cells[0]
    assert text_table(table).notes[0].startswith('verdict at A: loss.name = "softmax", net.fc = [8], epoch 3: ')


def test_a_claim_without_a_paper_is_what_is_expected() -> None:
    assert about_lines(replace(STUDY, about=About(title="T", claim="C"))) == ["expected: C"]
    assert about_lines(replace(STUDY, about=About(title="T", paper="P"))) == ["paper: P"]


def test_the_caption_says_whose_classes_the_interval_holds_for() -> None:
    assert text_table(TABLE).heading[2].endswith("over trainings, on these test classes")
    own = replace(STUDY, runs=Runs(recipe="quick", seeds=(0, 1), seeded=("data.class_seed",)))
    assert text_table(replace(TABLE, study=own)).heading[2].endswith("on test classes of their own")


def test_a_small_version_says_that_it_is_one() -> None:
    small = replace(TABLE, study=replace(STUDY, is_small=True))
    assert text_table(small).notes[-1] == "small version: mechanics only"


def test_a_single_training_has_no_interval() -> None:
    one = replace(STUDY, runs=Runs(recipe="quick", seeds=(0,)))
    assert text_table(replace(TABLE, study=one)).heading[1:] == ("R@1 in % on test after the last epoch, one training",)


def test_the_first_column_is_the_variants_name_and_its_cells_have_its_layers() -> None:
    variants = (Variant(name="A"), Variant(name="B", layers=("pool5",)))
    cells = tuple(Cell({"loss.name": "softmax", "net.fc": [8]}, (), name) for name in "AB")
    table = StudyTable(replace(STUDY, variants=variants), (Row(cells[0], 3, OVERS), Row(cells[1], 3, (None, OVERS[0]))))
    shown = text_table(table)
    assert shown.columns == ("variant", "loss.name", "net.fc", "fc6", "pool5")
    assert shown.rows == (("A", "softmax", "[8]", "50.0", "collapsed"), ("B", "softmax", "[8]", "", "50.0"))
    assert shown.intervals == {3: (("25.0", "75.0"), None), 4: (None, ("25.0", "75.0"))}
    assert [(cell["variant"], len(cell["layers"])) for cell in table_values(table)["cells"]] == [("A", 2), ("B", 1)]


def test_a_plan_without_data_says_which_folders_its_time_needs() -> None:
    cell = TABLE.rows[0].cell
    table = plan_table(STUDY, [cell, cell], ("cub200:DIR",))
    assert table.heading == ("s: T", "0 trainings; time, memory and disk need --data cub200:DIR")
    assert (table.columns, table.rows[0]) == (("loss.name", "net.fc", "trainings"), ("softmax", "[8]", "0"))
