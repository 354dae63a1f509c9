"""Lists of the blocks of well-known models, written down from their papers' depths, and the rule on small modules."""

from __future__ import annotations

import importlib.metadata
from collections import OrderedDict
from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from layerprobe.nets.blocks import block_names, part_names

# Names drift upstream: the slow list holds for these versions.
VERSIONS = {"timm": "1.0.31", "torchvision": "0.29", "transformers": "5.23", "open_clip_torch": "3.3"}


def numbered(pattern: str, *depths: int, first: int = 0) -> list[str]:
    """`a.{}` and 2 -> a.0, a.1; `a.{}.{}` and 1, 2 -> a.0.0, a.1.0, a.1.1: stages of these depths."""
    if pattern.count("{}") == 1:
        return [pattern.format(first + i) for i in range(depths[0])]
    return [pattern.format(first + stage, i) for stage, depth in enumerate(depths) for i in range(depth)]


def odd_stages(*depths: int) -> list[str]:
    """torchvision's features: what makes patches or halves the map lies between the stages."""
    return [f"features.{2 * stage + 1}.{i}" for stage, depth in enumerate(depths) for i in range(depth)]


FAST = {
    "timm:vit_small_patch14_dinov2": numbered("blocks.{}", 12),
    "timm:swin_tiny_patch4_window7_224": numbered("layers.{}.blocks.{}", 2, 2, 6, 2),
    "timm:convnext_tiny": numbered("stages.{}.blocks.{}", 3, 3, 9, 3),
    "timm:efficientnet_b0": numbered("blocks.{}.{}", 1, 2, 2, 3, 3, 4, 1),
    "torchvision:resnet50": numbered("layer{}.{}", 3, 4, 6, 3, first=1),
    "transformers:Dinov2Model": numbered("encoder.layer.{}", 12),
    "transformers:CLIPVisionModel": numbered("encoder.layers.{}", 12),
    "open_clip:ViT-B-32": numbered("transformer.resblocks.{}", 12),
}
INCEPTION_V3 = [f"Mixed_{each}" for each in ("5b", "5c", "5d", "6a", "6b", "6c", "6d", "6e", "7a", "7b", "7c")]
SLOW = {
    "timm:cait_xxs24_224": numbered("blocks.{}", 24) + numbered("blocks_token_only.{}", 2),
    "timm:coatnet_0_rw_224": numbered("stages.{}.blocks.{}", 2, 3, 7, 2),
    "timm:densenet121": numbered("features.denseblock{}", 4, first=1),
    "timm:eva02_tiny_patch14_224": numbered("blocks.{}", 12),
    "timm:fastvit_t8": numbered("stages.{}.blocks.{}", 2, 2, 4, 2),
    "timm:gcvit_tiny": numbered("stages.{}.blocks.{}", 3, 4, 19, 5),
    "timm:inception_v3": INCEPTION_V3,
    "timm:levit_128": numbered("stages.{}.blocks.{}", 4, 4, 4),
    "timm:maxvit_tiny_tf_224": numbered("stages.{}.blocks.{}", 2, 2, 5, 2),
    "timm:mobilenetv4_conv_small": numbered("blocks.{}.{}", 2, 2, 6, 6, 1),
    "timm:mobilevit_s": numbered("stages.{}.{}", 1, 3, 2, 2, 2),
    "timm:pvt_v2_b0": numbered("stages.{}.blocks.{}", 2, 2, 2, 2),
    "timm:regnety_016": [f"s{s}.b{b}" for s, depth in enumerate((2, 6, 17, 2), 1) for b in range(1, depth + 1)],
    "timm:repvgg_a2": numbered("stages.{}.{}", 2, 4, 14, 1),
    "timm:vgg16_bn": [f"features.{i}" for i in (2, 5, 9, 12, 16, 19, 22, 26, 29, 32, 36, 39, 42)] + ["pre_logits"],
    "timm:vit_base_patch16_siglip_224": numbered("blocks.{}", 12),
    "timm:legacy_xception": numbered("block{}", 12, first=1),
    "torchvision:convnext_tiny": odd_stages(3, 3, 9, 3),
    "torchvision:efficientnet_v2_s": numbered("features.{}.{}", 2, 4, 4, 6, 9, 15, first=1),
    "torchvision:googlenet": [f"inception{each}" for each in ("3a", "3b", "4a", "4b", "4c", "4d", "4e", "5a", "5b")],
    "torchvision:maxvit_t": numbered("blocks.{}.layers.{}", 2, 2, 5, 2),
    "torchvision:swin_t": odd_stages(2, 2, 6, 2),
    "torchvision:vit_b_16": numbered("encoder.layers.encoder_layer_{}", 12),
    "transformers:ConvNextModel": numbered("encoder.stages.{}.layers.{}", 3, 3, 9, 3),
    "transformers:ResNetModel": numbered("encoder.stages.{}.layers.{}", 3, 4, 6, 3),
    "transformers:SiglipVisionModel": numbered("encoder.layers.{}", 12),
    "transformers:SwinModel": numbered("encoder.layers.{}.blocks.{}", 2, 2, 6, 2),
    "open_clip:RN50": numbered("layer{}.{}", 3, 4, 6, 3, first=1),
}


