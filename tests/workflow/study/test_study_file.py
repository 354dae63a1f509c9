from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from layerprobe.recipe.recipe_files import list_studies
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.workflow.study.study_file import End, load_study, studies

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


def test_more_trainings_than_can_be_checked_are_counted_and_refused(file_of: FileOf) -> None:
    grid = "\n".join(f'"data.key{key}" = {list(range(10))}' for key in range(12))
    with pytest.raises(
        RecipeError, match=r"\[grid\]: 4,000,000,000,000 trainings, of at most 5,000\. Divide the study"
    ):
        load_study(file_of(('"net.fc" = [[8], [16]]', f'"net.fc" = [[8], [16]]\n{grid}')))


def test_a_training_sets_its_seed_and_the_keys_that_take_it(file_of: FileOf) -> None:
    study = load_study(file_of())
    settings = study.settings(study.cells[1], 1)
    assert {"net.fc=[16]", "train.seed=1", "data.class_seed=1", 'net.name="lenet"', 'train.keep="last"'} <= {*settings}


def test_a_study_of_learnt_numbers_keeps_all_checkpoints(file_of: FileOf) -> None:
    study = replace(load_study(file_of()), end=End(plot="learnt", layers=None))
    assert 'train.keep="all"' in study.settings(study.cells[0], 0)


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


VARIANTS = """
[[variants]]
name = "A"
recipe = "netA"
[[variants]]
name = "B"
layers = ["pool5", "c3"]
[variants.set]
"loss.scale" = 1.0
"net.name" = "resnet18"
"""


def test_a_variant_sets_its_keys_over_those_of_all_runs(file_of: FileOf) -> None:
    study = load_study(file_of(("[grid]", f"{VARIANTS}[grid]")))
    first, second = study.variants
    assert (first.name, first.recipe, second.recipe) == ("A", "netA", None)
    found = study.settings(study.cells[0], 0, second)
    assert {"net.fc=[8]", "loss.scale=1.0", 'net.name="resnet18"', "train.epochs=2"} <= {*found}
    assert 'net.name="lenet"' not in found
    assert 'net.name="lenet"' in study.settings(study.cells[0], 0, first)


def test_the_layers_of_a_study_are_those_of_all_variants(file_of: FileOf) -> None:
    study = load_study(file_of(("[grid]", f"{VARIANTS}[grid]")))
    assert [study.layers_of(variant) for variant in study.variants] == [("fc6", "pool5"), ("pool5", "c3")]
    assert study.layers == ("fc6", "pool5", "c3")
    assert (study.has_variants, load_study(file_of()).has_variants) == (True, False)


def test_the_small_version_replaces_the_variants(file_of: FileOf) -> None:
    file = file_of(("[grid]", f'{VARIANTS}[[small.variants]]\nname = "C"\n[grid]'))
    assert [variant.name for variant in load_study(file, small=True).variants] == ["C"]
    assert [variant.name for variant in load_study(file).variants] == ["A", "B"]


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
            r"\[end\]: net.fcc is no key of \[grid\] or of all variants. Did you mean 'net.fc'",
        ),
        ('table = "R@1"', 'plot = "layers"\nkey = "net.fc"', r"\[end\]: key is for plot = \"over-key\""),
        ('table = "R@1"', 'plot = "layers"\nmetric = "loss"', r"\[end\]: unknown metric 'loss'"),
        ('table = "R@1"', 'plot = "layers"\nalso = ["R@1"]', r"\[end\]: also is for figures beside that of metric"),
        (
            'table = "R@1"',
            'plot = "layers"\nmetric = "R@1"\nalso = ["R@1"]',
            r"\[end\]: also = \[\"R@1\"\]: a metric has one figure",
        ),
        ('table = "R@1"', "", r"\[end\]: give either table"),
        ('table = "R@1"', 'table = "R@1"\nplot = "gap"', r"\[end\]: give either table"),
        ('table = "R@1"', 'table = "MAP"', r"\[end\]: unknown metric 'MAP'. Did you mean 'mAP'"),
        ('table = "R@1"', 'plot = "layer"', r"\[end\]: unknown plot 'layer'. Did you mean 'layers'"),
        ('layers = ["fc6", "pool5"]', "", r"\[end\]: layers is missing"),
        ("[end]", '[end]\ncompare = [["fc6", "pool4"]]', r"\[end\]: compare: pool4 is no column of the table"),
        (
            "[end]",
            '[[variants]]\nname = "A"\nlayers = ["fc6"]\n[end]\ncompare = [["fc6", "pool5"]]',
            r"\[end\]: compare: pool5 is no column of the table",
        ),
        (
            'table = "R@1"',
            'plot = "layers"\ncompare = [["fc6", "pool5"]]',
            r"\[end\]: compare is for a table. Leave it out",
        ),
        ("[grid]", '[[variants]]\nset = {"net.name" = "lenet"}\n[grid]', r"\[variants\]: each needs a name of its own"),
        ("[grid]", '[[variants]]\nname = "A"\nlayer = "fc6"\n[grid]', r"\[variants\]: unknown key 'layer'"),
        ("[grid]", '[variants]\nname = "A"\n[grid]', r"\[variants\]: not a list\. Write \[\[variants\]\]"),
        (
            "[grid]",
            '[[variants]]\nname = "A"\nset = {"net.fc" = [1]}\n[grid]',
            r"\[variants\]: net.fc is set by the grid or the seeds, too",
        ),
        (
            "[grid]",
            '[[variants]]\nname = "A"\nset = {"train.seed" = 1}\n[grid]',
            r"\[runs\]: train.seed is set by seeds",
        ),
        ("[end]", "[small]\nvariants = 3\n[end]", r"\[small\]: not sections"),
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
