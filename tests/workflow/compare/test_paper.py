from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from layerprobe.papers.tables import find_table
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.recipe.recipe_files import packaged_recipe
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.wording import encoded
from layerprobe.tables.formats import as_text
from layerprobe.values.layers import RankedLayer
from layerprobe.values.scores import ScoreTable, Subject, read_scores
from layerprobe.workflow.compare.paper import PaperComparison, compare_with_paper, paper_tables, paper_values
from tests.workflow.stored_ranks import ranked, write_run

FC6, POOL = ranked("fc6@none"), ranked("pool5.3@max")
# Of the published sizes: Cars196 has 8,054 images of 98 classes for training and 8,131 for test.
QUERIES = {"train": 8054, "test": 8131}
VALUES = {(FC6, "train"): 0.901, (FC6, "test"): 0.8049, (POOL, "train"): 0.88, (POOL, "test"): 0.867}

Values = dict[tuple[RankedLayer, str], float]


def trained(cache: Path, recipe: str, *settings: str, values: Values = VALUES, epoch: int | None = None) -> None:
    """A run that was trained by a recipe up to an epoch, by default its last, with scores at that epoch."""
    place = () if recipe == "netA" else ("data.root=.",)
    sections = load_recipe(recipe, Overrides(settings=(*place, *settings))).as_dict()
    network: dict[str, Any] = {
        "layers": ["pool5.3", "fc6"],
        "embedding": ["fc6", "none"],
        "cuts": {},
        "input": None,
        "files": {},
    }
    done = sections["train"]["epochs"] if epoch is None else epoch
    more: dict[str, Any] = {"network": network, "layer_order": network["layers"], "epochs_done": done}
    run = write_run(cache, "mine", recipe_name=recipe, recipe=sections, **more)
    scores = [
        Subject("mine", "e", 0, done, split, layer).score("R@1", value, QUERIES[split])
        for (layer, split), value in values.items()
    ]
    ScoreTable(scores).write(run.scores_file)


def beside(cache: Path, table: str = "vo-hays-2019:table3", run: str = "mine") -> PaperComparison:
    return compare_with_paper(cache, run, find_table(table))


def caveats(found: PaperComparison) -> list[Sequence[str]]:
    return [row.caveats for row in found.rows]


def texts(found: PaperComparison) -> str:
    return "\n\n".join(map(as_text, paper_tables(found)))


def test_a_run_of_the_recipe_stands_below_its_rows(tmp_path: Path) -> None:
    trained(tmp_path, "netA-cars196")
    found = beside(tmp_path)
    (table,) = paper_tables(found)
    assert table.columns == ("method", "network", "dim", "train\nR@1", "test\nR@1")
    assert table.rows[-4:] == (
        ("NetA output (fc6)", "VGG16-BN", "512", "92.4", "81.0"),
        ("> fc6", "vgg16_bn", "-", "90.1", "80.5"),
        ("NetA penultimate", "VGG16-BN", "512", "90.4", "87.8"),
        ("> pool5.3@max", "vgg16_bn", "-", "88.0", "86.7"),
    )
    assert table.rows[0] == ("Lifted-64 output", "GoogLeNet", "64", "97.9", "49.7")
    assert len(table.rows) == 18 + 2


def test_an_equal_recipe_is_one_training_and_no_reproduction(tmp_path: Path) -> None:
    trained(tmp_path, "netA-cars196")
    found = beside(tmp_path)
    assert caveats(found) == [(), ()]
    shown = texts(found)
    assert "reproduc" not in shown
    assert "> is one training (seed 0), and the table has no spread: differences may be chance" in shown


def test_the_released_codes_values_are_a_variant_of_the_row(tmp_path: Path) -> None:
    trained(tmp_path, "netA-cars196-code")
    assert caveats(beside(tmp_path)) == [(), ()]


