from __future__ import annotations

import re
from collections import OrderedDict

import pytest
from torch import Tensor, nn

from layerprobe.hooks import (
    Hook,
    execution_order,
    find_layers,
    list_layers,
    measure_layers,
    member_hooks,
    outlying_tokens,
    resolve_hooks,
    skipped_pool_lines,
)
from layerprobe.hooks.layouts import Layout
from layerprobe.system.errors import LayerprobeError, RecipeError, UnknownNameError
from layerprobe.values.layers import LayerKey
from tests.hooks.models import Layers, TorchEncoder, images, timm_swin, timm_vit

MAP = Layout("map", shape=(4, 8, 8))


def resolve(net: Layers, *expressions: str, pools: tuple[str, ...] = ("max",)) -> list[Hook]:
    return resolve_hooks(expressions, net, pools=pools, image_size=8)


def test_names_globs_and_paths_give_each_hook_once_in_execution_order(net: Layers) -> None:
    assert [hook.layer for hook in resolve(net, "fc6", "pool*", "conv", "pool1", "norm")] == [
        "conv", "pool1", "pool2", "fc6",
    ]  # fmt: skip


def test_a_hook_has_the_papers_name_however_it_was_asked_for(net: Layers) -> None:
    assert resolve(net, "norm") == resolve(net, "pool1") == [Hook("pool1", "norm", 1, "max", 4, MAP)]


def test_the_only_call_of_a_module_needs_no_number_in_its_name(net: Layers) -> None:
    assert resolve(net, "pool1#1") == resolve(net, "pool1")


def test_a_pool_in_the_expression_replaces_the_default(net: Layers) -> None:
    assert [hook.key for hook in resolve(net, "pool1@avg", "pool2", pools=("max", "gem"))] == [
        LayerKey("pool1", "avg"), LayerKey("pool2", "max"), LayerKey("pool2", "gem"),
    ]  # fmt: skip


@pytest.mark.parametrize("expression", ["fc6", "fc6@avg", "fc6@none"])
def test_a_vector_is_hooked_once_without_a_pool(net: Layers, expression: str) -> None:
    assert resolve(net, expression, pools=("max", "avg", "grid:2")) == [
        Hook("fc6", "fc6", 1, "none", 4, Layout("vector", shape=(4,)))
    ]


def test_a_grid_has_its_side_squared_numbers_a_channel(net: Layers) -> None:
    assert [hook.dim for hook in resolve(net, "pool1@grid:3", "pool2@grid:4")] == [4 * 9, 4 * 16]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("pool3", "unknown layer 'pool3'. Did you mean 'pool2'? Known: pool1, pool2, fc6, aux."),
        ("toklens", "unknown layer 'toklens'. Did you mean 'tokens'? Known: pool1, pool2, fc6, aux, tokens."),
        ("inception*", "unknown layer 'inception*'. Known: pool1, pool2, fc6, aux."),
        ("pool1@mx", "unknown pool 'mx'. Did you mean 'max'? Known: max, avg, gem, cls, cls+avg, grid:s."),
        ("pool1@grid:0", "unknown pool 'grid:0'. Did you mean 'grid:s'? Known: max, avg, gem, cls, cls+avg, grid:s."),
        ("fc6@mx", "unknown pool 'mx'."),
    ],
)
def test_an_unknown_name_is_an_error_with_the_near_miss(net: Layers, expression: str, message: str) -> None:
    with pytest.raises(UnknownNameError, match=re.escape(message)):
        resolve(net, expression)


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("relu", "relu is called 2 times: #1 (4, 8, 8), #2 (4, 4, 4). Choose one, like relu#1."),
        ("relu#3", "relu#3: there is no such call. Known: #1 (4, 8, 8), #2 (4, 4, 4)."),
        ("relu#0", "relu#0: there is no such call."),
        ("relu#x", "relu#x: there is no such call."),
        ("aux", "aux does not run in evaluation. Choose another layer."),
        ("pool2@grid:5", "pool2@grid:5: the map is 4 x 4. Choose a smaller grid, or max."),
        ("pool1@none", "pool1 is a map (4, 8, 8) and needs a pool. Choose max, avg, gem or grid:s."),
    ],
)
def test_what_cannot_be_hooked_is_an_error_that_says_why(net: Layers, expression: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        resolve(net, expression)


def test_images_that_the_network_is_too_deep_for_are_an_error() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(4))
    with pytest.raises(RecipeError, match=r"the network does not take images of 4 px: .*Output size is too small"):
        list_layers(Layers(module, {"conv": "0"}), 4)


