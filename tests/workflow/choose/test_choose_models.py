from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layerprobe.system.errors import DataError, InterruptedRun
from layerprobe.values.choice import Choice
from layerprobe.values.models import ModelTable, best_text
from layerprobe.workflow.choose import choose_models as room
from layerprobe.workflow.choose.choose_models import choose_models, compare_models
from layerprobe.workflow.choose.choose_once import choose_model, choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.probed_run import RunExtractor
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.stored_choice import stored_choice
from layerprobe.workflow.train.frozen_request import FrozenRequest
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, C2, hits, write_run

CODE = """
from torch import nn

def make(width):
    model = nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))
    return model, {"size": 16, "filter": "bilinear", "crop": 1.0, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}

def narrow():
    return make(4)

def wide():
    return make(9)

def broken():
    raise ZeroDivisionError("no network")
"""
REQUEST = ChooseRequest(device="cpu")
GOOD, POOR = hits(*[4, 3] * 10), hits(*[1, 2] * 10)


def requests(images: Path, folder: Path, cache: str, *names: str) -> list[FrozenRequest]:
    folder.joinpath("mine.py").write_text(CODE)
    models = [f"python:{folder / 'mine.py'}:{name}" for name in names]
    return [
        FrozenRequest(model, f"folder:{images}", folder / cache, "none", device="cpu", workers=0) for model in models
    ]


def stored(cache: Path, **tests: object) -> list[tuple[Run, Choice]]:
    """Frozen runs with these hits on test of c2, which is chosen on validation."""
    runs = []
    for name, values in tests.items():
        of_test = np.asarray(values)
        layers = {"validation": {C1: POOR, C2: GOOD}, "test": {C1: np.zeros_like(of_test), C2: of_test}}
        net = {"name": f"timm:{name}", "weights": "none"}
        runs.append(write_run(cache, name, layers, epochs=(0,), net=net, data={"seen": False}, untrained=True))
    return [(run, choose_once([run], REQUEST, Silent())) for run in runs]


def test_each_model_has_the_values_of_its_own_choice_and_one_that_fails_is_named(images: Path, tmp_path: Path) -> None:
    names, listener = ("narrow", "broken", "wide"), Silent()
    table = choose_models(requests(images, tmp_path, "together", *names), REQUEST, listener)
    rows = {model.run: model for model in table.models}
    for frozen in requests(images, tmp_path, "alone", "narrow", "wide"):
        run, choice = choose_model(frozen, REQUEST, Silent())
        row = rows.pop(run.name)
        assert (row.name, row.layer, row.test) == (f"{frozen.model} (random)", choice.preferred, choice.preferred_test)
        assert choice.embedding is not None
        assert row.embedding == choice.embedding.test
        assert (row.advice, row.chosen_on) == (choice.advice, choice.chosen.split)
    assert not rows
    assert table.models[0].test.value >= table.models[1].test.value  # type: ignore[operator] # they have one
    assert set(table.assumed) == {model.name for model in table.models}  # only their user knows what made them
    [left_out] = table.left_out
    assert left_out.name.endswith("mine.py:broken (random)")
    assert "ZeroDivisionError: no network" in left_out.reason
    assert f"{left_out.name} is left out: {left_out.reason}" in listener.heard


@pytest.mark.usefixtures("switches")
def test_the_multiply_adds_are_those_up_to_the_layer(images: Path, tmp_path: Path) -> None:
    table = choose_models(requests(images, tmp_path, "cache", "narrow"), ChooseRequest(layers=("1",)), Silent())
    # a product for each of 3 x 3 x 3 x 4 weights at 14 x 14 places; the linear layer after it has 20
    assert table.models[0].multiply_adds == 108 * 196


