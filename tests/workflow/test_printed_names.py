"""Every name of a measured layer that a command prints can be pasted into `compare` and `plot --layers`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from layerprobe.plots.drawn_scores import match_layers
from layerprobe.report.page import page_data
from layerprobe.summary.table import summary_tables
from layerprobe.system.wording import encoded
from layerprobe.tables.tables import TextTable
from layerprobe.values.choice import choice_lines
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Subject
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.compare.compare import compare
from layerprobe.workflow.compare.request import CompareRequest
from layerprobe.workflow.report.report import build_report
from layerprobe.workflow.run.facts import score_tables
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.summary.summary import stored_summary
from tests.records import rewrite
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import hits, write_run

KEYS = [("c1", "max"), ("c2", "max"), ("c2", "avg"), ("fc6", "none")]
LAYERS = [
    *(RankedLayer(LayerKey(*key), "none", "cosine") for key in KEYS),
    RankedLayer(LayerKey("c2", "max"), "l2+whiten:2:0.5+l2", "cosine"),
    RankedLayer(LayerKey("c2", "max"), "l2+binary", "hamming"),
    RankedLayer(LayerKey("fc6", "none"), "none", "dot"),
]
DIMS = {"c1@max": 2, "c2@max": 3, "c2@avg": 3, "fc6@none": 4}
FEATURES = {
    name: np.random.default_rng(seed).normal(size=(20, dim)).astype(np.float32)[np.arange(80) // 4]
    + 0.5 * np.random.default_rng(10 + seed).normal(size=(80, dim)).astype(np.float32)
    for seed, (name, dim) in enumerate(DIMS.items())
}


def write(cache: Path, name: str, layers: list[RankedLayer], seed: int = 0) -> Run:
    """A run whose layers are equally good on the whole, each on other classes."""
    rng = np.random.default_rng(seed)
    found = {layer: hits(*rng.integers(1, 5, 20)) for layer in layers}
    ranked_on = dict.fromkeys(("validation", "test"), found)
    return write_run(cache, name, ranked_on, epochs=(1, 2), features=dict.fromkeys(ranked_on, FEATURES), seed=seed)


def pasted(cache: Path, name: str, run: Run) -> Subject:
    """What a name means in `compare`; `plot --layers` finds the same."""
    (one,) = compare(CompareRequest(cache, name, name))
    found, scores = one.a.subject, run.scores()
    known = [score.ranked for score in scores]
    assert found.ranked in (match_layers([name], known) or [])
    return found


def names_in(table: TextTable) -> Iterator[str]:
    """What stands in the column of layers."""
    place = table.columns.index("layer")
    return (row[place] for row in table.rows)


def printed(run: Run, layers: list[RankedLayer]) -> set[str]:
    """The names in what probe, summary, choose, compare and report print of a run."""
    scores = run.scores()
    found = {name for table in score_tables(run, scores) for name in names_in(table)}
    found |= {name for table in summary_tables(stored_summary(run)) for name in names_in(table)}
    choice = choose_runs([run], ChooseRequest(), Silent())
    values = json.loads(json.dumps(encoded(choice)))
    found |= {*values["shares"], *values["equivalent"]}
    found |= {f"{choice.run}#{choice.selected.epoch}:{choice.selected.name}"}  # printed as `NAME, epoch 2`
    found |= set(re.findall(r"chosen by looking: ([^, ]+),", "\n".join(choice_lines(choice))))
    page = page_data(build_report([run], gallery=False))
    found |= {layer["label"] for layer in page["runs"][0]["layers"]}
    for one in compare(CompareRequest(run.folder.parent, f"{run.name}:*", f"{run.name}:{layers[0]}")):
        row = one.as_json()
        found |= {one.a.name, one.b.name, row["a"], row["b"]}
    return found


@pytest.mark.parametrize(
    "layers", [LAYERS[:2], LAYERS[:4], LAYERS[:6], LAYERS], ids=["maps", "raw", "post_processed", "all"]
)
def test_every_name_that_is_printed_can_be_pasted(tmp_path: Path, layers: list[RankedLayer]) -> None:
    run = write(tmp_path, "netA", layers)
    meant = {pasted(tmp_path, name, run).ranked for name in printed(run, layers)}
    assert meant >= set(layers)


def test_the_names_of_a_choice_among_trainings_can_be_pasted(tmp_path: Path) -> None:
    runs = [write(tmp_path, f"s{seed}", LAYERS[:4], seed) for seed in (0, 1)]
    choice = choose_runs(runs, ChooseRequest(), Silent())
    assert {pasted(tmp_path, name, runs[0]).run for name in choice.shares} == {"s0"}


def test_the_names_of_a_choice_among_experiments_can_be_pasted(tmp_path: Path) -> None:
    runs = [write(tmp_path, name, LAYERS[:4], seed) for seed, name in enumerate(("a", "b"))]
    rewrite(runs[1], experiment="f")
    choice = choose_runs(runs, ChooseRequest(), Silent())
    assert len(choice.shares) > 1
    for name in choice.shares:
        found = pasted(tmp_path, name, runs[0])
        assert name.startswith(f"{found.run}#{found.epoch}:")
