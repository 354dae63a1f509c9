"""Every kind of output that modules give, against explicit indexing and shapes worked out by hand."""

from __future__ import annotations

import re

import pytest
import torch
from torch import Tensor, nn

from layerprobe.hooks import capture_layers, list_layers, resolve_hooks
from layerprobe.hooks.layouts import Layout, Model, Seen, Unclear, find_layouts
from layerprobe.system.errors import RecipeError
from tests.hooks.models import Layers, images, timm_swin, timm_vit


def features(net: Layers, size: int, *expressions: str) -> dict[str, Tensor]:
    """Features by layer and pool."""
    with capture_layers(net.module, resolve_hooks(expressions, net, image_size=size)) as features_of:
        return {str(key): values for key, values in features_of(images(size)).items()}


def output_of(module: nn.Module, path: str, size: int) -> Tensor:
    """What a module gives, by a hook of its own."""
    found: list[Tensor] = []
    handle = module.get_submodule(path).register_forward_hook(lambda _module, _inputs, output: found.append(output))
    with torch.inference_mode():
        module(images(size))
    handle.remove()
    return found[0]


# --- models


def test_swins_maps_are_pooled_over_height_and_width_not_over_channels() -> None:
    model = timm_swin()
    found = features(Layers(model), 64, "layers.0.blocks.1@max", "layers.1.blocks.1@avg", "layers.0.blocks.1@grid:2")
    first, last = output_of(model, "layers.0.blocks.1", 64), output_of(model, "layers.1.blocks.1", 64)
    assert (first.shape, last.shape) == ((2, 16, 16, 24), (2, 8, 8, 48))
    for image in range(2):
        for channel in range(24):
            expected = max(first[image, y, x, channel].item() for y in range(16) for x in range(16))
            assert found["layers.0.blocks.1@max"][image, channel].item() == expected
    torch.testing.assert_close(found["layers.1.blocks.1@avg"], last.mean((1, 2)))
    # adaptive maxima of 16 x 16 into 2 x 2: the quarters of 8 x 8
    lower_left = first[:, 8:, :8].amax((1, 2))
    assert torch.equal(found["layers.0.blocks.1@grid:2"].view(2, 24, 4)[:, :, 2], lower_left)


def test_tokens_are_pooled_over_the_patches_and_the_class_token_is_apart() -> None:
    model = timm_vit()
    pools = ("max", "avg", "cls", "cls+avg", "grid:2")
    found = features(Layers(model), 32, *(f"blocks.1@{pool}" for pool in pools))
    tokens = output_of(model, "blocks.1", 32)  # (2, 1 + 16, 32)
    assert torch.equal(found["blocks.1@cls"], tokens[:, 0])
    assert torch.equal(found["blocks.1@max"], tokens[:, 1:].amax(1))
    torch.testing.assert_close(found["blocks.1@avg"], tokens[:, 1:].mean(1))
    torch.testing.assert_close(found["blocks.1@cls+avg"], torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1))
    # patches 0 ... 15 by rows of four: the upper right quarter is 2, 3, 6, 7, and the class token stands before them
    upper_right = tokens[:, [1 + 2, 1 + 3, 1 + 6, 1 + 7]].amax(1)
    assert torch.equal(found["blocks.1@grid:2"].view(2, 32, 4)[:, :, 1], upper_right)


def test_tokens_have_the_pools_cls_and_avg_by_default_maps_max_and_vectors_none() -> None:
    model = timm_vit()
    hooks = resolve_hooks(["blocks.0", "patch_embed.proj", "output", "patch_embed"], Layers(model), image_size=32)
    assert [(str(hook.key), hook.dim) for hook in hooks] == [
        ("patch_embed.proj@max", 32), ("patch_embed@avg", 32), ("blocks.0@cls", 32), ("blocks.0@avg", 32),
        ("output", 32),
    ]  # fmt: skip