def test_another_data_set_has_columns_of_its_own_and_is_told(tmp_path: Path) -> None:
    trained(tmp_path, "netA")
    found = beside(tmp_path)
    whole, own = paper_tables(found)
    assert whole.rows[-1] == (
        "NetA penultimate", "VGG16-BN", "512", "90.4", "87.8", "87.6", "66.4", "77.9", "74.8"
    )  # fmt: skip
    assert own.columns == ("method", "metric", "cars196", "cub200", "sop", "> glyphs", "> layer", "> dim")
    assert own.rows[1] == ("NetA output (fc6)", "test R@1", "81.0", "61.7", "74.1", "80.5", "fc6", "-")
    assert own.notes[:4] == (
        "> mine reproduces no row:",
        "  another data set (glyphs, not cars196 or cub200 or sop)",
        "  no pretrained weights, where the paper starts from ImageNet's",
        "  keys (the row's recipe): train.epochs 15 (80), train.images_per_class 4 (2), train.decay_at [0.6] ([0.5])",
    )


@pytest.mark.parametrize(
    ("settings", "caveat"),
    [
        (["net.name=resnet50"], "another network (resnet50, not VGG16-BN)"),
        (["net.fc=[64]"], "keys (the row's recipe): net.fc [64] ([512])"),
        (["net.weights=none"], "no pretrained weights, where the paper starts from ImageNet's"),
        (["train.epochs=2"], "keys (the row's recipe): train.epochs 2 (80)"),
        (["data.validation_classes=0.1"], "keys (the row's recipe): data.validation_classes 0.1 (0.0)"),
    ],
)
def test_each_difference_from_the_rows_recipe_is_told(tmp_path: Path, settings: list[str], caveat: str) -> None:
    trained(tmp_path, "netA-cars196", *settings)
    found = beside(tmp_path)
    assert all(caveat in row.caveats for row in found.rows)
    assert "> mine reproduces no row:" in texts(found)


def test_a_users_recipe_of_the_same_name_is_no_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = packaged_recipe("netA-cars196").read_text().replace("scale = 4.0", "scale = 9.0")
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "netA-cars196.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    trained(tmp_path, "netA-cars196")
    assert caveats(beside(tmp_path)) == [("keys (the row's recipe): loss.scale 9.0 (4.0)",)] * 2


def test_an_unfinished_run_and_a_part_of_the_images_are_told(tmp_path: Path) -> None:
    trained(tmp_path, "netA-cars196", values={(FC6, "test"): 0.7}, epoch=40)
    (row,) = read_scores(tmp_path / "mine" / "scores.csv")
    (tmp_path / "mine" / "scores.csv").unlink()
    ScoreTable([replace(row, n=500, epoch=30)]).write(tmp_path / "mine" / "scores.csv")
    found = beside(tmp_path, run="mine#30")
    assert found.rows[0].caveats == (
        "epoch 30 of 40",
        "40 of 80 epochs trained",
        "500 test images, not the published 8,131 images of 98 classes (48-136 each)",
    )
    assert found.rows[1].ranked is None
    command = "Run layerprobe probe mine --epochs 30 --splits train,test --layers fc6,pool5.3@max --k 1"
    assert found.fix == f"{command} --cache {tmp_path}"


def test_rows_of_one_recipe_are_told_apart_by_their_keys(tmp_path: Path) -> None:
    trained(tmp_path, "normsoftmax-r50-cars196", "net.fc=[128]")
    found = beside(tmp_path, "zhai-wu-2019:table3")
    assert [found.table.rows[row.row].dim.text for row in found.rows if row.row is not None] == ["128"]
    assert found.rows[0].caveats == ()
    trained(tmp_path / "b", "normsoftmax-r50-cars196", "net.fc=[64]")
    found = beside(tmp_path / "b", "zhai-wu-2019:table3")
    # No row has 64: all rows of the recipe differ in this key alone.
    assert [row.changes[0].after for row in found.rows] == [[128], [512]]


