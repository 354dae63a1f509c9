from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from matplotlib.text import Text

from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.scores import ScoreTable, Subject
from layerprobe.workflow.plot.plot import draw_plot
from layerprobe.workflow.run.runs import Run
from tests.workflow.stored_ranks import ranked, write_run

VALUES = {"R@1": 0.9, "MAP@R": 0.5, "NMI": 0.7, "effective-rank": 12.0}


@pytest.fixture
def run(tmp_path: Path) -> Run:
    found, scores = write_run(tmp_path, "a"), []
    for split in ("train", "test"):
        for name in ("c1@max", "fc6@none"):
            for epoch in (0, 2):
                subject = Subject("a", "e", 0, epoch, split, ranked(name))
                scores += [subject.score(metric, value, 10) for metric, value in VALUES.items()]
    ScoreTable(scores).write(found.scores_file)
    return found


@pytest.mark.parametrize("kind", ["train-vs-test", "curves", "layers", "gap"])
@pytest.mark.parametrize("metric", ["MAP@R", "NMI"])
def test_a_metric_is_drawn_and_named(run: Run, kind: str, metric: str) -> None:
    made = draw_plot(kind, [run], PlotOptions(metric=metric))
    rows = list(csv.DictReader(io.StringIO(made.csv)))
    assert {row[f"test {metric}"] for row in rows} == {str(VALUES[metric])}
    said = " ".join(text.get_text() for text in made.figure.findobj(Text))
    assert metric in said
    assert "R@1" not in said.replace("MAP@R", "")


def test_by_default_recall_is_drawn(run: Run) -> None:
    assert "test R@1" in draw_plot("curves", [run]).csv


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [
        ("mAP", DataError, r"no scores of mAP\. Run layerprobe probe a --metrics mAP"),
        ("R@7", DataError, r"no scores of R@7\. Run layerprobe probe a --k 7"),
        ("MAPR", UnknownNameError, "unknown metric 'MAPR'"),
        ("effective-rank", RecipeError, "effective-rank is no share"),
    ],
)
def test_a_metric_that_cannot_be_drawn_is_told(run: Run, metric: str, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        draw_plot("curves", [run], PlotOptions(metric=metric))


def test_a_plot_of_features_has_no_metric(run: Run) -> None:
    with pytest.raises(RecipeError, match="plot cka has no option --metric"):
        draw_plot("cka", [run], PlotOptions(metric="MAP@R"))
