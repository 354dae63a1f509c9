from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
import torch
from matplotlib.text import Text

import layerprobe
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.tables.formats import as_text
from layerprobe.values.scores import COLUMNS
from layerprobe.workflow.python.probed import Probed
from layerprobe.workflow.run.facts import score_tables
from layerprobe.workflow.run.runs import Run
from tests.workflow.python.test_probe_model import TEST, TRAIN, small_model


@pytest.fixture(scope="module")
def result() -> Probed:
    splits = {"train": TRAIN, "test": TEST}
    return layerprobe.probe(small_model(), splits, pools=("max", "avg"), ks=(1, 2), metrics=["NMI"])


def test_the_table_is_that_of_the_command_line(result: Probed) -> None:
    lines = str(result.table()).splitlines()
    assert lines[:3] == [
        "Sequential, weights as given, R@1 in %, cosine",
        "train: 8 queries, 3 classes, chance R@1 25.0 %",
        "test: 9 queries, 3 classes, chance R@1 25.0 %",
    ]
    value = 100 * result.ranks["test", "0.1@avg"].recall(1)
    assert any(re.match(rf"\*? *0.1@avg .* {value:.1f} ", line) for line in lines)
    assert any("NMI" in line for line in lines)


def test_the_frame_has_a_row_for_each_score(result: Probed) -> None:
    frame = result.frame()
    assert list(frame.columns) == list(COLUMNS)
    assert frame["value"].tolist() == [score.value for score in result.scores]


def test_a_notebook_shows_the_tables(result: Probed) -> None:
    shown = result._repr_html_()
    assert shown.count("<table>") == 2
    assert shown == result.table()._repr_html_()
    assert repr(result) == f"Probed(Sequential: 5 layers on train and test, {len(result.scores)} scores)"


def test_the_tables_are_those_of_the_run_that_keeps_the_result(tmp_path: Path) -> None:
    kept = layerprobe.probe(small_model(), {"train": TRAIN, "test": TEST}, ks=(1,), metrics="NMI", cache=tmp_path)
    run = Run(tmp_path / kept.name)
    tables = map(as_text, score_tables(run, run.scores()))
    assert str(kept.table()) == "\n\n".join(tables)


@pytest.mark.parametrize(
    "kind",
    ["layers", "train-vs-test", "curves", "histograms", "spectrum", "det", "cka", "gallery-size", "recall-at-k"],
)
def test_every_plot_is_drawn(result: Probed, kind: str) -> None:
    figure = result.plot(kind)
    texts = {text.get_text() for axes in figure.axes for text in axes.get_xticklabels() + axes.texts}
    assert figure.axes
    assert kind != "layers" or any("output" in text for text in texts)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("loss", "so that it has no loss of its own. Name a run of layerprobe train"),
        ("learnt", "so that it has no loss of its own. Name a run of layerprobe train"),
        ("gradient", "was measured from Python, which keeps no loss. Name a run of softmax"),
    ],
)
def test_plots_of_a_training_are_refused(result: Probed, kind: str, message: str) -> None:
    with pytest.raises(LayerprobeError, match=message):
        result.plot(kind)


def test_features_in_two_dimensions_are_drawn_and_others_refused() -> None:
    means = torch.nn.Sequential(torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(3, 2))
    probed = layerprobe.probe(means, {"train": TRAIN, "test": TEST}, ks=(1,), layers="2")
    assert [axes.get_title(loc="left").splitlines()[-1] for axes in probed.plot("features-2d").axes] == [
        "train",
        "test",
    ]
    with pytest.raises(RecipeError, match=r"has \d+ dimensions, and features-2d draws 2"):
        layerprobe.probe(small_model(), {"test": TEST}, ks=(1,)).plot("features-2d")


def test_another_metric_is_drawn_and_named(result: Probed) -> None:
    said = " ".join(text.get_text() for text in result.plot("layers", "NMI").findobj(Text))
    assert "NMI by layer" in said
    assert "R@1" not in said
    with pytest.raises(DataError, match=r"no scores of MAP@R\. Probe with metrics='MAP@R'"):
        result.plot("layers", "MAP@R")
    with pytest.raises(RecipeError, match="plot cka has no option --metric"):
        result.plot("cka", "NMI")


def test_layers_at_one_dimension_are_drawn_or_how_to_bring_them_there_is_told(result: Probed) -> None:
    with pytest.raises(DataError, match="no layer of epoch 0 is stored at an equal dimension. Probe with post="):
        result.plot("dims")
    post_processed = layerprobe.probe(
        small_model(), {"test": TEST}, ks=(1,), layers="0.1", post=("none", "random:2+l2")
    )
    figure = post_processed.plot("dims")
    assert figure.axes[0].get_title("left").splitlines() == ["Sequential, weights as given", "at 2 dimensions"]
    assert "raw: 6 dimensions" in figure.texts[-1].get_text()


def test_cka_needs_test_images() -> None:
    trained = layerprobe.probe(small_model(), {"train": TRAIN}, ks=(1,))
    with pytest.raises(DataError, match="no layer was probed on the test split. Run layerprobe.probe again"):
        trained.plot("cka")
    with pytest.raises(UnknownNameError, match="unknown plot 'layer'. Did you mean 'layers'"):
        trained.plot("layer")


def test_sizes_of_galleries_need_test_queries() -> None:
    trained = layerprobe.probe(small_model(), {"train": TRAIN}, ks=(1,))
    with pytest.raises(DataError, match="no R@1 on the test split. Run layerprobe.probe again"):
        trained.plot("gallery-size")


def test_panels_need_images_that_a_probe_from_python_does_not_keep(result: Probed) -> None:
    with pytest.raises(
        DataError, match="measured from Python, which keeps no images. Probe it by layerprobe probe --model"
    ):
        result.plot("panels")


def test_a_probe_from_python_has_no_recipe_with_a_key(result: Probed) -> None:
    with pytest.raises(RecipeError, match="plot over-key needs a key of the recipe. Name runs that differ"):
        result.plot("over-key")


def test_a_layer_is_read_by_split_and_name(result: Probed) -> None:
    assert result.ranks["test", "output"] is result.ranks["test", "output@none"]
    assert result.features["train", "0.0@avg"].shape == (8, 4)
    with pytest.raises(RecipeError, match="0.0 names several layers. Choose one of 0.0@max, 0.0@avg"):
        result.features["test", "0.0"]
    with pytest.raises(UnknownNameError, match="unknown split 'tset'. Did you mean 'test'"):
        result.ranks["tset", "output"]
    with pytest.raises(UnknownNameError, match="unknown layer 'outptu'"):
        result.ranks["test", "outptu"]
    assert ("test", "outptu") not in result.ranks
    with pytest.raises(RecipeError, match=r"'test' is not a split and a layer. Write \[\"test\", "):
        result.ranks["test"]  # type: ignore[index] # that is the mistake


def test_a_result_is_kept_by_pickle(result: Probed) -> None:
    again = pickle.loads(pickle.dumps(result))
    assert again.scores == result.scores
    assert again.ranks["test", "output"].closer.tolist() == result.ranks["test", "output"].closer.tolist()
