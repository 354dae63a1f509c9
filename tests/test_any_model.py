"""Layers of models from elsewhere: their names, and features equal to what each model's own library gives.

Weights are random, models are built from names or configurations, and nothing is downloaded. tests/test_layouts.py
has plain loops over indices.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from layerprobe.hooks import capture_layers, list_layers, resolve_hooks
from layerprobe.nets.blocks import block_names, part_names
from layerprobe.nets.net import Net
from layerprobe.registry import SOURCES, load_apart
from layerprobe.system.naming import name_model

MAP = ("max", "avg", "grid:2")
PATCHES = ("avg", "grid:2")
CLASS = ("cls", "avg", "grid:2")


@dataclass(frozen=True)
class Given:
    """What a model's library gives at a layer.

    Args:
        patches: (B, C, H, W).
        prefix: (B, P, C), the tokens before the patches.
    """

    patches: Tensor
    prefix: Tensor | None = None

    def pooled(self, pool: str) -> Tensor:
        if pool == "cls":
            assert self.prefix is not None
            return self.prefix[:, 0]
        if pool == "grid:2":
            return F.adaptive_max_pool2d(self.patches, 2).flatten(1)
        return self.patches.amax((2, 3)) if pool == "max" else self.patches.mean((2, 3))


Oracle = Callable[[Any, Tensor], Mapping[str, Given]]


@dataclass(frozen=True)
class Case:
    """A model and what its library gives.

    Args:
        net: makes the model, with its layers.
        size: side of its images in pixels.
        oracle: the model and images -> what its library gives at three layers.
        pools: that are compared.
    """

    net: Callable[[], Net]
    size: int
    oracle: Oracle
    pools: tuple[str, ...] = MAP


def tokens(values: Tensor, prefix: int) -> Given:
    """(B, T, D) with `prefix` tokens before a square of patches."""
    patches = values[:, prefix:]
    side = round(patches.shape[1] ** 0.5)
    return Given(patches.transpose(1, 2).unflatten(2, (side, side)), values[:, :prefix])


def channels_last(values: Tensor) -> Given:
    return Given(values.permute(0, 3, 1, 2))


def at(pattern: str, *numbers: int, shift: int = 0) -> dict[str, int]:
    """Names of numbered layers, each with its place in what a library gives."""
    return {pattern.format(number): number + shift for number in numbers}


def from_timm(layers: Mapping[str, int], *, prefix: bool) -> Oracle:
    """timm's forward_intermediates."""

    def oracle(model: Any, images: Tensor) -> Mapping[str, Given]:
        options = {"return_prefix_tokens": True} if prefix else {}
        indices = list(layers.values())
        maps = model.forward_intermediates(images, indices=indices, intermediates_only=True, **options)
        return {name: Given(*each) if prefix else Given(each) for name, each in zip(layers, maps, strict=True)}

    return oracle


def from_graph(read: Callable[[Tensor], Given], *layers: str) -> Oracle:
    """torchvision's feature extractor: a traced graph, without hooks."""

    def oracle(model: Any, images: Tensor) -> Mapping[str, Given]:
        from torchvision.models.feature_extraction import create_feature_extractor

        return {name: read(output) for name, output in create_feature_extractor(model, list(layers))(images).items()}

    return oracle


def from_hidden_states(layers: Mapping[str, int], read: Callable[[Tensor], Given] = Given) -> Oracle:
    """transformers' output_hidden_states, the first of which are mostly the embeddings."""

    def oracle(model: Any, images: Tensor) -> Mapping[str, Given]:
        states = model(images, output_hidden_states=True).hidden_states
        return {name: read(states[place]) for name, place in layers.items()}

    return oracle


def from_open_clip(layers: Mapping[str, int], *, prefix: bool) -> Oracle:
    """open_clip's forward_intermediates."""

    def oracle(model: Any, images: Tensor) -> Mapping[str, Given]:
        options = {"output_extra_tokens": prefix, "intermediates_only": True, "indices": list(layers.values())}
        found = model.forward_intermediates(images, **options)
        before = found["image_intermediates_prefix"] if prefix else [None] * len(layers)
        maps = zip(layers, found["image_intermediates"], before, strict=True)
        return {name: Given(patches, prefix_tokens) for name, patches, prefix_tokens in maps}

    return oracle


def vit_by_hand(model: Any, images: Tensor) -> Mapping[str, Given]:
    patches = model.patch_embed.proj(images).flatten(2).transpose(1, 2)
    values = torch.cat([model.cls_token.expand(len(images), -1, -1), patches], dim=1) + model.pos_embed
    found = {}
    for number, block in enumerate(model.blocks):
        values = block(values)
        found[f"blocks.{number}"] = tokens(values, 1)
    return found


