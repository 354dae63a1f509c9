from __future__ import annotations

import contextlib
import re
from pathlib import Path

import pytest

from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import Change, Recipe, is_changed, load_recipe, recorded_recipe
from layerprobe.recipe.recipe_files import find_recipe, list_recipes, summary
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.naming import user_named
from tests.records import recorded

RECIPES = Path(__file__).parents[2] / "recipes"


@pytest.fixture
def recipe_file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text((RECIPES / "netA.toml").read_text())
    return path


def load(*settings: str, name: str = "netA", data: str | None = None, seed: int | None = None) -> Recipe:
    return load_recipe(name, Overrides(data, settings, seed))


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_every_recipe_loads_and_says_what_it_is(path: Path) -> None:
    assert load_recipe(str(path), Overrides(settings=("data.root=somewhere",))).name == path.stem
    said = summary(path)
    assert said
    assert not said.casefold().startswith(path.stem.casefold())  # the list of recipes has the name beside it


@pytest.mark.parametrize(
    ("name", "fc"),
    [("netA", (512,)), ("netB", (512,)), ("netC", (512,)), ("netD", ()), ("netE", (512,) * 2), ("netF", (512,) * 3)],
)
def test_the_heads_are_the_papers(name: str, fc: tuple[int, ...]) -> None:
    assert load(name=name).net.fc == fc


@pytest.mark.parametrize("net", ["netA", "netE"])
@pytest.mark.parametrize("variant", ["", "-code"])
@pytest.mark.parametrize(
    ("data", "images", "iterations"), [("cub200", 5864, 20_000), ("cars196", 8054, 20_000), ("sop", 59_551, 200_000)]
)
def test_the_papers_iterations_are_reached_and_no_epoch_more(
    net: str, variant: str, data: str, images: int, iterations: int
) -> None:
    train = load(name=f"{net}-{data}{variant}", data=f"{data}:somewhere").train
    per_epoch = images // train.batch_size
    assert (train.epochs - 1) * per_epoch < iterations <= train.epochs * per_epoch


@pytest.mark.parametrize(("data", "falls"), [("cub200", (3001, 10_001)), ("cars196", (10_001, 20_001))])
def test_the_released_codes_rates_hold_up_to_an_iteration_and_with_it(data: str, falls: tuple[int, ...]) -> None:
    recipe = load(name=f"netA-{data}-code", data=f"{data}:somewhere")
    assert recipe.train.decay_iterations == falls
    assert (recipe.train.warmup_iterations, recipe.train.warmup) == (100, "zero_rate")
    assert (recipe.loss.options()["learn_scale"], recipe.loss.options()["half_gradient"]) == (True, True)


@pytest.mark.parametrize("data", ["cub200", "cars196", "sop"])
def test_a_benchmarks_recipe_says_what_its_defaults_are(data: str) -> None:
    rooted = Overrides(settings=("data.root=somewhere",))
    recipe, default = load_recipe(f"netA-{data}", rooted), load(name=f"netA-{data}", data=f"{data}:somewhere")
    assert recipe.identity() == default.identity()
    assert recipe.data.transform == "D1"


def test_all_problems_are_told_at_once(recipe_file: Path) -> None:
    text = recipe_file.read_text().replace("epochs = 15", 'epohcs = 15\nlearning_rate = "fast"')
    text = text.replace("learning_rate = 0.01\n", "").replace("scale = 4.0", "skale = 4.0").replace("[probe]", "[prob]")
    recipe_file.write_text(text)
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(recipe_file))
    problems = "\n".join(caught.value.problems)
    assert "[prob]: unknown section. Did you mean 'probe'?" in problems
    assert "[train]: unknown key 'epohcs'. Did you mean 'epochs'?" in problems
    assert "[train]: epochs is missing" in problems
    assert '[train]: learning_rate = "fast": input should be a valid number' in problems
    assert "[loss]: unknown key 'skale'. Did you mean 'scale'?" in problems
    assert len(caught.value.problems) == 5


def test_an_unknown_loss_has_the_near_miss() -> None:
    with pytest.raises(RecipeError, match=r"\[loss\]: unknown loss 'softmaxx'. Did you mean 'softmax'?"):
        load("loss.name=softmaxx")


