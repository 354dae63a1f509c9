from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import layerprobe
from layerprobe import store
from layerprobe.data.loading import plain_batches
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.registry import METRICS
from layerprobe.system.errors import DataError, NumericError, RecipeError, UnknownNameError
from layerprobe.values.scores import Score
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_checkpoint
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import TrainRequest
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

Loader = DataLoader[tuple[Tensor, ...]]


def small_model() -> nn.Sequential:
    """Two blocks and a head: maps of 4 and 6 channels, then 5 numbers."""
    torch.manual_seed(0)
    blocks = nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 1)),
        nn.Sequential(nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 6, 1)),
    )
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    return nn.Sequential(blocks, head)


def loader_of(*labels: int, seed: int = 0, **options: object) -> Loader:
    """Noise of 12 x 12 pixels about a colour of the class, in batches of 3."""
    drawn = torch.Generator().manual_seed(seed)
    colours = torch.randn(10, 3, 1, 1, generator=drawn)[list(labels)]
    images = colours + 2 * torch.randn(len(labels), 3, 12, 12, generator=drawn)
    return DataLoader(TensorDataset(images, torch.tensor(labels)), batch_size=3, **options)  # type: ignore[arg-type] # one test's options each


TRAIN, TEST = loader_of(0, 0, 0, 1, 1, 1, 2, 2), loader_of(3, 3, 3, 4, 4, 4, 5, 5, 5, seed=1)


def number(scores: tuple[Score, ...], **wanted: object) -> float | None:
    (found,) = [score for score in scores if wanted.items() <= score.as_json().items()]
    return found.value


def nearest_has_the_class(features: np.ndarray, labels: np.ndarray) -> float:
    """Recall@1 by a float64 loop."""
    unit = features.astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    hits = []
    for row, query in enumerate(unit):
        similarity = [-2.0 if other == row else float(query @ item) for other, item in enumerate(unit)]
        hits.append(labels[int(np.argmax(similarity))] == labels[row])
    return float(np.mean(hits))


def test_every_block_and_the_output_are_scored_on_every_split() -> None:
    model = small_model()
    result = layerprobe.probe(model, {"test": TEST, "train": TRAIN}, ks=(1, 2), pools=("max", "avg"))
    assert [(score.split, score.ranked.layer.layer, score.ranked.layer.pool) for score in result.scores[::2]] == [
        (split, layer, pool)
        for split in ("train", "test")
        for layer, pool in (("0.0", "max"), ("0.0", "avg"), ("0.1", "max"), ("0.1", "avg"), ("output", "none"))
    ]
    images = torch.cat([batch for batch, _ in TEST])
    with torch.no_grad():
        maps = model.eval().get_submodule("0.0")(images)
        expected = {"0.0@max": maps.amax((2, 3)), "0.0@avg": maps.mean((2, 3)), "output": model(images)}
    for layer, values in expected.items():
        np.testing.assert_allclose(result.features["test", layer], values.numpy(), rtol=1e-5, atol=1e-6)
    for split, key in result.features:
        by_hand = nearest_has_the_class(result.features[split, key], result.labels[split])
        layer, _, pool = key.partition("@")
        assert number(result.scores, split=split, layer=layer, pool=pool or "none", metric="R@1") == by_hand
        assert result.ranks[split, key].recall(1) == by_hand


def test_a_transformer_is_probed_by_its_class_token_and_its_patches() -> None:
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(img_size=12, patch_size=3, embed_dim=16, depth=2, num_heads=2, num_classes=0)
    result = layerprobe.probe(model, {"train": TRAIN, "test": TEST}, layers="*", pools=("cls", "avg"), ks=(1,))
    by_hand = nearest_has_the_class(result.features["test", "blocks.1@avg"], result.labels["test"])
    assert result.ranks["test", "blocks.1@avg"].recall(1) == by_hand
    assert [key for split, key in result.features if split == "train"] == [
        "blocks.0@avg", "blocks.0@cls", "blocks.1@avg", "blocks.1@cls", "output",
    ]  # fmt: skip