def swin_by_hand(model: Any, images: Tensor) -> Mapping[str, Given]:
    values = model.patch_embed(images)
    found = {}
    for number, stage in enumerate(model.layers):
        values = stage.downsample(values)
        for place, block in enumerate(stage.blocks):
            values = block(values)
            found[f"layers.{number}.blocks.{place}"] = channels_last(values)
    return found


def net_of(model: Any) -> Net:
    blocks = block_names(model)
    return Net(
        module=model,
        layers={name: name for name in blocks},
        parts={name: name for name in part_names(model, blocks)},
        embedding_dim=1,
        new_parameters=frozenset(),
    )


def from_source(name: str) -> Net:
    """`timm:NAME`, `hf:FOLDER`, `open_clip:NAME`, `torchvision:NAME`, with random weights."""
    name_model(name)
    source, model = load_apart("network", SOURCES, name)
    net: Net = source.build(model)
    return net


def from_configuration(name: str, **options: Any) -> Net:
    """A model of transformers, from a folder that holds its configuration alone."""
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        getattr(transformers, f"{name}Config")(**options).save_pretrained(folder)
        return from_source(f"hf:{folder}")


def timm_model(name: str, **options: Any) -> Any:
    import timm

    return timm.create_model(name, pretrained=False, num_classes=0, **options)


def tiny_vit() -> Net:
    return net_of(timm_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=32, depth=3, num_heads=2))


def tiny_dinov2() -> Net:
    return net_of(timm_model("vit_small_patch14_reg4_dinov2", img_size=56, embed_dim=32, depth=3, num_heads=2))


def tiny_swin() -> Net:
    sizes = {"img_size": 48, "window_size": 3, "embed_dim": 24, "depths": (1, 1, 2), "num_heads": (1, 2, 2)}
    return net_of(timm_model("swin_tiny_patch4_window7_224", **sizes))


def tiny_torchvision_vit() -> Net:
    from torchvision.models import VisionTransformer

    return net_of(VisionTransformer(32, 8, num_layers=3, num_heads=2, hidden_dim=32, mlp_dim=64))


def tiny_torchvision_swin() -> Net:
    from torchvision.models import SwinTransformer

    return net_of(SwinTransformer([4, 4], embed_dim=16, depths=[1, 1, 2], num_heads=[1, 2, 2], window_size=[4, 4]))


def tiny_open_clip() -> Net:
    from open_clip.transformer import VisionTransformer

    return net_of(VisionTransformer(32, 8, width=32, layers=3, heads=2, mlp_ratio=4, output_dim=16))