def test_an_unknown_metric_has_the_near_miss() -> None:
    with pytest.raises(RecipeError, match=r"\[probe\]: unknown metric 'unifomity'. Did you mean 'uniformity'?"):
        load('probe.metrics=["R@5", "unifomity"]')


def test_an_unknown_recipe_has_the_near_miss() -> None:
    with pytest.raises(UnknownNameError, match="unknown recipe 'neta'. Did you mean 'netA'?"):
        find_recipe("neta")


def test_a_number_in_quotes_is_no_number() -> None:
    with pytest.raises(RecipeError, match="train.*epochs"):
        load("train.epochs='15'")


def test_settings_are_toml_and_text_needs_no_quotes() -> None:
    recipe = load("train.epochs=30", "data.invert=true", "net.pool=avg", "train.decay_at=[0.5, 0.75]")
    assert (recipe.train.epochs, recipe.data.invert, recipe.net.pool) == (30, True, "avg")
    assert recipe.train.decay_at == (0.5, 0.75)


@pytest.mark.parametrize("text", ["train.epochs", "epochs=3", "=3", "train.=3"])
def test_a_setting_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(RecipeError, match="not of the form section.key=value"):
        load(text)


def test_another_loss_brings_its_own_defaults_and_sampler() -> None:
    recipe = load("loss.relu=false", "loss.name=softmax")
    assert recipe.loss.options() == {"relu": False, "bias": True, "label_smoothing": 0.0}
    assert (recipe.train.sampler, recipe.train.images_per_class) == ("shuffled", None)


def test_another_data_set_replaces_the_whole_section(tmp_path: Path) -> None:
    recipe = load("data.image_size=64", data=f"folder:{tmp_path}")
    assert recipe.data.root == str(tmp_path)
    assert recipe.data.image_size == 64
    assert recipe.data.augment == "photo"
    assert "images_per_class" not in recipe.as_dict()["data"]


def test_height_and_width_of_a_square_are_its_side(tmp_path: Path) -> None:
    one, two = (load(f"data.image_size={text}", data=f"folder:{tmp_path}") for text in ("224", "[224, 224]"))
    assert two.as_dict() == one.as_dict()
    assert two.identity() == one.identity() == load(data=f"folder:{tmp_path}").identity()  # 224 is the default


def test_height_and_width_are_stored_and_are_another_experiment(tmp_path: Path) -> None:
    recipe = load("data.image_size=[256,128]", data=f"folder:{tmp_path}")
    assert recipe.data.image_size == (256, 128)
    assert recipe.as_dict()["data"]["image_size"] == [256, 128]
    upside_down = load("data.image_size=[128,256]", data=f"folder:{tmp_path}")
    assert len({found.identity() for found in (recipe, upside_down, load(data=f"folder:{tmp_path}"))}) == 3


@pytest.mark.parametrize("text", ["[256, 128, 3]", "[256]", "[256, 128.5]", '[256, "128"]', "true", "'224'", "tall"])
def test_another_image_size_is_refused(text: str) -> None:
    with pytest.raises(
        RecipeError, match=r"image_size = .*: input should be a whole number, or two, \[height, width\]"
    ):
        load(f"data.image_size={text}")


def test_a_side_of_an_image_has_its_limits() -> None:
    with pytest.raises(RecipeError, match=r"image_size = \[256, 0\]: input should be greater than or equal to 1"):
        load("data.image_size=[256, 0]")


@pytest.mark.parametrize("transform", ["D1", "D2", "D3"])
def test_what_crops_a_square_takes_no_height_and_width(transform: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=rf'transform = "{transform}" crops a square. Give one image_size'):
        load("data.image_size=[256,128]", f"data.transform={transform}", data=f"folder:{tmp_path}")


def test_a_list_of_one_mean_is_that_number(tmp_path: Path) -> None:
    one, two = (load(f"data.mean={text}", "data.std=0.25", data=f"folder:{tmp_path}") for text in ("0.5", "[0.5]"))
    assert one.as_dict() == two.as_dict()
    assert load("data.mean=[0.1, 0.2, 0.3]", data=f"folder:{tmp_path}").data.mean == (0.1, 0.2, 0.3)


def test_a_root_is_stored_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packaged = find_recipe("netA").absolute()
    monkeypatch.chdir(tmp_path)
    assert load(name=str(packaged), data="folder:images").data.root == str(tmp_path / "images")


