from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.system.errors import DataError, LayerprobeError, RecipeError
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.study.plan import all_of, is_finished, plan, plan_without_data, require_images, require_weights
from layerprobe.workflow.study.study import StudyRequest
from layerprobe.workflow.study.study_file import load_study
from tests.workflow.conftest import Silent

FileOf = Callable[..., str]


def test_a_seed_of_every_cell_comes_before_the_next_seed(file_of: FileOf, tmp_path: Path) -> None:
    trainings = all_of(plan(load_study(file_of()), tmp_path))
    assert [(t.loaded().train.seed, t.loaded().net.fc) for t in trainings] == [
        (0, (8,)), (0, (16,)), (1, (8,)), (1, (16,))
    ]  # fmt: skip


def test_a_runs_name_is_the_studys_the_recipes_identity_and_the_seed(file_of: FileOf, tmp_path: Path) -> None:
    study = load_study(file_of(('seeded = ["data.class_seed"]', "")))
    first, second = (cell.trainings for cell in plan(study, tmp_path))
    for trainings in (first, second):  # the recipe of seed 0 has its own identity
        identity = trainings[0].loaded().identity()[:6]
        assert [training.run for training in trainings] == [f"tiny-{identity}-s0", f"tiny-{identity}-s1"]
    assert first[0].run != second[0].run


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            '"net.fc" = [[8], [16]]',
            '"probe.k" = [[1], [1, 2]]',
            "[grid]: probe.k = [1] and probe.k = [1, 2] train the same",
        ),
        ('"R@1"', '"R@3"', 'R@3 is not measured. Add "probe.k" = [1, 2, 3, 4, 8] to'),
        ('"R@1"', '"MAP@R"', 'MAP@R is not measured. Add "probe.metrics" = ["MAP@R"] to'),
        (
            'layers = ["fc6"',
            'layers = ["fc6/l2"',
            'fc6/l2 is not measured. Add "probe.post" = ["none", "l2"] to [runs.set',
        ),
        ("[end]", "[end]\nepochs = [0, 3]", "epoch 3 of 2 epochs"),
    ],
)
def test_what_cannot_be_trained_or_is_not_measured_is_refused(
    file_of: FileOf, tmp_path: Path, old: str, new: str, problem: str
) -> None:
    with pytest.raises(RecipeError, match=re.escape(problem)):
        plan(load_study(file_of((old, new))), tmp_path)


def test_an_ensemble_is_refused(file_of: FileOf, tmp_path: Path) -> None:
    file = Path(file_of(('recipe = "quick"', 'recipe = "dreml-cub200"'), ('seeded = ["data.class_seed"]', "")))
    text = file.read_text()
    kept = text[text.index("[grid]") :]
    file.write_text(f'{text[: text.index("[runs.set]")]}[runs.set]\n"data.root" = "DIR"\n{kept}')
    with pytest.raises(RecipeError, match="dreml-cub200 is an ensemble"):
        plan(load_study(str(file)), tmp_path)


VARIANTS = """
[[variants]]
name = "A"
layers = ["pool5", "pool5/pca:4+l2"]
[variants.set]
"probe.post" = ["none", "pca:4+l2"]
[[variants]]
name = "B"
[variants.set]
"loss.name" = "softmax"
"loss.relu" = false
[grid]"""


def test_each_variant_is_trained_at_each_cell_of_the_grid(file_of: FileOf, tmp_path: Path) -> None:
    cells = plan(load_study(file_of(("[grid]", VARIANTS))), tmp_path)
    assert [(cell.variant, cell.values["net.fc"]) for cell in cells] == [
        ("A", [8]),
        ("A", [16]),
        ("B", [8]),
        ("B", [16]),
    ]
    assert [cell.trainings[0].loaded().loss.name for cell in cells] == ["smooth_triplet"] * 2 + ["softmax"] * 2
    assert str(cells[2]) == "B: net.fc = [8]"


def test_a_post_processed_layer_is_measured_by_its_layer(file_of: FileOf, tmp_path: Path) -> None:
    cell, *_ = plan(load_study(file_of(("[grid]", VARIANTS))), tmp_path)
    assert cell.trainings[0].request("cpu").probe == ("pool5",)


PAPER = ('recipe = "quick"', 'recipe = "netA-cub200"'), ('seeded = ["data.class_seed"]', "")


def of_papers(file_of: FileOf) -> str:
    """A study of cub200 and cars196."""
    path = Path(file_of(*PAPER))
    text = path.read_text()
    cars = '[[variants]]\nname = "birds"\n[[variants]]\nname = "cars"\nrecipe = "netA-cars196"\n'
    path.write_text(text[: text.index("[runs.set]")] + cars + text[text.index("[grid]") :])
    return str(path)