class_first = partial(tokens, prefix=1)
no_prefix = partial(tokens, prefix=0)
VIT = {
    "hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8,
}  # fmt: skip
MAPS = {"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}


def of_timm(name: str, layers: Mapping[str, int], size: int = 224, pools: tuple[str, ...] = MAP) -> Case:
    return Case(partial(from_source, f"timm:{name}"), size, from_timm(layers, prefix=pools == CLASS), pools)


def of_torchvision(name: str, *layers: str) -> Case:
    return Case(partial(from_source, f"torchvision:{name}"), 224, from_graph(Given, *layers))


SMALL = {
    "timm ViT": Case(tiny_vit, 32, vit_by_hand, CLASS),
    "timm DINOv2": Case(tiny_dinov2, 56, from_timm(at("blocks.{}", 0, 1, 2), prefix=True), CLASS),
    "timm Swin": Case(tiny_swin, 48, swin_by_hand),
    "timm test_convnext": of_timm(
        "test_convnext", {"stages.0.blocks.0": 0, "stages.2.blocks.3": 2, "stages.3.blocks.1": 3}, 64
    ),
    "timm test_resnet": of_timm("test_resnet", at("layer{}.0", 1, 3, 4), 64),
    "timm test_efficientnet": of_timm("test_efficientnet", at("blocks.{}.0", 0, 2, 4), 64),
    "torchvision ViT": Case(
        tiny_torchvision_vit,
        32,
        from_graph(class_first, *(f"encoder.layers.encoder_layer_{number}" for number in range(3))),
        CLASS,
    ),
    "torchvision Swin": Case(
        tiny_torchvision_swin, 64, from_graph(channels_last, "features.1.0", "features.3.0", "features.5.1")
    ),
    "torchvision resnet18": Case(
        partial(from_source, "torchvision:resnet18"), 64, from_graph(Given, "layer1.0", "layer2.1", "layer4.1")
    ),
    "transformers Dinov2": Case(
        partial(from_configuration, "Dinov2", **VIT),
        32,
        from_hidden_states(at("encoder.layer.{}", 0, 1, 3, shift=1), class_first),
        CLASS,
    ),
    "transformers CLIP": Case(
        partial(from_configuration, "CLIPVision", **VIT),
        32,
        from_hidden_states(at("encoder.layers.{}", 0, 1, 3, shift=1), class_first),
        CLASS,
    ),
    "transformers SigLIP": Case(
        partial(from_configuration, "SiglipVision", **VIT),
        32,
        from_hidden_states(at("encoder.layers.{}", 0, 1, 3, shift=1), no_prefix),
        PATCHES,
    ),
    "transformers ConvNext": Case(
        partial(from_configuration, "ConvNext", **MAPS),
        64,
        from_hidden_states(at("encoder.stages.{}.layers.0", 0, 1, 3, shift=1)),
    ),
    "open_clip ViT": Case(
        tiny_open_clip, 32, from_open_clip(at("transformer.resblocks.{}", 0, 1, 2), prefix=True), CLASS
    ),
}
TWELVE = at("blocks.{}", 0, 5, 11)
LARGE = {
    "timm vit_small_patch16_224": of_timm("vit_small_patch16_224", TWELVE, pools=CLASS),
    "timm deit_tiny_distilled": of_timm("deit_tiny_distilled_patch16_224", TWELVE, pools=CLASS),
    "timm eva02_tiny": of_timm("eva02_tiny_patch14_224", TWELVE, pools=CLASS),
    "timm beit_base": of_timm("beit_base_patch16_224", TWELVE, pools=CLASS),
    "timm siglip": of_timm("vit_base_patch16_siglip_224", TWELVE, pools=PATCHES),
    "timm mixer_b16": of_timm("mixer_b16_224", TWELVE, pools=PATCHES),
    "timm xcit_nano": of_timm("xcit_nano_12_p16_224", TWELVE, pools=PATCHES),
    "timm cait_xxs24": of_timm("cait_xxs24_224", at("blocks.{}", 0, 11, 23), pools=PATCHES),
    "timm swinv2_tiny": of_timm(
        "swinv2_tiny_window8_256", {"layers.0.blocks.1": 0, "layers.2.blocks.5": 2, "layers.3.blocks.1": 3}, 256
    ),
    "timm convnext_tiny": of_timm(
        "convnext_tiny", {"stages.0.blocks.2": 0, "stages.2.blocks.8": 2, "stages.3.blocks.2": 3}
    ),
    "timm caformer_s18": of_timm(
        "caformer_s18", {"stages.0.blocks.2": 0, "stages.2.blocks.8": 2, "stages.3.blocks.2": 3}
    ),
    "timm fastvit_t8": of_timm(
        "fastvit_t8", {"stages.0.blocks.1": 0, "stages.2.blocks.3": 2, "stages.3.blocks.1": 3}, 256
    ),
    "timm maxvit_tiny": of_timm(
        "maxvit_tiny_tf_224", {"stages.0.blocks.1": 1, "stages.2.blocks.4": 3, "stages.3.blocks.1": 4}
    ),
    "timm levit_128": of_timm("levit_128", at("stages.{}.blocks.3", 0, 1, 2), pools=PATCHES),
    "timm resnet50": of_timm("resnet50", {"layer1.2": 1, "layer3.5": 3, "layer4.2": 4}),
    "timm regnety_016": of_timm("regnety_016", {"s1.b2": 1, "s3.b17": 3, "s4.b2": 4}),
    "timm repvgg_a2": of_timm("repvgg_a2", {"stages.0.1": 1, "stages.2.13": 3, "stages.3.0": 4}),
    "timm mobilevit_s": of_timm("mobilevit_s", {"stages.0.0": 0, "stages.2.1": 2, "stages.3.1": 3}, 256),
    "timm efficientnet_b0": of_timm("efficientnet_b0", {"blocks.0.0": 0, "blocks.2.1": 2, "blocks.6.0": 4}),
    "timm mobilenetv4": of_timm("mobilenetv4_conv_small", {"blocks.0.1": 1, "blocks.2.5": 3, "blocks.4.0": 4}),
    "timm densenet121": of_timm("densenet121", at("features.denseblock{}", 1, 2, 3)),
    "timm inception_v3": of_timm("inception_v3", {"Mixed_5d": 2, "Mixed_6e": 3, "Mixed_7c": 4}, 299),
    "timm vgg16_bn": of_timm("vgg16_bn", {"features.5": 0, "features.22": 2, "features.42": 4}),
    "torchvision vit_b_16": Case(
        partial(from_source, "torchvision:vit_b_16"),
        224,
        from_graph(class_first, *(f"encoder.layers.encoder_layer_{number}" for number in (0, 5, 11))),
        CLASS,
    ),
    "torchvision swin_t": Case(
        partial(from_source, "torchvision:swin_t"),
        224,
        from_graph(channels_last, "features.1.1", "features.5.5", "features.7.1"),
    ),
    "torchvision convnext_tiny": of_torchvision("convnext_tiny", "features.1.2", "features.5.8", "features.7.2"),
    "torchvision resnet50": of_torchvision("resnet50", "layer1.2", "layer3.5", "layer4.2"),
    "torchvision efficientnet_b0": of_torchvision("efficientnet_b0", "features.1.0", "features.4.1", "features.7.0"),
    "torchvision mobilenet_v3": of_torchvision("mobilenet_v3_small", "features.1", "features.6", "features.11"),
    "torchvision googlenet": of_torchvision("googlenet", "inception3a", "inception4c", "inception5b"),
    "torchvision maxvit_t": of_torchvision("maxvit_t", "blocks.0.layers.1", "blocks.2.layers.3", "blocks.3.layers.1"),
    "transformers ViT": Case(
        partial(from_configuration, "ViT"),
        224,
        from_hidden_states(at("layers.{}", 0, 5, 11, shift=1), class_first),
        CLASS,
    ),
    "transformers Dinov2 with registers": Case(
        partial(from_configuration, "Dinov2WithRegisters", image_size=224),
        224,
        from_hidden_states(at("encoder.layer.{}", 0, 5, 11, shift=1), partial(tokens, prefix=5)),
        CLASS,
    ),
    "transformers ResNet": Case(
        partial(from_configuration, "ResNet"),
        224,
        from_hidden_states(
            {"encoder.stages.0.layers.2": 1, "encoder.stages.2.layers.5": 3, "encoder.stages.3.layers.2": 4}
        ),
    ),
    "open_clip ViT-B-32": Case(
        partial(from_source, "open_clip:ViT-B-32"),
        224,
        from_open_clip(at("transformer.resblocks.{}", 0, 5, 11), prefix=True),
        CLASS,
    ),
    "open_clip ViT-B-16-SigLIP": Case(
        partial(from_source, "open_clip:ViT-B-16-SigLIP"),
        224,
        from_open_clip(at("trunk.blocks.{}", 0, 5, 11), prefix=False),
        PATCHES,
    ),
}


def largest_difference(case: Case, net: Net) -> float:
    """Between our features and the library's, over three layers, as a share of the largest number (of 1, if less)."""
    images = torch.randn(2, 3, case.size, case.size)
    with torch.inference_mode():
        given = case.oracle(net.module.get_submodule(net.root), images)
    assert len(given) > 2
    hooks = resolve_hooks(list(given), net, pools=case.pools, image_size=case.size)
    assert {(hook.layer, hook.pool) for hook in hooks} == {(name, pool) for name in given for pool in case.pools}
    with capture_layers(net.module, hooks) as features_of:
        features = features_of(images)
    expected = {hook.key: given[hook.layer].pooled(hook.pool) for hook in hooks}
    return max(
        float((features[key] - theirs).abs().max() / max(1.0, float(theirs.abs().max())))
        for key, theirs in expected.items()
    )


def check(case: Case) -> None:
    torch.manual_seed(0)
    net = case.net()
    net.module.eval()
    assert [layer.name for layer in list_layers(net, case.size)] == list(net.layers)
    assert largest_difference(case, net) <= 1e-5


@pytest.mark.parametrize("name", SMALL)
def test_its_blocks_are_listed_and_their_features_are_the_librarys(name: str) -> None:
    check(SMALL[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_blocks_of_whole_models_are_listed_and_their_features_are_the_librarys(name: str) -> None:
    check(LARGE[name])


def test_at_least_36_models_are_compared() -> None:
    assert len(SMALL) + len(LARGE) >= 36


def features_of(net: Net, layer: str, images: Tensor) -> Tensor:
    hooks = resolve_hooks([f"{layer}@avg"], net, image_size=images.shape[-1])
    with capture_layers(net.module, hooks) as taken:
        (features,) = taken(images).values()
    return features


def test_a_reparametrised_model_keeps_its_blocks_and_their_features() -> None:
    """RepVGG's three branches become one convolution: the sums are ordered otherwise."""
    from timm.utils.model import reparameterize_model

    torch.manual_seed(0)
    model, images = timm_model("repvgg_a0").eval(), torch.randn(2, 3, 32, 32)
    net, reparametrised = net_of(model), net_of(reparameterize_model(model))
    assert list(net.layers) == list(reparametrised.layers)
    before, after = (features_of(each, "stages.2.5", images) for each in (net, reparametrised))
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-5)