def test_layers_of_a_resnet_are_pooled_as_its_output_is() -> None:
    # Before, an earlier layer's maximum was compared with the network's own average.
    from torchvision.models import resnet18

    torch.manual_seed(0)
    model = resnet18(weights=None).eval()
    model.fc = nn.Identity()
    images = torch.randn(8, 3, 32, 32)
    loader = [(images, torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))]
    found = layerprobe.probe(model, {"test": loader}, layers="layer4.1,output", ks=[1])
    assert {score.ranked.layer.pool for score in found.scores} == {"avg", "none"}
    np.testing.assert_allclose(found.features["test", "layer4.1"], found.features["test", "output"], rtol=1e-5)


def test_a_maximum_over_tokens_warns() -> None:
    torch.manual_seed(0)
    model = timm.models.VisionTransformer(img_size=12, patch_size=3, embed_dim=16, depth=1, num_heads=2, num_classes=0)
    with pytest.warns(UserWarning, match="max over the tokens of blocks.0") as warned:
        layerprobe.probe(model, {"test": TEST}, layers="blocks.*", pools="max", ks=(1,))
    assert warned[0].filename == __file__


def test_a_pool_that_a_globbed_layer_cannot_have_is_said() -> None:
    # of the modules of a block, the ReLU alone has no values below 0
    said = "gem skipped for 0.0.0, 0.0.1, 0.0.3: 0.0.0@gem: the layer has values below 0"
    with pytest.warns(UserWarning, match=said) as warned:
        result = layerprobe.probe(small_model(), {"test": TEST}, layers="0.0.*@gem", ks=(1,))
    assert {str(score.ranked.layer) for score in result.scores} == {"0.0.2@gem"}
    assert warned[0].filename == __file__
    with pytest.warns(UserWarning, match=said):
        layerprobe.extract(small_model(), "0.0.*@gem", torch.ones(1, 3, 12, 12))


@pytest.mark.gpu
def test_a_model_is_moved_to_a_device_and_back() -> None:
    model = small_model()
    expected, found = (layerprobe.probe(model, {"test": TEST}, ks=(1,), device=device) for device in ("cpu", "cuda"))
    assert {value.device.type for value in model.state_dict().values()} == {"cpu"}
    for place, values in expected.features.items():
        np.testing.assert_allclose(found.features[place], values, rtol=1e-4, atol=1e-5)


def test_the_numbers_are_those_of_the_command_line(request_for: Callable[..., TrainRequest]) -> None:
    run = train(request_for("train.epochs=0"), Silent())
    asked = ProbeRequest(layers=("pool?.2", "fc6"), ks=(1, 2), metrics=("MAP@R",), device="cpu", workers=0)
    scores = probe(run, asked, Silent())
    recipe = recorded_recipe(run.read(), run.record_file)
    net, normalise = from_recipe.build_net(recipe), from_recipe.build_normalise(recipe)
    load_checkpoint(run, 0, {"net": net.module})
    splits = from_recipe.build_dataset(recipe).splits

    def loader(split: str) -> Iterator[tuple[Tensor, Tensor]]:
        labels = torch.from_numpy(splits[split].labels).split(5)
        yield from zip(map(normalise, plain_batches(splits[split], batch_size=5, workers=0)), labels, strict=True)

    loaders = {name: loader(name) for name in splits}
    found = layerprobe.probe(net, loaders, layers=("pool?.2", "fc6"), ks=(1, 2), metrics=("MAP@R",))
    assert len(scores) == 2 * 6 * 3
    experiment = run.read().experiment
    assert [replace(score, run=run.name, experiment=experiment) for score in found.scores] == scores


def test_a_shuffled_loader_is_read_once_and_gives_the_same_scores() -> None:
    drawn = torch.Generator().manual_seed(3)
    shuffled = loader_of(3, 3, 3, 4, 4, 4, 5, 5, 5, seed=1, shuffle=True, generator=drawn)
    found, expected = (layerprobe.probe(small_model(), {"test": test}, metrics="mAP") for test in (shuffled, TEST))
    assert found.labels["test"].tolist() != expected.labels["test"].tolist()
    for ours, theirs in zip(found.scores, expected.scores, strict=True):
        assert ours.value == pytest.approx(theirs.value, abs=1e-12)


def test_the_model_is_as_it_was() -> None:
    model = small_model().train()
    model.get_submodule("0.1").eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]
    layerprobe.probe(model, {"test": TEST}, ks=(1,), device="cpu")
    with pytest.raises(RecipeError, match="K = 9 is not below the 9 images of the test split"):
        layerprobe.probe(model, {"test": TEST}, ks=(9,))
    assert [part.training for part in model.modules()] == modes
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(part._forward_hooks for part in model.modules())


