from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.cli import main
from layerprobe.values.intervals import Interval, IntervalKind, SamplingUnits
from layerprobe.values.scores import Score
from layerprobe.workflow.compare.answer import answer_of, probe_answer
from layerprobe.workflow.compare.compare import compare_layers
from layerprobe.workflow.run.facts import bands_of_best
from layerprobe.workflow.run.references import open_ranked_split
from layerprobe.workflow.run.runs import Run
from tests.workflow.selection_runs import C1, C2, FC6, hits, write_run

NETWORK: dict[str, object] = {
    "layers": ["c1", "c2", "fc6"],
    "embedding": ["fc6", "none"],
    "cuts": {},
    "input": None,
    "files": {},
}
KIND = IntervalKind()
GOOD, FAIR = hits(*[4, 3] * 10), hits(*[3, 3, 3, 2] * 5)
POOR = hits(*[2, 1, 3, 2] * 5)


def measured(run: Run) -> list[Score]:
    """The scores of a run, with intervals over its classes."""
    return [
        replace(score, interval=None if score.n < 40 else Interval(0.3, 0.9), units=SamplingUnits(KIND, score.n // 4))
        for score in run.scores()
    ]


def sentence(run: Run) -> str:
    lines = probe_answer(run, answer_of(run, measured(run))).heading
    return " ".join(line.strip() for line in lines[: lines.index("")])


def notes(run: Run) -> str:
    return " ".join(line.strip() for line in probe_answer(run, answer_of(run, measured(run))).notes)


def test_selected_on_validation_the_lead_on_test_is_that_of_compare(tmp_path: Path) -> None:
    layers = {"validation": {C1: FAIR, C2: GOOD, FC6: POOR}, "test": {C1: FAIR, C2: GOOD, FC6: POOR}}
    run = write_run(tmp_path, "a", layers, network=NETWORK)
    split = open_ranked_split(run, None, "test")
    (comparison,) = compare_layers([(split, split)], [(C2, FC6)], "R@1")
    lead = answer_of(run, measured(run)).lead
    assert lead is not None
    assert (lead.split, lead.simultaneous, lead.difference) == ("test", 0, comparison.difference)
    # c2 hits 4 and 3 of 4 images in turn: 87.5 %; fc6 2, 1, 3 and 2: 50 %
    assert "c2@max is the best of 3 layers on the validation classes; on test, +37.5 percentage" in sentence(run)
    assert "against the embedding, fc6 (significant)" in sentence(run)
    assert "at once" not in notes(run)


def test_selected_on_test_the_lead_has_the_band_of_all_pairs(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"test": {C1: FAIR, C2: GOOD, FC6: POOR}}, network=NETWORK)
    answer = answer_of(run, measured(run))
    split = open_ranked_split(run, None, "test")
    (comparison,) = compare_layers([(split, split)], [(C2, FC6)], "R@1")
    from_best = bands_of_best(run, measured(run), "R@1", answer.data)
    assert answer.lead is not None
    assert comparison.difference is not None
    assert from_best is not None
    band = from_best[FC6]
    assert band is not None
    assert answer.lead.difference.interval == band
    assert (answer.lead.split, answer.lead.simultaneous) == ("test", 3)
    assert band.high - band.low > comparison.difference.high - comparison.difference.low  # type: ignore[operator]
    assert "holds for all pairs of the 3 layers at once" in notes(run)


def test_the_command_that_compares_the_pair_runs_as_it_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "my cache", "a", {"test": {C1: FAIR, C2: GOOD, FC6: POOR}}, network=NETWORK)
    (line,) = [line for line in probe_answer(run, answer_of(run, measured(run))).notes if "layerprobe compare" in line]
    words = shlex.split(line)
    assert words[:4] == ["layerprobe", "compare", "a:c2@max", "a:fc6"]
    monkeypatch.setattr(sys, "argv", words)
    with pytest.raises(SystemExit, match="0"):
        main()
    shown = capsys.readouterr().out
    # 50 % of 87.5 %
    assert "R@1 87.5 % against 50.0 %, +37.5 points" in shown
    band, interval = "[32.0, 43.0]", "+32.0 to +43.0"
    assert (band in sentence(run), interval in shown) == (False, True)  # of all pairs at once; of this pair


def test_without_a_known_embedding_nothing_is_compared(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"test": {C1: FAIR, C2: GOOD}})
    best = "c2@max is the best of 2 layers on the test classes: R@1 87.5 % [30.0, 90.0]."
    assert sentence(run) == f"a, epoch 2: {best} The embedding is not known."
    assert answer_of(run, measured(run)).lead is None


def test_the_last_epoch_answers(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"test": {C1: FAIR, FC6: POOR}}, epochs=(1, 4), network=NETWORK)
    assert sentence(run).startswith("a, epoch 4: c1@max is the best of 2 layers")


def test_with_fewer_than_ten_classes_there_is_no_interval(tmp_path: Path) -> None:
    good, poor = hits(*[4] * 5), hits(*[2, 1, 3, 2, 2])
    layers = {split: {C1: good, FC6: poor} for split in ("validation", "test")}
    run = write_run(tmp_path, "a", layers, network=NETWORK)
    # 20 of 20 images against 10 of 20
    assert "+50.0 percentage points of R@1 against the embedding, fc6 (no interval)." in sentence(run)
    assert "5 classes are too few for an interval (10 are needed)" in notes(run)


def test_ranks_that_are_gone_leave_the_difference_of_the_scores(tmp_path: Path) -> None:
    layers = {split: {C1: GOOD, FC6: POOR} for split in ("validation", "test")}
    run = write_run(tmp_path, "a", layers, network=NETWORK)
    for file in (run.folder / "ranks").rglob("*test*"):
        file.unlink()
    assert "+37.5 percentage points of R@1 against the embedding, fc6 (no interval)." in sentence(run)


def test_bands_of_more_than_ten_units_are_symmetric_around_the_difference(tmp_path: Path) -> None:
    run = write_run(tmp_path, "a", {"test": {C1: FAIR, C2: GOOD, FC6: POOR}}, network=NETWORK)
    answer = answer_of(run, measured(run))
    from_best = bands_of_best(run, measured(run), "R@1", answer.data)
    assert from_best is not None
    assert list(from_best) == [C1, FC6]
    # 87.5 - 68.75 and 87.5 - 50 points
    middles = [(band.low + band.high) / 2 for band in from_best.values() if band]
    np.testing.assert_allclose(middles, [0.1875, 0.375], atol=1e-9)
