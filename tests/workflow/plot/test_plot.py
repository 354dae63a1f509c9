from __future__ import annotations

import csv
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from layerprobe import store
from layerprobe.plots import cka
from layerprobe.plots import layers as by_layer
from layerprobe.plots.plot import PlotOptions
from layerprobe.registry import PLOTS
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.values.facts import DataFacts, common_chance
from layerprobe.values.intervals import Interval, IntervalKind, SamplingUnits
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.scores import Matrix, Score, ScoreTable, read_scores
from layerprobe.workflow.plot.plot import StoredRuns, draw_plot, plot
from layerprobe.workflow.plot.request import PlotRequest
from layerprobe.workflow.run.experiments import scores_of
from layerprobe.workflow.run.runs import Run
from tests.metrics.oracles import direct_cka
from tests.records import recorded
from tests.scores import with_layer
from tests.workflow.rank_files import FC6 as FC6_RANKED
from tests.workflow.rank_files import POOL5, ranks_of, stored, written

FC6 = LayerKey("fc6", "none")
# Panels need a run whose images can be read (test_panels.py), and others one that was trained (conftest.py).
OF_A_TRAINING = ("loss", "learnt", "features-2d", "gradient")
WITHOUT_IMAGES = [kind for kind in PLOTS if kind not in ("panels", *OF_A_TRAINING)]
DEFAULT = PlotOptions()
OPTIONS = {"over-key": PlotOptions(layers=("*",), key="net.fc")}  # of the kinds that need some

SCORE = Score("one", "abc", 0, 1, "test", RankedLayer(LayerKey("fc6", "none"), "none", "cosine"), "R@1", 0.5, None, 4)


def write_scores(path: Path, scores: Sequence[Score]) -> None:
    table = ScoreTable()
    table.add(scores)
    table.write(path)


def run_with(cache: Path, name: str, splits: dict[str, list[int]]) -> Run:
    """A run with a score for each split, and features with these labels."""
    run = Run(cache / name)
    write_scores(run.scores_file, [replace(SCORE, run=name, split=split) for split in splits])
    for split, labels in splits.items():
        ids = [f"{split}{i}" for i in range(len(labels))]
        columns = store.Columns({FC6: 1}, "cpu", 1)
        key = store.FeatureKey(name, 1, split, "", "", "")
        batch = {FC6: np.zeros((len(labels), 1), np.float32)}
        store.write_features(run.feature_file(1, split), key, store.Rows(np.array(labels), ids), columns, [batch])
    return run


def seeds(cache: Path, names: Sequence[str], more: Mapping[str, Mapping[str, object]] | None = None) -> list[Run]:
    """Runs of one recipe, the first with a score of 0.5 and each with 0.25 more than the one before."""
    runs = [run_with(cache, name, {"test": [0, 0]}) for name in names]
    for seed, run in enumerate(runs):
        known = (
            RECORD
            | {"seed": seed, "epochs_done": 1, "manifests": {"test": "m"}, "contents": {"test": "m"}}
            | dict((more or {}).get(run.name, {}))
        )
        run.write(recorded(known))
        write_scores(run.scores_file, [replace(SCORE, run=run.name, seed=seed, value=0.5 + seed / 4)])
    return runs


def chance_drawn(monkeypatch: pytest.MonkeyPatch, *runs: Run) -> dict[str, float]:
    """The chance levels that the drawing function is given."""
    given: dict[str, float] = {}
    draw = by_layer.draw

    def spy(scores: Sequence[Score], *, data: Mapping[str, DataFacts], **_: object) -> Figure:
        given.update(common_chance(data.values()))
        return draw(scores, data=data)

    monkeypatch.setattr(by_layer, "draw", spy)
    plot(PlotRequest("layers", runs))
    return given


def test_what_means_nothing_for_a_plot_is_refused(tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"test": [0, 0]})
    with pytest.raises(RecipeError, match="plot curves has no option --epoch. Its options are --layers"):
        draw_plot("curves", [run], PlotOptions(epoch=1))


def test_trainings_of_one_experiment_are_drawn_as_one(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ("one-s0", "one-s1"))
    (row,) = csv.DictReader(draw_plot("layers", runs).csv.splitlines())
    assert (row["run"], row["test R@1"], row["test R@1 low"]) == ("one-s* (2 seeds)", "0.625", "0.5")