def test_a_data_set_without_its_root_says_so() -> None:
    with pytest.raises(RecipeError, match="folder needs a root. Give --data folder:PATH"):
        load(data="folder")


def test_a_pair_loss_refuses_shuffled_batches() -> None:
    with pytest.raises(RecipeError, match='the loss needs each class twice in a batch. Set sampler = "classes"'):
        load("train.sampler=shuffled")


def test_two_decays_contradict() -> None:
    with pytest.raises(RecipeError, match="decay_at and decay_epochs both say"):
        load("train.decay_epochs=[3]")


def test_the_identity_ignores_root_and_probe_and_sees_the_seed(tmp_path: Path) -> None:
    one, two = load(data=f"folder:{tmp_path}"), load("probe.k=[1]", data=f"folder:{tmp_path / 'other'}")
    assert one.identity() == two.identity()
    seeded = load(data=f"folder:{tmp_path}", seed=1)
    assert seeded.identity() != one.identity()
    assert seeded.identity(with_seed=False) == one.identity(with_seed=False)


@pytest.mark.parametrize("setting", ["data.group=camera", "data.positives=easy.csv", "data.ignore=junk.csv"])
def test_what_decides_ranks_alone_is_no_part_of_the_identity(setting: str) -> None:
    assert load(setting).identity() == load().identity()
    assert load(setting).changes_since(recorded({"recipe_name": "netA", "recipe": load().as_dict()})) == []


def test_a_default_that_is_written_out_changes_nothing() -> None:
    assert load("loss.margin=0.2").identity() != load().identity()
    assert load("train.decay_factor=0.1").identity() == load().identity()


@pytest.mark.parametrize(
    ("name", "data", "identity"),
    [
        ("netA", None, "8d5456e0ed1d"),
        ("quick", None, "ee8fce5897e2"),
        ("netA-cub200-code", "cub200:DIR", "e1d55c43a38a"),
        ("dreml-cub200", "cub200:DIR", "03f338c7e369"),
        ("unbiased-cub200", "cub200:DIR", "7ea4099ab7e8"),
    ],
)
def test_no_later_version_renames_a_run(name: str, data: str | None, identity: str) -> None:
    assert load(name=name, data=data).identity()[:12] == identity


def test_a_key_at_its_default_is_no_part_of_the_identity() -> None:
    assert load("train.weight_decay=5e-4").identity() == load().identity()
    assert load("train.weight_decay=0.5").identity() != load().identity()


def test_the_identity_sees_the_class_seed_of_a_data_set_without_splits_of_its_own() -> None:
    seeded = load("data.class_seed=0", name="quick")
    assert seeded.identity(with_seed=False) != load(name="quick").identity(with_seed=False)
    with pytest.raises(RecipeError, match="class_seed"):
        load("data.class_seed=0", data="cub200:DIR")


def test_a_losss_own_key_at_its_default_is_no_part_of_the_identity() -> None:
    triplet = load("loss.name=triplet")
    assert load("loss.name=triplet", f"loss.margin={triplet.loss.options()['margin']}").identity() == triplet.identity()
    assert load("loss.name=triplet", "loss.margin=0.7").identity() != triplet.identity()


@pytest.mark.parametrize(
    ("settings", "limit"),
    [
        (("loss.name=n_pairs",), 10.0),
        (("loss.name=angular",), 10.0),
        (("loss.name=arcface",), 5.0),
        (("loss.name=cosface",), 5.0),
        (("loss.name=softmax",), None),
        (("loss.name=n_pairs", "train.clip_gradient=3"), 3.0),
        (("loss.name=n_pairs", "train.clip_gradient=0"), None),
        (("loss.name=n_pairs", "train.optimizer=adam"), None),
    ],
)
def test_a_loss_that_needs_a_limit_on_sgds_steps_has_one(settings: tuple[str, ...], limit: float | None) -> None:
    assert load(*settings).train.clip_gradient == limit


def test_a_run_trained_without_a_limit_is_not_taken_for_one_with_the_losss() -> None:
    unlimited = load("loss.name=n_pairs", "train.clip_gradient=0")
    assert unlimited.as_dict()["train"]["clip_gradient"] is None
    record = {"recipe_name": "netA", "recipe": unlimited.as_dict()}
    assert unlimited.changes_since(recorded(record)) == []
    assert load("loss.name=n_pairs").changes_since(recorded(record)) == [Change("train", "clip_gradient", None, 10.0)]


