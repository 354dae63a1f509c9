from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode
from torchvision import models

from layerprobe.hooks import Hook, capture_layers, find_classifier, list_layers, resolve_hooks, without_classifier
from layerprobe.hooks.layouts import Layout
from layerprobe.nets import vgg16_bn
from layerprobe.system.errors import NumericError
from layerprobe.values.layers import LayerKey
from tests.hooks.models import Layers, TorchEncoder, images, timm_vit

FC6 = LayerKey("fc6", "none")
POOL1 = LayerKey("pool1", "max")
RELU1 = LayerKey("relu#1", "max")
RELU2 = LayerKey("relu#2", "max")
MAP = Layout("map", shape=(4, 8, 8))


def resolve(net: Layers, *expressions: str, pools: tuple[str, ...] = ("max",)) -> list[Hook]:
    return resolve_hooks(expressions, net, pools=pools, image_size=8)


def features(net: Layers, *expressions: str) -> dict[LayerKey, Tensor]:
    with capture_layers(net.module, resolve(net, *expressions)) as features_of:
        return features_of(images(8))


def test_differentiable_features_carry_gradients_to_the_images() -> None:
    # the mean of the first channel of a map that is the image itself: 1 / (8 x 8) at its places
    net = Layers(nn.Identity(), {"whole": ""})
    given = images(8).requires_grad_()
    with capture_layers(net.module, resolve(net, "whole@avg"), differentiable=True) as features_of:
        (found,) = features_of(given).values()
    (gradient,) = torch.autograd.grad(found[:, 0].sum(), given)
    assert torch.equal(gradient[:, 0], torch.full((2, 8, 8), 1 / 64))
    assert not gradient[:, 1:].any()


class Constant(nn.Module):
    """Gives one map of its own, whatever the image."""

    def __init__(self, values: list[list[float]], dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.maps = nn.Parameter(torch.tensor([[values]], dtype=dtype))
        self.here = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return torch.as_tensor(self.here(self.maps.expand(len(images), -1, -1, -1)))


RAMP = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [7.0, 8.0, 9.0]]


