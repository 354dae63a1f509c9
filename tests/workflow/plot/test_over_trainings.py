"""Means, intervals and paired differences of losses a and b at dimensions 4 and 64, with seeds 0 to 2."""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Score
from layerprobe.values.views import OverTrainings, Repeated
from layerprobe.workflow.plot.over_trainings import (
    PlottedRun,
    TrainingScores,
    differing_keys,
    learnt_parameters,
    line_name,
    losses_over_key,
    place_of,
    place_runs,
    places_in_order,
    recall_at_k,
    scores_over_key,
    training_losses,
)
from layerprobe.workflow.plot.plot import StoredRuns, draw_plot
from layerprobe.workflow.run.experiments import scores_of
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.scores import with_layer
from tests.workflow.plot.conftest import Toy

# Half of a 95 % interval of the mean of three with sd 0.1; Student's t of two degrees of freedom is 4.30265.
HALF = 4.30265 * 0.1 / math.sqrt(3)
ONE = Score("", "e", 0, 3, "test", RankedLayer(LayerKey("fc6", "none"), "none", "cosine"), "R@1", 0.5, None, 40)
# line, dimension -> R@1 of each seed. The sample standard deviation of 0.1, 0.2, 0.3 is 0.1.
VALUES: Mapping[tuple[str, int], tuple[float, ...]] = {
    ("a", 4): (0.1, 0.2, 0.3),
    ("a", 64): (0.5, 0.5, 0.5),
    ("b", 4): (0.2, 0.2, 0.5),  # less a: 0.1, 0.0, 0.2
    ("b", 64): (0.6, 0.7),
}
FOUND = [
    PlottedRun(f"{line}{dim}s{seed}", recorded({"seed": seed}), line, dim)
    for (line, dim), values in VALUES.items()
    for seed in range(len(values))
]
SCORES = [
    replace(ONE, run=f"{line}{dim}s{seed}", seed=seed, value=value)
    for (line, dim), values in VALUES.items()
    for seed, value in enumerate(values)
]
KEY = PlotOptions(key="net.fc")


def over_fc(scores: list[Score] = SCORES, found: list[PlottedRun] = FOUND, options: PlotOptions = KEY) -> OverTrainings:
    return scores_over_key(TrainingScores(found, scores), options, "net.fc")


def at(points: tuple[Repeated, ...], place: float) -> Repeated:
    (point,) = [point for point in points if point.place == place]
    return point


def test_a_point_is_the_mean_of_its_trainings_with_students_interval() -> None:
    view = over_fc()
    assert (view.places, [line.name for line in view.lines]) == ((4, 64), ["a", "b"])
    point = at(view.lines[0].points, 4)
    assert point.each == {0: 0.1, 1: 0.2, 2: 0.3}
    assert point.mean == pytest.approx(0.2)
    assert point.interval is not None
    assert (point.interval.low, point.interval.high) == pytest.approx((0.2 - HALF, 0.2 + HALF), abs=1e-5)


def test_equal_trainings_have_no_interval() -> None:
    assert at(over_fc().lines[0].points, 64).interval is None


def test_differences_are_paired_by_seed() -> None:
    first, other = over_fc().lines
    assert first.differences == ()
    point = at(other.differences, 4)
    assert point.each == pytest.approx({0: 0.1, 1: 0.0, 2: 0.2})
    assert point.mean == pytest.approx(0.1)
    assert point.interval is not None
    assert (point.interval.low, point.interval.high) == pytest.approx((0.1 - HALF, 0.1 + HALF), abs=1e-5)


def test_a_seed_that_one_line_lacks_is_in_no_difference() -> None:
    assert at(over_fc().lines[1].differences, 64).each == pytest.approx({0: 0.1, 1: 0.2})


def test_trainings_on_other_test_images_are_not_paired() -> None:
    found = [
        replace(
            each, record=recorded({"contents": {"test": each.line}, "seed": each.record.seed if each.record else 0})
        )
        for each in FOUND
    ]
    assert over_fc(found=found).lines[1].differences == ()