def test_a_second_call_measures_nothing_again(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    both = requests(images, tmp_path, "cache", "narrow", "wide")
    table = choose_models(both, REQUEST, Silent())
    extracted: list[object] = []
    monkeypatch.setattr(RunExtractor, "extract", lambda *args: extracted.append(args))
    listener = Silent()
    assert (choose_models(both, REQUEST, listener), extracted) == (table, [])
    assert sum("the stored choice" in line for line in listener.heard) == 2


def test_the_mean_of_the_kept_values_is_the_score(images: Path, tmp_path: Path) -> None:
    for run, _ in stored(tmp_path, a=GOOD, b=POOR):
        kept = stored_choice(run)
        assert kept is not None
        values, score = kept.choice.test_values, kept.choice.preferred_test
        assert values is not None
        assert score is not None
        assert values.sums == (4, 3) * 10 if run.name == "a" else (1, 2) * 10
        assert sum(values.sums) / sum(values.counts) == score.value


def test_models_that_do_not_differ_share_a_group(tmp_path: Path) -> None:
    nearly = GOOD.copy()
    nearly[[3, 40]] = 0
    table = compare_models(stored(tmp_path, poor=POOR, nearly=nearly, good=GOOD))
    assert [(model.name, model.groups) for model in table.models] == [
        ("timm:good (random)", (0,)),
        ("timm:nearly (random)", (0,)),
        ("timm:poor (random)", (1,)),
    ]
    assert (table.units, table.count, table.comparisons, table.metric) == ("classes", 20, 3, "R@1")
    assert table.assumed == ()  # random weights: nothing is assumed of them


def test_models_that_hit_at_random_are_one_group(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    table = compare_models(stored(tmp_path, **{name: (rng.random(80) < 0.3).astype(float) for name in "abcdef"}))
    assert table.is_one_group
    assert best_text(table).startswith("No model differs significantly from another. Highest: timm:")


def test_a_run_of_other_queries_or_without_any_is_left_out(tmp_path: Path) -> None:
    net = {"name": "timm:few", "weights": "model"}
    few = write_run(tmp_path, "few", {"validation": {C1: GOOD}, "test": {C1: GOOD[:60]}}, epochs=(0,), net=net)
    untested = write_run(tmp_path, "untested", {"validation": {C1: GOOD, C2: POOR}}, epochs=(0,), net=net)
    others = [(run, choose_once([run], REQUEST, Silent())) for run in (few, untested)]
    table = compare_models([*stored(tmp_path, a=GOOD), *others])
    assert [model.run for model in table.models] == ["a"]
    reasons = {left_out.name: left_out.reason for left_out in table.left_out}
    # two runs of one model have the names of the runs
    assert reasons.keys() == {"few", "untested"}
    assert reasons["few"].startswith("a and few have 80 and 60 images of the test split, 60 in both.")
    assert reasons["untested"].startswith("untested has no value on test.")


def test_choices_by_other_metrics_or_units_are_not_compared(tmp_path: Path) -> None:
    (a, choice), (b, other) = stored(tmp_path, a=GOOD, b=POOR)
    for changed, reason in (
        (replace(other, chosen=replace(other.chosen, metric="R@2")), "a and b are chosen by R@1 and R@2."),
        (replace(other, within_folds=True), "a and b are searched, or resampled, in different units."),
    ):
        [left_out] = compare_models([(a, choice), (b, changed)]).left_out
        assert left_out.reason.startswith(reason)


def measured(
    monkeypatch: pytest.MonkeyPatch, images: Path, tmp_path: Path, *outcomes: Exception | tuple[Run, Choice]
) -> ModelTable:
    """The table of models whose choice is, or fails, as given."""
    left = iter(outcomes)

    def outcome(*_: object) -> tuple[Run, Choice]:
        if isinstance(now := next(left), Exception):
            raise now
        return now

    monkeypatch.setattr(room, "choose_model", outcome)
    names = [f"m{place}" for place, _ in enumerate(outcomes)]
    return choose_models(requests(images, tmp_path, "cache", *names), REQUEST, Silent())


def test_want_of_memory_and_a_run_that_is_there_already_end_no_other_model(
    monkeypatch: pytest.MonkeyPatch, images: Path, tmp_path: Path
) -> None:
    a, b = stored(tmp_path, a=GOOD, b=POOR)
    table = measured(monkeypatch, images, tmp_path, MemoryError("of the device"), a, a, b)
    assert [model.run for model in table.models] == ["a", "b"]
    assert [left_out.reason for left_out in table.left_out] == [
        "MemoryError: of the device",
        "it is a, which is compared already.",
    ]


def test_without_any_model_the_first_reason_is_the_error(
    monkeypatch: pytest.MonkeyPatch, images: Path, tmp_path: Path
) -> None:
    faults = DataError("no layer is above chance", fix="Check the labels"), MemoryError("of the device")
    with pytest.raises(DataError) as error:
        measured(monkeypatch, images, tmp_path, *faults)
    text = str(error.value)
    assert text.startswith("no layer is chosen of any of 2 models; the first: python:")
    assert text.endswith(":m0 (random): no layer is above chance. Check the labels.")


def test_an_interruption_ends_all(monkeypatch: pytest.MonkeyPatch, images: Path, tmp_path: Path) -> None:
    with pytest.raises(InterruptedRun):
        measured(monkeypatch, images, tmp_path, InterruptedRun("interrupted", signal_number=2), MemoryError())
