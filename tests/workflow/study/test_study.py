"""A study from its file to its table, killed and resumed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from layerprobe.system.errors import DataError, LayerprobeError, NumericError, RecipeError, UnknownNameError
from layerprobe.values.intervals import Interval
from layerprobe.values.scores import read_scores
from layerprobe.workflow.plot.plot import plot
from layerprobe.workflow.plot.request import PlotRequest
from layerprobe.workflow.run.runs import Run, locked, require_free
from layerprobe.workflow.study.plan import Cell, all_of, is_finished, plan
from layerprobe.workflow.study.study import (
    Over,
    Row,
    StudyRequest,
    StudyTable,
    about_lines,
    cells_of,
    estimate_study,
    plan_table,
    run_study,
    table_values,
    text_table,
    verdicts,
)
from layerprobe.workflow.study.study_file import About, End, Runs, Study, Variant, load_study
from tests.workflow.conftest import Silent
from tests.workflow.study.conftest import Made


def table_of(request: StudyRequest, listener: Silent | None = None) -> StudyTable:
    made = run_study(request, listener or Silent())
    assert isinstance(made, StudyTable)
    return made


def stamps(folder: Path) -> Mapping[Path, int]:
    """When each file of a run was written."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: path.stat().st_mtime_ns for path in files}


def test_a_cell_has_the_mean_over_its_trainings_with_students_interval(made: Made) -> None:
    row, _ = made.table.rows
    cell, (_, of_pool5) = row.cell, row.layers
    values = []
    for training in cell.trainings:
        (score,) = [
            score
            for score in read_scores(made.cache / training.run / "scores.csv")
            if (score.epoch, score.split, score.ranked.layer.layer, score.metric) == (2, "test", "pool5", "R@1")
        ]
        values.append(score.value or 0.0)
    assert of_pool5 is not None
    assert of_pool5.values == tuple(values)
    assert of_pool5.mean == pytest.approx(np.mean(values))
    expected = stats.ttest_1samp(values, 0).confidence_interval()
    assert of_pool5.interval is not None
    assert (of_pool5.interval.low, of_pool5.interval.high) == pytest.approx(tuple(expected))


def test_trainings_of_a_study_use_one_thread(made: Made) -> None:
    assert {Run(path.parent).read().threads for path in made.cache.glob("*/run.json")} == {1}


def test_each_training_has_a_class_split_of_its_own(made: Made) -> None:
    first, second = (Run(made.cache / training.run).read() for training in made.table.rows[0].cell.trainings)
    assert first.contents["test"] != second.contents["test"]


def test_every_epoch_is_measured_though_only_the_last_is_kept(made: Made) -> None:
    run = Run(made.cache / made.table.rows[0].cell.trainings[0].run)
    assert {score.epoch for score in run.scores()} == {0, 1, 2}
    assert [path.name for path in (run.folder / "checkpoints").glob("*.safetensors")] == ["epoch-0002.safetensors"]


def test_a_table_is_made_again_from_scores_alone(made: Made, copied: StudyRequest) -> None:
    for run in copied.cache.glob("tiny-*"):
        for name in ("checkpoints", "features", "ranks"):
            shutil.rmtree(run / name)
    listener = Silent()
    assert table_values(table_of(copied, listener)) == table_values(made.table)
    assert listener.heard == []


def finished_one(cache: Path, process: subprocess.Popen[str]) -> None:
    """Wait until a process has finished a run of a study."""
    assert process.stderr is not None
    for line in process.stderr:
        if line.endswith(": finished\n"):
            return
    raise AssertionError("it ended before")