def test_runs_of_one_recipe_on_other_images_are_drawn_apart_with_a_note(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ("one-s0", "one-s1", "other"), {"other": {"contents": {"test": "others"}}})
    found = draw_plot("layers", runs)
    rows = csv.DictReader(found.csv.splitlines())
    assert [(row["run"], row["test R@1"]) for row in rows] == [("one-s* (2 seeds)", "0.625"), ("other", "1.0")]
    note = "one-s0, one-s1 and other have one recipe, but other test images: no seeds of one experiment"
    assert any(note in " ".join(text.get_text().split()) for text in found.figure.texts)


def test_a_run_whose_record_is_damaged_is_averaged_with_none(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ("one-s0", "one-s1"))
    runs[1].record_file.write_text("{")
    rows = csv.DictReader(draw_plot("layers", runs).csv.splitlines())
    assert [row["run"] for row in rows] == ["one-s0", "one-s1"]


def test_the_embedding_is_what_the_network_gives_to_the_loss_for_runs_and_their_mean(tmp_path: Path) -> None:
    network: dict[str, object] = {
        "layers": ["pool5", "fc6", "fc7"],
        "embedding": ["fc6", "none"],
        "cuts": {},
        "input": None,
        "files": {},
    }
    runs = seeds(tmp_path, ("one-s0", "one-s1"), {name: {"network": network} for name in ("one-s0", "one-s1")})
    for run in runs:
        scores = [with_layer(score, layer=name) for score in run.scores() for name in ("fc6", "fc7")]
        write_scores(run.scores_file, scores)
    embeddings = StoredRuns(runs, scores_of(runs)).embeddings()
    assert {name: str(ranked) for name, ranked in embeddings.items()} == dict.fromkeys(
        ["one-s0", "one-s1", "one-s* (2 seeds)"], "fc6"
    )
    runs[0].record_file.write_text("{")
    assert list(StoredRuns(runs, scores_of(runs)).embeddings()) == ["one-s1"]


def test_an_epoch_without_scores_is_told(tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"test": [0, 0]})
    with pytest.raises(RecipeError, match="no scores of epoch 7. Known: 1"):
        draw_plot("layers", [run], PlotOptions(epoch=7))


def test_the_layers_asked_for_are_drawn(tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"test": [0, 0]})
    write_scores(
        run.scores_file,
        [with_layer(SCORE, layer=name) for name in ("pool5.2", "pool5.3", "fc6")],
    )
    figure = draw_plot("layers", [run], PlotOptions(layers=("pool5.*",))).figure
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["pool5.2", "pool5.3"]


def test_curves_of_one_epoch_are_drawn_by_layer_and_that_is_told(tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"test": [0, 0]})
    write_scores(
        run.scores_file,
        [with_layer(SCORE, layer=name) for name in ("pool5.2", "pool5.3", "fc6")],
    )
    drawing, other = (draw_plot(kind, [run]) for kind in ("curves", "layers"))
    (axes,) = drawing.figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["pool5.2", "pool5.3", "fc6"]
    assert "One epoch only (1): by layer instead of over epochs." in drawing.figure.texts[0].get_text()
    assert drawing.csv == other.csv


OF_ONE_FILE = {
    "recipe": {"net": {"weights": "/x/own.pth"}, "data": {}},
    "weights_files": [{"path": "/x/own.pth", "part": None, "sha256": "0", "size": 3, "epoch": 0}],
    "epochs_done": 0,
}


def test_curves_name_the_weights_of_one_file_instead_of_an_epoch(tmp_path: Path) -> None:
    run, trained = (run_with(tmp_path, name, {"test": [0, 0]}) for name in ("one", "trained"))
    run.write(recorded(RECORD | OF_ONE_FILE))
    write_scores(trained.scores_file, [replace(SCORE, run="trained", epoch=epoch) for epoch in (1, 2)])
    alone, beside = (draw_plot("curves", runs).figure.texts[0].get_text() for runs in ([run], [run, trained]))
    assert "One epoch only (weights of own.pth): by layer instead of over epochs." in " ".join(alone.split())
    assert "one: one epoch only (weights of own.pth), no curves; plot layers shows it." in " ".join(beside.split())