def test_all_data_sets_without_a_folder_are_named_in_one_line(file_of: FileOf, tmp_path: Path) -> None:
    study = load_study(of_papers(file_of))
    with pytest.raises(RecipeError, match=r"tiny: where .* Give --data cub200:DIR --data cars196:DIR\.$") as caught:
        plan(study, tmp_path)
    assert not caught.value.problems
    with pytest.raises(RecipeError, match=r"Give --data cars196:DIR\.$"):
        plan(study, tmp_path, (f"cub200:{tmp_path}",))
    cells, lacking = plan_without_data(study, tmp_path)
    assert (len(cells), lacking) == (4, ("cub200:DIR", "cars196:DIR"))


def test_each_training_has_the_folder_of_its_own_data_set(file_of: FileOf, tmp_path: Path) -> None:
    study, folders = load_study(of_papers(file_of)), (tmp_path / "b", tmp_path / "c")
    for folder in folders:
        folder.mkdir()
    birds, _, cars, _ = plan(study, tmp_path, (f"cars196:{folders[1]}", f"cub200:{folders[0]}"))
    assert [cell.trainings[0].loaded().data.root for cell in (birds, cars)] == [*map(str, folders)]
    without, _ = plan_without_data(study, tmp_path)
    assert (birds.trainings[0].run, cars.trainings[0].run) == (without[0].trainings[0].run, without[2].trainings[0].run)


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ("sop:.", "--data sop: no recipe of the study has this data set. Leave it out"),
        ("cub20:.", "unknown data set 'cub20'. Did you mean 'cub200'"),
        ("cub200:/none/here", "/none/here: no such folder or file. Correct --data cub200:/none/here"),
    ],
)
def test_a_folder_that_fits_no_recipe_is_refused(file_of: FileOf, tmp_path: Path, data: str, problem: str) -> None:
    with pytest.raises(LayerprobeError, match=problem):
        plan(load_study(file_of()), tmp_path, (data,))


def test_weights_files_that_are_not_there_are_listed_before_anything_is_trained(
    file_of: FileOf, tmp_path: Path
) -> None:
    study = load_study(file_of(('"net.fc" = [[8], [16]]', '"net.weights" = ["none", "a.pt", "b.pt#net"]')))
    with pytest.raises(DataError, match=r"no such weights file: a\.pt, b\.pt\. Put it there, or copy the study"):
        require_weights(all_of(plan(study, tmp_path)))


def test_a_default_folder_that_is_not_there_lacks_the_data(
    file_of: FileOf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = Path(file_of(('"data.train_classes" = 4', '"data.name" = "csv"\n"data.root" = "none.csv"')))
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[data]\nname = "csv"\nroot = "none.csv"\n[net]\nname = "lenet"\n[loss]\nname = "softmax"\n')
    text = (
        file.read_text().replace('recipe = "quick"', f'recipe = "{recipe}"').replace('seeded = ["data.class_seed"]', "")
    )
    kept = [line for line in text.splitlines() if not line.startswith('"data.')]
    file.write_text("\n".join(kept))
    monkeypatch.chdir(tmp_path)
    assert plan_without_data(load_study(str(file)), tmp_path)[1] == ("csv:DIR",)
    (tmp_path / "none.csv").touch()
    assert plan_without_data(load_study(str(file)), tmp_path)[1] == ()


def test_the_faults_of_a_recipe_name_the_study(file_of: FileOf, tmp_path: Path) -> None:
    study = load_study(file_of(('"train.epochs" = 2', '"train.epoch" = 1'), ("[[8]", "[[0]")))
    with pytest.raises(RecipeError, match=r"study tiny: --set net.fc=\[0\] \[net\]: fc\[0\] = 0: ") as caught:
        plan(study, tmp_path)
    assert len(caught.value.problems) == 2


def test_a_run_keeps_the_checkpoints_that_it_was_started_with(copied: StudyRequest) -> None:
    training = all_of(plan(copied.study, copied.cache))[0]
    assert training.loaded().train.keep == "last"
    run = Run(copied.cache / training.run)
    record = run.read()
    run.write(replace(record, recipe={**record.recipe, "train": {**record.recipe["train"], "keep": "all"}}))
    assert training.loaded().train.keep == "all"


def test_a_run_without_its_scores_is_not_finished(copied: StudyRequest) -> None:
    training = all_of(plan(copied.study, copied.cache))[0]
    assert is_finished(copied.study, training)
    scores = Run(copied.cache / training.run).scores_file
    lines = scores.read_text().splitlines(keepends=True)
    scores.write_text("".join(line for line in lines if ",pool5," not in line or ",2,test," not in line))
    assert not is_finished(copied.study, training)


def test_all_runs_on_other_images_are_listed_at_once(copied: StudyRequest) -> None:
    trainings = all_of(plan(copied.study, copied.cache))
    require_images(copied.study, trainings, copied.cache, Silent())
    changed = sorted(training.run for training in trainings[1:3])
    for name in changed:
        record = Run(copied.cache / name).read()
        Run(copied.cache / name).write(replace(record, contents={**record.contents, "test": "0" * 64}))
    with pytest.raises(DataError, match="2 runs of the study have other images .*Restore the images") as caught:
        require_images(copied.study, trainings, copied.cache, Silent())
    assert all(name in str(caught.value) for name in changed)
