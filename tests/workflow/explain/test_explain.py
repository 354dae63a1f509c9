from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.values.explanations import ExplainedQuery
from layerprobe.values.layers import RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.workflow.choose.choose_once import choose_once
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.explain.explain import ExplainRequest, explain
from layerprobe.workflow.explain.explain_text import explanation_table, explanation_values, stored_figure
from layerprobe.workflow.run.run_network import run_network
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.workflow.conftest import Silent
from tests.workflow.plot.test_neighbours import C3, FC6, POST_PROCESSED, made
from tests.workflow.rank_files import POOL5, RECORD, first_hit, stored, written

QUERY = "class5/1.png"


@pytest.fixture(scope="module")
def lenet(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    post_process = ("none", "binary", "l2+int8", POST_PROCESSED.post_processing)
    return made(f"folder:{tiny / 'images'}", tmp_path_factory.mktemp("lenet"), layers=("c3", "fc6"), post=post_process)


@pytest.fixture
def probed(lenet: Run, copy_of: Callable[[Run], Run]) -> Run:
    return copy_of(lenet)


def explained(run: Run, *layers: str, query: str | None = QUERY, where: str | None = None) -> ExplainedQuery:
    return explain(ExplainRequest(run, layers or None, query, where), Silent())[0]


def test_what_is_explained_is_the_similarity_that_the_search_found(probed: Run, images: Path) -> None:
    found = explained(probed, "c3", "fc6", f"fc6/{POST_PROCESSED.post_processing}")
    assert [one.explanation.ranked for one in found.neighbours] == [C3, FC6, POST_PROCESSED]
    for one in found.neighbours:
        assert one.explanation.similarity == pytest.approx(one.found.similarity, abs=1e-5)
        for side, image in ((one.explanation.query, found.image), (one.explanation.neighbour, one.image)):
            assert side.pixels.shape == image.shape[:2] == (28, 28)
            assert abs(side.pixels.sum() - side.difference) < 0.011 * max(abs(side.difference), 0.05)
            assert side.random_pixels is not None
    # c3's 10 x 10 places are the last map before fc6
    assert [one.explanation.places_of for one in found.neighbours] == ["c3 (10x10)"] * 3
    shown = np.asarray(Image.open(images / QUERY).resize((28, 28)), np.float64)
    assert np.abs(found.image - shown).mean() < 40


def test_codes_are_explained_by_the_numbers_before_they_are_rounded(probed: Run) -> None:
    codes, plain = explained(probed, "fc6/l2+int8"), explained(probed, "fc6")
    assert "fc6/l2+int8: explained by the numbers before they are rounded, which have gradients" in codes.notes
    (code,), (number,) = codes.neighbours, plain.neighbours
    assert code.found.item.id == number.found.item.id
    np.testing.assert_allclose(code.explanation.query.pixels, number.explanation.query.pixels, atol=1e-5)
    assert code.explanation.query.pixels.any()


def test_the_figure_is_kept_for_the_report(probed: Run) -> None:
    assert stored_figure(probed) is None
    _, path = explain(ExplainRequest(probed, ("fc6",), QUERY), Silent())
    assert path == probed.plot_file("explain")
    assert stored_figure(probed) == path.read_bytes()


def test_the_network_with_random_weights_has_the_seed_after_the_runs(
    probed: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    seeds = []

    def built(run: Run, record: RunRecord, recipe: Recipe) -> Net:
        seeds.append(recipe.train.seed)
        return run_network(run, record, recipe)

    monkeypatch.setattr("layerprobe.workflow.explain.explain.run_network", built)
    found = explained(probed, "fc6")
    assert seeds == [0, 1]
    assert not any("random weights" in note for note in found.notes)


def test_a_rule_chooses_the_query(probed: Run) -> None:
    found = explained(probed, "fc6", query=None, where="class class6")
    assert found.query.name == "class6"
    assert "Queries: class class6, 1 of 4 at random by seed 0" in found.notes


@pytest.mark.parametrize("epochs", [0, 1])
def test_a_network_of_its_own_weights_has_no_check_and_says_so(
    foreign: Callable[..., Run], tmp_path: Path, epochs: int
) -> None:
    mine = tmp_path / "mine.py"
    mine.write_text(mine.read_text().replace("return Mine()", "import torch; torch.manual_seed(0); return Mine()"))
    found = explained(foreign("net.fc=[]", f"train.epochs={epochs}"), "stages.1", query=None)
    assert found.neighbours[0].explanation.query.random_pixels is None
    assert any(note.startswith("No check against random weights: python:") for note in found.notes)


def test_a_function_that_draws_its_weights_has_a_check(foreign: Callable[..., Run]) -> None:
    found = explained(foreign("net.fc=[]"), "stages.1", query=None)
    assert found.neighbours[0].explanation.query.random_pixels is not None


@pytest.mark.parametrize(
    ("layers", "query", "where", "error", "message"),
    [
        (("fc7",), QUERY, None, UnknownNameError, "unknown layer 'fc7'. Did you mean 'fc6'?"),
        (("fc6/binary",), QUERY, None, RecipeError, "fc6/binary cannot be explained. Explain the layer without binary"),
        (("fc6",), "class5/9.png", None, RecipeError, "no image 'class5/9.png' in the test split"),
        (("fc6",), QUERY, "worst", RecipeError, "--query and --where exclude each other"),
        (("fc6",), None, "best", RecipeError, "'best' is not a rule"),
    ],
)
def test_what_cannot_be_explained_is_refused(
    probed: Run,
    layers: tuple[str, ...],
    query: str | None,
    where: str | None,
    error: type[LayerprobeError],
    message: str,
) -> None:
    with pytest.raises(error, match=message.replace("?", r"\?")):
        explained(probed, *layers, query=query, where=where)


def test_a_run_from_python_says_that_it_keeps_no_images(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "test", {POOL5: first_hit(9), FC6: first_hit(6)}), from_python=True)
    with pytest.raises(DataError, match="measured from Python, which keeps no images"):
        explained(run, query=None)


def test_an_ensemble_is_refused(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    run.folder.mkdir()
    run.write(recorded(RECORD | {"members": ["one-m1", "one-m2"]}))
    with pytest.raises(RecipeError, match="one is an ensemble, which has no one network. Explain one of its members"):
        explained(run)


def test_the_table_and_the_values_have_every_side(probed: Run) -> None:
    found = explained(probed, "c3", "fc6")
    table = explanation_table(found)
    assert [row[0] for row in table.rows] == ["c3@max", "", "fc6", ""]
    assert [row[1] for row in table.rows] == ["query", "neighbour"] * 2
    values = explanation_values(found)
    assert [layer["layer"] for layer in values["layers"]] == ["c3@max", "fc6"]
    first = values["layers"][0]
    assert first["item"] == found.neighbours[0].found.item.id
    assert first["query"]["steps"] == int(table.rows[0][4])
    assert first["neighbour"]["steps"] == int(table.rows[1][4])


@pytest.mark.parametrize(
    ("selected", "shown", "without"),
    [
        (f"fc6/{POST_PROCESSED.post_processing}", POST_PROCESSED, ""),
        ("c3/binary", C3, ", explained without its post-processing binary"),
    ],
)
@pytest.mark.usefixtures("switches")
def test_without_layers_the_stored_choice_is_explained_beside_the_embedding(
    selected: str, shown: RankedLayer, without: str, probed: Run
) -> None:
    choice = choose_once([probed], ChooseRequest(device="cpu", layers=(selected,)), Silent())
    listener = Silent()
    found, _ = explain(ExplainRequest(probed), listener)
    assert [one.explanation.ranked for one in found.neighbours] == [shown, FC6]
    assert f"tiny: layer {choice.selected.name} of epoch 0, the stored choice{without}" in listener.heard


def test_a_rule_that_names_layers_is_explained_by_these(probed: Run) -> None:
    choose_once([probed], ChooseRequest(device="cpu", layers=(f"fc6/{POST_PROCESSED.post_processing}",)), Silent())
    found = explained(probed, query=None, where="c3 right, fc6 right")
    assert [one.explanation.ranked for one in found.neighbours] == [C3, FC6]


def test_without_a_stored_choice_the_last_two_layers_are_explained_and_this_is_said(probed: Run) -> None:
    listener = Silent()
    found, _ = explain(ExplainRequest(probed), listener)
    assert [one.explanation.ranked for one in found.neighbours] == [C3, FC6]
    assert (
        f"tiny: no choice is stored: the last two layers are explained; next: {probed.command('choose')}"
        in listener.heard
    )