def test_what_differs_from_a_runs_recipe_is_told_by_section_and_key() -> None:
    record = {"recipe_name": "netA", "recipe": load().as_dict()}
    changed = load("train.learning_rate=0.5", "probe.k=[1]", "data.cache=off").changes_since(recorded(record))
    assert changed == [Change("train", "learning_rate", 0.01, 0.5)]
    assert str(changed[0]) == "train.learning_rate: 0.01 -> 0.5"


@pytest.mark.parametrize(
    ("settings", "data", "problem"),
    [
        (("train.epochs=abc",), None, '--set train.epochs=abc [train]: epochs = "abc": input should be a valid int'),
        (("train.seeds=1",), None, "--set train.seeds=1 [train]: unknown key 'seeds'. Did you mean 'seed'?"),
        (("net.fc=512",), None, "--set net.fc=512 [net]: fc = 512: a list is expected. Write fc = [512]"),
        (("loss.margin=-1",), None, "--set loss.margin=-1 [loss]: margin is -1"),
        (("loss.name=tripplet",), None, "--set loss.name=tripplet [loss]: unknown loss 'tripplet'"),
        (("train.decay_epochs=[3]",), None, "--set train.decay_epochs=[3] [train]: decay_at and decay_epochs both say"),
        (("metrics.NMI.sedes=1",), None, "--set metrics.NMI.sedes=1 [metrics.NMI]: unknown key 'sedes'"),
        ((), "cub200", "--data cub200 [data]: cub200 needs a root. Give --data cub200:PATH"),
        ((), "cup200:DIR", "--data cup200:DIR [data]: unknown data set 'cup200'. Did you mean 'cub200'?"),
    ],
)
def test_a_problem_that_a_flag_caused_names_the_flag(settings: tuple[str, ...], data: str | None, problem: str) -> None:
    with pytest.raises(RecipeError) as caught:
        load(*settings, data=data)
    assert caught.value.problems[0].startswith(problem)


@pytest.mark.parametrize(
    ("old", "new", "setting", "flagged"),
    [
        ("scale = 4.0", "scale = 4.0\nmargin = -1", "loss.normalise=false", False),
        ("batch_size = 32", "batch_size = 4", "loss.name=triplet", True),
        ("batch_size = 32", "batch_size = 4", "train.learning_rate=0.5", False),
        ("momentum = 0.9", 'optimizer = "adam"', "loss.name=subsampled_softmax", False),
        ('optimizer = "sgd"', 'optimizer = "adam"', "train.a.b=1", True),
    ],
)
def test_of_several_keys_the_flag_is_named_that_set_one(
    recipe_file: Path, old: str, new: str, setting: str, flagged: bool
) -> None:
    text = recipe_file.read_text()
    assert old in text
    recipe_file.write_text(text.replace(old, new))
    with pytest.raises(RecipeError) as caught:
        load_recipe(str(recipe_file), Overrides(settings=(setting,)))
    assert any(problem.startswith(f"--set {setting} ") for problem in caught.value.problems) == flagged


def test_a_problem_that_no_flag_caused_names_the_file(recipe_file: Path) -> None:
    recipe_file.write_text(recipe_file.read_text().replace("epochs = 15", "epochs = true"))
    with pytest.raises(RecipeError, match=re.escape(f"{recipe_file} [train]: epochs = true")):
        load_recipe(str(recipe_file), Overrides(settings=("train.learning_rate=0.1",)))


def test_another_network_takes_its_own_pool_and_all_its_layers() -> None:
    recipe = load("net.name=resnet50", name="netB")
    assert (recipe.net.pool, recipe.net.from_scratch, recipe.probe.layers) == (None, (), ("*",))
    assert recipe.net.fc == (512,)
    kept = load("net.name=resnet50", "net.pool=max", 'probe.layers=["fc6"]')
    assert (kept.net.pool, kept.probe.layers) == ("max", ("fc6",))
    assert load("net.name=vgg16_bn").identity() == load().identity()


