"""The blocks of a model from elsewhere, found by how its modules are nested, and the parts of these blocks."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterator, Sequence

from torch import nn

# Class of a model, or of a part of it -> globs of its blocks, where their nesting does not show the blocks.
_TABLE = {
    "ByobNet": ("stages.*.*",),  # timm: a MobileViT block holds a stack of transformer blocks
    "CrossVit": ("blocks.*.blocks.*.*",),  # timm: a block gives a list of the tokens of both branches
    "GlobalContextVit": ("stages.*.blocks.*",),  # timm: a stage has another `blocks` beside its own
    "HighResolutionNet": ("layer1.*", "stage[2-4].*.branches.*.*"),  # timm: what joins the branches looks like blocks
    "MaxVit": ("blocks.*.layers.*",),  # torchvision: a layer's three parts lie in a Sequential, like blocks
    "MobileViTModel": ("encoder.layer.*",),  # transformers: as ByobNet
    "RegNet": ("s[1-4].b*",),  # timm: blocks are attributes of a stage
    "Xception": ("block[1-9]*",),  # timm: a block is a Sequential of separable convolutions
}
# Compiling and gradient checkpointing put a model, or one of its parts, into a wrapper under such a name.
_WRAPPED = ("_orig_mod", "_checkpoint_wrapped_module")
# Names of what comes before the blocks, between two stages or after the last block, and of what sees no images.
_NO_STACK = re.compile(
    r"(stem|patch_embed|pos_|downsampl|head|fc|aux|text)\w*|embed(ding)?s?|pre_logits|classifier", re.IGNORECASE
)
_ACTIVATION = re.compile(r"elu|silu|swish|mish|activation", re.IGNORECASE)
_ATTENTION = re.compile(r"attn|attention", re.IGNORECASE)
_MLP = re.compile(r"mlp|ffn|feed_?forward", re.IGNORECASE)
# Their rows are windows, not images.
_IN_WINDOWS = re.compile(r"(Window|Norm|Swin\w*)Attention\w*")
_GATE = re.compile(r"se|\w*SE(Module|Layer|Block)?|\w*[Ss]queeze_?[Ee]xc\w*|SelectiveKernelAttn")


def block_names(module: nn.Module) -> list[str]:
    """The blocks of a model: what its authors repeat, such as transformer blocks or a ResNet's bottlenecks.

    A block has at least two weight matrices or kernels. A stack is a Sequential, ModuleList or ModuleDict of at least
    two blocks, or of nothing but one that is no Sequential. Stacks may lie in stages, and these in stages. What is in a
    container called `blocks` is a block whatever it holds. Stems, patch embeddings, downsampling between stages and
    heads are skipped, and a table names the blocks of a few models whose structure does not show them. In this order,
    where there are no stacks:

    1. the model's own children, if two of them are blocks (GoogLeNet);
    2. the blocks of the only child with parameters, stem and head aside;
    3. a plain network: its children that hold parameters, and in a Sequential, for each of the convolutions and linear
       layers, the last of it and the normalisation and activation behind it (VGG's ReLUs);
    4. without parameters, all of the model's children.

    Returns:
        Module paths below `module` in the order in which the model registers them, which for blocks is the order of
        execution. Empty for a model without children.
    """
    module = _unwrap(module)
    blocks = _find_stacks(module) or _blocks_of_its_own(module)
    if blocks:
        return blocks
    inner = [(name, child) for name, child in _with_parameters(module) if not _NO_STACK.fullmatch(name)]
    if len(inner) == 1 and not _is_container(inner[0][1]) and _is_block(inner[0][1]):
        return _below(inner[0][0], block_names(inner[0][1]))
    return _plain(module) or [name for name, _ in module.named_children()]


def part_names(module: nn.Module, blocks: Sequence[str]) -> list[str]:
    """The parts of a model's blocks that may serve as layers: attentions, activations and MLPs.

    Windowed attention is skipped, since its output has no row for an image; so are gates (squeeze and excitation).
    An activation may be one module that a block calls several times.

    Returns:
        Module paths below `module`, block by block, an MLP after its activation.
    """
    return [path for block in blocks for path in _below(block, list(_parts(module.get_submodule(block))))]


def _find_stacks(module: nn.Module, *, in_blocks: bool = False) -> list[str]:
    """The paths of the blocks in a module's stacks; `in_blocks`: the module is a container called `blocks`."""
    if from_table := _from_table(module):
        return from_table
    container = _is_container(module)
    children = [(name, child) for name, child in _with_parameters(module) if not _NO_STACK.fullmatch(name)]
    nested: list[str] = []
    for name, child in children:
        if container and in_blocks and not _is_container(child):
            continue
        nested += _below(name, _find_stacks(child, in_blocks=_is_container(child) and name == "blocks"))
    if not container:
        return nested
    if nested:
        return [path for name, child in children for path in _of_stage(name, child, nested)]
    blocks = [(name, child) for name, child in children if _is_block(child)]
    if len(blocks) == 1 and (len(children) > 1 or _is_container(blocks[0][1])):
        return []
    return [name for name, _ in blocks]


def _of_stage(name: str, child: nn.Module, nested: Sequence[str]) -> list[str]:
    """The blocks of one of several stages: the stacked ones, else small ones, each a module of a class of its own."""
    stacked = [path for path in nested if path.startswith(f"{name}.")]
    if stacked or not _is_container(child):
        return stacked
    small = _with_parameters(child)
    if any(_is_container(submodule) or not _has_children(submodule) for _, submodule in small):
        return []
    return _below(name, [block_name for block_name, _ in small])


def _from_table(module: nn.Module) -> list[str]:
    patterns = [glob.split(".") for glob in _TABLE.get(type(module).__name__, ())]
    paths = []
    for path, _ in module.named_modules():
        parts = [step for step in path.split(".") if step not in _WRAPPED]
        if path.endswith(tuple(parts[-1:])) and any(_matches(parts, pattern) for pattern in patterns):
            paths.append(".".join(parts))
    return paths


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(parts) == len(pattern) and all(map(fnmatch.fnmatchcase, parts, pattern))


def _blocks_of_its_own(module: nn.Module) -> list[str]:
    """A module's own children that are blocks, if there are at least two."""
    blocks = [
        name
        for name, child in _with_parameters(module)
        if _is_block(child) and not _is_container(child) and not _NO_STACK.fullmatch(name)
    ]
    return blocks if len(blocks) > 1 else []


def _plain(module: nn.Module) -> list[str]:
    """A plain network's layers: children with parameters, in a Sequential with what normalises and activates them."""
    names: list[str] = []
    joins = False  # whether a normalisation or activation that comes now belongs to the layer before it
    for name, child in module.named_children():
        child = _unwrap(child)
        weights = _weights(child)
        if _is_container(child) and (weights > 1 or not isinstance(child, nn.Sequential)):
            names += _below(name, _plain(child))
            joins = False
        elif weights == 0 and joins and (_is_activation(child) or _has_parameters(child)):
            names[-1] = name
        else:
            names += [name] if _has_parameters(child) and not name.lower().startswith("aux") else []
            joins = isinstance(module, nn.Sequential) and weights > 0 and not _has_children(child)
    return names


def _parts(block: nn.Module) -> Iterator[str]:
    """The paths of a block's parts below it."""
    for name, child in _unwrap(block).named_children():
        child = _unwrap(child)
        kind = type(child).__name__
        if _GATE.fullmatch(name) or _GATE.fullmatch(kind):
            continue
        if _weights(child) > 1 and (_ATTENTION.search(name) or _ATTENTION.search(kind)):
            if not _IN_WINDOWS.fullmatch(kind):
                yield name
            continue
        yield from _below(name, list(_parts(child)))
        if _is_activation(child) or (_weights(child) > 1 and (_MLP.search(name) or _MLP.search(kind))):
            yield name


def _unwrap(module: nn.Module) -> nn.Module:
    for name, child in module.named_children():
        if name in _WRAPPED:
            return _unwrap(child)
    return module


def _with_parameters(module: nn.Module) -> list[tuple[str, nn.Module]]:
    return [(name, _unwrap(child)) for name, child in module.named_children() if _has_parameters(child)]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _has_children(module: nn.Module) -> bool:
    return next(module.children(), None) is not None


def _is_container(module: nn.Module) -> bool:
    # A ModuleDict of a class of its own runs: a dense block joins the outputs of its layers.
    return isinstance(module, nn.Sequential | nn.ModuleList) or type(module) is nn.ModuleDict


def _is_block(module: nn.Module) -> bool:
    return _has_children(module) and _weights(module) > 1


def _is_activation(module: nn.Module) -> bool:
    return not _has_children(module) and _ACTIVATION.search(type(module).__name__) is not None


def _weights(module: nn.Module) -> int:
    """How many weight matrices and kernels a module holds, counted once for each submodule that holds any."""
    return sum(
        any(parameter.dim() > 1 for parameter in submodule.parameters(recurse=False)) for submodule in module.modules()
    )


def _below(path: str, names: Sequence[str]) -> list[str]:
    return [f"{path}.{name}" for name in names]
