from __future__ import annotations

from collections.abc import Callable

import pytest

from layerprobe.recipe.recipe_files import list_studies
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.workflow.study.study_file import load_study, studies

FileOf = Callable[..., str]
SMALL = """
[small.runs]
seeds = [5]
[small.grid]
"loss.scale" = [1.0, 2.0]
"""


def test_the_last_key_of_a_grid_varies_fastest(file_of: FileOf) -> None:
    study = load_study(file_of(('"net.fc" = [[8], [16]]', '"net.fc" = [[8], [16]]\n"loss.scale" = [1.0, 2.0]')))
    assert [list(cell.values()) for cell in study.cells] == [[[8], 1.0], [[8], 2.0], [[16], 1.0], [[16], 2.0]]


def test_a_training_sets_its_seed_and_the_keys_that_take_it(file_of: FileOf) -> None:
    study = load_study(file_of())
    settings = study.settings(study.cells[1], 1)
    assert {"net.fc=[16]", "train.seed=1", "data.class_seed=1", 'net.name="lenet"', 'train.keep="last"'} <= {*settings}


def test_the_small_version_replaces_the_grid_and_overrides_the_keys_that_it_has(file_of: FileOf) -> None:
    study = load_study(file_of(("[end]", f"{SMALL}[end]")), small=True)
    assert (study.name, study.is_small, study.runs.seeds) == ("tiny-small", True, (5,))
    assert study.grid == {"loss.scale": (1.0, 2.0)}
    assert study.runs.recipe == "quick"


def test_a_study_is_itself_where_it_has_a_small_version(file_of: FileOf) -> None:
    study = load_study(file_of(("[end]", f"{SMALL}[end]")))
    assert (study.name, study.runs.seeds, list(study.grid)) == ("tiny", (0, 1), ["net.fc"])


def test_a_small_version_that_is_not_there_is_refused(file_of: FileOf) -> None:
    with pytest.raises(RecipeError, match=r"tiny.toml: has no small version\. Leave --small out"):
        load_study(file_of(), small=True)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('title = "Two dimensions"', "", r"\[study\]: title is missing"),
        ("seeds = [0, 1]", "seed = [0, 1]", r"\[runs\]: unknown key 'seed'. Did you mean 'seeds'"),
        ("seeds = [0, 1]", "seeds = [1, 1]", r"\[runs\]: seeds = \[1, 1\]: one is there twice"),
        ("seeds = [0, 1]", "seeds = [-1]", r"\[runs\]: seeds\[0\] = -1: input should be greater"),
        ("[[8], [16]]", "8", r"\[grid\]: net.fc: a list of values is expected"),
        ('"net.fc" =', '"train.seed" =', r"\[runs\]: train.seed is set by seeds"),
        ('"net.fc" =', '"net.name" =', r"\[grid\]: net.name is set in \[runs\], too"),
        ('table = "R@1"', 'plot = "over-key"', r"\[end\]: key is missing. Write key = \"net.fc\", a key of \[grid\]"),
        (
            'table = "R@1"',
            'plot = "over-key"\nkey = "net.fcc"',
            r"\[end\]: net.fcc is no key of \[grid\]. Did you mean 'net.fc'",
        ),
        ('table = "R@1"', 'plot = "layers"\nkey = "net.fc"', r"\[end\]: key is for plot = \"over-key\""),
        ('table = "R@1"', 'plot = "layers"\nmetric = "loss"', r"\[end\]: unknown metric 'loss'"),
        ('table = "R@1"', "", r"\[end\]: give either table"),
        ('table = "R@1"', 'table = "R@1"\nplot = "gap"', r"\[end\]: give either table"),
        ('table = "R@1"', 'table = "MAP"', r"\[end\]: unknown metric 'MAP'. Did you mean 'mAP'"),
        ('table = "R@1"', 'plot = "layer"', r"\[end\]: unknown plot 'layer'. Did you mean 'layers'"),
        ('layers = ["fc6", "pool5"]', "", r"\[end\]: layers is missing"),
        ("[grid]", "[girds]", r"\[girds\]: unknown section. Did you mean 'grid'"),
        ("[end]", "[small]\nruns = 3\n[end]", r"\[small\]: not sections"),
    ],
)
def test_a_fault_is_named(file_of: FileOf, old: str, new: str, problem: str) -> None:
    with pytest.raises(RecipeError, match=problem):
        load_study(file_of((old, new)), small="[small]" in new)


def test_all_faults_are_told_at_once(file_of: FileOf) -> None:
    with pytest.raises(RecipeError) as caught:
        load_study(file_of(('title = "Two dimensions"', ""), ("seeds = [0, 1]", "seed = 0"), ('"R@1"', '"R1"')))
    assert len(caught.value.problems) == 3


def test_a_study_that_is_not_there_is_refused(tmp_path: object) -> None:
    with pytest.raises(UnknownNameError, match="unknown study 'dimensions'. Did you mean 'dimension'"):
        load_study("dimensions")
    with pytest.raises(RecipeError, match="none.toml: no such study. layerprobe study --list"):
        load_study("none.toml")


def test_the_list_has_every_study_with_its_title() -> None:
    found = studies()
    assert list(found) == list(list_studies())
    about, has_small = found["dimension"]
    assert about.title.startswith("Recall of unseen classes")
    assert has_small