def test_test_classes_of_each_training_are_told_from_shared_ones() -> None:
    own = [
        replace(
            each, record=recorded({"contents": {"test": str(each.seed)}, "seed": each.seed, "experiment": each.name})
        )
        for each in FOUND
    ]
    assert (over_fc().own_classes, over_fc(found=own).own_classes) == (False, True)


def test_a_training_without_a_valid_number_leaves_no_mean_and_says_why() -> None:
    view = over_fc([replace(SCORES[0], value=None, notes=("not finite",)), *SCORES[1:]])
    point = at(view.lines[0].points, 4)
    assert (point.mean, point.interval, point.each) == (None, None, {1: 0.2, 2: 0.3})
    assert view.notes == ("a4s0: not valid: R@1 fc6: not finite",)


def test_each_run_is_drawn_at_its_last_epoch() -> None:
    earlier = [replace(score, epoch=2, value=0.9) for score in SCORES]
    assert over_fc([*earlier, *SCORES]).lines == over_fc().lines
    view = over_fc([*earlier, *SCORES], options=replace(KEY, epoch=2))
    assert at(view.lines[0].points, 4).mean == pytest.approx(0.9)
    assert view.epochs == (2,)


def test_trainings_of_one_point_that_end_at_other_epochs_are_named() -> None:
    view = over_fc([replace(SCORES[0], epoch=2), *SCORES[1:]])
    assert view.notes == ("trainings of one point have other last epochs: a4s0 (2), a4s1 (3), a4s2 (3)",)


def test_the_embedding_is_drawn_and_other_layers_are_on_request() -> None:
    both = [with_layer(score, layer=layer) for score in SCORES for layer in ("pool5", "fc6")]
    fc6 = RankedLayer(LayerKey("fc6", "none"), "none", "cosine")
    trained = TrainingScores(FOUND, both, embeddings={each.name: fc6 for each in FOUND})
    assert [line.layer for line in scores_over_key(trained, KEY, "net.fc").lines] == ["fc6", "fc6"]
    asked = scores_over_key(trained, replace(KEY, layers=("*",)), "net.fc")
    assert [(line.name, line.layer) for line in asked.lines] == [
        ("a", "pool5"), ("a", "fc6"), ("b", "pool5"), ("b", "fc6"),
    ]  # fmt: skip


def test_embeddings_of_several_names_are_one_line() -> None:
    layers = {"4": "pool5", "6": "fc6"}  # by the first digit of the dimension
    scores = [with_layer(score, layer=layers[score.run[1]]) for score in SCORES]
    embeddings = {score.run: score.ranked for score in scores}
    view = scores_over_key(TrainingScores(FOUND, scores, embeddings=embeddings), KEY, "net.fc")
    assert [(line.layer, len(line.points)) for line in view.lines] == [("embedding", 2), ("embedding", 2)]


def test_recall_is_over_k_without_differences() -> None:
    found = [each for each in FOUND if each.place == 4]
    scores = [
        replace(score, metric=f"R@{k}", value=(score.value or 0) * factor)
        for score in SCORES
        for k, factor in ((1, 1), (2, 1.5))
    ]
    others = [replace(score, metric=metric, value=0.0) for score in SCORES for metric in ("NMI", "R@4(G=9)")]
    view = recall_at_k(TrainingScores(found, [*scores, *others]), PlotOptions())
    assert (view.places, view.axis, view.measure) == ((1, 2), "K", "R@K")
    assert [point.mean for point in view.lines[0].points] == pytest.approx([0.2, 0.3])
    assert all(line.differences == () for line in view.lines)


def logged(cache: Path, losses: Mapping[str, list[float]]) -> dict[str, Run]:
    runs = {name: Run(cache / name) for name in losses}
    for name, run in runs.items():
        run.folder.mkdir()
        lines = [json.dumps({"epoch": i, "loss": loss, "images": 8}) for i, loss in enumerate(losses[name], 1)]
        run.training_log_file.write_text("\n".join(lines) + "\n")
    return runs