def test_a_model_from_elsewhere_has_no_head_and_no_layers_of_another_network() -> None:
    recipe = load("net.name=timm:resnet50", "net.weights=none", name="netB")
    assert (recipe.net.fc, recipe.net.pool, recipe.net.from_scratch, recipe.probe.layers) == ((), None, (), ("*",))
    assert load("net.name=timm:resnet50", "net.weights=none", "net.fc=[8]").net.fc == (8,)
    assert load("net.name=timm:resnet50", "net.weights=none", "net.fc_bias=false").net.options()["fc_bias"] is False


@pytest.mark.parametrize(
    ("weights", "what"),
    [
        ((), "weights is missing"),
        (("net.weights=imagenet",), 'weights = "imagenet" is for the networks of layerprobe'),
    ],
)
def test_a_model_from_elsewhere_must_say_where_its_weights_come_from(weights: tuple[str, ...], what: str) -> None:
    fix = 'Set it to "model" for those of timm:resnet50 itself, to "none", a file or "run:NAME"'
    with pytest.raises(RecipeError, match=re.escape(f"[net]: {what}. {fix}")):
        load("net.name=timm:resnet50", *weights, name="netB")


def test_the_weights_and_the_head_of_a_model_from_elsewhere_are_part_of_its_identity() -> None:
    settings = ("net.name=timm:resnet50", "net.weights=none")
    others = ("net.weights=model", "net.fc=[512]", "net.name=timm:resnet18")
    assert len({load(*settings, *other).identity() for other in ((), *((other,) for other in others))}) == 4


def test_a_local_recipe_hides_the_packaged_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "netA.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    assert list_recipes()["netA"] == Path("recipes/netA.toml")
    assert list_recipes()["netB"].is_file()