def test_the_list_is_in_execution_order_whatever_the_mapping_is_in(net: Layers) -> None:
    listed = list_layers(Layers(net.module, {"fc6": "fc6", "b": "drop", "a": "norm"}), 8)
    assert [(info.name, info.module, info.dim, info.kind, info.calls) for info in listed] == [
        ("a", "norm", 4, "map", 1), ("b", "drop", 4, "map", 1), ("fc6", "fc6", 4, "vector", 1),
    ]  # fmt: skip


def test_layers_are_put_in_the_order_in_which_the_network_runs_them(net: Layers) -> None:
    names = ["fc6", "relu#2", "pool2", "relu#1", "pool1", "fc9", "relu#7"]
    order = execution_order(names, measure_layers(net, 8))
    assert sorted(order) == sorted(names[:-2])
    assert [name for name in order if name.startswith("relu")] == ["relu#1", "relu#2"]
    assert [name for name in order if not name.startswith("relu")] == ["pool1", "pool2", "fc6"]


# --- module paths, globs, pools
@pytest.fixture(scope="module")
def vit() -> Layers:
    """A ViT that a network wraps, as models from elsewhere are."""
    module = nn.Sequential(OrderedDict(model=timm_vit(), fc6=nn.Linear(32, 4)))
    layers = {**{f"blocks.{i}": f"model.blocks.{i}" for i in range(2)}, "output": "model", "fc6": "fc6"}
    parts = {f"blocks.{i}.attn": f"model.blocks.{i}.attn" for i in range(2)}
    return Layers(module, layers, parts, "model", "model.norm", 1)


def named(net: Layers, *expressions: str, pools: tuple[str, ...] | None = ("avg",), size: int = 32) -> list[str]:
    return [str(hook.key) for hook in resolve_hooks(expressions, net, pools=pools, image_size=size)]


def test_a_star_is_the_named_layers_and_modules_adds_their_parts(vit: Layers) -> None:
    assert named(vit, "*") == ["blocks.0@avg", "blocks.1@avg", "output", "fc6"]
    assert named(vit, "modules") == [
        "blocks.0.attn@avg", "blocks.0@avg", "blocks.1.attn@avg", "blocks.1@avg", "output", "fc6",
    ]  # fmt: skip


def test_module_paths_lie_below_the_model_that_a_network_wraps(vit: Layers) -> None:
    assert named(vit, "patch_embed.proj", "blocks.1.mlp.act") == ["patch_embed.proj@avg", "blocks.1.mlp.act@avg"]
    with pytest.raises(UnknownNameError, match=re.escape("unknown layer 'model.blocks.0'. Did you mean 'blocks.0'")):
        named(vit, "model.blocks.0")


def test_a_glob_over_module_paths_takes_one_step_for_a_star(vit: Layers) -> None:
    assert named(vit, "blocks.*.norm?") == [
        "blocks.0.norm1@avg", "blocks.0.norm2@avg", "blocks.1.norm1@avg", "blocks.1.norm2@avg",
    ]  # fmt: skip
    assert named(vit, "blocks.0.mlp.fc*") == ["blocks.0.mlp.fc1@avg", "blocks.0.mlp.fc2@avg"]


