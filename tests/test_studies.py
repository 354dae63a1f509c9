"""Every study that ships with layerprobe's own networks, but for its images: layers, batches, loss and figure."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe import registry
from layerprobe.hooks import Measured, find_layers, measure_layers
from layerprobe.plots.plot import PlotOptions
from layerprobe.recipe.overrides import Overrides
from layerprobe.recipe.recipe import Recipe, load_recipe
from layerprobe.recipe.recipe_files import list_studies, read_toml
from layerprobe.registry import NETS, PLOTS
from layerprobe.system.errors import RecipeError
from layerprobe.workflow.plot.plot import require_options
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.study.plan import Cell, all_of, is_finished, plan_without_data, with_kept
from layerprobe.workflow.study.study_file import load_study
from layerprobe.workflow.train.building import build_plan

PAGE = Path(__file__).parents[1] / "docs" / "papers" / "rows.md"
# Training classes and images of a class: as many as the real ones, or as hard to draw batches from.
SIZES = {
    "cub200": (100, 59), "cars196": (98, 82), "sop": (240, 5), "torchvision": (10, 600), "digits": (5, 180),
    "folder": (68, 20),
}  # fmt: skip
VERSIONS = [
    (name, small)
    for name, file in list_studies().items()
    for small in (False, True)[: 1 + ("small" in read_toml(file))]
]


_MEASURED: dict[str, tuple[Measured, int]] = {}


def layers_of(recipe: Recipe) -> tuple[Measured, int]:
    """The layers of its network, which starts from scratch here, and the embedding's dimension.

    Networks that differ in the dimensions of fully connected layers alone have the same layers, and so has one at any
    size of images: at 96 pixels a forward takes a fifth.
    """
    fc = tuple(8 for _ in recipe.net.fc)
    recipe, dims = replace(recipe, net=recipe.net.model_copy(update={"weights": "none", "fc": fc})), recipe.net.fc
    image_size = np.minimum(recipe.data.image_size, 96).tolist()
    key = json.dumps([recipe.net.model_dump(mode="json"), image_size])
    if key not in _MEASURED:
        net = from_recipe.build_net(recipe)
        _MEASURED[key] = measure_layers(net, image_size), net.embedding_dim
    measured, dim = _MEASURED[key]
    return measured, dims[-1] if dims else dim


def labels_of(recipe: Recipe) -> NDArray[np.int64]:
    """As many as a training of it has."""
    options = recipe.data.model_dump()
    if recipe.data.name == "glyphs":
        classes, images = options["train_classes"], options["images_per_class"]
    elif options.get("protocol") == "classification":
        classes, images = 10, 90
    else:
        classes, images = SIZES[recipe.data.name]
    return np.repeat(np.arange(classes), max(2, round(recipe.data.share * images)))


def first_and_last(cells: list[Cell]) -> list[Cell]:
    """Of each variant."""
    by_variant = {name: [cell for cell in cells if cell.variant == name] for name in {c.variant for c in cells}}
    return [cell for own in by_variant.values() for cell in {id(c): c for c in (own[0], own[-1])}.values()]


@pytest.mark.parametrize(("name", "small"), VERSIONS)
def test_a_study_would_train_and_measure_its_layers(tmp_path: Path, name: str, small: bool) -> None:
    study = load_study(name, small=small)
    seeds = study.runs.seeds[:1]  # each further one takes as long, and has another number in its runs' names
    study = replace(study, runs=study.runs.model_copy(update={"seeds": seeds}))
    cells, _ = plan_without_data(study, tmp_path)
    assert len({training.run for training in all_of(cells)}) == len(study.variants) * len(study.cells)
    for cell in first_and_last(cells):
        training = cell.trainings[0]
        recipe, request = training.loaded(), training.request("cpu")
        if recipe.net.name not in NETS:
            pytest.skip("its network is another library's")
        layers, dim = layers_of(recipe)
        assert find_layers(request.probe or (), layers, pools=recipe.probe.pool)
        labels = labels_of(recipe)
        batch = build_plan(recipe, labels, workers=0).batches(1)[0]
        loss = from_recipe.build_loss(recipe, embedding_dim=dim, num_classes=int(labels.max()) + 1)
        torch.manual_seed(0)
        assert torch.isfinite(loss(torch.randn(len(batch), dim), torch.from_numpy(labels[batch])))


@pytest.mark.parametrize(("name", "small"), VERSIONS)
def test_a_studys_figure_takes_its_options(name: str, small: bool) -> None:
    study = load_study(name, small=small)
    if study.end.plot is not None:
        options = PlotOptions(layers=study.layers, metric=study.end.metric, key=study.end.key)
        require_options(study.end.plot, registry.load("plot", PLOTS, study.end.plot), options)


def test_the_readme_names_every_study_of_a_paper_and_whether_it_has_a_small_version() -> None:
    table = PAGE.read_text().partition("## The papers' figures")[2]
    of_papers = {name for name in list_studies() if re.match("zhai|horiguchi|fehervari|zhang|vo-hays", name)}
    assert set(re.findall(r"`((?:zhai|horiguchi|fehervari|zhang|vo-hays)[a-z0-9-]*)`", table)) == of_papers
    for line in table.splitlines():
        _, _, named, last, *_ = (*line.split("|"), "", "", "")
        found = re.findall(r"`([a-z0-9-]+)`", named)
        with_small = [name for name in found if "small" in read_toml(list_studies()[name])]
        if found:
            assert with_small == (found if last.strip() == "yes" else re.findall(r"`([a-z0-9-]+)`", last)), line


@pytest.mark.parametrize(
    ("paper", "tables", "figures"),
    [
        ("Zhai & Wu 2019", 7, 4),
        ("Horiguchi et al. 2019", 6, 8),
        ("Fehervari et al. 2019", 4, 2),
        ("Zhang et al. 2018", 7, 4),
        ("Vo & Hays 2019", 3, 8),
    ],
)
def test_the_readme_says_of_every_table_and_figure_what_trains_it(paper: str, tables: int, figures: int) -> None:
    rows = PAGE.read_text().partition(f"| {paper} | trained by")[2].partition("\n\n")[0]
    subjects = " ".join(line.split("|")[1] for line in rows.splitlines()[2:])
    printed = {f"table {n + 1}" for n in range(tables)} | {f"figure {n + 1}" for n in range(figures)}
    assert set(re.findall(r"(?:table|figure) \d+", subjects)) == printed


def test_batches_of_2_are_of_every_loss_that_needs_no_positives_and_of_no_other() -> None:
    trained = set()
    for name in registry.LOSSES:
        try:
            load_recipe("quick", Overrides(settings=(f"loss.name={name}", "train.batch_size=2")))
        except RecipeError as error:
            assert "holds fewer than 2 classes" in str(error)  # noqa: PT017 - of the others nothing is raised
        else:
            trained.add(name)
    wanted = {name for name in registry.LOSSES if not registry.load("loss", registry.LOSSES, name).needs_positives}
    assert trained == wanted
    batch2 = {variant.set["loss.name"] for variant in load_study("fehervari-batch2").variants}
    varied = {variant.set.get("loss.name", "n_pairs") for variant in load_study("fehervari-fig2").variants}
    assert batch2 == varied & wanted


@pytest.mark.parametrize(("name", "small"), VERSIONS)
def test_a_studys_claim_is_a_papers_and_its_table_has_a_question(name: str, small: bool) -> None:
    study = load_study(name, small=small)
    assert bool(study.about.claim) == bool(study.about.paper)
    assert study.end.table is None or study.about.question.endswith("?")


# Study, variant, and what the paper's section states of all its cells; a list: of the cells in their order.
STATED: list[tuple[str, str, dict[str, object]]] = [
    ("vo-hays-table3", "cars196", {"net.fc": [(64,), (128,), (256,), (512,)], "loss.name": "lifted_structure"}),
    ("vo-hays-table3", "cub200", {"train.learning_rate": 0.001 / 100}),  # "100 times smaller" than on the others
    ("vo-hays-batches", "", {"train.batch_size": 32, "train.images_per_class": [2, 4, 8, 16]}),
    ("vo-hays-batchnorm", "frozen BatchNorm", {"net.freeze_bn": True, "net.dropout": [0.0, 0.01, 0.1, 0.3, 0.5]}),
    ("horiguchi-fig7", "PCA to 1024", {"net.fc": (), "data.share": [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]}),
    ("horiguchi-fig8", "FCR1", {"net.fc": (256,), "data.share": [0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0]}),
    ("fehervari-batch2", "Proxy-NCA", {"train.batch_size": 2, "train.sampler": "shuffled"}),
    ("fehervari-sampling", "episodes", {"train.sampler": "episodes", "train.replacement": False}),
    ("fehervari-sampling", "episodes, with replacement", {"train.sampler": "episodes", "train.replacement": True}),
    ("zhang-norm-factor", "", {"loss.variant": "LN", "loss.length_in_gradient": [True, False]}),
    ("zhai-wu-table4", "no balance", {"train.sampler": "shuffled", "train.batch_size": 75}),
    *(
        ("zhai-wu-table4", name, {"train.sampler": "balanced", "train.images_per_class": int(name.split()[0])})
        for name in ("1 image of 75 classes", "3 of 25", "12 of 6", "25 of 3", "37 of 2", "75 of 1")
    ),
]


@pytest.mark.parametrize(("name", "variant", "values"), STATED)
def test_a_study_has_the_papers_values(tmp_path: Path, name: str, variant: str, values: dict[str, object]) -> None:
    cells, _ = plan_without_data(load_study(name), tmp_path)
    recipes = [cell.trainings[0].loaded() for cell in cells if cell.variant == variant]
    for key, value in values.items():
        section, _, option = key.partition(".")
        found = [getattr(getattr(recipe, section), option) for recipe in recipes]
        assert found == (value if isinstance(value, list) else [value] * len(recipes))


def test_heating_gently_ends_at_the_alpha_and_the_rate_of_heating_once(tmp_path: Path) -> None:
    cells, _ = plan_without_data(load_study("zhang-heating"), tmp_path)
    trains = {cell.variant: cell.trainings[0].loaded().train for cell in cells}
    gently = trains["HBN, heated gently"]
    assert len(trains["HBN, heated once"].heat_epochs) == 1
    # 16 -> 4, and the rate to a tenth
    assert 16 * gently.heat_factor ** len(gently.heat_epochs) == pytest.approx(4, abs=0.01)
    assert gently.heat_rate ** len(gently.heat_epochs) == pytest.approx(0.1, abs=0.001)


@pytest.mark.parametrize("name", ["emoji", "omniglot", "share"])
def test_the_findings_are_finished_by_their_scores_alone(name: str, tmp_path: Path) -> None:
    study = load_study(f"findings-{name}")
    cells, _ = plan_without_data(study, tmp_path)
    kept = with_kept(study, cells, PAGE.parents[2] / "docs" / "results" / f"{name}.csv")
    assert all(is_finished(study, training) for training in all_of(kept))


@pytest.mark.parametrize("small", [False, True])
def test_the_example_of_the_documentation_can_be_planned(tmp_path: Path, small: bool) -> None:
    text = (PAGE.parents[2] / "docs" / "how-to" / "studies.md").read_text(encoding="utf-8")
    example = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "mine.toml").write_text(example[0], encoding="utf-8")
    cells, lacking = plan_without_data(load_study(str(tmp_path / "mine.toml"), small=small), tmp_path)
    assert ([cell.variant for cell in cells], lacking) == (["triplet"] * 2 + ["softmax"] * 2, ())
