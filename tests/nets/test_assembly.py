from __future__ import annotations

import inspect
import re
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, get_type_hints

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision import models

from layerprobe.nets import lenet
from layerprobe.nets.assembly import FrozenBatchNorm, GlobalPool, Head, imagenet_weights, weights_file
from layerprobe.nets.lenet import build
from layerprobe.nets.net import Net
from layerprobe.nets.resnet import build_resnet18, build_resnet50
from layerprobe.nets.vgg16_bn import build as build_vgg16_bn
from layerprobe.registry import NETS, load
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.system.files import sha256


@pytest.mark.parametrize("name", list(NETS))
def test_every_network_takes_the_same_keys_which_a_recipe_can_read(name: str) -> None:
    build = load("network", NETS, name)
    assert list(inspect.signature(build).parameters) == [
        "fc", "pool", "norm", "dropout", "fc_bias", "fc_norm", "fc_dropout", "freeze_bn", "weights", "from_scratch",
        "seed",
    ]  # fmt: skip
    assert get_type_hints(build).keys() == {*inspect.signature(build).parameters, "return"}


@pytest.mark.parametrize("name", list(NETS))
def test_layers_are_in_execution_order(name: str) -> None:
    net = load("network", NETS, name)(fc=[4], norm="layer")
    paths = [path for path, _ in net.module.named_modules()]
    places = [paths.index(path) for path in net.layers.values()]
    assert places == sorted(places)


def test_weights_that_are_not_used_are_named_with_their_shapes() -> None:
    given = dict(lenet.build(fc=[16]).module.state_dict())
    assert lenet.build(fc=[16], weights=given).notes == ()
    assert lenet.build(fc=[8], weights=given, from_scratch=["fc6"]).notes == ()  # the recipe says so
    assert lenet.build(fc=[8], weights=given | {"classifier.weight": given["fc6.bias"]}).notes == (
        "not used of the weights: classifier.weight (there is no such layer),"
        f" fc6.weight (shape {tuple(given['fc6.weight'].shape)}, not (8, {given['fc6.weight'].shape[1]})),"
        " fc6.bias (shape (16,), not (8,))",
    )
    more = {f"aux{i}.weight": given["fc6.bias"] for i in range(7)}
    assert (
        lenet.build(fc=[16], weights=given | more).notes[0].endswith("aux3.weight (there is no such layer) and 3 more")
    )


IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The state after a step of training in which the whole network was told to learn."""
    module.requires_grad_(True).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.1)
    module(IMAGES).square().sum().backward()
    optimizer.step()
    return module.state_dict()


def is_norm(name: str) -> bool:
    return ".bn" in name or name.startswith("bn") or "downsample.1" in name


def test_statistics_weights_and_biases_stay_whatever_the_mode() -> None:
    net = build_resnet18(fc=[8], freeze_bn=True)
    before = {name: value.clone() for name, value in net.module.state_dict().items()}
    after = trained(net.module)
    assert any(is_norm(name) for name in before)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if not is_norm(name)}


def test_without_it_they_move() -> None:
    net = build_resnet18(fc=[8])
    before = {name: value.clone() for name, value in net.module.state_dict().items()}
    after = trained(net.module)
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_in_training_it_computes_what_a_plain_network_does_in_evaluation() -> None:
    weights = trained(build_resnet18(fc=[8], seed=1).module)
    frozen = build_resnet18(fc=[8], weights=weights, freeze_bn=True).module.train()
    assert torch.equal(frozen(IMAGES), build_resnet18(fc=[8], weights=weights).module.eval()(IMAGES))


def test_the_state_has_the_same_names_and_goes_from_one_to_the_other() -> None:
    plain, frozen = build_resnet18(fc=[8], seed=1).module, build_resnet18(fc=[8], seed=2, freeze_bn=True).module
    frozen.load_state_dict(trained(plain), strict=True)
    plain.load_state_dict(frozen.state_dict(), strict=True)
    assert torch.equal(frozen(IMAGES), plain.eval()(IMAGES))


def test_frozen_tensors_are_no_new_parameters() -> None:
    names = build_resnet18(fc=[8], freeze_bn=True).new_parameters
    assert "layer4.1.conv2.weight" in names
    assert not [name for name in names if is_norm(name)]


def test_a_block_from_scratch_learns_its_own() -> None:
    module = build_resnet18(fc=[8], freeze_bn=True, from_scratch=["layer4.1"]).module
    learning = [path for path, part in module.named_modules() if isinstance(part, nn.BatchNorm2d)]
    assert learning == ["layer4.1.bn1", "layer4.1.bn2"]


def test_the_heads_norm_goes_on_learning_its_statistics() -> None:
    module = build_resnet18(fc=[8], norm="batch", freeze_bn=True).module.train()
    module(IMAGES)
    assert module.state_dict()["norm5.num_batches_tracked"] == 1


def test_the_gradient_passes_through_to_what_lies_before() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3).eval()
    with torch.no_grad():
        norm.weight.uniform_(1, 2)
    images, copies = IMAGES.clone().requires_grad_(), IMAGES.clone().requires_grad_()
    FrozenBatchNorm(norm).train()(images).square().sum().backward()
    norm(copies).square().sum().backward()
    assert images.grad is not None
    assert copies.grad is not None
    torch.testing.assert_close(images.grad, copies.grad)


WEIGHTS = {"conv1.weight": torch.arange(6.0).reshape(2, 3), "bn1.num_batches_tracked": torch.tensor(4)}


def equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TORCH_HOME on a machine without network; the folder that torchvision's files are in."""
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # discard: nothing listens
    monkeypatch.setattr(urllib.request, "_opener", None)  # it remembers the proxies of its first use
    folder = tmp_path / "hub" / "checkpoints"
    folder.mkdir(parents=True)
    return folder


def saved(folder: Path, content: object, name: str = "w.pt") -> Path:
    torch.save(content, folder / name)
    return folder / name


# --- torchvision's
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("vgg16_bn", "vgg16_bn-6c64b313.pth"),
        ("resnet50", "resnet50-0676ba61.pth"),
        ("googlenet", "googlenet-1378be20.pth"),
        ("resnet18", "resnet18-f37072fd.pth"),
    ],
)
def test_the_files_are_torchvisions_version_1(home: Path, name: str, file: str) -> None:
    assert weights_file(name) == home / file


