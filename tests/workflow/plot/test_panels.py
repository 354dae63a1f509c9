from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from layerprobe import store
from layerprobe.plots.plot import PlotOptions
from layerprobe.system.errors import DataError, NumericError, RecipeError
from layerprobe.values.retrieval import Ranks
from layerprobe.values.views import QueryNeighbours
from layerprobe.workflow.plot.panels import panels_of
from layerprobe.workflow.plot.plot import draw_plot
from layerprobe.workflow.run.runs import Run
from tests.records import recorded
from tests.workflow.plot.test_neighbours import BINARY, C3, FC6, made
from tests.workflow.rank_files import POOL5, ranks_of, stored, written


@pytest.fixture
def probed(images: Path, tmp_path: Path) -> Run:
    # one image of another shape, larger than a figure can show
    Image.new("RGB", (600, 300)).save(images / "class7/3.png")
    return made(f"folder:{images}", tmp_path, layers=("c3", "fc6"), post=("none", "binary"))


def shown(run: Run, options: PlotOptions) -> list[QueryNeighbours]:
    return panels_of([run], run.scores(), options, {})[0]


def ranks(run: Run) -> dict[str, Ranks]:
    kept = store.read_rank_file(run.rank_file(0, "test")).stored
    return {ranked.layer.layer: own for ranked, own in kept.ranks.items() if ranked.post_processing == "none"}


def test_the_last_two_layers_are_shown_where_they_disagree_or_else_at_random(probed: Run) -> None:
    found = shown(probed, PlotOptions())
    kept = store.read_rank_file(probed.rank_file(0, "test")).stored
    of = ranks(probed)
    disagree = {
        name
        for name, right, wrong in zip(kept.ids, of["c3"].closer == 0, of["fc6"].closer > 0, strict=True)
        if right and wrong
    }
    assert [one.ranked for one in found] == [C3, FC6] * (len(found) // 2)
    if disagree:
        assert {one.query.id for one in found} <= disagree
        assert f"Queries: c3@max right, fc6 wrong, all {len(disagree)}" in found[0].notes
    else:
        assert found[0].notes[:2] == (
            "No query has c3@max right, fc6 wrong",
            "Queries: random, 4 of 16 at random by seed 0",
        )


def test_runs_on_other_images_of_the_same_names_are_not_shown_side_by_side(probed: Run) -> None:
    shutil.copytree(probed.folder, probed.folder.with_name("other"))
    other = Run(probed.folder.with_name("other"))
    other.write(recorded(other.read().as_json() | {"contents": {"test": "of other images"}}))
    with pytest.raises(DataError, match="other and tiny have different test images. Compare runs on the same images"):
        panels_of([probed, other], [*probed.scores(), *other.scores()], PlotOptions(), {})


@pytest.mark.parametrize("where", [None, "random"])
def test_ranks_of_other_queries_than_the_runs_are_refused(probed: Run, where: str | None) -> None:
    recipe = probed.read().recipe
    probed.write(recorded(probed.read().as_json() | {"recipe": {**recipe, "data": {**recipe["data"], "queries": 6}}}))
    with pytest.raises(DataError, match="its ranks are of other queries than those of test now. Run layerprobe probe"):
        shown(probed, PlotOptions(where=where))


def test_a_module_that_gives_the_output_is_not_shown_beside_it(foreign: Callable[..., Run]) -> None:
    found = shown(foreign("net.fc=[]"), PlotOptions())
    assert [one.ranked.layer.layer for one in found] == ["stages.1", "output"] * (len(found) // 2)


def test_layers_a_rule_and_a_number_of_queries_are_taken(probed: Run) -> None:
    found = shown(probed, PlotOptions(layers=("fc6", "fc6/binary"), where="class class5", queries=2))
    assert [one.ranked for one in found] == [FC6, BINARY] * 2
    assert {one.query.name for one in found} == {"class5"}
    for one in found:
        assert [each.right for each in one.found] == [each.item.name == "class5" for each in one.found]
        assert one.query not in [each.item for each in one.found]


def test_layers_that_a_rule_names_are_shown(probed: Run) -> None:
    right = [name for name, own in ranks(probed).items() if (own.closer == 0).any()]
    found = shown(probed, PlotOptions(where=f"{right[0]} right", queries=1))
    assert [one.ranked.layer.layer for one in found] == right[:1]
    assert found[0].found[0].right


def test_one_image_is_shown_at_a_size_that_a_figure_can_show(probed: Run) -> None:
    found, image = panels_of([probed], probed.scores(), PlotOptions(query="class7/3.png"), {})
    assert {one.query.id for one in found} == {"class7/3.png"}
    assert image("tiny", "class7/3.png").shape == (128, 256, 3)
    assert image("tiny", "class5/0.png").shape == (20, 20, 3)


def test_what_contradicts_itself_or_finds_nothing_is_told(probed: Run) -> None:
    with pytest.raises(RecipeError, match="--query and --where exclude each other"):
        shown(probed, PlotOptions(query="class7/3.png", where="worst"))
    with pytest.raises(RecipeError, match="no test image at epoch 0: fc6 right, fc6 wrong. Choose another rule"):
        shown(probed, PlotOptions(where="fc6 right, fc6 wrong"))
    with pytest.raises(RecipeError, match="has no epoch 9"):
        shown(probed, PlotOptions(epoch=9))


def test_what_scores_say_of_the_data_is_said_and_nothing_is_written(images: Path, tmp_path: Path) -> None:
    run = made(f"folder:{images}", tmp_path, layers=("c3", "fc6"), settings=("data.validation_classes=0.5",))
    before = sorted(tmp_path.rglob("*"))
    assert shown(run, PlotOptions(queries=1))[0].notes[-1] == "2 of 4 training classes held out for validation"
    assert isinstance(draw_plot("panels", [run]).figure, Figure)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_layer_whose_features_are_not_finite_is_named(tmp_path: Path) -> None:
    run = Run(tmp_path / "one")
    written(run, stored(run, 5, "test", {POOL5: ranks_of([1.0] * 24), FC6: "NaN (3 rows)"}))
    with pytest.raises(NumericError, match="fc6 at epoch 5 has no neighbours: NaN .3 rows.. Omit it"):
        shown(run, PlotOptions(layers=("pool5", "fc6")))


def test_a_second_run_shows_the_same_queries(probed: Run, images: Path, tmp_path: Path) -> None:
    other = made(f"folder:{images}", tmp_path / "b", layers=("c3", "fc6"), name="other")
    scores = [*probed.scores(), *other.scores()]
    found, image = panels_of([probed, other], scores, PlotOptions(where="random", queries=2), {})
    assert [(one.run, one.ranked) for one in found[:4]] == [(run, x) for run in ("tiny", "other") for x in (C3, FC6)]
    assert len({one.query.id for one in found[:4]}) == 1
    assert {one.notes[0] for one in found} == {"Queries: random, 2 of 16 at random by seed 0, by tiny"}
    assert np.array_equal(image("other", found[0].query.id), image("tiny", found[0].query.id))


def test_panels_of_a_data_set_that_is_gone_say_what_to_do(probed: Run, images: Path) -> None:
    images.rename(images.with_name("elsewhere"))
    with pytest.raises(DataError, match="images: .*Check|images: no such folder"):
        draw_plot("panels", [probed])
