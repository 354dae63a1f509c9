from __future__ import annotations

from dataclasses import replace

from layerprobe.values.intervals import Interval
from layerprobe.workflow.study.plan import Cell
from layerprobe.workflow.study.study_file import About, End, Runs, Study
from layerprobe.workflow.study.table import Over, StudyTable, text_table

STUDY = Study(
    "s",
    About(title="T", paper="P", claim="C"),
    Runs(recipe="quick", seeds=(0, 1)),
    {"loss.name": ("softmax",), "net.fc": ([8],)},
    End(table="R@1", layers=("fc6", "pool5")),
)
OVERS = (Over(0.5, Interval(0.25, 0.75), (0.4, 0.6)), Over(None, None, (0.4, None), ("collapsed",)))
TABLE = StudyTable(STUDY, ((Cell({"loss.name": "softmax", "net.fc": [8]}, ()), OVERS),))


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