def test_a_file_that_is_no_toml_says_where(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("[data\n")
    with pytest.raises(RecipeError, match="x.toml: not a TOML file: .*line 1"):
        load_recipe(str(tmp_path / "x.toml"))


def test_brackets_without_end_are_told(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("data = " + "{a = " * 50_000)
    with pytest.raises(RecipeError, match=r"x\.toml: nested too deep\. Correct its brackets"):
        load_recipe(str(tmp_path / "x.toml"))
    with pytest.raises(RecipeError, match=r"--set data\.root: nested too deep\. Correct its brackets"):
        load_recipe("quick", Overrides(settings=(f"data.root={'[' * 50_000}",)))


def test_the_augmentations_are_those_of_the_data_room() -> None:
    from typing import get_args

    from layerprobe.data.transforms import AUGMENTATIONS
    from layerprobe.values.sections import Data

    assert set(get_args(Data.model_fields["augment"].annotation)) == set(AUGMENTATIONS)


def test_options_of_a_metric_are_read_and_belong_to_no_identity() -> None:
    recipe = load("metrics.NMI.restarts=100")
    assert recipe.metrics["NMI"]["restarts"] == 100
    assert recipe.identity() == load("metrics.NMI.restarts=3").identity() == load().identity()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("metrics.NMI.restart=1", r"\[metrics.NMI\]: unknown key 'restart'. Did you mean 'restarts'?"),
        ("metrics.NIM.restarts=1", r"\[metrics.NIM\]: unknown metric 'NIM'. Did you mean 'NMI'?"),
        ("metrics.NMI=3", r"--set metrics.NMI=3 \[metrics\]: NMI is not a section. Write \[metrics.NMI\]"),
        ('metrics.NMI.restarts="ten"', r"\[metrics.NMI\]: restarts = \"ten\""),
    ],
)
def test_wrong_options_of_a_metric_are_told(setting: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(setting)


def test_where_the_data_lie_changes_no_recipe(tmp_path: Path) -> None:
    there = load_recipe("netA-cub200", Overrides(f"cub200:{tmp_path}"))
    assert not is_changed("netA-cub200", there)
    assert is_changed("netA-cub200", load_recipe("netA-cub200", Overrides(f"cub200:{tmp_path}", seed=1)))
    assert is_changed("netA", load_recipe("netA", Overrides(f"folder:{tmp_path}")))
    assert not is_changed("netA", load_recipe("netA", Overrides(settings=("probe.k=[1]",))))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("data.transform=D1", "data.augment=affine"), 'transform = "D1" frames training images by itself'),
        (("data.transform=D3", "data.augment=photo", "data.mean=0.1"), 'transform = "D3" scales pixels to -1 ... 1'),
    ],
)
def test_a_papers_transform_contradicts_another(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load_recipe("netA", Overrides(settings=settings))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (("data.validation_folds=1",), "validation_folds = 1 leaves nothing to train on"),
        (("data.validation_folds=3", "data.validation_classes=0.2"), "both hold classes out"),
        (("data.validation_folds=3", "data.validation_fold=3"), "validation_fold = 3: must be 0 to 2"),
        (("data.validation_fold=1",), "validation_fold = 1: must be 0, or set validation_folds"),
        (("data.seen=false",), "seen = false: a network that is trained for 15 epochs sees the training classes"),
    ],
)
def test_classes_held_out_contradict_each_other(settings: tuple[str, ...], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(*settings)


def test_images_of_several_labels_are_measured_and_not_trained_on() -> None:
    several = "data.label_separator=|"
    with pytest.raises(
        RecipeError, match=r"label_separator: losses take each image as of one class\. Set train\.epochs"
    ):
        load(several, data="csv:set.csv")
    kept = load(several, "train.epochs=0", "train.decay_at=[]", data="csv:set.csv")
    assert kept.data.options() == {"label_separator": "|"}
    assert kept.identity() != load("train.epochs=0", "train.decay_at=[]", data="csv:set.csv").identity()


def test_the_folds_of_a_training_are_one_experiment() -> None:
    first, second = (load("data.validation_folds=3", f"data.validation_fold={fold}") for fold in (0, 1))
    assert first.identity() != second.identity()
    assert first.identity(with_seed=False) == second.identity(with_seed=False)
    assert first.identity(with_seed=False) != load("data.validation_folds=4").identity(with_seed=False)


def test_a_download_changes_no_recipe() -> None:
    settings: tuple[tuple[str, ...], ...] = ((), ("data.download=true",))
    plain, loaded = (load_recipe("netA", Overrides("torchvision:CIFAR100", extra)) for extra in settings)
    assert plain.identity() == loaded.identity()


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("train.decay=cosine", "train.decay_at=[0.5]"), 'decay_at is for decay = "steps"'),
        (("train.heat_at=[0.5]", "train.heat_epochs=[3]"), "heat_at and heat_epochs both say"),
        (("train.warmup_iterations=3", "train.warmup_epochs=1"), "warmup_iterations and warmup_epochs both say"),
        (("train.optimizer=adam", "train.momentum=0.5"), "adam has no momentum"),
        (("train.epsilon=0.1",), "sgd has no epsilon"),
        (("loss.name=subsampled_softmax", "train.optimizer=adam"), "adam takes no gradient of some rows"),
        (("train.images_per_class=1",), "images_per_class = 1: the loss needs each class twice. Set 2 or more"),
        (("train.sampler=balanced", "train.images_per_class=1"), "the loss needs each class twice. Set 2 or more"),
        (
            ("train.sampler=n_pairs", "train.images_per_class=4"),
            "images_per_class = 4: n_pairs takes 2 of a class. Leave it out",
        ),
        (("train.self_pairs=0.1",), 'self_pairs = 0.1 is for pairs, not for classes. Set sampler = "n_pairs"'),
        (("loss.name=softmax", "train.self_pairs=0.1"), "self_pairs = 0.1 is for pairs, not for shuffled"),
        (
            ("loss.name=n_pairs", "train.self_pairs=0.1", "data.augment=none"),
            "self_pairs = 0.1: without augmentation a pair is one image twice. Set data.augment",
        ),
        (("loss.name=prototypical", "loss.support=10"), "support = 10 leaves no query of images_per_class = 10"),
        (("loss.name=heated_softmax", "loss.batch_norm=false"), 'leaves it to the network. Set net.fc_norm = "batch"'),
        (("train.batch_size=7",), "batch_size = 7 holds fewer than 2 classes of images_per_class = 4, which the loss"),
        (
            ("loss.name=softmax", "train.sampler=classes", "train.batch_size=3", "train.images_per_class=4"),
            "batch_size = 3 holds no class of images_per_class = 4. Raise it",
        ),
        (("loss.name=softmax", "train.sampler=classes", "train.images_per_class=1"), "classes needs each class twice"),
    ],
)
def test_keys_that_contradict_each_other_are_told(settings: tuple[str, ...], problem: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(problem)):
        load(*settings)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (("loss.margin=-1",), "[loss]: margin is -1.0; it is a distance, a number of at least 0. Change it"),
        (("loss.name=subsampled_softmax", "loss.classes=0"), "[loss]: classes is 0; it is a number of"),
        (("loss.name=subsampled_softmax", "loss.ratio=0.5", "loss.classes=3"), "ratio is 0.5 and classes is 3"),
        (
            ("loss.name=margin", "loss.beta_learning_rate=0.5", "loss.beta_rate_factor=2"),
            "--set loss.beta_learning_rate=0.5 --set loss.beta_rate_factor=2 [loss]: beta_learning_rate is 0.5 and",
        ),
        (("loss.name=proxy_nca", "loss.proxy_learning_rate=0"), "[loss]: proxy_learning_rate is 0.0; it is a learning"),
    ],
)
def test_a_losss_own_rules_are_the_recipes(settings: tuple[str, ...], problem: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(problem)):
        load(*settings)


