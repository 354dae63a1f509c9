from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.workflow.plot.recipe_lines import differing_keys, line_name, place_of, place_runs, places_in_order
from layerprobe.workflow.run.runs import Run
from tests.records import recorded


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
