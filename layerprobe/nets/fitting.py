"""Find a network's weights among all tensors of a file, by their names and shapes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

import torch
from torch import Tensor, nn

from layerprobe.nets.checkpoint_files import FileWeights
from layerprobe.system.errors import DataError, NumericError, UnknownNameError

# Prefixes of wrappers: several devices, torch.compile, FSDP, activation checkpointing.
_WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")
# Buffers that follow from a network's settings, or that nothing reads; versions of a library differ in storing them.
_DERIVED = (
    "num_batches_tracked", "relative_position_index", "relative_coords_table", "attn_mask", "position_ids", "inv_freq",
)  # fmt: skip
# What libraries call the layers that give the classes; models from elsewhere are built without them.
_CLASSIFIERS = {
    "aux_head", "classif", "classifier", "fc", "head", "head_dist", "heads", "heads_dist", "last_linear", "logits",
}  # fmt: skip
# Tokens of a ViT, beside its blocks: without them it is another network.
_TOKENS = ("cls_token", "class_token", "dist_token", "reg_token", "register_tokens", "storage_tokens")
_NAMED = 4  # tensors named in a note or an error

Shape = tuple[int, ...]
Translate = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


def as_they_are(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The same names: the translation where a file has the network's own."""
    return weights


def shapes(module: nn.Module) -> dict[str, Shape]:
    """Names of a module's parameters and stored buffers -> their shapes."""
    return {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}


def with_versions(tensors: Mapping[str, Tensor], module: nn.Module) -> OrderedDict[str, Tensor]:
    """Tensors that fit a module, for its `load_state_dict`, with the versions of its parts, which some ask for."""
    state = OrderedDict(tensors)
    state._metadata = module.state_dict()._metadata  # type: ignore[attr-defined] # torch hands them over so
    return state


@dataclass(frozen=True, eq=False)
class TargetNetwork:
    """A network whose tensors are searched in a file.

    Args:
        own: its names -> shapes.
        head: names in `own` that a file need not have, nor in this shape.
        root: path of the network in a module around it, whose names `own` has; a file may have the names below it.
        translate: gives tensors, named as in a file after the prefix, the network's names.
    """

    name: str
    own: Mapping[str, Shape]
    head: Collection[str] = ()
    root: str = ""
    translate: Translate = as_they_are

    @cached_property
    def required(self) -> list[str]:
        """Names that a file must have."""
        return [key for key in self.own if key not in self.head and not key.endswith(_DERIVED)]

    @cached_property
    def places(self) -> Mapping[str, str]:
        """Names in a file after the prefix, without wrappers -> the network's names."""
        return {self.below(strip_wrappers(key)): key for key in self.own} | {
            strip_wrappers(key): key for key in self.own
        }

    def below(self, name: str) -> str:
        """The name without the root before it."""
        return name.removeprefix(f"{self.root}.") if self.root else name


@dataclass(frozen=True, eq=False)
class Fit:
    """The tensors of a network under one prefix of a file.

    Args:
        prefix: what stands before the network's names in the file, such as `state_dict.model`; empty for nothing.
        tensors: the network's names -> tensors of the shape that it has there.
        left: names -> the other tensors under the prefix, such as a classifier or a head of another shape.
    """

    prefix: str
    tensors: Mapping[str, Tensor]
    left: Mapping[str, Tensor]
    notes: tuple[str, ...] = ()


class OtherNetworkError(DataError):
    """Weights that are not those of the network."""


def fit(weights: FileWeights | Mapping[str, Tensor], network: TargetNetwork) -> Fit:
    """The one prefix of a file under which all tensors of a network lie in their shapes, and these tensors."""
    file_weights = weights if isinstance(weights, FileWeights) else FileWeights(weights)
    by_prefix = _below_part(_match_names(file_weights.tensors, network), file_weights)
    right = {
        prefix: {key: tensor for key, tensor in tensors.items() if tuple(tensor.shape) == network.own[key]}
        for prefix, tensors in by_prefix.items()
    }
    complete = [prefix for prefix, tensors in right.items() if all(key in tensors for key in network.required)]
    if not complete:
        raise other_network(_lacks(by_prefix, right, network), network, file_weights)
    fits = []
    for prefix in complete:
        start = f"{prefix}." if prefix else ""
        left = {}  # by the network's names where it has such
        for name, tensor in file_weights.tensors.items():
            if name.startswith(start):
                renamed = network.translate({strip_wrappers(name.removeprefix(start)): tensor})
                left.update({network.places.get(key, key): value for key, value in renamed.items()})
        left = {key: tensor for key, tensor in left.items() if key not in right[prefix]}
        fits.append(Fit(prefix, right[prefix], left))
    fully_placed = [candidate for candidate in fits if not _without_place(candidate, network)]
    if not fully_placed:
        unplaced_name, *further_names = _without_place(fits[0], network)
        raise other_network(
            f"there is no place for {unplaced_name}{_and_more(len(further_names))}", network, file_weights
        )
    for candidate in fully_placed:
        require_storage(candidate.tensors, file_weights.source)
    chosen = _only(fully_placed, network, file_weights)
    require_finite_reals(chosen.tensors, file_weights.source)
    return Fit(chosen.prefix, chosen.tensors, chosen.left, _notes(chosen, file_weights))