def test_more_classes_than_a_recipe_can_know_of_are_no_problem_of_it() -> None:
    assert load("loss.name=subsampled_softmax", "loss.classes=1000000").loss.options()["classes"] == 1_000_000


@pytest.mark.parametrize(
    ("settings", "problems"),
    [
        (("loss.margin=-1", "train.optimizer=adam", "train.momentum=0.5"), ["margin is -1.0", "adam has no momentum"]),
        (("loss.margin=-1", "train.epochs='3'", "train.seeds=1"), ["epochs = ", "key 'seeds'", "margin is -1.0"]),
    ],
)
def test_a_losss_own_problem_is_told_with_all_others(settings: tuple[str, ...], problems: list[str]) -> None:
    with pytest.raises(RecipeError) as caught:
        load(*settings)
    for wanted, problem in zip(problems, caught.value.problems, strict=True):
        assert wanted in problem


def test_a_classifier_may_train_on_one_class_a_batch() -> None:
    # Table 4 of Zhai & Wu 2019: 75 images of one class.
    settings = ("loss.name=softmax", "train.sampler=balanced", "train.batch_size=75", "train.images_per_class=75")
    train = load(*settings).train
    assert (train.images_per_class, train.replacement) == (75, True)


@pytest.mark.parametrize(("optimizer", "momentum"), [("sgd", 0.9), ("rmsprop", 0.0), ("adam", None), ("adamw", None)])
def test_momentum_has_the_optimizers_default(optimizer: str, momentum: float | None) -> None:
    assert load(f"train.optimizer={optimizer}").train.momentum == momentum


def test_what_belonged_to_the_recipes_choice_goes_with_it() -> None:
    train = load("train.images_per_class=8", "train.decay=cosine", "train.sampler=balanced").train
    assert (train.decay_at, train.images_per_class) == ((), 8)
    assert load("train.sampler=n_pairs").train.images_per_class == 2


def test_a_recipe_that_needs_a_root_may_be_compared_with_one_that_has_none() -> None:
    reference = str(RECIPES / "netA-cub200.toml")
    assert is_changed(reference, load(name=reference, data="glyphs"))
    assert not is_changed(reference, load(name=reference, data="cub200:somewhere"))


def test_an_entry_of_a_list_is_named_by_its_place() -> None:
    with pytest.raises(RecipeError, match=re.escape("[net]: fc[1] = 0: input should be greater than or equal to 1")):
        load("net.fc=[8, 0]")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.chunk=-1", "chunk = -1: input should be greater than or equal to 0"),
        ("train.seed=18446744073709551616", "less than or equal to 18446744073709551615"),
        ("train.epochs=1000000000", "less than or equal to 100000"),
        ("data.image_size=1000000", "less than or equal to 4096"),
        ("net.fc=[1000000000]", "less than or equal to 65536"),
        ("ensemble.members=1000000000", "less than or equal to 1000"),
        ("loss.centres=1000000000000", "[loss]: centres = 1000000000000: too large. Change it"),
        ("loss.centres=100000000000000000000", "[loss]: centres = 100000000000000000000: too large. Change it"),
    ],
)
def test_a_number_out_of_its_range_is_told_with_its_flag(setting: str, message: str) -> None:
    ensemble = ("ensemble.of=quick",) if setting.startswith("ensemble") else ()
    settings = ("loss.name=soft_triple", *ensemble, setting)
    with pytest.raises(RecipeError) as caught:
        load_recipe("quick", Overrides(settings=settings))
    assert len(caught.value.problems) == 1
    assert message in caught.value.problems[0]
    assert f"--set {setting}" in caught.value.problems[0]