def test_the_loss_is_that_of_the_last_epoch(tmp_path: Path) -> None:
    found = [each for each in FOUND if each.line == "a" and each.place == 4]
    runs = logged(tmp_path, {"a4s0": [9.0, 1.1], "a4s1": [9.0, 1.2], "a4s2": [9.0, 1.3]})
    view = losses_over_key(TrainingScores(found, ()), runs, replace(KEY, metric="loss"), "net.fc")
    (line,) = view.lines
    assert line.points[0].mean == pytest.approx(1.2)
    assert (line.layer, view.split, view.epochs) == ("", "train", (2,))
    first = losses_over_key(TrainingScores(found, ()), runs, replace(KEY, metric="loss", epoch=1), "net.fc")
    assert first.lines[0].points[0].mean == 9.0


def test_a_loss_that_is_not_finite_is_no_number(tmp_path: Path) -> None:
    runs = logged(tmp_path, {"a4s0": [math.nan]})
    view = losses_over_key(TrainingScores(FOUND[:1], ()), runs, KEY, "net.fc")
    assert (view.lines[0].points[0].mean, view.notes) == (None, ("a4s0: not valid: loss: not finite",))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (None, "no epoch has been trained yet"),
        ("[1]\n", "not the log of a training"),
        ("{", "not the log"),
        ('{"epoch": 1}', "not the log"),
    ],
)
def test_a_missing_or_damaged_log_is_told(text: str | None, fault: str, tmp_path: Path) -> None:
    run = Run(tmp_path / "a4s0")
    run.folder.mkdir()
    if text is not None:
        run.training_log_file.write_text(text)
    with pytest.raises(DataError, match=fault):
        losses_over_key(TrainingScores(FOUND[:1], ()), {"a4s0": run}, KEY, "net.fc")


def test_without_scores_of_the_metric_it_says_to_probe() -> None:
    with pytest.raises(DataError, match="no scores of NMI on test. Run layerprobe probe --splits test --metrics NMI"):
        over_fc(options=replace(KEY, metric="NMI"))


def run_of(cache: Path, name: str, seed: int = 0, contents: str = "", **keys: Any) -> Run:
    """A run whose recipe has some keys; `net__fc` is net.fc."""
    recipe: dict[str, dict[str, Any]] = {"train": {"epochs": 1, "seed": seed, "keep": name}, "data": {"root": name}}
    for key, value in keys.items():
        section, _, own = key.partition("__")
        recipe.setdefault(section, {})[own] = value
    experiment = str(sorted(keys.items()))
    run = Run(cache / name)
    found = {"test": contents} if contents else {}
    run.folder.mkdir(parents=True)
    run.write(recorded({"recipe": recipe, "seed": seed, "experiment": experiment, "contents": found}))
    return run


def lines_of(runs: list[Run], key: str | None) -> Mapping[str, tuple[str, float | str | None]]:
    return {each.name: (each.line, each.place) for each in place_runs(runs, key, None)[0]}


def test_a_line_is_named_by_the_keys_that_differ_besides_the_axis_and_the_seed(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, f"{loss}{fc}s{seed}", seed, loss__name=loss, net__fc=[fc])
        for loss in ("softmax", "triplet")
        for fc in (4, 64)
        for seed in (0, 1)
    ]
    found = lines_of(runs, "net.fc")
    assert found["softmax4s0"] == found["softmax4s1"] == ("loss.name=softmax", 4)
    assert found["triplet64s1"] == ("loss.name=triplet", 64)
    assert lines_of(runs, None)["triplet64s0"] == ("loss.name=triplet, net.fc=64", None)