def test_a_file_with_the_hash_in_its_name_is_loaded_without_network(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    state = models.resnet50(weights=None).state_dict()
    path = saved(home, state, "resnet50.pth")
    named = f"resnet50-{sha256(path)[:8]}.pth"
    path.rename(home / named)

    url = f"https://download.pytorch.org/models/{named}"
    monkeypatch.setitem(imagenet_weights.__globals__, "_url", lambda name: url)
    weights = imagenet_weights("resnet50")
    assert equal(weights.tensors, state)
    assert build_resnet50(weights=weights).new_parameters == {"fc6.weight", "fc6.bias"}


def test_a_file_whose_hash_is_not_the_one_in_its_name_is_refused(home: Path) -> None:
    path = saved(home, WEIGHTS, "resnet50-0676ba61.pth")
    with pytest.raises(
        DataError, match=re.escape(f"{path}: sha256 differs from the one in its name. Delete it.")
    ) as caught:
        imagenet_weights("resnet50")
    assert caught.value.exit_code == 3


def test_an_absent_file_without_network_names_file_folder_and_ways_out(home: Path) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        imagenet_weights("googlenet")
    text = str(caught.value)
    assert text.startswith(f"{home}: googlenet-1378be20.pth is not there and https://download.pytorch.org/models/")
    assert text.endswith("Put the file there, or use --set net.weights=none, or --set net.weights=PATH.")
    assert caught.value.exit_code == 5
    assert not list(home.iterdir())


def test_a_network_without_imagenet_weights_is_unknown() -> None:
    with pytest.raises(
        UnknownNameError, match=r"unknown network with ImageNet weights 'resnet51'\. Did you mean 'resn"
    ):
        imagenet_weights("resnet51")


SMALL_IMAGES = torch.randn(6, 3, 28, 28, generator=torch.Generator().manual_seed(2))


def head(net: Net) -> list[str]:
    names = [name for name, _ in net.module.named_children()]
    return names[names.index("pool5") :]


def pooled(net: Net) -> Tensor:
    outputs: list[Tensor] = []
    pool = net.module.get_submodule("pool5")
    handle = pool.register_forward_hook(lambda _module, _args, output: outputs.append(output.clone()))
    net.module(SMALL_IMAGES)
    handle.remove()
    return outputs[0]


def test_nothing_is_there_that_was_not_asked_for() -> None:
    assert head(build()) == ["pool5", "fc6"]


def test_the_seed_draws_the_trunk_and_then_the_fully_connected_layers() -> None:
    torch.manual_seed(3)
    models.resnet18(weights=None)
    expected = nn.Linear(512, 16)
    assert torch.equal(build_resnet18(fc=[16], seed=3).module.state_dict()["fc6.weight"], expected.weight)


def test_norm_and_dropout_leave_every_draw_as_it_was() -> None:
    plain = build(fc=[16, 8], seed=4).module.state_dict()
    other = build(fc=[16, 8], seed=4, norm="layer", dropout=0.1, fc_norm="layer", fc_dropout=0.2).module.state_dict()
    assert plain.keys() == other.keys()
    assert all(torch.equal(plain[name], other[name]) for name in plain)


def test_everything_asked_for_stands_in_order() -> None:
    net = build(fc=[16, 8], norm="batch", dropout=0.1, fc_norm="layer", fc_dropout=0.2)
    assert head(net) == ["pool5", "norm5", "dropout5", "fc6", "relu6", "fc7", "norm7", "dropout7"]
    assert list(net.layers)[-5:] == ["pool5", "norm5", "fc6", "fc7", "norm7"]


@pytest.mark.parametrize("fc", [(), (16,), (16, 8)])
@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("last", ["none", "layer"])
def test_its_layers_are_known_without_building_it(fc: tuple[int, ...], norm: str, last: str) -> None:
    asked = Head(fc, "max", norm, 0.1, True, last if fc else "none", 0.2 if fc else 0.0)
    names = [name for name in asked.children(4) if name.startswith(("norm", "fc"))]
    assert list(asked.layers) == names


def test_layer_norm_standardises_each_image_over_its_channels() -> None:
    net = build(fc=[], norm="layer")
    net.module.eval()
    values = pooled(net)
    mean, variance = values.mean(1, keepdim=True), values.var(1, keepdim=True, correction=0)
    torch.testing.assert_close(net.module(SMALL_IMAGES), (values - mean) / (variance + 1e-5).sqrt())


def test_batch_norm_standardises_each_channel_over_the_batch() -> None:
    net = build(fc=[], norm="batch")
    net.module.train()
    values = pooled(net)
    mean, variance = values.mean(0), values.var(0, correction=0)
    torch.testing.assert_close(net.module(SMALL_IMAGES), (values - mean) / (variance + 1e-5).sqrt())


@pytest.mark.parametrize("norm", ["layer", "batch"])
def test_a_norm_has_no_parameters(norm: Literal["layer", "batch"]) -> None:
    assert not list(build(norm=norm).module.get_submodule("norm5").parameters())


def test_without_fully_connected_layers_the_norm_is_the_embedding_layer() -> None:
    net = build_vgg16_bn(fc=[], norm="layer")
    assert list(net.layers)[-2:] == ["pool5.3", "norm5"]
    assert net.embedding_dim == 512


def test_fully_connected_layers_can_do_without_a_bias() -> None:
    state = build(fc=[16, 8], fc_bias=False).module.state_dict()
    assert [name for name in state if name.startswith("fc")] == ["fc6.weight", "fc7.weight"]


def test_fcr1_is_one_linear_layer_on_the_pool() -> None:
    net = build(fc=[64])
    layer = net.module.get_submodule("fc6")
    assert isinstance(layer, nn.Linear)
    torch.testing.assert_close(net.module(SMALL_IMAGES), F.linear(pooled(net), layer.weight, layer.bias))


def test_fcr2_drops_embeddings_in_training_alone() -> None:
    torch.manual_seed(0)
    plain, fcr2 = build(fc=[64], seed=1).module.train(), build(fc=[64], seed=1, fc_dropout=0.5).module.train()
    expected, dropped = plain(SMALL_IMAGES), fcr2(SMALL_IMAGES)
    kept = dropped != 0
    assert 0.3 < kept.float().mean() < 0.7
    torch.testing.assert_close(dropped[kept], 2 * expected[kept])
    assert torch.equal(fcr2.eval()(SMALL_IMAGES), expected)


def test_dropout_drops_the_pool_in_training_alone() -> None:
    torch.manual_seed(0)
    net = build(fc=[], dropout=0.5)
    assert (net.module.train()(SMALL_IMAGES) == 0).float().mean() > (pooled(net) == 0).float().mean() + 0.2
    assert torch.equal(net.module.eval()(SMALL_IMAGES), pooled(net))


@pytest.mark.parametrize("dim", [2, 2048])
def test_embeddings_have_from_2_to_2048_numbers(dim: int) -> None:
    assert build(fc=[dim]).module(SMALL_IMAGES).shape == (6, dim)


@pytest.mark.parametrize("key", ["dropout", "fc_dropout"])
@pytest.mark.parametrize("value", [-0.1, 1.0, float("nan")])
def test_a_probability_of_one_or_more_is_refused(key: str, value: float) -> None:
    with pytest.raises(RecipeError, match=re.escape(f"[net]: {key} = {value}. A probability is at least 0 and below")):
        build(dropout=value if key == "dropout" else 0.0, fc_dropout=value if key == "fc_dropout" else 0.0)


def test_a_norm_of_the_last_layer_is_the_embedding() -> None:
    net = build(fc=[16], seed=1, fc_norm="batch")
    values = build(fc=[16], seed=1).module.train()(SMALL_IMAGES)
    mean, variance = values.mean(0), values.var(0, correction=0)
    torch.testing.assert_close(net.module.train()(SMALL_IMAGES), (values - mean) / (variance + 1e-5).sqrt())
    assert not list(net.module.get_submodule("norm6").parameters())


def test_a_norm_after_no_layer_is_refused() -> None:
    with pytest.raises(RecipeError, match=r'fc_norm = "batch" without a fully connected layer\. Give fc a size, or'):
        build(fc=[], fc_norm="batch")


def test_a_dropout_after_no_layer_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"fc_dropout = 0\.5 without a fully connected layer\. Give fc a size, or"):
        build(fc=[], fc_dropout=0.5)