def test_cka_names_the_weights_of_one_file_instead_of_an_epoch(tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"test": [0, 0, 1, 1]})
    run.write(recorded(RECORD | OF_ONE_FILE))
    (panel, *_) = draw_plot("cka", [run]).figure.axes
    assert panel.get_title(loc="left") == "one, test:\nlinear CKA of the layers with weights of own.pth"


def test_a_run_of_one_epoch_is_left_out_of_the_curves_of_another_and_named(tmp_path: Path) -> None:
    run, frozen = (run_with(tmp_path, name, {"test": [0, 0]}) for name in ("one", "frozen"))
    write_scores(run.scores_file, [replace(SCORE, epoch=epoch) for epoch in (1, 2)])
    figure = draw_plot("curves", [run, frozen]).figure
    (axes,) = figure.axes
    assert axes.get_xlabel() == "epoch"
    note = "frozen: one epoch only (1), no curves; plot layers shows it."
    assert note in " ".join(figure.texts[0].get_text().split())


def test_chance_is_that_of_the_stored_labels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"train": [0, 0, 1, 1], "test": [0, 0, 0, 1, 1, 1]})
    # another of the class among the others: 1 of 3, and 2 of 5
    assert chance_drawn(monkeypatch, run) == pytest.approx({"train": 1 / 3, "test": 2 / 5})


def test_a_split_of_the_second_run_alone_has_its_chance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first, second = (run_with(tmp_path, name, {split: [0, 0, 1, 1]}) for name, split in (("a", "test"), ("b", "train")))
    assert chance_drawn(monkeypatch, first, second) == pytest.approx({"test": 1 / 3, "train": 1 / 3})