class SequenceFirst(nn.Module):
    """(B, 3, 8, 8) -> 4 tokens of 6 channels, (T, B, D)."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 6, 4, 4)
        self.tokens = nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        tokens: Tensor = self.tokens(self.patches(x).flatten(2).permute(2, 0, 1))
        return tokens.mean(0)


def test_the_axis_of_images_is_found_where_tokens_come_first() -> None:
    model = SequenceFirst()
    (info,) = list_layers(Layers(model, {"tokens": "tokens"}), 8)
    assert info.layout == Layout("tokens", (), batch=1, channels=2, shape=(4, 6))
    found = features(Layers(model), 8, "tokens@avg")["tokens@avg"]
    torch.testing.assert_close(found, output_of(model, "tokens", 8).mean(0))
    assert found.shape == (2, 6)


class Windows(nn.Module):
    """(B, C, 8, 8) -> (4 B, C, 4, 4)."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, 3, 2, 4, 2, 4).permute(0, 2, 4, 1, 3, 5).flatten(0, 2)


def test_windows_are_refused_with_the_shapes_seen() -> None:
    message = "axis 0 has 4 rows an image, such as its windows: (8, 3, 4, 4) with 2 images, (12, 3, 4, 4) with 3"
    with pytest.raises(RecipeError, match=re.escape(message)):
        resolve_hooks(["0"], Layers(nn.Sequential(Windows())), image_size=8)


@pytest.mark.parametrize("takes_other_sizes", [False, True])
def test_patches_of_an_image_that_is_no_square_keep_their_rows(takes_other_sizes: bool) -> None:
    model = timm_vit(img_size=(32, 64), dynamic_img_size=takes_other_sizes)
    images = torch.randn(2, 3, 32, 64, generator=torch.Generator().manual_seed(1))
    hooks = resolve_hooks(["blocks.1@grid:2", "blocks.1@avg"], Layers(model, prefix_tokens=1), image_size=(32, 64))
    assert [(hook.layout.grid, hook.layout.prefix) for hook in hooks] == [((4, 8), 1)] * 2
    with capture_layers(model, hooks) as features_of:
        found = {str(key): values for key, values in features_of(images).items()}
    tokens: list[Tensor] = []
    handle = model.blocks[1].register_forward_hook(lambda _module, _inputs, output: tokens.append(output))
    with torch.inference_mode():
        model(images)
    handle.remove()
    # a class token, then patches 0 ... 31 by rows of eight: the lower left quarter has columns 0 to 3 of rows 2 and 3
    lower_left = tokens[0][:, [1 + 8 * row + column for row in (2, 3) for column in range(4)]].amax(1)
    assert torch.equal(found["blocks.1@grid:2"].view(2, 32, 4)[:, :, 2], lower_left)
    torch.testing.assert_close(found["blocks.1@avg"], tokens[0][:, 1:].mean(1))


# --- shapes


FIXED = Model(32)
TAKES_HALF = Model(32, 16)


def layout(two: tuple[int, ...], other: tuple[int, ...] | None = None, model: Model = FIXED) -> Layout | Unclear:
    """The layout of an output whose first axis has the images."""
    (found,) = find_layouts([Seen((), two, (3, *two[1:]), other)], model)
    return found


@pytest.mark.parametrize(
    ("shape", "kind", "channels", "of_one"),
    [
        ((2, 64, 7, 7), "map", 1, (64, 7, 7)),
        ((2, 7, 7, 64), "map", 3, (64, 7, 7)),
        ((2, 64, 1, 1), "map", 1, (64, 1, 1)),
        ((2, 64), "vector", 1, (64,)),
        ((2, 1, 64), "vector", 2, (64,)),
    ],
)
def test_one_image_size_tells_a_square_map_from_its_channels(
    shape: tuple[int, ...], kind: str, channels: int, of_one: tuple[int, ...]
) -> None:
    found = layout(shape)
    assert isinstance(found, Layout)
    assert (found.kind, found.channels, found.shape) == (kind, channels, of_one)


@pytest.mark.parametrize("shape", [(2, 7, 7, 7), (2, 3, 4, 5), (2, 16, 32), (2, 2, 2, 2, 2), (2, 7, 64, 7)])
def test_what_one_image_size_does_not_tell_is_refused_with_the_shapes(shape: tuple[int, ...]) -> None:
    found = layout(shape)
    assert isinstance(found, Unclear)
    assert str(shape) in found.reason