def test_a_key_with_the_seeds_value_belongs_to_the_seed(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, f"s{seed}", seed, net__fc=[4], data__class_seed=seed) for seed in (0, 1)]
    assert set(lines_of(runs, "net.fc").values()) == {("", 4)}
    other = run_of(tmp_path, "other", 2, net__fc=[4], data__class_seed=0)
    assert lines_of([*runs, other], "net.fc")["s1"] == ("data.class_seed=1", 4)


def test_options_of_a_loss_are_not_named_beside_it_and_other_implied_keys_are_a_note(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, "a", loss__name="triplet", loss__margin=0.2, train__learning_rate=0.1, net__fc=[4]),
        run_of(tmp_path, "b", loss__name="softmax", train__learning_rate=0.01, net__fc=[4]),
    ]
    found, notes = place_runs(runs, "net.fc", None)
    assert [each.line for each in found] == ["loss.name=triplet", "loss.name=softmax"]
    assert notes == ("These keys differ as well: train.learning_rate.",)
    assert differing_keys(runs) == ["loss.name"]


def test_lines_with_names_keep_them(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, name, net__fc=[fc]) for name, fc in (("a", 4), ("b", 8))]
    found, notes = place_runs(runs, "net.fc", {"a": "ours", "b": "theirs"})
    assert ([each.line for each in found], notes) == (["ours", "theirs"], ())


def test_a_run_without_the_key_is_left_out_with_a_note(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "a", loss__margin=0.2), run_of(tmp_path, "b", net__fc=[4])]
    found, notes = place_runs(runs, "loss.margin", None)
    assert [each.name for each in found] == ["a"]
    assert notes == ("left out, without loss.margin: b",)


def test_a_key_that_no_run_has_names_the_nearest_one(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "a", net__fc=[4]), run_of(tmp_path, "b", net__fc=[8])]
    with pytest.raises(UnknownNameError, match="unknown key 'net.fcc'. Did you mean 'net.fc'"):
        place_runs(runs, "net.fcc", None)


def test_two_runs_of_one_recipe_and_seed_are_refused(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, name, net__fc=[4]) for name in ("a", "b")]
    with pytest.raises(RecipeError, match="a and b have the same recipe and seed. Leave one of them out"):
        place_runs(runs, "net.fc", None)


def test_runs_of_one_recipe_on_other_images_are_lines_under_their_own_names(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, name, contents=name, net__fc=[4]) for name in ("a", "b")]
    found, notes = place_runs(runs, None, None)
    assert [each.line for each in found] == ["a", "b"]
    assert notes == ("a and b have one recipe, but other test images: no seeds of one experiment",)


def test_a_run_without_a_record_is_a_line_under_its_own_name(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, "a", net__fc=[4]), Run(tmp_path / "b")]
    assert lines_of(runs, None) == {"a": ("", None), "b": ("b", None)}


@pytest.mark.parametrize(
    ("value", "place"),
    [([64], 64), ([], "none"), (None, "none"), ([64, 32], "[64, 32]"), (0.5, 0.5), (True, "true"), ("adam", "adam")],
)
def test_a_list_of_one_number_is_the_number_and_an_empty_one_none(value: Any, place: float | str) -> None:
    assert place_of(value) == place


def test_numbers_ascend_and_are_texts_beside_a_text() -> None:
    assert list(places_in_order([64, 4, 16]).values()) == [4, 16, 64]
    assert list(places_in_order([64, "none", 4]).values()) == ["none", "4", "64"]
    assert list(places_in_order(["triplet", "softmax"]).values()) == ["triplet", "softmax"]


def test_the_name_of_a_line_has_no_brackets() -> None:
    assert line_name({"loss.name": "softmax", "net.fc": [64]}) == "loss.name=softmax, net.fc=64"


def losses_of(run: Run) -> list[float]:
    return [json.loads(line)["loss"] for line in run.training_log_file.read_text().splitlines()]


def copied(run: Run, folder: Path) -> Run:
    shutil.copytree(run.folder, folder / run.name)
    return Run(folder / run.name)


