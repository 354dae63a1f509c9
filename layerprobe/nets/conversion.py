"""Weights files whose names, or shapes, are not a network's: its library gives them the network's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor, nn

from layerprobe.nets.checkpoint_files import FileWeights
from layerprobe.nets.file_formats import of_adapter
from layerprobe.nets.fitting import (
    Fit,
    OtherNetworkError,
    TargetNetwork,
    fit,
    other_network,
    shapes,
    strip_wrappers,
    unused_note,
)
from layerprobe.system.errors import DataError

_PLAIN = "Save them after torch.nn.utils.parametrize.remove_parametrizations(layer, 'weight') of every such layer"
Convert = Callable[[Mapping[str, Tensor]], Mapping[str, Tensor]]


def fit_module(
    weights: FileWeights | Mapping[str, Tensor],
    module: nn.Module,
    *,
    name: str = "this network",
    optional: Collection[str] = (),
    convert: Convert | None = None,
) -> Fit:
    """The tensors of a file that belong into a module, for its `load_state_dict(..., strict=False)`.

    All tensors of the module must be in the file in their shapes, under one prefix of any length (`state_dict.model`,
    `teacher.module.backbone`), except buffers that the module makes itself. `module.` and other wrappers may stand
    anywhere in the names.

    Args:
        weights: what `read_checkpoint` read, or names -> tensors.
        optional: names of tensors that need not be in the file.
        convert: as in `fit_or_convert`.

    Returns:
        The module's names -> tensors; the notes name the prefix and the unused tensors.
    """
    places = shapes(module)
    fit_of_file = fit_or_convert(weights, TargetNetwork(name, places, optional), convert)
    return replace(fit_of_file, notes=(*fit_of_file.notes, *unused_note(places, fit_of_file.left)))


def fit_or_convert(weights: FileWeights | Mapping[str, Tensor], network: TargetNetwork, convert: Convert | None) -> Fit:
    """As `fit`; where the names of a file do not fit, by those that the network's library gives them.

    Args:
        convert: gives the tensors of a model, by the names of its author, those of the network; tensors that the
            library would draw are left out, and those that it has no place for keep a name.

    Raises:
        DataError: as `fit`, or several sets of weights that fit after their conversion.
    """
    file_weights = weights if isinstance(weights, FileWeights) else FileWeights(weights)
    try:
        return fit(file_weights, network)
    except OtherNetworkError as error:
        if any(".lora_A." in name for name in file_weights.tensors):
            raise of_adapter("that is not merged into its model", file_weights.source) from error
        if _has_parametrizations(file_weights.tensors) and not _has_parametrizations(network.own):
            problem = f"weights with torch's parametrizations, such as weight_norm, which {network.name} has not"
            raise DataError(problem, file=file_weights.source, fix=_PLAIN) from error
        if convert is None:
            raise
        if not (fits := _convert_prefixes(file_weights, network, convert)):
            raise
    (prefix, chosen), *alternatives = fits
    for other, other_fit in alternatives:
        if not all(torch.equal(chosen.tensors[key], other_fit.tensors[key]) for key in network.required):
            file = file_weights.source or "FILE"
            problem = f"several sets of weights fit: {prefix!r}, {other!r}"
            raise DataError(problem, file=file_weights.source, fix=f"Choose one: {file}#{prefix} or {file}#{other}")
    return chosen


def _convert_prefixes(weights: FileWeights, network: TargetNetwork, convert: Convert) -> list[tuple[str, Fit]]:
    """Each prefix whose tensors fit after their conversion, and these; of prefixes in each other the shortest.

    Raises:
        OtherNetworkError: none fits, and the names of one, converted, are most of the network's.
    """
    fits: list[tuple[str, Fit]] = []
    problem: OtherNetworkError | None = None
    for prefix, tensors in _by_prefix(weights, len(network.required) // 3):
        if any(prefix.startswith(f"{before}." if before else "") for before, _ in fits):
            continue
        converted = convert(tensors)
        try:
            candidate = fit(FileWeights(converted, weights.source, ""), network)
        except OtherNetworkError as error:
            if 2 * len(converted.keys() & network.places.keys()) > len(network.required):
                problem = problem or error
            continue
        resized = [key for key in candidate.tensors if _is_resized(network.below(key), tensors, candidate.tensors[key])]
        if patches := next((key for key in resized if "patch_embed" in key), ""):
            shape = tuple(tensors[network.below(patches)].shape)
            difference = (
                f"{network.below(patches)} has shape {shape}, not {network.own[patches]}: patches of another size"
            )
            problem = problem or other_network(difference, network, weights)
            continue
        file = f"{weights.source.name}: " if weights.source else ""
        location = f" below {prefix!r}" if prefix else ""
        note = f"{file}names{location} are converted by {network.name.partition(':')[0]}"
        if resized:
            note += f", and {', '.join(map(network.below, resized))} to another size"
        fits.append((prefix, Fit(prefix, candidate.tensors, candidate.left, (note, *candidate.notes))))
    if problem is not None and not fits:
        raise problem
    return fits


def _by_prefix(weights: FileWeights, least: int) -> Iterator[tuple[str, dict[str, Tensor]]]:
    """Prefixes with at least so many tensors below them, the shortest first: names after the prefix -> tensors."""
    part_name = None if weights.part is None else strip_wrappers(weights.part)
    tensors = {strip_wrappers(name): tensor for name, tensor in weights.tensors.items()}
    starts = [f"{start}." for name in tensors for start in accumulate(name.split(".")[:-1], _join_names)]
    for start in sorted(dict.fromkeys(["", *starts]), key=lambda start: start.count(".")):
        below = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        if len(below) >= least and (part_name is None or start.startswith(f"{part_name}.")):
            yield start.removesuffix("."), below


def _is_resized(name: str, before: Mapping[str, Tensor], tensor: Tensor) -> bool:
    return name in before and before[name].shape != tensor.shape


def _has_parametrizations(names: Collection[str]) -> bool:
    return any(".parametrizations." in name for name in names)


def _join_names(before: str, step: str) -> str:
    return f"{before}.{step}"