@pytest.mark.parametrize(
    ("two", "other", "expected"),
    [
        ((2, 4, 4, 4), (2, 4, 2, 2), Layout("map", (), 0, 1, (4, 4, 4))),
        ((2, 4, 4, 4), (2, 2, 2, 4), Layout("map", (), 0, 3, (4, 4, 4))),
        ((2, 16, 16), (2, 4, 16), Layout("tokens", (), 0, 2, (16, 16))),
        ((2, 16, 16), (2, 16, 4), Layout("tokens", (), 0, 1, (16, 16))),
        ((2, 17, 8), (2, 5, 8), Layout("tokens", (), 0, 2, (17, 8), 1, True)),
    ],
)
def test_another_image_size_tells_axes_apart_that_are_equally_long(
    two: tuple[int, ...], other: tuple[int, ...], expected: Layout
) -> None:
    assert layout(two, other, TAKES_HALF) == expected


@pytest.mark.parametrize("own", [None, 5])
def test_two_image_sizes_tell_five_prefix_tokens_from_a_larger_square(own: int | None) -> None:
    # 2 x 2 and 1 x 1 patches after 5 tokens; 9 alone would be 3 x 3
    found = layout((2, 9, 8), (2, 6, 8), Model(32, 16, own))
    assert isinstance(found, Layout)
    assert (found.prefix, found.grid) == (5, (2, 2))


@pytest.mark.parametrize(("own", "believed"), [(None, False), (1, False), (21, True)])
def test_many_tokens_beside_the_patches_may_stand_after_them(own: int | None, believed: bool) -> None:
    # YOLOS: a class token, 8 x 8 patches, then tokens of detections
    found = layout((2, 85, 8), (2, 37, 8), Model(32, 16, own))
    assert isinstance(found, Layout if believed else Unclear)


def tokens_of(count: int, own: int | None) -> Layout | Unclear:
    """Tokens of a model that takes one size, whose LayerNorm tells the axis of tokens."""
    (found,) = find_layouts([Seen((), (2, count, 8), (3, count, 8), None, normed=True)], Model(32, None, own))
    return found


@pytest.mark.parametrize(
    ("count", "own", "prefix"),
    [(197, None, 1), (197, 1, 1), (201, 5, 5), (196, 1, 0), (261, None, 5), (5, 1, 1), (9, 0, 0)],
)
def test_one_image_size_leaves_the_largest_square_of_patches(count: int, own: int | None, prefix: int) -> None:
    found = tokens_of(count, own)
    assert isinstance(found, Layout)
    assert found.prefix == prefix


@pytest.mark.parametrize(
    ("count", "own"),
    [
        (9, 5),  # 3 x 3, or 2 x 2 after 5
        (9, None),
        (5, 0),  # a square of 2 x 2 after 1, by what the model says of none
        (25, 9),  # 5 x 5, or 4 x 4 after 9
        (224, None),  # 14 x 16 are no square: 28 tokens before one are not believed
    ],
)
def test_a_doubtful_number_of_prefix_tokens_is_refused(count: int, own: int | None) -> None:
    assert isinstance(tokens_of(count, own), Unclear)


def test_attention_weights_are_no_map() -> None:
    tokens = Seen((), (2, 17, 8), (3, 17, 8), (2, 5, 8))
    weights = Seen((), (2, 4, 17, 17), (3, 4, 17, 17), (2, 4, 5, 5))
    found = find_layouts([tokens, weights], TAKES_HALF)
    assert isinstance(found[1], Unclear)
    assert "attention weights" in found[1].reason