def model_of(name: str) -> nn.Module:
    """A model without weights: of timm, torchvision, transformers (its default configuration) or open_clip."""
    source, _, model = name.partition(":")
    module: nn.Module
    with torch.device("meta"):
        if source == "timm":
            import timm

            module = timm.create_model(model, pretrained=False, num_classes=0)
        elif source == "torchvision":
            import torchvision

            options = {"init_weights": False} if model == "googlenet" else {}
            module = torchvision.models.get_model(model, weights=None, **options)
        elif source == "transformers":
            import transformers

            kind = getattr(transformers, model)
            module = kind(kind.config_class())
        else:
            import open_clip

            module = open_clip.create_model(model, pretrained=None, load_weights=False, device="meta").visual
    return module


@pytest.mark.parametrize("name", FAST)
def test_blocks_of(name: str) -> None:
    assert block_names(model_of(name)) == FAST[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_blocks_of_further(name: str) -> None:
    package = name.partition(":")[0].replace("open_clip", "open_clip_torch")
    installed = importlib.metadata.version(package)
    if not installed.startswith(f"{VERSIONS[package]}.") and installed != VERSIONS[package]:
        pytest.skip(f"the list holds for {package} {VERSIONS[package]}, {installed} is installed")
    assert block_names(model_of(name)) == SLOW[name]


def test_36_models_are_written_down() -> None:
    assert (len(FAST), len(SLOW)) == (8, 28)


class Block(nn.Module):
    """A residual block as users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(4, 1)
        self.mlp = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))


class Trunk(nn.Module):
    """A model with a stem, stacked blocks and a head."""

    def __init__(self, blocks: nn.Module) -> None:
        super().__init__()
        self.stem = nn.Sequential(Block(), Block())
        self.stack = blocks
        self.head = nn.Sequential(Block(), Block())


# torch 2.11 imports a deprecated function of its own when it compiles.
OWN_WARNING_OF_TORCH = pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")


def compile_module(module: nn.Module) -> nn.Module:
    compiled = torch.compile(module)
    assert isinstance(compiled, nn.Module)
    return compiled


def test_stems_and_heads_are_no_blocks() -> None:
    assert block_names(Trunk(nn.ModuleList([Block(), Block()]))) == ["stack.0", "stack.1"]


def test_a_dict_of_blocks_is_a_stack() -> None:
    assert block_names(Trunk(nn.ModuleDict({"low": Block(), "high": Block()}))) == ["stack.low", "stack.high"]


def test_a_backbone_cut_into_its_children_has_its_blocks() -> None:
    from torchvision.models import resnet18

    with torch.device("meta"):
        model = nn.Sequential(*list(resnet18().children())[:-1])
    assert block_names(model) == [f"{stage}.{block}" for stage in (4, 5, 6, 7) for block in (0, 1)]


def test_a_stack_of_one_block_counts() -> None:
    assert block_names(Trunk(nn.ModuleList([Block()]))) == ["stack.0"]


def test_placeholders_among_the_blocks_are_left_out() -> None:
    """DINOv2's own code numbers the blocks of a chunk on from those of the chunk before."""
    chunks = nn.ModuleList(
        [nn.ModuleList([Block(), Block()]), nn.ModuleList([nn.Identity(), nn.Identity(), Block(), Block()])]
    )
    assert block_names(Trunk(chunks)) == ["stack.0.0", "stack.0.1", "stack.1.2", "stack.1.3"]


def test_the_blocks_of_a_backbone_are_not_its_embedder() -> None:
    model = nn.Sequential(Trunk(nn.ModuleList([Block(), Block()])), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)))
    assert block_names(model) == ["0.stack.0", "0.stack.1"]