def test_a_glob_over_module_paths_leaves_out_what_cannot_be_hooked(vit: Layers) -> None:
    # The norms of queries and keys give (B, heads, T, D), which is neither a map nor tokens.
    assert named(vit, "blocks.0.attn.*") == [
        "blocks.0.attn.qkv@avg", "blocks.0.attn.norm@avg", "blocks.0.attn.proj@avg", "blocks.0.attn.proj_drop@avg",
    ]  # fmt: skip
    with pytest.raises(RecipeError, match="cannot determine the axes of a map"):
        named(vit, "blocks.0.attn.?_norm")


def test_a_glob_takes_every_call_of_a_module_and_leaves_out_those_that_do_not_run(net: Layers) -> None:
    assert named(net, "r*u", "*l*", size=8) == ["pool1@avg", "relu#1@avg", "relu#2@avg", "pool2@avg"]
    assert named(net, "*", size=8) == ["pool1@avg", "pool2@avg", "fc6"]


def test_the_output_of_any_network_can_be_named(net: Layers) -> None:
    assert named(net, "output", size=8) == ["output"]


def test_a_pool_is_left_out_at_layers_that_cannot_have_it(vit: Layers) -> None:
    found = named(vit, "blocks.0", "patch_embed", "patch_embed.proj", pools=("cls", "avg", "grid:8"))
    assert found == ["patch_embed.proj@avg", "patch_embed@avg", "blocks.0@cls", "blocks.0@avg"]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("patch_embed@cls", "patch_embed@cls: tokens (16, 32) has no class token. Choose max, avg, gem or grid:s."),
        ("patch_embed.proj@cls+avg", "patch_embed.proj@cls+avg: a map (32, 4, 4) has no class token."),
        (
            "blocks.0@none",
            "blocks.0 is tokens (17, 32) and needs a pool. Choose cls, cls+avg, max, avg",
        ),
        ("blocks.0@gem", "blocks.0@gem: the layer has values below 0, which GeM would raise to 0."),
        ("blocks.0@grid:5", "blocks.0@grid:5: the map is 4 x 4. Choose a smaller grid, or max."),
    ],
)
def test_a_pool_that_a_layer_cannot_have_is_an_error_that_says_why(vit: Layers, expression: str, message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        named(vit, expression)


def test_registers_alone_are_no_class_token() -> None:
    model = timm_vit(class_token=False, reg_tokens=1, global_pool="avg")
    assert named(Layers(model), "blocks.1", pools=None) == ["blocks.1@avg"]
    assert named(Layers(timm_vit(reg_tokens=4)), "blocks.1", pools=None) == ["blocks.1@cls", "blocks.1@avg"]


def test_gem_is_for_layers_after_a_relu(net: Layers) -> None:
    assert named(net, "relu#1@gem", "pool2@gem", size=8) == ["relu#1@gem", "pool2@gem"]
    with pytest.raises(RecipeError, match="pool1@gem: the layer has values below 0"):
        named(net, "pool1@gem", size=8)  # a batch normalisation


def test_a_norm_before_the_pool_is_part_of_the_layers_name(vit: Layers) -> None:
    found = named(vit, "normed(blocks.*)", "blocks.0", "normed(blocks.1)@max", pools=None)
    assert found == [
        "blocks.0@cls", "blocks.0@avg", "normed(blocks.0)@cls", "normed(blocks.0)@avg",
        "normed(blocks.1)@cls", "normed(blocks.1)@avg", "normed(blocks.1)@max",
    ]  # fmt: skip


def test_a_norm_is_refused_where_there_is_none_or_it_takes_other_shapes() -> None:
    with pytest.raises(RecipeError, match=re.escape("normed(blocks.0): the network has no final norm")):
        named(Layers(timm_vit()), "normed(blocks.0)")
    swin = Layers(timm_swin(), final_norm="norm")
    message = "normed(layers.0.blocks.0): the final norm norm does not take (16, 16, 24)."
    with pytest.raises(RecipeError, match=re.escape(message)):
        named(swin, "normed(layers.0.blocks.0)", size=64)
    assert named(swin, "normed(layers.*)", size=64) == ["normed(layers.1)@avg"]
    with pytest.raises(RecipeError, match="GeM would raise to 0"):
        named(swin, "normed(layers.1)@gem", size=64)


class LastNorm(nn.Module):
    """A map of 8 channels and 8 x 8 places, of which the mean is normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 1), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        embeddings: Tensor = self.norm(self.conv(x).mean((2, 3)))
        return embeddings


def test_a_norm_is_refused_that_would_normalise_the_width_of_a_map() -> None:
    net = Layers(LastNorm(), final_norm="norm")
    assert net.module.norm(net.module.conv(images(8))).shape == (2, 8, 8, 8)  # type: ignore[operator]
    with pytest.raises(RecipeError, match=re.escape("the final norm norm does not take (8, 8, 8)")):
        named(net, "normed(conv)", size=8)


def test_the_order_of_layers_knows_those_through_the_norm(vit: Layers) -> None:
    names = ["output", "normed(blocks.1)", "blocks.1", "normed(blocks.0)", "normed(blocks.7)"]
    order = execution_order(names, measure_layers(vit, 32))
    assert order == ["normed(blocks.0)", "blocks.1", "normed(blocks.1)", "output"]


def test_the_projection_inside_torchs_attention_is_told_to_run_as_no_module() -> None:
    net = Layers(TorchEncoder())
    message = "encoder.self_attn.out_proj does not run as a module, as nn.MultiheadAttention computes with its weights"
    with pytest.raises(RecipeError, match=re.escape(message)):
        named(net, "encoder.self_attn.out_proj")


def test_maxima_over_tokens_are_warned_of(vit: Layers) -> None:
    hooks = resolve_hooks(["blocks.0@max", "blocks.1@avg", "patch_embed.proj@max"], vit, image_size=32)
    assert outlying_tokens(hooks) == [
        "max over the tokens of blocks.0: a few tokens of large norm may decide it; cls and avg are safer"
    ]
    assert outlying_tokens(hooks[:1]) == []


def test_a_layer_that_does_not_run_is_not_listed(net: Layers) -> None:
    module = nn.ModuleDict({"seen": net.module, "auxiliary": nn.Linear(2, 2)})
    module.forward = net.module.forward  # as a network that has a head for training
    listed = list_layers(Layers(module, {"fc6": "seen.fc6", "auxiliary": "auxiliary"}), 8)
    assert [info.name for info in listed] == ["fc6"]


def found(net: Layers, *expressions: str, pools: tuple[str, ...] | None = ("max",), size: int = 8) -> list[str]:
    return [str(layer.key) for layer in find_layers(expressions, measure_layers(net, size), pools=pools)]


def test_layers_side_by_side_have_the_networks_order_and_one_pool(net: Layers) -> None:
    assert found(net, "pool2+pool1") == found(net, "pool1+pool2@max") == ["pool1+pool2@max"]
    assert found(net, "pool1+conv+pool2@avg") == ["conv+pool1+pool2@avg"]
    assert found(net, "pool2+pool1", "pool1+pool2") == ["pool1+pool2@max"]


def test_a_map_and_a_vector_have_the_maps_pool(net: Layers) -> None:
    (layer,) = find_layers(["fc6+pool1@avg"], measure_layers(net, 8))
    assert layer.key == LayerKey("pool1+fc6", "avg")
    assert [hook.key for hook in member_hooks([layer])] == [LayerKey("pool1", "avg"), LayerKey("fc6", "none")]
    assert layer.dim == 4 + 4
    assert found(net, "last+fc6", pools=("max", "avg")) == ["fc6+last"]


def test_each_pool_that_is_asked_for_makes_a_layer(net: Layers) -> None:
    assert found(net, "pool1+fc6", pools=("max", "avg")) == ["pool1+fc6@max", "pool1+fc6@avg"]
    # gem needs values above 0, which conv does not have
    assert found(net, "conv+pool2", pools=("gem", "avg")) == ["conv+pool2@avg"]


def test_tokens_side_by_side_have_the_pools_of_tokens() -> None:
    net = Layers(timm_vit(), {"a": "blocks.0", "b": "blocks.1"}, final_norm="norm")
    assert found(net, "b+a", pools=None, size=32) == ["a+b@cls", "a+b@avg"]
    assert found(net, "normed(b)+normed(a)@cls+avg", size=32) == ["normed(a)+normed(b)@cls+avg"]
    assert found(net, "b+normed(b)@cls", size=32) == ["b+normed(b)@cls"]


def test_side_by_side_follow_the_last_of_their_layers(net: Layers) -> None:
    assert found(net, "fc6", "pool1+pool2", "pool2", "conv+pool2", "conv") == [
        "conv@max", "pool2@max", "conv+pool2@max", "pool1+pool2@max", "fc6",
    ]  # fmt: skip


def test_a_pool_that_globbed_layers_cannot_have_is_said(net: Layers) -> None:
    # Convolution and normalisation go below 0, the ReLU does not; a vector needs no pool.
    measured = measure_layers(Layers(net.module, {"fc6": "fc6"}), 8)
    below = "gem skipped for conv, norm: conv@gem: the layer has values below 0, which GeM would raise to 0"
    assert "conv@gem" not in [str(layer.key) for layer in find_layers(["*[!6]@gem", "fc?@gem"], measured)]
    assert skipped_pool_lines(["*[!6]@gem", "fc?@gem"], measured) == [below]


def test_a_pool_is_said_that_a_layer_lacks_beside_another(net: Layers) -> None:
    assert found(net, "pool1", "fc6", pools=("max", "grid:9")) == ["pool1@max", "fc6"]
    assert skipped_pool_lines(["pool1", "fc6", "pool1+pool2"], measure_layers(net, 8), pools=("max", "grid:9")) == [
        "grid:9 skipped for pool1: pool1@grid:9: the map is 8 x 8"
    ]


def test_a_layer_is_extracted_once(net: Layers) -> None:
    layers = find_layers(["pool1+pool2", "pool1+fc6", "pool1"], measure_layers(net, 8), pools=["max"])
    assert sorted(hook.layer for hook in member_hooks(layers)) == ["fc6", "pool1", "pool2"]


def test_a_module_whose_own_name_has_a_plus_is_a_layer(net: Layers) -> None:
    named = Layers(net.module, {"rgb+depth": "norm", "pool2": "drop"})
    assert found(named, "rgb+depth") == ["rgb+depth@max"]


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("pool1+pool*", "pool1+pool*: pool* may be several layers. Name every layer of A+B itself."),
        ("modules+fc6", "modules+fc6: modules may be several layers. Name every layer of A+B itself."),
        ("pool1+", "pool1+: a layer is missing beside +. Name every layer of A+B itself."),
        ("pool1+norm", "pool1+norm: a layer stands there twice. Name each layer once."),
        ("pool1+fc6+pool1", "pool1+fc6+pool1: a layer stands there twice. Name each layer once."),
        ("pool1@max+fc6", "pool1@max+fc6: A+B has one pool. Write it once, at the end, like A+B@max."),
        ("pool1+pool3", "unknown layer 'pool3'. Did you mean 'pool2'? Known: pool1, pool2, fc6, aux."),
        ("pool1+pool2@mx", "unknown pool 'mx'. Did you mean 'max'?"),
        ("pool1+fc6@none", "pool1 is a map (4, 8, 8) and needs a pool."),
        ("pool1+pool2@grid:5", "pool2@grid:5: the map is 4 x 4."),
    ],
)
def test_what_is_no_layer_side_by_side_is_refused(net: Layers, expression: str, message: str) -> None:
    with pytest.raises(LayerprobeError, match=re.escape(message)):
        found(net, expression)