def test_a_study_that_is_killed_trains_no_finished_run_again(made: Made, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    words = [sys.executable, "-m", "layerprobe", "study", str(made.file), "--device", "cpu", "--cache", str(cache)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        finished_one(cache, process)
        process.kill()
    request = StudyRequest(load_study(str(made.file)), cache, devices=("cpu",))
    trainings = all_of(plan(request.study, cache))
    deadline = time.monotonic() + 60
    while any(Run(cache / training.run).is_held() for training in trainings):  # its processes end with it
        assert time.monotonic() < deadline
        time.sleep(0.05)
    finished = [training.run for training in trainings if is_finished(request.study, training)]
    assert 1 <= len(finished) < len(trainings)
    before, listener = {name: stamps(cache / name) for name in finished}, Silent()
    again = table_of(request, listener)
    assert {name: stamps(cache / name) for name in finished} == before
    assert not [line for line in listener.heard if line.startswith(tuple(finished))]
    assert text_table(again) == text_table(made.table)


def test_a_run_that_another_process_holds_is_waited_for(copied: StudyRequest) -> None:
    training = all_of(plan(copied.study, copied.cache))[0]
    run = Run(copied.cache / training.run)
    aside = run.folder.with_name("scores.csv")
    run.scores_file.rename(aside)  # as if the other process had still to measure it
    held, heard = threading.Event(), threading.Event()

    def hold() -> None:
        with locked(run):
            held.set()
            heard.wait(60)
            aside.rename(run.scores_file)

    other = threading.Thread(target=hold)
    other.start()
    held.wait(60)
    listener = Silent(lambda text: heard.set() if text.endswith("; waiting for it") else None)
    table_of(copied, listener)
    other.join()
    assert listener.heard[1].startswith(f"{training.run}: run is in use by pid {os.getpid()}")
    assert listener.heard[2:] == [f"{training.run}: finished"]  # nothing was trained
    require_free(run)


def test_other_images_end_a_study_before_it_trains(copied: StudyRequest) -> None:
    first, second, *_ = (Run(copied.cache / t.run) for t in all_of(plan(copied.study, copied.cache)))
    shutil.rmtree(first.folder)
    record = second.read()
    second.write(replace(record, contents={**record.contents, "train": "0" * 64}))
    with pytest.raises(DataError, match=f"1 runs of the study have other images than their recipe now: {second.name}"):
        run_study(copied, Silent())
    assert not first.exists()


def test_the_error_of_a_training_names_its_run(file_of: Callable[..., str], tmp_path: Path) -> None:
    study = load_study(file_of(('"pool5"]', '"pool6"]')))
    with pytest.raises(UnknownNameError, match="tiny-[0-9a-f]{6}-s0: unknown layer 'pool6'. Did you mean 'pool5'"):
        run_study(StudyRequest(study, tmp_path / "cache", devices=("cpu",)), Silent())


def test_a_training_that_diverges_ends_a_study_after_the_others(file_of: Callable[..., str], tmp_path: Path) -> None:
    grid = ('"net.fc" = [[8], [16]]', '"train.learning_rate" = [1e30, 0.01]'), ("seeds = [0, 1]", "seeds = [0]")
    request = StudyRequest(load_study(file_of(*grid)), tmp_path / "cache", devices=("cpu",))
    first, second = all_of(plan(request.study, request.cache))
    with pytest.raises(NumericError, match=f"{first.run}: "):
        run_study(request, Silent())
    assert [is_finished(request.study, training) for training in (first, second)] == [False, True]


def test_a_layer_with_several_pools_is_refused(copied: StudyRequest) -> None:
    for scores in copied.cache.glob("*/scores.csv"):
        lines = scores.read_text().splitlines(keepends=True)
        scores.write_text("".join([*lines, *(line.replace("pool5,none", "pool5,max") for line in lines[1:])]))
    with pytest.raises(RecipeError, match=r"pool5 is several layers of tiny-.*: pool5@max, pool5\. Name one of them"):
        run_study(copied, Silent())


def test_a_study_may_end_in_a_plot_of_all_its_runs(copied: StudyRequest) -> None:
    study = replace(copied.study, end=End(plot="layers", layers=("fc6", "pool5")))
    listener = Silent()
    made = run_study(replace(copied, study=study), listener)
    assert isinstance(made, tuple)
    (out,) = made
    assert [line.partition("-s1: ")[2] for line in listener.heard] == ["net.fc = [8]", "net.fc = [16]"]
    assert out.name == "tiny.png"
    assert out.read_bytes().startswith(b"\x89PNG")


def test_each_further_metric_has_a_figure_of_the_same_runs(copied: StudyRequest) -> None:
    end = End(plot="over-key", layers=("fc6",), key="net.fc", metric="R@1", also=("R@2", "loss"))
    study = replace(copied.study, end=end)
    files = run_study(replace(copied, study=study), Silent())
    assert isinstance(files, tuple)
    assert [file.name for file in files] == ["tiny.png", "tiny-R@2.png", "tiny-loss.png"]
    assert len({file.read_bytes() for file in files}) == 3


def test_a_study_along_a_key_has_a_line_for_each_combination_of_the_others(
    copied: StudyRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[PlotRequest] = []

    def spy(request: PlotRequest) -> Path:
        asked.append(request)
        return plot(request)

    monkeypatch.setattr("layerprobe.workflow.study.study.plot", spy)
    cells = [cell.trainings for cell in plan(copied.study, copied.cache)]
    for is_small, note in ((False, ""), (True, "small version: mechanics only")):
        end = End(plot="over-key", layers=None, key="net.fc", metric="loss")
        study = replace(copied.study, end=end, is_small=is_small)
        made = run_study(replace(copied, study=study), Silent())
        assert isinstance(made, tuple)
        assert asked[-1].note == note
        assert asked[-1].options.key == "net.fc"
        assert asked[-1].lines == {training.run: "" for of_cell in cells for training in of_cell}
    study = replace(copied.study, end=End(plot="recall-at-k", layers=None))
    run_study(replace(copied, study=study), Silent())
    assert list(dict.fromkeys((asked[-1].lines or {}).values())) == ["net.fc=8", "net.fc=16"]
    study = replace(copied.study, end=End(plot="layers", layers=None), is_small=True)
    run_study(replace(copied, study=study), Silent())
    *named, caveat = asked[-1].note.splitlines()
    assert [line.partition(": ")[2] for line in named] == ["net.fc = [8]", "net.fc = [16]"]
    assert caveat == "small version: mechanics only"


def test_an_estimate_counts_what_is_missing_and_writes_nothing(copied: StudyRequest) -> None:
    assert estimate_study(copied, Silent()).disk == 0
    runs = [copied.cache / training.run for training in all_of(plan(copied.study, copied.cache))]
    for run in runs[0], runs[2]:  # both seeds of a cell
        shutil.rmtree(run)
    two = estimate_study(copied, Silent())
    shutil.copytree(runs[1], runs[0])
    assert not runs[2].exists()
    assert two.disk > 0
    assert two.seconds >= 0


def test_kept_scores_stand_for_trainings_and_give_the_same_table(copied: StudyRequest, tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    expected = table_of(replace(copied, scores=file))
    shutil.rmtree(copied.cache)
    listener = Silent()
    found = table_of(replace(copied, scores=file), listener)
    assert [row.layers for row in found.rows] == [row.layers for row in expected.rows]
    assert not copied.cache.exists()


def test_a_training_whose_scores_are_not_kept_is_trained(copied: StudyRequest, tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    table_of(replace(copied, scores=file))
    first = cells_of(copied)[0].trainings[0].run
    kept = [line for line in file.read_text().splitlines() if not line.startswith(f"{first},")]
    file.write_text("\n".join(kept) + "\n")
    shutil.rmtree(copied.cache)
    table_of(replace(copied, scores=file))
    assert [path.name for path in copied.cache.iterdir() if path.name.startswith("tiny")] == [first]
    assert file.read_text().count(f"{first},") > 0


def test_kept_scores_that_lack_a_layer_leave_the_run_to_count(copied: StudyRequest, tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    expected = table_of(replace(copied, scores=file))
    file.write_text("\n".join(line for line in file.read_text().splitlines() if ",pool5," not in line) + "\n")
    assert table_of(replace(copied, scores=file)).rows == expected.rows
    assert ",pool5," in file.read_text()


def test_a_run_counts_before_its_kept_scores(copied: StudyRequest, tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    expected = table_of(replace(copied, scores=file))
    lines = [re.sub(r",R@1,[0-9.]+,", ",R@1,0.0,", line) for line in file.read_text().splitlines()]
    file.write_text("\n".join(lines) + "\n")
    assert table_of(replace(copied, scores=file)).rows == expected.rows


def test_scores_of_other_runs_stay_in_the_file(copied: StudyRequest, tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    table_of(replace(copied, scores=file))
    head, *lines = file.read_text().splitlines()
    run = lines[0].partition(",")[0]
    others = [line.replace(run, "other", 1) for line in lines if line.startswith(run)]
    file.write_text("\n".join([head, *others]) + "\n")
    table_of(replace(copied, scores=file))
    assert {*others, *lines} == {*file.read_text().splitlines()[1:]}


@pytest.mark.parametrize("text", ["my notes\n", "run,value\nmine,0.5\n"])
def test_a_file_of_something_else_is_not_replaced_by_scores(copied: StudyRequest, tmp_path: Path, text: str) -> None:
    file = tmp_path / "mine.csv"
    file.write_text(text)
    with pytest.raises(DataError, match=r"mine\.csv: not a table of scores\. Name another file by --scores"):
        run_study(replace(copied, scores=file), Silent())
    assert file.read_text() == text


def test_a_file_of_scores_that_cannot_be_written_is_told_before_training(copied: StudyRequest, tmp_path: Path) -> None:
    shutil.rmtree(copied.cache)
    with pytest.raises(LayerprobeError, match=r"cannot be written as '.txt'. Name it .csv"):
        run_study(replace(copied, scores=tmp_path / "scores.txt"), Silent())
    assert not copied.cache.exists()


def test_a_plot_needs_the_runs(copied: StudyRequest, tmp_path: Path) -> None:
    study = replace(copied.study, end=End(plot="layers"))
    with pytest.raises(RecipeError, match="a plot needs the runs, not their scores. Leave out --scores"):
        run_study(replace(copied, study=study, scores=tmp_path / "scores.csv"), Silent())


def test_a_table_has_a_row_for_each_epoch(copied: StudyRequest) -> None:
    end = copied.study.end.model_copy(update={"epochs": (0, 2)})
    table = table_of(replace(copied, study=replace(copied.study, end=end)))
    before, after, *_ = table.rows
    assert (before.epoch, after.epoch) == (0, 2)
    assert before.layers != after.layers
    shown = text_table(table)
    assert shown.columns == ("net.fc", "epoch", "fc6", "pool5")
    assert [row[:2] for row in shown.rows] == [("[8]", "0"), ("[8]", "2"), ("[16]", "0"), ("[16]", "2")]
    assert shown.heading[1] == "R@1 in % on test by epoch, mean of 2 trainings"


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
