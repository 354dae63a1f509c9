from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.system.errors import LayerprobeError, RecipeError, UnknownNameError
from layerprobe.workflow.run.metric_values import metric_values
from layerprobe.workflow.run.references import open_ranked_split
from layerprobe.workflow.run.runs import Run
from tests.workflow.rank_files import FC6, first_hit, stored, written


@pytest.mark.parametrize(
    ("metric", "error", "message"),
    [
        ("MAP@r", UnknownNameError, "unknown metric 'MAP@r'. Did you mean 'MAP@R'?"),
        ("NMI", RecipeError, "NMI is not the mean of a value for each query"),
    ],
)
def test_a_metric_without_a_value_for_each_query_is_refused(
    tmp_path: Path, metric: str, error: type[LayerprobeError], message: str
) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "test", {FC6: first_hit(3)}))
    with pytest.raises(error, match=message):
        metric_values(open_ranked_split(run, 5, "test"), FC6, metric)