def test_maps_are_known_from_attention_weights_by_their_tokens() -> None:
    """Swin v2 at 256 px has maps of 64 x 64 places in its first stage, and 8 x 8 = 64 tokens in its last."""
    first_map = Seen((), (2, 64, 64, 96), (3, 64, 64, 96))
    first_tokens = Seen((), (2, 4096, 96), (3, 4096, 96), normed=True)
    last_tokens = Seen((), (2, 64, 768), (3, 64, 768), normed=True)
    weights = Seen((), (2, 64, 64, 3), (3, 64, 64, 3))
    found = find_layouts([first_map, first_tokens, last_tokens, weights], Model(256))
    assert found[0] == Layout("map", (), 0, 3, (96, 64, 64))
    assert isinstance(found[3], Unclear)


# --- images that are no squares

UPRIGHT = Model((64, 32))
UPRIGHT_TWICE = Model((64, 32), (128, 64))


@pytest.mark.parametrize(
    ("two", "other", "channels", "of_one"),
    [
        ((2, 6, 16, 8), None, 1, (6, 16, 8)),
        ((2, 16, 8, 6), None, 3, (6, 16, 8)),
        ((2, 6, 7, 7), None, 1, (6, 7, 7)),  # an adaptive pool's
        ((2, 16, 16, 8), (2, 16, 32, 16), 1, (16, 16, 8)),
        ((2, 16, 8, 16), (2, 32, 16, 16), 3, (16, 16, 8)),
        ((2, 6, 2, 1), (2, 6, 4, 1), 1, (6, 2, 1)),  # one column at both sizes
    ],
)
def test_the_axes_of_maps_of_images_that_are_no_squares(
    two: tuple[int, ...], other: tuple[int, ...] | None, channels: int, of_one: tuple[int, ...]
) -> None:
    found = layout(two, other, UPRIGHT if other is None else UPRIGHT_TWICE)
    assert isinstance(found, Layout)
    assert (found.kind, found.channels, found.shape) == ("map", channels, of_one)


@pytest.mark.parametrize(
    ("count", "other", "own", "prefix", "grid"),
    [
        (8 * 4 + 1, 16 * 8 + 1, None, 1, (8, 4)),
        (4 * 2 + 5, 8 * 4 + 5, None, 5, (4, 2)),
        (8 * 4, None, 0, 0, (8, 4)),
        (8 * 4 + 1, None, 1, 1, (8, 4)),
    ],
)
def test_the_grid_of_patches_of_an_image_that_is_no_square(
    count: int, other: int | None, own: int | None, prefix: int, grid: tuple[int, int]
) -> None:
    model = Model((64, 32), None if other is None else (128, 64), own)
    vectors = Seen((), (2, 64), (3, 64))
    normed = Seen((), (2, count, 7), (3, count, 7), None if other is None else (2, other, 7), normed=True)
    _, found = find_layouts([vectors, normed], model)
    assert isinstance(found, Layout)
    assert (found.kind, found.prefix, found.grid) == ("tokens", prefix, grid)


def test_of_several_grids_that_of_a_map_is_the_patches() -> None:
    # 9 tokens of an image of 32 x 16: 4 x 2 and one before them, or 3 x 2 and three
    tokens, patches = Seen((), (2, 9, 7), (3, 9, 7), normed=True), Seen((), (2, 7, 4, 2), (3, 7, 4, 2))
    alone, (_, found) = find_layouts([tokens], Model((32, 16))), find_layouts([patches, tokens], Model((32, 16)))
    assert isinstance(alone[0], Unclear)
    assert isinstance(found, Layout)
    assert (found.prefix, found.grid) == (1, (4, 2))


def test_tokens_that_no_grid_explains_are_refused() -> None:
    (found,) = find_layouts([Seen((), (2, 31, 7), (3, 31, 7), normed=True)], Model((64, 32), None, 0))
    assert isinstance(found, Unclear)
    assert found.reason.startswith("cannot determine the height and width of the patches of 31 tokens")


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        (Layout("map", shape=(4, 8, 8)), (2, 4, 8, 8)),
        (Layout("tokens", channels=2, shape=(5, 4)), (2, 5, 4)),
        (Layout("vector", shape=(4,)), (2, 4)),
    ],
)
def test_an_output_in_order_costs_no_operation_to_arrange(layout: Layout, shape: tuple[int, ...]) -> None:
    tensor = torch.zeros(shape)
    assert layout.arranged(tensor) is tensor