def test_a_gallery_is_what_test_is_searched_in() -> None:
    queries, gallery = loader_of(3, 4, 5, seed=2), TEST
    result = layerprobe.probe(small_model(), {"test": queries, "gallery": gallery}, layers="output", ks=(1,))
    ours, theirs = (result.features[split, "output"].astype(np.float64) for split in ("test", "gallery"))
    ours, theirs = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in (ours, theirs))
    nearest = [np.argmax(theirs @ query) for query in ours]
    hits = result.labels["gallery"][nearest] == (3, 4, 5)
    assert [(score.split, score.value, score.n) for score in result.scores] == [("test", hits.mean(), 3)]
    assert "a gallery of 9" in str(result.table())


def test_features_that_are_not_finite_have_no_value_and_say_so() -> None:
    model = small_model()
    nn.init.constant_(model.get_parameter("1.2.bias"), float("nan"))
    result = layerprobe.probe(model, {"test": TEST}, ks=(1,), metrics=["uniformity"])
    invalid = [score for score in result.scores if score.ranked.layer.layer == "output"]
    assert {(score.metric, score.value, score.notes) for score in invalid} == {
        (metric, None, ("NaN (9 rows)",)) for metric in ("R@1", "uniformity")
    }
    assert all(score.value is not None for score in result.scores if score.ranked.layer.layer != "output")
    with pytest.raises(NumericError, match=r"output has none on test: NaN \(9 rows\)"):
        result.ranks["test", "output"]


@pytest.mark.parametrize("post_processing", ["pca:2", "binary"])
def test_post_processing_that_needs_finite_features_has_no_value_for_others(post_processing: str) -> None:
    model = small_model()
    nn.init.constant_(model.get_parameter("1.2.bias"), float("nan"))
    result = layerprobe.probe(model, {"train": TRAIN, "test": TEST}, ks=(1,), layers="0.1,output", post=post_processing)
    # pca is fitted on the 8 training images; the codes are those of the 9 test images
    rows = {"pca:2": 8, "binary": 9}[post_processing]
    (invalid,) = [score for score in result.scores if (score.split, score.ranked.layer.layer) == ("test", "output")]
    assert (invalid.value, invalid.notes) == (None, (f"NaN ({rows} rows)",))
    assert number(result.scores, split="test", layer="0.1") is not None
    for values in (result.ranks, result.features):
        with pytest.raises(NumericError, match=rf"output/{post_processing} has none on test: NaN \({rows} rows\)"):
            values["test", f"output/{post_processing}"]


def test_every_registered_metric_is_measured_by_name() -> None:
    names = METRICS.keys() - {"accuracy"}  # which needs the classifier of a training run
    many = loader_of(*np.repeat(range(3), 70).tolist())  # kNN@200 needs 201 images
    result = layerprobe.probe(small_model(), {"test": many}, layers="output", ks=(1,), metrics=sorted(names))
    assert names <= {score.metric for score in result.scores if score.value is not None}