def test_the_losses_are_those_of_the_log_with_recall_of_the_embedding_on_test(toy: Toy) -> None:
    run = toy("bn")
    found = training_losses([run], scores_of([run]))
    losses = [(score.epoch, score.value) for score in found if score.metric == "training loss"]
    assert losses == list(enumerate(losses_of(run), start=1))
    recalls = {
        (s.epoch, s.value) for s in run.scores() if (s.split, s.ranked.layer.layer, s.metric) == ("test", "fc6", "R@1")
    }
    assert {(score.epoch, score.value) for score in found if score.metric == "R@1"} == recalls
    assert len(recalls) == 3


def test_trainings_of_one_experiment_are_their_mean_with_the_range(toy: Toy) -> None:
    runs = [toy("bn"), toy("bn-s1", "train.seed=1")]
    found = StoredRuns(runs, scores_of(runs)).losses()
    last = next(score for score in found if (score.metric, score.epoch) == ("training loss", 2))
    ends = sorted(losses_of(run)[1] for run in runs)
    assert (last.low, last.high) == tuple(ends)
    assert last.value == pytest.approx(sum(ends) / 2)
    assert last.run == "bn* (2 seeds)"


def test_a_run_that_was_not_probed_has_its_loss_drawn(toy: Toy, tmp_path: Path) -> None:
    run = copied(toy("bn"), tmp_path)
    run.scores_file.unlink()
    rows = list(csv.DictReader(draw_plot("loss", [run]).csv.splitlines()))
    assert [float(row["value"]) for row in rows] == losses_of(run)


def test_a_run_without_a_training_has_no_loss(toy: Toy) -> None:
    run = toy("frozen", "train.epochs=0")
    with pytest.raises(DataError, match="frozen was measured only, not trained here.* Name a run of layerprobe train"):
        draw_plot("loss", [run])


LEARNT = ("loss.variant=LN", "loss.scale=8", "loss.learn_scale=true")


def stored_mean(run: Run, epoch: int, name: str) -> float:
    return float(load_file(run.checkpoint_file(epoch))[f"loss.{name}"].double().mean())


def test_a_learnt_alpha_is_that_of_each_checkpoint(toy: Toy) -> None:
    run = toy("learnt", *LEARNT)
    (first, *others) = learnt_parameters([run])
    assert (first.epoch, first.value, first.metric) == (0, 8.0, "scale: alpha, 1 / temperature")
    assert [(score.epoch, score.value) for score in others] == [(e, stored_mean(run, e, "scale")) for e in (1, 2)]
    assert len({score.value for score in (first, *others)}) == 3


def test_the_boundaries_of_margin_are_their_mean(toy: Toy) -> None:
    run = toy("margin", "loss.name=margin", "train.images_per_class=2")
    found = learnt_parameters([run])
    assert found[-1].value == pytest.approx(stored_mean(run, 2, "beta"))
    assert {score.metric for score in found} == {"beta, a distance: mean over the classes"}


def test_where_only_the_last_checkpoint_is_kept_the_start_and_the_end_are_drawn(toy: Toy) -> None:
    run = toy("last", *LEARNT, "train.keep=last")
    found = draw_plot("learnt", [run])
    rows = list(csv.DictReader(found.csv.splitlines()))
    assert [(row["epoch"], float(row["value"])) for row in rows] == [("0", 8.0), ("2", stored_mean(run, 2, "scale"))]
    told = " ".join(found.figure.texts[-1].get_text().split())
    assert "epochs 0 and 2 alone; train with train.keep = all for the others" in told


def test_a_loss_that_learns_none_is_told(toy: Toy) -> None:
    with pytest.raises(RecipeError, match=r"bn: its loss heated_softmax learns no number .*loss.learn_scale = true"):
        draw_plot("learnt", [toy("bn")])
    with pytest.raises(RecipeError, match="plot learnt has no option --epoch. Leave it out"):
        draw_plot("learnt", [toy("bn")], PlotOptions(epoch=1))