def test_runs_on_other_data_have_no_common_chance(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = run_with(tmp_path, "a", {"test": [0, 0, 1, 1]})
    second = run_with(tmp_path, "b", {"test": [0, 0, 0, 1, 1, 1]})
    assert chance_drawn(monkeypatch, first, second) == {}


def test_a_run_without_scores_says_to_probe(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no scores yet. Run layerprobe probe one"):
        plot(PlotRequest("curves", [Run(tmp_path / "one")]))


def test_an_unknown_plot_has_the_near_miss(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown plot 'curve'. Did you mean 'curves'"):
        plot(PlotRequest("curve", [Run(tmp_path / "one")]))


def test_another_suffix_names_the_three_and_writes_nothing(tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"test": [0, 0, 1, 1]})
    with pytest.raises(LayerprobeError, match="Name it .png, .pdf or .svg"):
        plot(PlotRequest("curves", [run], tmp_path / "x.gif"))
    assert not list(tmp_path.glob("*.gif*"))


LAYERS = (LayerKey("pool5.3", "max"), FC6)
Features = dict[int, dict[LayerKey, NDArray[np.float32]]]


def probed(cache: Path, features: Features, *, name: str = "one", ids: str = "image") -> Run:
    """A run probed on the test split at some epochs and layers: half of the queries hit."""
    run = Run(cache / name)
    scores = []
    for epoch, layers in features.items():
        hits = {RankedLayer(layer, "none", "cosine"): ranks_of([0.0, 1.0] * 10) for layer in layers}
        scores += stored(run, epoch, "test", hits, labels=np.arange(20) % 4)
        rows = store.Rows(np.arange(20) % 4, [f"{ids}{i}" for i in range(20)])
        columns = store.Columns({layer: values.shape[1] for layer, values in layers.items()}, "cpu", 1)
        key_of = store.FeatureKey(name, epoch, "test", "", "", "")
        store.write_features(run.feature_file(epoch, "test"), key_of, rows, columns, [layers])
    write_scores(run.scores_file, scores)
    return run


def of_epochs(*epochs: int) -> Features:
    rng = np.random.default_rng(0)
    return {epoch: {layer: rng.normal(size=(20, 3)).astype(np.float32) for layer in LAYERS} for epoch in epochs}


def on_both(run: Run) -> Run:
    """The run with the scores and features of its test split for the training split, too."""
    scores = read_scores(run.scores_file)
    for epoch in {score.epoch for score in scores}:
        shutil.copy(run.feature_file(epoch, "test"), run.feature_file(epoch, "train"))
    write_scores(run.scores_file, [*(replace(score, split="train") for score in scores), *scores])
    return run


def at_one_dimension(run: Run) -> Run:
    """The run with its scores once more, after PCA to two dimensions."""
    scores = read_scores(run.scores_file)
    write_scores(
        run.scores_file,
        [*scores, *(with_layer(score, post_processing="l2+pca:2+l2") for score in scores)],
    )
    return run


def ready(kind: str, run: Run) -> Run:
    """The run with what a plot needs beside the scores and features of test."""
    if kind in ("det", "over-key"):
        run.write(recorded(RECORD))
    return at_one_dimension(on_both(run)) if kind == "dims" else on_both(run)


def matrices_drawn(monkeypatch: pytest.MonkeyPatch, *runs: Run) -> list[Matrix]:
    given: list[Matrix] = []
    draw = cka.draw

    def spy(matrices: Sequence[Matrix], *, data: Mapping[str, DataFacts]) -> Figure:
        given.extend(matrices)
        return draw(matrices, data=data)

    monkeypatch.setattr(cka, "draw", spy)
    assert plot(PlotRequest("cka", runs)) == runs[0].plot_file("cka")
    assert runs[0].plot_file("cka").read_bytes().startswith(b"\x89PNG")
    return given


def test_layers_and_epochs_are_compared_by_their_stored_features(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    features = of_epochs(0, 3)
    layers, epochs = matrices_drawn(monkeypatch, probed(tmp_path, features))
    assert layers.rows == layers.columns == epochs.rows == ("pool5.3@max", "fc6")
    assert epochs.columns == ("0", "3")
    pool, fc = (features[3][layer] for layer in LAYERS)
    assert layers.values[0][1] == pytest.approx(direct_cka(pool, fc), abs=1e-10)
    assert epochs.values[1][0] == pytest.approx(direct_cka(features[0][FC6], fc), abs=1e-10)
    assert (layers.run, layers.split) == (epochs.run, epochs.split) == ("one", "test")


# What reading run.json asks for.
RECORD = {
    "state": "finished", "recipe_name": "netA", "recipe": {"net": {"fc": [8]}}, "experiment": "abc", "seed": 0,
    "epochs_done": 1, "hashes": {}, "manifests": {}, "new_parameters": [],
}  # fmt: skip


@pytest.mark.parametrize("kind", WITHOUT_IMAGES)
def test_every_plot_has_the_networks_order_whatever_was_measured_first(kind: str, tmp_path: Path) -> None:
    first = LayerKey("conv", "max")
    late = of_epochs(0, 1)
    late[1][first] = np.random.default_rng(1).normal(size=(20, 3)).astype(np.float32)  # probed at the last epoch alone
    run = ready(kind, probed(tmp_path, late))
    scores = read_scores(run.scores_file)
    assert scores[0].ranked.layer.layer != "conv"
    run.write(recorded(RECORD | {"layer_order": ["conv", "pool5.3", "fc6"]}))
    column = "row" if kind == "cka" else "layer"
    rows = [row[column] for row in csv.DictReader(draw_plot(kind, [run], OPTIONS.get(kind, DEFAULT)).csv.splitlines())]
    whole = ("cka", "over-key", "recall-at-k")
    names = ["conv@max", "pool5.3@max", "fc6"] if kind in whole else ["conv", "pool5.3", "fc6"]
    assert list(dict.fromkeys(rows)) == names


@pytest.mark.parametrize("record", [RECORD, {"no": "record"}])
def test_a_run_without_a_layer_order_has_that_of_its_scores(record: dict[str, object], tmp_path: Path) -> None:
    run = probed(tmp_path, of_epochs(0))
    run.write(recorded(record))
    assert [score.ranked.layer.layer for score in run.scores()] == ["pool5.3", "fc6"]


def test_runs_on_other_images_of_the_same_names_are_not_compared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = [probed(tmp_path, of_epochs(0), name=name) for name in ("one", "two")]
    for run in runs:
        run.write(recorded(RECORD | {"contents": {"test": f"of {run.name}"}}))
    matrices = matrices_drawn(monkeypatch, *runs)
    assert [matrix.run for matrix in matrices] == ["one", "two"]
    assert "not compared with two, which has other test images" in matrices[0].notes


def test_every_run_is_compared_with_itself_and_with_the_others(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    features = of_epochs(0), of_epochs(0, 1, 2)
    first, second = probed(tmp_path, features[0]), probed(tmp_path, features[1], name="two")
    *own, between = matrices_drawn(monkeypatch, first, second)
    assert [(matrix.run, len(matrix.columns)) for matrix in own] == [("one", 2), ("two", 2), ("two", 3)]
    assert between.values[0][1] == pytest.approx(direct_cka(features[0][0][LAYERS[0]], features[1][2][FC6]), abs=1e-10)
    assert (between.row_axis, between.column_axis) == ("layer of one, epoch 0", "layer of two, epoch 2")


def test_runs_with_other_test_images_are_not_compared_and_that_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, second = probed(tmp_path, of_epochs(0)), probed(tmp_path, of_epochs(0), name="two", ids="photo")
    given = matrices_drawn(monkeypatch, first, second)
    assert [matrix.run for matrix in given] == ["one", "two"]
    assert [matrix.notes for matrix in given] == [("not compared with two, which has other test images",), ()]


def test_only_what_is_stored_as_features_is_compared(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = probed(tmp_path, of_epochs(0, 1))
    other = replace(SCORE, run="one", epoch=1)
    scores = [
        *read_scores(run.scores_file),
        with_layer(other, layer="pool5.3+fc6"),
        with_layer(other, layer="fc7", post_processing="l2"),
        replace(with_layer(other, layer="fc8"), split="train"),
        replace(other, epoch=9, split="train"),
    ]
    write_scores(run.scores_file, scores)
    layers, epochs = matrices_drawn(monkeypatch, run)
    assert (layers.rows, epochs.columns) == (("pool5.3@max", "fc6"), ("0", "1"))


def test_an_epoch_whose_features_are_gone_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = probed(tmp_path, of_epochs(0, 1, 2))
    run.feature_file(1, "test").unlink()
    assert matrices_drawn(monkeypatch, run)[1].columns == ("0", "2")


def test_without_the_last_epochs_features_it_says_to_probe(tmp_path: Path) -> None:
    run = probed(tmp_path, of_epochs(0, 1))
    run.feature_file(1, "test").unlink()
    with pytest.raises(DataError, match=r"epoch-0001.test.h5: no such feature file. Run layerprobe probe .*first"):
        plot(PlotRequest("cka", [run]))
    assert not run.plot_file("cka").exists()


def test_features_of_other_images_are_not_compared(tmp_path: Path) -> None:
    features = of_epochs(0, 1)
    probed(tmp_path, features, ids="photo")
    newer = probed(tmp_path / "new", features)
    newer.feature_file(1, "test").replace(Run(tmp_path / "one").feature_file(1, "test"))
    with pytest.raises(
        DataError, match=r"epoch-0000.test.h5: other images than those of epoch 1. Run layerprobe probe one .* again"
    ):
        plot(PlotRequest("cka", [Run(tmp_path / "one")]))


def test_a_run_probed_on_the_training_split_alone_has_nothing_to_compare(tmp_path: Path) -> None:
    run = run_with(tmp_path, "one", {"train": [0, 0, 1, 1]})
    with pytest.raises(
        DataError, match="one: no layer was probed on the test split. Run layerprobe probe one --splits test"
    ):
        plot(PlotRequest("cka", [run]))


@pytest.mark.parametrize("kind", WITHOUT_IMAGES)
def test_figure_and_table_say_what_every_score_says(kind: str, tmp_path: Path) -> None:
    run = ready(kind, probed(tmp_path, of_epochs(0, 1)))
    write_scores(
        run.scores_file,
        [replace(score, notes=("partial: 9 of 10 test images",)) for score in read_scores(run.scores_file)],
    )
    found = draw_plot(kind, [run], OPTIONS.get(kind, DEFAULT))
    assert "partial: 9 of 10 test images" in found.figure.texts[-1].get_text().splitlines()
    rows = list(csv.DictReader(found.csv.splitlines()))
    assert list(rows[0])[-1].endswith("note")
    assert all("partial: 9 of 10 test images" in next(reversed(row.values())) for row in rows)


def test_what_scores_say_of_their_intervals_is_not_said_of_cka(tmp_path: Path) -> None:
    run = probed(tmp_path, of_epochs(0, 1))
    units = SamplingUnits(IntervalKind(), 6)
    scores = [replace(score, notes=("partial",), units=units) for score in read_scores(run.scores_file)]
    write_scores(run.scores_file, scores)
    rows = csv.DictReader(draw_plot("cka", [run]).csv.splitlines())
    assert {row["note"] for row in rows} == {"partial"}


@pytest.mark.parametrize("kind", WITHOUT_IMAGES)
def test_a_figure_can_be_had_without_a_file(kind: str, tmp_path: Path) -> None:
    run = ready(kind, probed(tmp_path, of_epochs(0, 1)))
    before = sorted(tmp_path.rglob("*"))
    assert isinstance(draw_plot(kind, [run], OPTIONS.get(kind, DEFAULT)).figure, Figure)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_table_has_the_similarities(tmp_path: Path) -> None:
    run = probed(tmp_path, of_epochs(0, 1))
    plot(PlotRequest("cka", [run], csv=tmp_path / "x.csv"))
    lines = (tmp_path / "x.csv").read_text().splitlines()
    assert lines[0] == "run,split,comparison,row,column,value,note"
    assert len(lines) == 1 + 4 + 4


def test_a_plot_that_names_the_best_layer_names_those_not_told_apart_from_it(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    hits = [float(query != 3) for query in range(24)]
    scores = stored(run, 1, "test", {POOL5: ranks_of([*hits[:-1], 0.0]), FC6_RANKED: ranks_of(hits)})
    written(run, [replace(score, interval=Interval(0.5, 1.0)) for score in scores])
    texts = [text.get_text() for text in draw_plot("layers", [run]).figure.texts]
    assert "best: fc6; not significantly different: pool5" in texts[0]


def test_a_plot_over_a_key_without_one_names_those_that_differ(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ("one", "two"), {"two": {"recipe": {"net": {"fc": [16]}}, "experiment": "other"}})
    with pytest.raises(RecipeError, match="needs a key of the recipe. Add --key KEY; the runs differ in net.fc"):
        draw_plot("over-key", runs)


def test_runs_are_drawn_over_a_key_by_the_lines_of_a_request_with_its_note(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ("one", "two"), {"two": {"recipe": {"net": {"fc": [16]}}, "experiment": "other"}})
    request = PlotRequest("over-key", runs, csv=tmp_path / "x.csv", options=PlotOptions(key="net.fc"), note="a note")
    plot(replace(request, lines={"one": "ours", "two": "ours"}))
    rows = [row for row in csv.DictReader((tmp_path / "x.csv").read_text().splitlines()) if row["seed"] == "all"]
    assert [(row["line"], row["net.fc"], row["test R@1"]) for row in rows] == [
        ("ours", "8", "0.5"),
        ("ours", "16", "0.75"),
    ]


def test_the_loss_needs_no_scores_and_other_plots_do_not_know_it(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ("one", "two"))
    for run in runs:
        run.training_log_file.write_text('{"epoch": 1, "loss": 0.5, "images": 8}\n')
        run.scores_file.unlink()
    options = PlotOptions(key="net.fc", metric="loss")
    (mean, *_) = csv.DictReader(draw_plot("over-key", runs, options).csv.splitlines())
    assert (mean["train loss"], mean["n"]) == ("0.5", "2")
    seeds(tmp_path / "others", ("one",))
    with pytest.raises(UnknownNameError, match="unknown metric 'loss'"):
        draw_plot("layers", [Run(tmp_path / "others" / "one")], PlotOptions(metric="loss"))


def test_a_metric_that_is_no_share_is_drawn_over_a_key(tmp_path: Path) -> None:
    runs = seeds(tmp_path, ("one", "two"))
    for run in runs:
        write_scores(run.scores_file, [replace(score, metric="effective-rank", value=9.5) for score in run.scores()])
    options = PlotOptions(key="net.fc", metric="effective-rank")
    axes = draw_plot("over-key", runs, options).figure.axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx([9.5])


def test_an_empty_plot_names_the_run_to_probe_and_its_folder(tmp_path: Path) -> None:
    runs = [run_with(tmp_path, name, {"test": [0, 0]}) for name in ("one", "two")]
    with pytest.raises(DataError) as refused:
        draw_plot("gap", runs)
    commands = "; then ".join(f"run {run.command('probe', '--splits', 'train,test')}" for run in runs)
    assert refused.value.fix == f"R{commands[1:]}"
    assert f"--cache {tmp_path}" in commands
