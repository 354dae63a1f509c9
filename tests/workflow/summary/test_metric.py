from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from layerprobe.statistics.units import intervals, unit_sums
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.scores import ScoreTable, Subject
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.request import SummaryRequest
from layerprobe.workflow.summary.summary import stored_summary
from tests.workflow.stored_ranks import ranked, store_ranks, write_run

C1 = ranked("c1@max")
LABELS = np.repeat(np.arange(12), 2)
VALUES = np.linspace(0.2, 0.9, 24)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run with R@1 and MAP@R of one layer on test."""
    found = write_run(tmp_path, "a")
    store_ranks(found, {C1: np.ones(24)}, LABELS, values={"MAP@R": VALUES})
    subject = Subject("a", "e", 0, 2, "test", C1)
    scores = [subject.score("R@1", 1.0, 24), subject.score("MAP@R", float(VALUES.mean()), 24)]
    ScoreTable(scores).write(found.scores_file)
    return found


def test_another_metric_has_its_mean_and_interval(run: Run) -> None:
    found = stored_summary(run, SummaryRequest(metric="MAP@R"))
    level = found.layers[0].levels["test"]
    assert level.value == pytest.approx(VALUES.mean())
    assert level.interval == intervals(unit_sums(VALUES, LABELS))[0]
    assert found.metric == "MAP@R"
    assert found.data.splits["test"].chance is None


def test_a_metric_that_is_not_stored_is_told_with_its_command(run: Run) -> None:
    with pytest.raises(DataError, match=r"no scores of mAP\. Run layerprobe probe a --metrics mAP"):
        stored_summary(run, SummaryRequest(metric="mAP"))


def test_a_metric_that_is_no_mean_over_queries_is_refused() -> None:
    with pytest.raises(RecipeError, match="NMI is not the mean of a value for each query"):
        SummaryRequest(metric="NMI")
