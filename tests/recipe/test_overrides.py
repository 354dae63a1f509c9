from __future__ import annotations

from pathlib import Path

import pytest

from layerprobe.data.torchvision_sets import SPEC
from layerprobe.recipe.overrides import Overrides, apply_overrides
from layerprobe.recipe.recipe import load_recipe
from layerprobe.system.errors import RecipeError
from layerprobe.system.naming import user_named


@pytest.mark.parametrize(
    ("text", "section"),
    [
        ("glyphs", {"name": "glyphs"}),
        ("glyphs:", {"name": "glyphs"}),
        ("folder:/a:b", {"name": "folder", "root": "/a:b"}),
        ("torchvision", {"name": "torchvision"}),
        ("torchvision:CIFAR100", {"name": "torchvision", "set": "CIFAR100"}),
        ("torchvision:CIFAR100:", {"name": "torchvision", "set": "CIFAR100"}),
        ("torchvision:CIFAR100:/data:1", {"name": "torchvision", "set": "CIFAR100", "root": "/data:1"}),
    ],
)
def test_a_data_set_is_a_name_and_a_root_and_for_torchvision_a_set_between(text: str, section: dict[str, str]) -> None:
    sections = apply_overrides({"data": {"name": "cub200", "image_size": 96}}, Overrides(data=text), ["data"])
    assert sections["data"] == section


def test_a_set_of_torchvisions_is_part_of_a_recipe_and_its_root_is_not() -> None:
    recipes = [
        load_recipe("netA", Overrides(data=f"torchvision:{data}")) for data in ("CIFAR100", "CIFAR100:/x", "DTD")
    ]
    data = recipes[0].data
    assert (data.root, data.options()) == (
        SPEC.defaults["root"],
        {"set": "CIFAR100", "train_classes": None, "class_seed": None, "protocol": "retrieval", "download": False},
    )
    assert recipes[1].data.root == "/x"
    first, elsewhere, other = (recipe.identity() for recipe in recipes)
    assert first == elsewhere != other


def test_the_recipes_own_data_set_keeps_what_the_recipe_says_of_it() -> None:
    sections = {"data": {"name": "cub200", "transform": "D2", "root": "old"}}
    own = apply_overrides(sections, Overrides("cub200:/new"), ["data"])["data"]
    other = apply_overrides(sections, Overrides("cars196:/new"), ["data"])["data"]
    assert own == {"name": "cub200", "transform": "D2", "root": "/new"}
    assert other == {"name": "cars196", "root": "/new"}


def test_lists_lie_where_the_command_is_given_and_empty_text_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    sections = {"data": {"name": "csv", "root": "set.csv", "positives": "easy.csv"}}
    settings = ("data.positives=", "data.ignore=lists/junk.csv")
    assert apply_overrides(sections, Overrides(), ["data"])["data"]["positives"] == str(tmp_path / "easy.csv")
    assert apply_overrides(sections, Overrides(settings=settings), ["data"])["data"] == {
        "name": "csv", "root": str(tmp_path / "set.csv"), "positives": "", "ignore": str(tmp_path / "lists/junk.csv"),
    }  # fmt: skip


def test_another_set_of_torchvisions_is_another_data_set() -> None:
    sections = {"data": {"name": "torchvision", "set": "CIFAR100", "transform": "D2"}}
    other = apply_overrides(sections, Overrides("torchvision:Food101:/new"), ["data"])["data"]
    assert other == {"name": "torchvision", "set": "Food101", "root": "/new"}


@pytest.mark.parametrize(
    ("path", "fix"),
    [
        ("birds", "folder:birds"),
        ("./birds", "folder:./birds"),
        ("~/x", "folder:~/x"),
        ("/no/such", "folder:/no/such"),
        ("list.csv", "csv:list.csv"),
    ],
)
def test_a_path_without_a_name_is_told_the_name(
    path: str, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "birds").mkdir()
    (tmp_path / "list.csv").touch()
    with pytest.raises(RecipeError, match=f"^{path} is a path, not the name of a data set. Give {fix}.$"):
        load_recipe("netA", Overrides(data=path))


def test_a_folder_that_is_called_like_a_data_set_is_not_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "glyphs").mkdir()
    assert load_recipe("netA", Overrides(data="glyphs")).data.name == "glyphs"


def test_a_data_set_of_the_hub_is_named_by_the_command_line_and_is_no_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    own = {"data": {"name": "hf-dataset", "root": "acme/birds"}}
    assert apply_overrides(own, Overrides(), ["data"]) == own
    assert not user_named("hf-dataset:acme/birds")
    assert (
        apply_overrides({}, Overrides(data="hf-dataset:acme/birds/small"), ["data"])["data"]["root"]
        == "acme/birds/small"
    )
    assert user_named("hf-dataset:acme/birds/small")
    (tmp_path / "acme" / "birds").mkdir(parents=True)
    assert apply_overrides(own, Overrides(), ["data"])["data"]["root"] == str(tmp_path / "acme" / "birds")