def test_an_unknown_norm_names_the_known_ones() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown norm 'group'\. .*Known: none, layer, batch"):
        build(norm="group")  # type: ignore[arg-type]


# One image, two channels of 2 x 2.
MAPS = torch.tensor([[[[1.0, 2.0], [3.0, 6.0]], [[-1.0, -2.0], [-3.0, -4.0]]]])


def test_max_takes_each_channels_largest_value() -> None:
    assert GlobalPool("max")(MAPS).tolist() == [[6.0, -1.0]]


def test_avg_takes_each_channels_mean() -> None:
    assert GlobalPool("avg")(MAPS).tolist() == [[3.0, -2.5]]


def test_gem_is_the_cube_root_of_the_mean_cube_with_negatives_as_a_millionth() -> None:
    # (1 + 8 + 27 + 216) / 4 = 63
    expected = torch.tensor([[63 ** (1 / 3), 1e-6]])
    torch.testing.assert_close(GlobalPool("gem")(MAPS), expected)


def test_gem_has_finite_gradients_where_a_channel_is_dead() -> None:
    maps = torch.zeros(1, 1, 2, 2, requires_grad=True)
    GlobalPool("gem")(maps).sum().backward()
    assert maps.grad is not None
    assert maps.grad.isfinite().all()


def test_an_unknown_pool_names_the_near_one() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown pool 'mean'\. Known: max, avg, gem\."):
        GlobalPool("mean")