@pytest.mark.parametrize(
    ("pool", "expected"),
    [
        ("max", [9.0]),
        ("avg", [5.0]),
        ("gem", [225 ** (1 / 3)]),  # (1 + 8 + 27 + 64 + 125 + 216 + 343 + 512 + 729) / 9 = 225
        ("grid:1", [9.0]),
        ("grid:2", [5.0, 6.0, 8.0, 9.0]),  # of 3 x 3: windows of 2 x 2 that share the middle
        ("grid:3", [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]),
    ],
)
def test_a_map_is_pooled(pool: str, expected: list[float]) -> None:
    net = Layers(Constant(RAMP), {"pool1": "here"})
    values = features(net, f"pool1@{pool}")[LayerKey("pool1", pool)]
    torch.testing.assert_close(values, torch.tensor([expected, expected]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_features_are_float32_whatever_the_network_computes_in(dtype: torch.dtype) -> None:
    net = Layers(Constant([[60.0, 60.0]], dtype), {"pool1": "here"})
    found = features(net, "pool1@max", "pool1@avg", "pool1@gem", "pool1@grid:1")
    assert {values.dtype for values in found.values()} == {torch.float32}
    # 60 ** 3 is above float16's largest number
    assert {round(values.max().item(), 3) for values in found.values()} == {60.0}


def test_a_layer_overwritten_in_place_keeps_what_it_gave(net: Layers) -> None:
    found = features(net, "norm", "relu#1")
    assert (found[POOL1][:, 0] < 0).all()
    assert torch.equal(found[POOL1].clamp(min=0), found[RELU1])
    fc6 = features(net, "fc6")[FC6]
    assert fc6.min() < 0
    assert torch.equal(fc6.clamp(min=0), net.module.eval()(images(8)))


def test_calls_are_counted_anew_for_each_batch(net: Layers) -> None:
    with capture_layers(net.module, resolve(net, "relu#1", "relu#2")) as features_of:
        first = features_of(images(8))
        second = features_of(images(8))
    assert all(torch.equal(first[key], second[key]) for key in first)
    assert not torch.equal(first[RELU1], first[RELU2])


def test_a_batch_that_failed_leaves_nothing_to_the_next(net: Layers) -> None:
    with capture_layers(net.module, resolve(net, "relu#2", "output")) as features_of:
        expected = features_of(images(8))[RELU2]
        net.module.fc6 = nn.Linear(5, 4)
        with pytest.raises(RuntimeError, match="mat1 and mat2"):
            features_of(images(8))
        net.module.fc6 = nn.Linear(4, 4)
        assert torch.equal(features_of(images(8))[RELU2], expected)


class Once(nn.Module):
    """Runs its layer in the first forward only."""

    def __init__(self) -> None:
        super().__init__()
        self.here = nn.Identity()
        self.forwards = 0

    def forward(self, images: Tensor) -> Tensor:
        self.forwards += 1
        return torch.as_tensor(self.here(images)) if self.forwards == 1 else images


def test_a_layer_that_stops_running_gives_no_old_features() -> None:
    with capture_layers(Once(), [Hook("pool1", "here", 1, "max", 3, MAP)]) as features_of:
        features_of(images(8))
        with pytest.raises(ValueError, match=r"here was called 0 times, pool1@max needs 1"):
            features_of(images(8))


class Keeping(nn.Module):
    """Keeps what it computed of its weights in evaluation until training mode, as LeViT keeps its attention biases."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.kept: Tensor | None = None
        self.out = nn.Identity()

    def train(self, mode: bool = True) -> Keeping:
        if mode:
            self.kept = None
        return super().train(mode)

    def forward(self, images: Tensor) -> Tensor:
        self.kept = 2 * self.weight if self.kept is None else self.kept
        return torch.as_tensor(self.out(images.mean((2, 3)) * self.kept))


def test_weights_loaded_after_the_dry_forwards_are_those_that_compute() -> None:
    net = Layers(Keeping(), {"out": "out"})
    hooks = resolve_hooks(["out"], net, image_size=8)
    net.module.load_state_dict({"weight": torch.full((1,), 5.0)})
    with capture_layers(net.module, hooks) as features_of:
        found = features_of(images(8))[LayerKey("out", "none")]
    torch.testing.assert_close(found, 10 * images(8).mean((2, 3)))


def test_features_come_in_the_order_of_the_hooks_and_carry_no_graph(net: Layers) -> None:
    hooks = resolve(net, "fc6", "pool1")[::-1]
    with capture_layers(net.module, hooks) as features_of:
        found = features_of(images(8))
    assert list(found) == [FC6, POOL1]
    assert not any(values.requires_grad for values in found.values())


def test_a_hook_that_does_not_fire_is_an_error(net: Layers) -> None:
    with (
        capture_layers(net.module, [Hook("relu#3", "relu", 3, "max", 4, MAP)]) as features_of,
        pytest.raises(ValueError, match=r"relu was called 2 times, relu#3@max needs 3"),
    ):
        features_of(images(8))


# --- what is left untouched


def hooks_on(module: nn.Module) -> int:
    return sum(len(part._forward_hooks) for part in module.modules())


def modes(module: nn.Module) -> dict[str, bool]:
    return {name: part.training for name, part in module.named_modules()}


@pytest.fixture
def trained(net: Layers) -> Layers:
    """In mid-training: gradients there, momentum of the statistics moving, one normalisation frozen."""
    net.module.train()
    net.module(images(8)).sum().backward()
    net.module.get_submodule("norm").eval()
    return net


def test_each_module_gets_its_own_mode_back_and_no_hook_stays(trained: Layers) -> None:
    before = modes(trained.module)
    assert not before["norm"]
    assert before["drop"]
    with capture_layers(trained.module, resolve(trained, "pool1", "fc6")):
        assert hooks_on(trained.module) == 2
        assert not any(modes(trained.module).values())
    assert modes(trained.module) == before
    assert hooks_on(trained.module) == 0


class Refusing(nn.Dropout):
    """Remains as it is, whatever mode is asked for."""

    def train(self, mode: bool = True) -> Refusing:
        return self


@pytest.mark.parametrize("by", ["class", "instance"])
def test_a_module_that_refuses_other_modes_keeps_its_own(by: str) -> None:
    refusing = Refusing() if by == "class" else nn.Dropout()
    if by == "instance":
        refusing.train = lambda mode=True: refusing  # type: ignore[method-assign]
    net = Layers(nn.Sequential(refusing, nn.Dropout()), {"out": "1"})
    with capture_layers(net.module, [Hook("out", "1", 1, "max", 3, MAP)]):
        assert list(modes(net.module).values()) == [False, True, False]
    assert all(modes(net.module).values())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_a_scripted_part_runs_in_evaluation_mode_and_gets_its_own_back() -> None:
    net = Layers(nn.Sequential(torch.jit.script(nn.Dropout()), nn.Identity()), {"out": "1"})
    with capture_layers(net.module, [Hook("out", "1", 1, "max", 3, MAP)]) as features_of:
        found = features_of(images(8))[LayerKey("out", "max")]
    assert torch.equal(found, images(8).amax((2, 3)))
    assert all(modes(net.module).values())


def test_after_an_error_too_each_module_gets_its_mode_back_and_no_hook_stays(trained: Layers) -> None:
    before, hooks = modes(trained.module), resolve(trained, "pool1")
    with pytest.raises(KeyError, match="stop"), capture_layers(trained.module, hooks):
        raise KeyError("stop")
    assert modes(trained.module) == before
    assert hooks_on(trained.module) == 0


def test_a_hook_of_a_module_that_is_not_there_leaves_no_hook(trained: Layers) -> None:
    before, wrong = modes(trained.module), Hook("pool9", "pool9", 1, "max", 4, MAP)
    with (
        pytest.raises(AttributeError, match="pool9"),
        capture_layers(trained.module, [*resolve(trained, "pool1"), wrong]),
    ):
        pass
    assert modes(trained.module) == before
    assert hooks_on(trained.module) == 0


def test_capture_changes_no_weight_statistic_gradient_or_generator(trained: Layers) -> None:
    state = copy.deepcopy(trained.module.state_dict())
    gradients = {name: p.grad.clone() for name, p in trained.module.named_parameters() if p.grad is not None}
    drawn = torch.get_rng_state(), random.getstate(), repr(np.random.get_state())  # noqa: NPY002 - the global one
    assert len(gradients) == 6
    trained.module.get_submodule("norm").train()
    features(trained, "pool1", "pool2", "fc6")
    list_layers(Layers(trained.module, {"fc6": "fc6"}), 8)
    assert all(torch.equal(value, state[name]) for name, value in trained.module.state_dict().items())
    for name, parameter in trained.module.named_parameters():
        if name in gradients:
            assert parameter.grad is not None
            assert torch.equal(parameter.grad, gradients[name])
    assert torch.equal(torch.get_rng_state(), drawn[0])
    assert random.getstate() == drawn[1]
    assert repr(np.random.get_state()) == drawn[2]  # noqa: NPY002


def test_a_users_own_hook_stays(net: Layers) -> None:
    seen: list[Tensor] = []
    net.module.get_submodule("conv").register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    features(net, "conv", "fc6")
    assert hooks_on(net.module) == 1
    assert len(seen) == 4  # the listing's three forwards and the capture's


# --- models of every kind


def tapped_at(module: nn.Module, size: int, *expressions: str, **net: object) -> dict[str, Tensor]:
    hooks = resolve_hooks(expressions, Layers(module, **net), image_size=size)  # type: ignore[arg-type]
    with capture_layers(module, hooks) as features_of:
        return {str(key): values for key, values in features_of(images(size)).items()}


def test_features_through_the_final_norm_are_the_norms_of_the_output() -> None:
    model = timm_vit()
    found = tapped_at(model, 32, "normed(blocks.0)@cls", "normed(blocks.1)@avg", "norm@avg", final_norm="norm")
    with torch.inference_mode():
        tokens = [model.blocks[0](model._pos_embed(model.patch_embed(images(32))))]
        tokens.append(model.blocks[1](tokens[0]))
        torch.testing.assert_close(found["normed(blocks.0)@cls"], model.norm(tokens[0])[:, 0])
        torch.testing.assert_close(found["normed(blocks.1)@avg"], model.norm(tokens[1])[:, 1:].mean(1))
    # the norm's own call is counted as if nothing else had called it
    assert torch.equal(found["norm@avg"], found["normed(blocks.1)@avg"])


def test_gem_stops_at_a_negative_value_that_dry_forwards_did_not_show() -> None:
    model = nn.Sequential(nn.ReLU(), nn.Flatten())
    hooks = resolve_hooks(["0@gem"], Layers(model), image_size=8)
    model[0] = nn.Identity()
    with (
        capture_layers(model, hooks) as features_of,
        pytest.raises(NumericError, match="0@gem: the layer has values below 0"),
    ):
        features_of(images(8))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_in_half_precision_takes_float32_images(dtype: torch.dtype) -> None:
    model = timm_vit().to(dtype)
    found = tapped_at(model, 32, "blocks.1@cls")["blocks.1@cls"]
    with torch.inference_mode():
        tokens = model.forward_intermediates(
            images(32).to(dtype), indices=[1], return_prefix_tokens=True, intermediates_only=True
        )
    assert found.dtype == torch.float32
    assert torch.equal(found, tokens[0][1][:, 0].float())


@pytest.mark.parametrize("whole", [True, False])
def test_a_compiled_model_is_hooked_under_the_names_of_the_original(whole: bool) -> None:
    original, model = timm_vit(), timm_vit()
    expected = tapped_at(original, 32, "blocks.0@avg", "blocks.1.mlp@cls")
    graphs: list[object] = []

    def backend(graph: Any, _inputs: object) -> Any:
        graphs.append(graph)
        return graph.forward

    if whole:
        model = torch.compile(model, backend=backend)
    else:
        model.blocks[0] = torch.compile(model.blocks[0], backend=backend)
        model.blocks[1].compile(backend=backend)
    with torch.inference_mode():
        model(images(32))  # compiled code is there before any hook is
    before = len(graphs)
    found = tapped_at(model, 32, "blocks.0@avg", "blocks.1.mlp@cls")
    assert len(graphs) == before > 0  # it runs as it was written; nothing is compiled with hooks in it
    assert list(found) == list(expected)
    assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_a_model_without_parameters_is_hooked() -> None:
    found = tapped_at(nn.Sequential(nn.AvgPool2d(4), nn.Flatten()), 8, "0@max", "1")
    assert torch.equal(found["0@max"], F.avg_pool2d(images(8), 4).amax((2, 3)))
    assert torch.equal(found["1"], F.avg_pool2d(images(8), 4).flatten(1))


class Checkpointed(nn.Module):
    """Two blocks, of which torch keeps no activations."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)
        self.reentrant = reentrant

    def forward(self, x: Tensor) -> Tensor:
        for block in (self.first, self.second):
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


@pytest.mark.parametrize("reentrant", [True, False])
def test_blocks_under_gradient_checkpointing_are_hooked_and_can_end_the_forward(reentrant: bool) -> None:
    model = Checkpointed(reentrant=reentrant)
    found = tapped_at(model, 8, "first@avg")
    torch.testing.assert_close(found["first@avg"], model.first(images(8)).mean((2, 3)).detach())
    model(images(8).requires_grad_()).sum().backward()  # nothing is left behind
    assert model.first.weight.grad is not None


def test_a_reparametrised_layer_is_hooked() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(weight_norm(nn.Conv2d(3, 4, 3)), nn.ReLU())
    with torch.inference_mode():
        expected = model(images(8)).amax((2, 3))
    assert torch.equal(tapped_at(model, 8, "1@max")["1@max"], expected)


def test_torchs_own_attention_runs_its_modules_and_gives_its_first_output() -> None:
    model = TorchEncoder().eval()
    found = tapped_at(model, 32, "encoder.self_attn@avg", "encoder.linear1@avg", "encoder@avg")
    assert torch.backends.mha.get_fastpath_enabled()
    tokens = model.patches(images(32)).flatten(2).transpose(1, 2)
    attended = model.encoder.self_attn(tokens, tokens, tokens)[0]
    first = model.encoder.norm1(tokens + attended)
    hidden = model.encoder.linear1(first)
    last = model.encoder.norm2(first + model.encoder.linear2(F.relu(hidden)))
    expected = {"encoder.self_attn": attended, "encoder.linear1": hidden, "encoder": last}
    for name, output in expected.items():
        torch.testing.assert_close(found[f"{name}@avg"], output.mean(1).detach())


def test_torchs_own_attention_gives_the_same_to_the_last_bit_whatever_else_is_hooked() -> None:
    model = TorchEncoder().eval()
    alone = tapped_at(model, 32, "output")["output"]
    assert torch.equal(tapped_at(model, 32, "output", "encoder.linear1@avg")["output"], alone)
    with torch.no_grad():
        assert not torch.equal(model(images(32)), alone)  # torch's fused path differs in the last bits


# --- ending early


def test_a_forward_to_the_third_stage_runs_61_percent_of_vgg16() -> None:
    net = vgg16_bn.build(seed=0)
    hooks = resolve_hooks(["pool1.2", "pool3.3"], net, image_size=32)
    with FlopCounterMode(display=False) as whole, torch.inference_mode():
        net.module.eval()(images(32))
    with FlopCounterMode(display=False) as part, capture_layers(net.module, hooks) as features_of:
        features_of(images(32))
    # Stages in units of 64 x 64 channels at a quarter of the pixels of the stage before. Convolutions from 1.1:
    # 3/64 + 1, then (2 + 4) / 4, (8 + 16 + 16) / 16, (32 + 64 + 64) / 64, 3 * 64 / 256; fc6 is 2 in 10,000.
    stages = [3 / 64 + 1, 6 / 4, 40 / 16, 160 / 64, 192 / 256]
    assert part.get_total_flops() / whole.get_total_flops() == pytest.approx(sum(stages[:3]) / sum(stages), abs=1e-3)
    assert sum(stages[:3]) / sum(stages) == pytest.approx(0.61, abs=0.005)


def test_features_are_the_same_to_the_last_bit_whether_the_forward_ends_early_or_not() -> None:
    net = vgg16_bn.build(seed=0)
    early = resolve_hooks(["pool1.2@avg", "pool3.3"], net, image_size=32)
    late = resolve_hooks(["pool1.2@avg", "pool3.3", "fc6"], net, image_size=32)
    with capture_layers(net.module, early) as features_of:
        ended = features_of(images(32))
    with capture_layers(net.module, late) as features_of:
        whole = features_of(images(32))
    assert all(torch.equal(ended[hook.key], whole[hook.key]) for hook in early)


def test_a_hook_that_always_runs_runs_when_the_forward_ends_early(net: Layers) -> None:
    ends: list[bool] = []
    net.module.register_forward_hook(lambda *_: ends.append(True), always_call=True)
    features(net, "conv")
    assert len(ends) == 4  # in three dry forwards, and in the one that ended after conv


def test_a_recorded_forward_goes_to_its_end_with_the_same_features(net: Layers) -> None:
    hooks, ended = resolve(net, "pool1"), []
    with capture_layers(net.module, hooks) as features_of:
        wanted = features_of(images(8))[POOL1]
    net.module.get_submodule("fc6").register_forward_hook(lambda *_: ended.append(True))
    with capture_layers(net.module, hooks, recorded=True) as features_of:
        found = features_of(images(8))[POOL1]
    assert ended == [True]
    assert torch.equal(found, wanted)
    assert not found.is_inference()


def test_recorded_gem_raises_negative_values_without_an_error() -> None:
    net = Layers(Constant([[-1.0, 1.0]]), {"here": "here"})
    hook = Hook("here", "here", 1, "gem", 1, Layout("map", shape=(1, 1, 2)))
    with capture_layers(net.module, [hook], recorded=True) as features_of:
        found = features_of(torch.zeros(1, 3, 4, 4))[hook.key]
    assert found.item() == pytest.approx(0.5 ** (1 / 3))  # of 1e-6 and 1


class Ending(nn.Module):
    """A convolution, its mean and a linear layer of a given name; what follows it is given, too."""

    def __init__(self, name: str, after: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.body, self.after = nn.Conv2d(3, 4, 3), after
        last = nn.Linear(4, 5)
        last.bias.data = torch.linspace(-1, 1, 5)  # numbers of both signs, so that a ReLU changes some
        self.add_module(name, last)
        self.last = name

    def forward(self, given: Tensor) -> Tensor:
        found: Tensor = self.get_submodule(self.last)(self.body(given).mean((2, 3)))
        return found if self.after is None else self.after(found)


@pytest.mark.parametrize(
    ("model", "path"),
    [
        (Ending("classifier"), "classifier"),
        (nn.Sequential(Ending("classifier")), "0.classifier"),
        (Ending("fc"), None),  # it may be the projection of an embedding network
        (Ending("head"), None),
        (Ending("embedding"), None),
        (Ending("classifier", nn.functional.normalize), None),  # an embedding, whatever its name
        (Ending("classifier", nn.ReLU(inplace=True)), None),
    ],
)
def test_a_linear_layer_called_classifier_that_gives_the_output_is_one(model: nn.Module, path: str | None) -> None:
    assert find_classifier(model, 16) == path


def test_libraries_say_what_their_classifier_is() -> None:
    assert find_classifier(models.squeezenet1_1(weights=None), 32) is None  # a convolution before the mean
    assert find_classifier(models.mobilenet_v3_small(weights=None), 32) == "classifier.3"
    assert find_classifier(nn.Sequential(models.resnet18(weights=None)), 32) == "0.fc"
    assert find_classifier(timm.create_model("test_vit", num_classes=3, img_size=32), 32) == "head"
    assert find_classifier(timm.create_model("test_vit", num_classes=0, img_size=32), 32) is None


def test_the_output_is_what_the_classifier_takes_and_nothing_else_changes() -> None:
    model, given = Ending("classifier"), images(16)
    classifier = model.get_submodule("classifier")
    seen: list[Tensor] = []
    classifier.register_forward_hook(lambda *called: seen.append(called[2]))
    with without_classifier(model, "classifier"), torch.no_grad():
        assert torch.equal(model(given), model.body(given).mean((2, 3)))
    with torch.no_grad():
        assert torch.equal(model(given), seen[0])
    assert not model._forward_hooks
    assert not classifier._forward_pre_hooks