def test_a_post_processed_row_takes_the_post_processed_layer(tmp_path: Path) -> None:
    bits = ranked("fc6@none", "binary", "hamming")
    trained(tmp_path, "normsoftmax-r50-cars196", "net.fc=[]", values={(FC6, "test"): 0.8, (bits, "test"): 0.7})
    found = beside(tmp_path, "zhai-wu-2019:table7")
    at = {found.table.rows[row.row].dim.text: row for row in found.rows if row.row is not None}
    assert [at[dim].scores[0].value for dim in ("2048", "2048 bits")] == [0.8, 0.7]  # type: ignore[union-attr]


def test_of_several_similarities_the_runs_is_shown(tmp_path: Path) -> None:
    values = {(FC6, "test"): 0.8, (ranked("fc6@none", similarity="euclidean"), "test"): 0.7}
    trained(tmp_path, "netA-cars196", "probe.similarity=euclidean", values=values)
    assert [one.value for one in beside(tmp_path).rows[0].scores if one] == [0.7]


def test_a_run_of_no_row_shows_its_last_two_layers_at_the_end(tmp_path: Path) -> None:
    trained(tmp_path, "netA-cars196")
    found = beside(tmp_path, "zhang-2018:table3")
    (table,) = paper_tables(found)
    assert table.rows[-2:] == (
        ("> pool5.3@max", "-", "86.7"),
        ("> fc6", "-", "80.5"),
    )
    assert table.heading[2].startswith("paper: GoogLeNet, ImageNet weights")
    assert "  no row of the table is of the recipe netA-cars196; its recipes: heated-hbn-SET" in table.notes


def test_an_error_of_the_paper_is_marked_and_explained(tmp_path: Path) -> None:
    trained(tmp_path, "netA-sop")
    (table,) = paper_tables(beside(tmp_path, "fehervari-2019:table4"))
    assert table.rows[0][-1] == "67.31?"
    assert "? N-Pairs: NMI 67.31 is below 80.45, that of random clusters on sop" in table.notes
    assert any("the numbers compare with no other paper's" in note for note in table.notes)


def test_a_wide_table_is_divided_by_data_set(tmp_path: Path) -> None:
    trained(tmp_path, "netA")
    tables = paper_tables(beside(tmp_path, "vo-hays-2019:table1"))
    assert [table.heading[-1] for table in tables[:3]] == ["cars196", "cub200", "sop"]
    assert max(len(line) for table in tables for line in as_text(table).splitlines() if "NetA" in line) <= 80


def test_rows_without_a_number_on_the_data_set_are_left_out(tmp_path: Path) -> None:
    trained(tmp_path, "normsoftmax-r50-inshop")
    (table,) = paper_tables(beside(tmp_path, "zhai-wu-2019:table6"))
    assert [row[0] for row in table.rows[:4]] == ["HDC", "A-BIER", "HTL", "ABE-8"]


def test_json_has_the_cells_as_text_and_the_runs_values_as_fractions(tmp_path: Path) -> None:
    trained(tmp_path, "netA-cars196")
    values = json.loads(json.dumps(encoded(paper_values(beside(tmp_path)))))
    assert values["rows"][16]["cells"][1] == {"text": "81.0", "doubtful": False}
    assert [one["row"] for one in values["own"]] == [16, 17]
    assert values["own"][0]["scores"][1]["value"] == 0.8049
    assert (values["recipe"], values["network"], values["epoch"]) == ("netA-cars196", "vgg16_bn", 80)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    trained(tmp_path, "netA-cars196")
    with pytest.raises(RecipeError, match="--paper compares a run, not the layer fc6"):
        beside(tmp_path, run="mine:fc6")
    with pytest.raises(RecipeError, match="mine has no epoch 81"):
        beside(tmp_path, run="mine#81")
    with pytest.raises(DataError, match="epoch 3 is not measured. Run layerprobe probe mine --epochs 3"):
        beside(tmp_path, run="mine#3")