def strip_wrappers(name: str) -> str:
    """A name without the wrappers in it."""
    return ".".join(step for step in name.split(".") if step not in _WRAPPERS)


def missing_names(weights_fit: Fit, module: nn.Module) -> list[str]:
    """Names of a module's tensors that a fit has not, without those that the module makes itself."""
    return [key for key in shapes(module) if key not in weights_fit.tensors and not key.endswith(_DERIVED)]


def unused_note(
    network_shapes: Mapping[str, Shape], unused_tensors: Mapping[str, Tensor], anew: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """A note that names the tensors that a network has no use for, such as a head of another size; none without any.

    Args:
        network_shapes: the network's names -> shapes.
        unused_tensors: names -> the tensors of `Fit.left`.
    """
    shaped = {key: tuple(value.shape) for key, value in unused_tensors.items() if not key.startswith(anew)}
    descriptions = [
        f"{key} (there is no such layer)" for key in shaped if key not in network_shapes and not key.endswith(_DERIVED)
    ]
    descriptions += [
        f"{key} (shape {shape}, not {network_shapes[key]})" for key, shape in shaped.items() if key in network_shapes
    ]
    return (f"not used of the weights: {_abbreviate(descriptions)}",) if descriptions else ()


def _abbreviate(texts: Collection[str], between: str = ", ") -> str:
    return f"{between.join(list(texts)[:_NAMED])}{_and_more(len(texts) - _NAMED)}"


def _and_more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""


def _match_names(tensors: Mapping[str, Tensor], network: TargetNetwork) -> dict[str, dict[str, Tensor]]:
    """Of each prefix after which a name of the network stands: the network's names -> tensors, in any shape."""
    by_prefix: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        parts = name.split(".")
        for start, step in enumerate(parts):
            if step in _WRAPPERS:  # they belong to the prefix
                continue
            for key, value in network.translate({strip_wrappers(".".join(parts[start:])): tensor}).items():
                if key in network.places:
                    by_prefix.setdefault(".".join(parts[:start]), {})[network.places[key]] = value
    return by_prefix


def _below_part(by_prefix: Mapping[str, dict[str, Tensor]], weights: FileWeights) -> Mapping[str, dict[str, Tensor]]:
    """The prefixes in the requested part."""
    if not weights.part:
        return by_prefix
    part_name = strip_wrappers(weights.part)
    if not any(strip_wrappers(name).startswith(f"{part_name}.") for name in weights.tensors):
        top_names = dict.fromkeys(strip_wrappers(name).partition(".")[0] for name in weights.tensors)
        raise UnknownNameError("part of the file", weights.part, top_names, file=weights.source)
    return {
        prefix: tensors
        for prefix, tensors in by_prefix.items()
        if f"{strip_wrappers(prefix)}.".startswith(f"{part_name}.")
    }


def _lacks(
    by_prefix: Mapping[str, Mapping[str, Tensor]], right: Mapping[str, Mapping[str, Tensor]], network: TargetNetwork
) -> str:
    """What is wrong under the prefix that has most of the network."""
    if not by_prefix:
        return f"none of its {len(network.required):,} tensors is there"
    best = max(right, key=lambda prefix: (len(right[prefix]), len(by_prefix[prefix])))
    tensors = by_prefix[best]
    problems = [f"{network.below(key)} is missing" for key in network.required if key not in tensors]
    problems += [
        f"{network.below(key)} has shape {tuple(tensors[key].shape)}, not {network.own[key]}"
        for key in network.required
        if key in tensors and key not in right[best]
    ]
    where = f" under {best!r}" if best else ""
    if len(problems) == 1:
        return f"{problems[0]}{where}"
    count = f"{len(problems):,} of {len(network.required):,} tensors are missing or have another shape{where}"
    return f"{count}: {_abbreviate(problems)}"


def other_network(difference: str, network: TargetNetwork, weights: FileWeights) -> OtherNetworkError:
    """The error of a file whose weights are not those of a network."""
    fix = "Name the network of these weights, or a file of this one"
    return OtherNetworkError(
        f"weights of another network than {network.name}: {difference}", file=weights.source, fix=fix
    )


def _without_place(candidate: Fit, network: TargetNetwork) -> list[str]:
    """Tensors beside those of the network, as a deeper one has them: to leave them out would be to cut it."""
    children = {network.below(key).partition(".")[0] for key in network.required}
    spare = [key for key in candidate.left if key not in network.own and not key.endswith(_DERIVED)]
    names = [network.below(key) for key in spare if not is_classifier(key, candidate.left)]
    return [key for key in names if key.partition(".")[0] in children or key in _TOKENS]


def is_classifier(key: str, tensors: Mapping[str, Tensor]) -> bool:
    """Whether a tensor is of a linear layer in a head, such as `head.fc` beside a norm `head.norm` of the network.

    Names such as `layer1.0.se.fc`, with a number before, are of blocks, and a weight of one axis is a norm's.
    """
    path = key.split(".")[:-1]
    outside_blocks = takewhile(lambda step: not step.isdigit(), path)
    weight = tensors.get(".".join([*path, "weight"]))
    return any(step in _CLASSIFIERS for step in outside_blocks) and weight is not None and weight.dim() > 1


def _only(fits: Collection[Fit], network: TargetNetwork, weights: FileWeights) -> Fit:
    """The one complete fit; of equal fits the one with most of a head."""
    different: list[Fit] = []
    for candidate in sorted(fits, key=lambda candidate: -len(candidate.tensors)):
        if not any(same_tensors(candidate, other, network) for other in different):
            different.append(candidate)
    if weights.part is not None and len(different) > 1:
        exact = [
            candidate for candidate in different if strip_wrappers(candidate.prefix) == strip_wrappers(weights.part)
        ]
        different = exact or different
    if len(different) > 1:
        prefixes = [strip_wrappers(candidate.prefix) for candidate in different]
        prefix_texts = [repr(prefix) if prefix else "the top of the file" for prefix in prefixes]
        choices = [f"{weights.source or 'FILE'}#{prefix}" for prefix in prefixes]
        raise DataError(
            f"several sets of weights fit: {_abbreviate(prefix_texts)}",
            file=weights.source,
            fix=f"Choose one: {_abbreviate(choices, ' or ')}",
        )
    return different[0]


def same_tensors(candidate: Fit, other: Fit, network: TargetNetwork) -> bool:
    """Whether two fits have equal tensors of all that a network requires."""
    return all(torch.equal(candidate.tensors[key], other.tensors[key]) for key in network.required)


def require_storage(tensors: Mapping[str, Tensor], source: Path | None) -> None:
    """Check that a file holds as many numbers as its tensors have by their shapes."""
    for name, tensor in tensors.items():
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
            problem = f"the file holds fewer numbers than {name} has by its shape"
            raise DataError(problem, file=source, fix="Download it again")


def require_finite_reals(tensors: Mapping[str, Tensor], source: Path | None) -> None:
    """Refuse complex numbers, NaN and infinite ones."""
    for name, tensor in tensors.items():
        if tensor.is_complex():  # of which torch would take the real part
            raise DataError(f"{name} holds complex numbers", file=source, fix="Use weights of real numbers")
        values = tensor.float() if tensor.element_size() == 1 else tensor  # torch cannot ask numbers of 8 bits
        if not values.isfinite().all():
            kind = "NaN" if values.isnan().any() else "infinite"
            raise NumericError(f"{name} has {kind} values", file=source, fix="Use weights from an earlier epoch")


def _notes(chosen: Fit, weights: FileWeights) -> tuple[str, ...]:
    """The removed prefix and the tensors outside of it; empty for layerprobe's own checkpoints."""
    if not chosen.prefix:
        return ()
    outside = [name for name in weights.tensors if not name.startswith(f"{chosen.prefix}.")]
    if chosen.prefix == "net" and all(name.startswith("loss.") for name in outside):
        return ()
    file = f"{weights.source.name}: " if weights.source else ""
    count = len(weights.tensors) - len(outside)
    prefix_note = f"{file}{f'{chosen.prefix}.'!r} is taken off the names of {count:,} tensors"
    if not outside:
        return (prefix_note,)
    return prefix_note, f"{file}not used, since not under {chosen.prefix!r}: {_abbreviate(outside)}"
