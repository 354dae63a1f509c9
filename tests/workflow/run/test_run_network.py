from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import Recipe, load_recipe, recorded_recipe
from layerprobe.system.errors import RecipeError
from layerprobe.values.layers import LayerKey
from layerprobe.values.network_input import OwnInput
from layerprobe.values.scores import Score
from layerprobe.workflow.probe.estimate_probe import estimate_probe
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.run_network import network_text
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

CODE = """
from torch import nn
from width import WIDTH

def build():
    model = nn.Sequential(nn.Conv2d(3, WIDTH, 3), nn.ReLU(), nn.Conv2d(WIDTH, 5, 3))
    return model, {"size": 16, "filter": "bicubic", "crop": 1.0}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The user's own network, which imports a module beside it."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "width.py").write_text("WIDTH = 6\n")
    path = folder / "net.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def recipe_file(file: Path, images: Path, tmp_path: Path) -> Path:
    path = tmp_path / "own.toml"
    path.write_text(
        f'[data]\nname = "folder"\nroot = "{images}"\ntransform = "model"\n'
        f'[net]\nname = "python:{file}:build"\nweights = "none"\nfc = [4]\n'
        '[loss]\nname = "triplet"\nmargin = 0.2\n'
        "[train]\nepochs = 1\nbatch_size = 8\nimages_per_class = 2\n"
    )
    return path


def loaded(recipe_file: Path, *settings: str, model: str | None = None) -> Recipe:
    return load_recipe(str(recipe_file), Overrides(settings=settings), model)


def trained(recipe: Recipe, tmp_path: Path) -> Run:
    request = TrainRequest(recipe, False, tmp_path / "cache", run="own", device="cpu", workers=0)
    return train(request, Silent())


@pytest.fixture
def run(recipe_file: Path, tmp_path: Path) -> Run:
    return trained(loaded(recipe_file), tmp_path)


def probed(run: Run, **fields: str) -> list[Score]:
    request = ProbeRequest(device="cpu", workers=0, ks=(1,), epochs="last", layers=("*",), **fields)  # type: ignore[arg-type] # one test's fields each
    return probe(run, request, Silent())


def test_the_record_says_all_that_reading_the_run_needs_of_the_network(run: Run) -> None:
    network = run.read().network
    assert network is not None
    assert network.layers == ("1", "2", "output", "fc6")
    assert network.embedding == LayerKey("fc6", "none")
    # 6 (27 + 1) + 5 (54 + 1) + 4 (5 + 1) = 467 parameters; 2 follows the first convolution
    assert network.cuts["1"][0] == pytest.approx((467 - 168) / 467)
    assert network.cuts["fc6"] == (0.0, 0.0)
    assert set(network.files) == {"", "width.py"}


def test_the_input_is_read_back_as_it_was(run: Run, recipe_file: Path) -> None:
    expected = OwnInput(16, 16, "bicubic", kept=1.0)
    recipe = recorded_recipe(run.read(), run.record_file)
    assert recipe.own_input == expected
    assert from_recipe.transform_text(recipe) == from_recipe.transform_text(loaded(recipe_file))


def test_nobody_is_asked_for_an_input_that_is_recorded(run: Run, file: Path) -> None:
    file.unlink()
    recipe = recorded_recipe(run.read(), run.record_file)
    assert from_recipe.own_input(recipe) is not None


def test_a_probe_records_how_much_a_further_layer_leaves_out(run: Run) -> None:
    probe(run, ProbeRequest(device="cpu", workers=0, ks=(1,), epochs="last", layers=("0",)), Silent())
    network = run.read().network
    assert network is not None
    assert network.cuts["0"] == pytest.approx(network.cuts["1"])


@pytest.mark.parametrize("name", ["net.py", "width.py"])
def test_a_run_whose_file_or_module_has_changed_is_not_measured(run: Run, file: Path, name: str) -> None:
    path = file.parent / name
    path.write_text(f"{path.read_text()}# changed\n")
    request = ProbeRequest(device="cpu", workers=0, epochs="last")
    for measure in (lambda: probe(run, request, Silent()), lambda: estimate_probe(run, request)):
        with pytest.raises(RecipeError, match=rf"{name}: has changed since own began. Restore it"):
            measure()


def test_a_run_whose_file_imports_one_more_module_is_not_measured(run: Run, file: Path) -> None:
    # width.py stays as it is, and is no longer what the name means.
    (file.parent / "width").mkdir()
    (file.parent / "width/__init__.py").write_text("WIDTH = 6\n")
    with pytest.raises(RecipeError, match=r"width/__init__.py: is imported by the network's file, unlike when own"):
        probed(run)


def test_the_same_content_at_another_path_is_the_same_network(run: Run, file: Path, tmp_path: Path) -> None:
    before = probed(run)
    stored = run.feature_file(1, "test").read_bytes()
    shutil.copytree(file.parent, tmp_path / "moved")
    (tmp_path / "moved/net.py").rename(tmp_path / "moved/copy.py")
    file.unlink()
    assert probed(run, model=f"python:{tmp_path / 'moved/copy.py'}:build") == before
    assert run.feature_file(1, "test").read_bytes() == stored


def test_another_content_or_network_is_refused(run: Run, file: Path) -> None:
    (file.parent / "other.py").write_text(CODE.replace("5, 3", "5, 1"))
    with pytest.raises(RecipeError, match="net.py: has changed since own began"):
        probed(run, model=f"python:{file.parent / 'other.py'}:build")
    for model in (f"python:{file}:make", "timm:resnet18"):
        with pytest.raises(RecipeError, match=rf"--model {model}: the run's network is python:{file}:build. Name it"):
            probed(run, model=model)


def test_training_goes_on_with_the_file_elsewhere(run: Run, file: Path, recipe_file: Path, tmp_path: Path) -> None:
    file.parent.rename(tmp_path / "moved")
    moved = loaded(recipe_file, "train.epochs=2", model=f"python:{tmp_path / 'moved/net.py'}:build")
    assert trained(moved, tmp_path).read().epochs_done == 2
    assert run.read().recipe["net"]["name"] == f"python:{file}:build"


def test_a_new_run_takes_no_other_path(recipe_file: Path, file: Path, tmp_path: Path) -> None:
    shutil.copytree(file.parent, tmp_path / "moved")
    moved = loaded(recipe_file, model=f"python:{tmp_path / 'moved/net.py'}:build")
    with pytest.raises(RecipeError, match=r"--model with another path is for a run that exists. Set it in the recipe"):
        trained(moved, tmp_path)


def test_the_text_stored_with_features_has_the_name_that_the_recipe_gives(recipe_file: Path, file: Path) -> None:
    copy = file.parent / "copy.py"
    shutil.copy(file, copy)
    plain, moved = loaded(recipe_file), loaded(recipe_file, model=f"python:{copy}:build")
    assert network_text(moved) == network_text(plain)
    assert network_text(plain).startswith("net.py ")
