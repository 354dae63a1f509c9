from __future__ import annotations

from dataclasses import replace

from layerprobe.values.intervals import Interval
from layerprobe.workflow.study.plan import Cell
from layerprobe.workflow.study.study_file import About, End, Runs, Study, Variant
from layerprobe.workflow.study.table import Over, Row, StudyTable, plan_table, table_values, text_table

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
    assert table.notes == ("claim: C", "paper: P")


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