@OWN_WARNING_OF_TORCH
def test_a_compiled_model_has_its_own_names() -> None:
    model = Trunk(nn.ModuleList([Block(), Block()]))
    compiled = compile_module(model)
    names = block_names(compiled)
    assert names == ["stack.0", "stack.1"]
    assert compiled.get_submodule(names[1]) is model.get_submodule("stack.1")


@OWN_WARNING_OF_TORCH
def test_compiled_blocks_keep_their_names() -> None:
    model = Trunk(nn.ModuleList([compile_module(Block()), compile_module(Block())]))
    assert block_names(model) == ["stack.0", "stack.1"]
    assert part_names(model, ["stack.1"]) == ["stack.1.attn", "stack.1.mlp.1", "stack.1.mlp"]


def test_gradient_checkpointing_renames_no_block() -> None:
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

    model = Trunk(nn.ModuleList([checkpoint_wrapper(Block()), checkpoint_wrapper(Block())]))
    assert block_names(model) == ["stack.0", "stack.1"]


def test_a_plain_network_has_its_activations() -> None:
    """features.0 to 2 are one layer, with its output after the ReLU; a pool begins none."""
    features = nn.Sequential(
        *(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), nn.MaxPool2d(2), *(nn.Conv2d(4, 4, 3), nn.ReLU()),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten()),
    )  # fmt: skip
    model = nn.Sequential(OrderedDict(features=features, fc=nn.Linear(4, 2)))
    assert block_names(model) == ["features.2", "features.5", "fc"]


def test_a_network_of_stages_has_its_stages() -> None:
    def stage() -> nn.Module:
        return nn.Sequential(nn.Conv2d(4, 4, 3), nn.ReLU(), nn.MaxPool2d(2))

    model = nn.Sequential(OrderedDict(features=nn.Sequential(stage(), stage()), classifier=nn.Linear(4, 2)))
    assert block_names(model) == ["features.0", "features.1", "classifier"]


def test_a_network_without_stacks_has_its_children_with_parameters() -> None:
    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.pool, self.conv2 = nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.Conv2d(4, 4, 3)
            self.fc = nn.Linear(4, 2)

        def forward(self, images: Tensor) -> Tensor:
            maps = self.conv2(self.pool(self.conv1(images).relu())).relu()
            logits: Tensor = self.fc(maps.mean((2, 3)))
            return logits

    assert block_names(Small()) == ["conv1", "conv2", "fc"]


def test_a_network_in_a_wrapper_has_the_same_blocks() -> None:
    inner = nn.Sequential(OrderedDict(conv=nn.Conv2d(3, 4, 3), act=nn.ReLU(), conv2=nn.Conv2d(4, 4, 3)))

    class Wrapper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = Inner()

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features = inner

    assert block_names(Wrapper()) == ["model.features.act", "model.features.conv2"]


def test_a_network_without_parameters_has_its_children() -> None:
    assert block_names(nn.Sequential(OrderedDict(pool=nn.MaxPool2d(2), flat=nn.Flatten()))) == ["pool", "flat"]


PARTS: Mapping[str, list[str]] = {
    "timm:vit_small_patch14_dinov2": ["blocks.5.attn", "blocks.5.mlp.act", "blocks.5.mlp"],
    # Its attention runs in windows: timm's has no row for an image, torchvision's has.
    "timm:swin_tiny_patch4_window7_224": ["layers.2.blocks.1.mlp.act", "layers.2.blocks.1.mlp"],
    "timm:convnext_tiny": ["stages.1.blocks.2.mlp.act", "stages.1.blocks.2.mlp"],
    # Its squeeze and excitation is a gate.
    "timm:efficientnet_b0": ["blocks.3.0.bn1.act", "blocks.3.0.bn2.act"],
    # One ReLU, which the block calls three times.
    "torchvision:resnet50": ["layer2.2.relu"],
    "transformers:Dinov2Model": [
        f"encoder.layer.5.{part}" for part in ("attention", "mlp.activation_fn", "mlp")
    ],
    "open_clip:ViT-B-32": [f"transformer.resblocks.5.{part}" for part in ("attn", "mlp.gelu", "mlp")],
}  # fmt: skip


@pytest.mark.parametrize("name", PARTS)
def test_parts_of_the_sixth_block_of(name: str) -> None:
    assert part_names(model_of(name), FAST[name][5:6]) == PARTS[name]