def test_options_reach_a_metric() -> None:
    result = layerprobe.probe(small_model(), {"test": TEST}, layers="output", ks=(1,), metrics={"NMI": {"restarts": 2}})
    assert {"NMI", "NMI-sd"} <= {score.metric for score in result.scores}
    with pytest.raises(RecipeError, match=r"restarts = 0: must be at least 1"):
        layerprobe.probe(small_model(), {"test": TEST}, metrics={"NMI": {"restarts": 0}})


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        ({"similarity": "cosin"}, UnknownNameError, "unknown similarity 'cosin'. Did you mean 'cosine'"),
        ({"metrics": ["MAP@r"]}, UnknownNameError, "unknown metric 'MAP@r'. Did you mean 'MAP@R'"),
        ({"metrics": "accuracy"}, RecipeError, "accuracy needs the classifier of a training run"),
        ({"layers": "outptu"}, UnknownNameError, "unknown layer 'outptu'. Did you mean 'output'"),
        ({"pools": "agv"}, UnknownNameError, "unknown pool 'agv'. Did you mean 'avg'"),
        ({"device": "gpu"}, RecipeError, "unknown device 'gpu'"),
        ({"device": torch.device("meta")}, RecipeError, "unknown device 'meta'"),
        ({"layers": []}, RecipeError, "layers is empty"),
        ({"ks": ()}, RecipeError, "no K of Recall@K is given"),
        ({"ks": (0,)}, RecipeError, "K = 0: must be a whole number above 0"),
        ({"ks": (1.5,)}, RecipeError, "K = 1.5: must be a whole number above 0"),
        ({"metrics": {"NMI": {"restart": 2}}}, RecipeError, "NMI.*unexpected keyword argument 'restart'"),
    ],
)
def test_what_cannot_be_measured_is_told(asked: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        layerprobe.probe(small_model(), {"test": TEST}, **({"ks": (1,)} | asked))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"layers": 5}, "layers must be a name or a sequence of names, not int"),
        ({"layers": torch.ones(2)}, "a name in layers must be text, not Tensor"),
        ({"pools": 1}, "pools must be a name or a sequence of names, not int"),
        ({"post": None}, "post must be a name or a sequence of names, not None"),
        ({"fit": 1}, "fit must be a name, not int"),
        ({"similarity": torch.cosine_similarity}, "similarity must be a name, not builtin_function_or_method"),
        ({"ks": 1}, r"ks must be whole numbers, such as \(1, 10\), not int"),
        ({"ks": "1"}, "ks must be whole numbers, .*, not str"),
        ({"metrics": 3}, "metrics must be a name or a sequence of names, not int"),
        ({"metrics": {"NMI": 3}}, r"metrics\['NMI'\] must be options by their names, not int"),
        ({"device": 0}, "device must be a name such as cpu, or a torch.device, not int"),
        ({"cache": True}, "cache must be a folder, not bool"),
        ({"batch": 2}, r"batch must be a function .*, not int"),
    ],
)
def test_an_argument_of_another_type_is_told_in_a_sentence(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        layerprobe.probe(small_model(), {"test": TEST}, **({"ks": (1,)} | asked))


def test_labels_as_texts_are_classes_by_name_in_all_splits(tmp_path: Path) -> None:
    queries, gallery = loader_of(3, 4, 5, seed=2), TEST
    names = {3: "wren", 4: "auk", 5: "owl"}

    def named(loader: Loader) -> list[dict[str, Any]]:
        return [{"image": images, "label": [names[label] for label in labels.tolist()]} for images, labels in loader]

    found = layerprobe.probe(
        small_model(), {"test": named(queries), "gallery": named(gallery)}, ks=(1,), metrics="mAP", cache=tmp_path
    )
    expected = layerprobe.probe(small_model(), {"test": queries, "gallery": gallery}, ks=(1,), metrics="mAP")
    assert [score.value for score in found.scores] == [score.value for score in expected.scores]
    assert found.labels["test"].tolist() == [2, 0, 1]  # auk, owl, wren
    assert found.labels["gallery"].tolist() == [2, 2, 2, 0, 0, 0, 1, 1, 1]
    features = Run(tmp_path / found.name).feature_file(0, "test")
    assert store.read_feature_head(features).class_names == ("auk", "owl", "wren")


def test_labels_of_different_kinds_in_two_splits_are_told() -> None:
    images, labels = next(iter(TEST))
    texts = [(images, [f"c{label}" for label in labels.tolist()])]
    with pytest.raises(DataError, match="labels of the test loader are texts, those of the train loader numbers"):
        layerprobe.probe(small_model(), {"train": TRAIN, "test": texts}, ks=(1,))


def test_what_is_ignored_of_a_batch_is_said_once() -> None:
    triples = [(images, labels, ["a.jpg"] * len(labels)) for images, labels in TEST]
    with pytest.warns(UserWarning, match="of each batch of 3 parts the first two are read") as warned:
        found = layerprobe.probe(small_model(), {"test": triples}, ks=(1,))
    assert [warning.filename for warning in warned] == [__file__]
    assert found.scores == layerprobe.probe(small_model(), {"test": TEST}, ks=(1,)).scores


def test_a_dataset_and_a_function_that_reads_it_take_the_place_of_a_loader() -> None:
    swapped = TensorDataset(*reversed(TEST.dataset.tensors))  # type: ignore[attr-defined] # of a TensorDataset
    found = layerprobe.probe(small_model(), {"val": swapped}, ks=(1,), batch=lambda item: (item[1], item[0]))
    expected = layerprobe.probe(small_model(), {"validation": TEST}, ks=(1,))
    assert {score.split for score in found.scores} == {"validation"}
    assert [score.value for score in found.scores] == [score.value for score in expected.scores]


def test_a_device_of_torch_is_a_device() -> None:
    by_name, by_device = (
        layerprobe.probe(small_model(), {"test": TEST}, ks=(1,), device=device)
        for device in ("cpu", torch.device("cpu"))
    )
    assert by_device.scores == by_name.scores


def test_what_is_no_model_and_no_split_is_told() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch.nn.Module, not str"):
        layerprobe.probe("resnet18", {"test": TEST})  # type: ignore[arg-type] # that is the mistake
    with pytest.raises(TypeError, match="splits must be loaders by the names of their splits, .*, not DataLoader"):
        layerprobe.probe(small_model(), TEST)  # type: ignore[arg-type] # likewise


@pytest.mark.parametrize(
    ("splits", "error", "message"),
    [
        ({}, RecipeError, "there is no split, and nothing to search for"),
        ({"gallery": TEST}, RecipeError, "there is only a gallery"),
        ({"tset": TEST}, UnknownNameError, "unknown split 'tset'. Did you mean 'test'"),
        ({"test": loader_of(1, 1, 1)}, DataError, "test split has 3 images of 1 class; Recall@K needs 2 classes"),
        (
            {"train": loader_of(0, 0, 1, 1), "test": loader_of(0, 0, 1, 1)},
            DataError,
            "class 0 is in train and test, .* where loaders number their classes on their own, add the number",
        ),
    ],
)
def test_splits_that_cannot_be_searched_are_told(
    splits: dict[str, Loader], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        layerprobe.probe(small_model(), splits, ks=(1,))


@pytest.mark.parametrize("channels", [1, 5])
def test_images_may_have_any_channels_height_and_width(channels: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 8 * 18, 6))
    images, labels = torch.randn(9, channels, 10, 20), torch.tensor([3, 3, 3, 4, 4, 4, 5, 5, 5])
    found = layerprobe.probe(
        model, {"test": [(images[:5], labels[:5]), (images[5:], labels[5:])]}, layers="*", pools="avg", ks=(1,)
    )
    with torch.inference_mode():
        expected = {"1@avg": model[:2](images).mean((2, 3)), "output": model(images)}
    for layer, values in expected.items():
        recall = nearest_has_the_class(values.numpy(), labels.numpy())
        assert found.ranks["test", layer].recall(1) == recall


def test_the_padding_of_a_distributed_sampler_is_told_with_its_effect(tmp_path: Path) -> None:
    images = torch.cat([images for images, _ in TEST])
    rows = [0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 3]  # two images again, as a sampler fills its last batch
    padded = DataLoader(TensorDataset(images[rows], torch.tensor([3, 3, 3, 4, 4, 4, 5, 5, 5, 3, 4])), 4)
    result = layerprobe.probe(small_model(), {"test": padded}, layers="1", ks=[1], cache=tmp_path)
    hits = result.ranks["test", "1"].hits(1)
    without = 100 * hits[[1, 2, 4, 5, 6, 7, 8]].mean()  # the other seven are searched among all eleven
    line = f"4 of 11 queries have an identical image in what they search; without those R@1 of 1 is {without:.1f} %"
    assert f"test: {line}" in str(result.table())
    stored = next(tmp_path.glob("*/ranks/*.h5"))
    identical = store.read_rank_file(stored).identical
    assert identical is not None
    assert np.flatnonzero(identical).tolist() == [0, 3, 9, 10]
    plain = layerprobe.probe(small_model(), {"test": TEST}, layers="1", ks=[1])
    assert "identical" not in str(plain.table())


def test_a_split_of_classes_of_one_image_is_refused_and_nothing_is_stored(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="no query of test has a right item to find: each of the 3 classes has one image"
    ):
        layerprobe.probe(small_model(), {"test": loader_of(1, 2, 3)}, layers="1", ks=[1], cache=tmp_path)
    assert list(tmp_path.iterdir()) == []