def test_the_largest_seed_is_taken_and_of_an_ensemble_the_last_members() -> None:
    largest = 2**64 - 1
    assert load_recipe("quick", Overrides(seed=largest)).train.seed == largest
    two = ("ensemble.of=quick", "ensemble.members=2")
    assert load_recipe("quick", Overrides(settings=two, seed=largest // 2)).member(2).train.seed == largest
    with pytest.raises(RecipeError, match=r"--seed 9223372036854775808 \[train\]: .* too large for 2 members"):
        load_recipe("quick", Overrides(settings=two, seed=largest // 2 + 1))


def test_an_option_that_a_metric_does_not_have_is_unknown() -> None:
    with pytest.raises(RecipeError, match=r"\[metrics.NMI\]: unknown key 'seeds'"):
        load("metrics.NMI.seeds=3")


def test_a_similarity_belongs_to_no_identity() -> None:
    assert load('probe.similarity="euclidean"').identity() == load().identity()


def test_packed_bits_cannot_be_asked_for_by_a_similarity() -> None:
    with pytest.raises(RecipeError, match=r"\[probe\]: similarity = \"hamming\".*'cosine', 'euclidean' or 'dot'"):
        load('probe.similarity="hamming"')


def test_a_record_downloads_no_data_set(tmp_path: Path) -> None:
    record = {
        "recipe_name": "a",
        "recipe": {
            "data": {"name": "torchvision", "set": "CIFAR10", "root": str(tmp_path), "download": True},
            "net": {"name": "lenet", "weights": "none", "fc": [8]},
            "loss": {"name": "triplet", "margin": 0.2},
            "train": {"epochs": 1},
        },
    }
    assert recorded_recipe(recorded(record), tmp_path).data.options()["download"] is False


def test_a_recipe_names_its_network_unless_it_lies_in_a_run_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    mine, theirs = tmp_path / "mine.toml", tmp_path / "m/theirs.toml"
    theirs.parent.mkdir()
    (theirs.parent / "run.json").touch()
    text = (RECIPES / "netA.toml").read_text()
    for path, name in ((mine, "python:mine.py:build"), (theirs, "python:theirs.py:build")):
        path.write_text(text.replace('name = "vgg16_bn"', f'name = "{name}"'))
    for path in (mine, theirs):
        with contextlib.suppress(RecipeError):
            load_recipe(str(path))
    assert (user_named("python:mine.py:build"), user_named("python:theirs.py:build")) == (True, False)
    with contextlib.suppress(RecipeError):
        load_recipe(str(theirs), Overrides(settings=("net.name=python:theirs.py:build",)))
    assert user_named("python:theirs.py:build")


def test_an_ensemble_of_a_recipe_in_a_run_folder_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_NAMED_MODELS", "[]")
    theirs, mine = tmp_path / "m/theirs.toml", tmp_path / "mine.toml"
    theirs.parent.mkdir()
    (theirs.parent / "run.json").touch()
    theirs.write_text((RECIPES / "netA.toml").read_text().replace('name = "vgg16_bn"', 'name = "python:a.py:build"'))
    mine.write_text(f'[ensemble]\nof = "{theirs}"\nmembers = 2\n')
    with contextlib.suppress(RecipeError):
        load_recipe(str(mine))
    assert not user_named("python:a.py:build")


@pytest.mark.parametrize(
    ("overrides", "flag"),
    [
        (Overrides("folder:caf\udce9"), "--data folder:caf\udce9 [data]: root"),
        (Overrides(settings=("net.weights=caf\udce9.pt",)), "--set net.weights=caf\udce9.pt [net]: weights"),
    ],
)
def test_a_path_that_is_not_utf8_is_refused_by_its_flag(overrides: Overrides, flag: str) -> None:
    with pytest.raises(RecipeError, match=r"caf\\udce9.*' is not UTF-8\. Rename it, or give a link") as caught:
        load_recipe("quick", overrides)
    (problem,) = caught.value.problems
    assert problem.startswith(f"{flag} = ")
