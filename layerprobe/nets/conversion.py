"""Weights that are not a network's by name or shape: converted by its library, or adapters merged.

Adapters: Hu et al., LoRA: Low-Rank Adaptation of Large Language Models, ICLR 2022, section 4.1: W + (alpha / r) B A. By
`use_rslora` the factor is alpha / sqrt(r), as in Kalajdzievski, A Rank Stabilization Scaling Factor for Fine-Tuning
with LoRA, 2023.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerprobe.nets.checkpoint_files import FileWeights
from layerprobe.nets.fitting import (
    Fit,
    OtherNetworkError,
    TargetNetwork,
    fit,
    is_classifier,
    other_network,
    require_finite_reals,
    require_storage,
    same_tensors,
    shapes,
    strip_wrappers,
    unused_note,
)
from layerprobe.nets.weight_files import of_adapter
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
        if not same_tensors(chosen, other_fit, network):
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
        resized = [
            key
            for key, tensor in candidate.tensors.items()
            if network.below(key) in tensors and tensors[network.below(key)].shape != tensor.shape
        ]
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
    steps = [name.split(".")[:-1] for name in tensors]
    starts = [".".join(path[:depth]) + "." for path in steps for depth in range(1, len(path) + 1)]
    for start in sorted(dict.fromkeys(["", *starts]), key=lambda start: start.count(".")):
        below = {name.removeprefix(start): tensor for name, tensor in tensors.items() if name.startswith(start)}
        if len(below) >= least and (part_name is None or start.startswith(f"{part_name}.")):
            yield start.removesuffix("."), below


def _has_parametrizations(names: Collection[str]) -> bool:
    return any(".parametrizations." in name for name in names)


_ROOT = "base_model.model."  # before the names of the model that was adapted
_A, _B = ".lora_A.weight", ".lora_B.weight"
# Settings that change nothing in the merged weights, or that `merge_adapter` follows.
_FOLLOWED = {
    "auto_mapping", "base_model_name_or_path", "bias", "ensure_weight_tying", "exclude_modules", "fan_in_fan_out",
    "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform", "lora_alpha", "lora_dropout",
    "megatron_core", "modules_to_save", "peft_type", "peft_version", "qalora_group_size", "r", "rank_pattern",
    "revision", "target_modules", "task_type", "use_rslora",
}  # fmt: skip
# Parts that a model of images without its pooler has not.
_LEFT_OUT = ("text_model.", "text_projection.", "pooler.")
# Initialisations that leave the base as it is; the others change it too.
_STARTS = (True, False, "gaussian", "eva", "orthogonal")


def merge_adapter(
    adapter: FileWeights, base: Mapping[str, Tensor], *, name: str, convert: Convert | None
) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The weights of a model with an adapter merged into them, and notes on it.

    Args:
        base: the weights that were adapted, by the model's names.
        convert: as in `fit_or_convert`.

    Raises:
        DataError: an adapter of another kind, which only PEFT merges, or of another model.
    """
    config = adapter.adapter or {}
    _require_plain(config, adapter.source)
    changes, values = _changes(adapter.tensors, config, adapter.source)
    state, unplaced = dict(base), dict[str, Tensor]()
    for tensors, adds in ((changes, True), (values, False)):
        for key, tensor in _rename_tensors(tensors, base, convert).items():
            if key not in base:
                unplaced[key] = tensor
            elif tensor.shape != base[key].shape:
                shapes = f"{tuple(tensor.shape)}, not {tuple(base[key].shape)}"
                raise _of_another_model(f"{key} has shape {shapes}", name, adapter.source)
            else:
                state[key] = base[key] + tensor if adds else tensor
    merged_into = sum(state[key] is not tensor for key, tensor in base.items())
    # To leave out others would be to measure another model than the adapted one.
    strange = [key for key in unplaced if not (key.startswith(_LEFT_OUT) or is_classifier(key, unplaced))]
    if strange or not merged_into:
        raise _of_another_model(f"there is no place for {next(iter(strange or unplaced))}", name, adapter.source)
    file = f"{adapter.source.name}: " if adapter.source else ""
    base_name = config.get("base_model_name_or_path")
    kind = f"LoRA (r = {config['r']}, alpha = {config['lora_alpha']}{f', base {base_name}' if base_name else ''})"
    note = f"{file}{kind} is merged into the weights of {name}, tensors: {merged_into:,}"
    return state, (note, *((f"{file}not used of the adapter: {', '.join(unplaced)}",) if unplaced else ()))


def _of_another_model(difference: str, name: str, source: Path | None) -> DataError:
    fix = "Name the model that was adapted by --model"
    return DataError(f"an adapter of another model than {name}: {difference}", file=source, fix=fix)


def _require_plain(config: Mapping[str, Any], source: Path | None) -> None:
    """Refuse an adapter whose merging is more than a sum of weights."""
    settings = [key for key, value in config.items() if value and key not in _FOLLOWED]
    if config.get("peft_type") != "LORA":
        raise of_adapter(f"of peft_type {config.get('peft_type')}, which PEFT alone merges", source)
    if config.get("init_lora_weights", True) not in _STARTS:
        raise of_adapter(f"with init_lora_weights {config['init_lora_weights']}, which PEFT alone merges", source)
    if config.get("bias", "none") != "none" or settings:
        raise of_adapter(f"with {(settings or ['bias'])[0]}, which PEFT alone merges", source)
    if not all(isinstance(config.get(key), int | float) and math.isfinite(config[key]) for key in ("r", "lora_alpha")):
        raise of_adapter("whose adapter_config.json has no r and lora_alpha", source)


def _changes(
    tensors: Mapping[str, Tensor], config: Mapping[str, Any], source: Path | None
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What is added to weights, and values that replace them (`modules_to_save`), by names in the adapted model."""
    changes, values = {}, {}
    require_storage(tensors, source)
    require_finite_reals(tensors, source)
    for full, tensor in tensors.items():
        name = full.removeprefix(_ROOT)
        if name.endswith(_A) and full.removesuffix(_A) + _B in tensors:
            low, high = tensor.float(), tensors[full.removesuffix(_A) + _B].float()
            if low.dim() < 2 or high.dim() < 2 or len(low) != high.flatten(1).shape[1]:
                shapes = f"{tuple(low.shape)} and {tuple(high.shape)}"
                raise DataError(
                    f"{name} and its lora_B do not fit: {shapes}", file=source, fix="Save the adapter again"
                )
            rank = math.sqrt(len(low)) if config.get("use_rslora") else len(low)
            change = torch.tensordot(high.flatten(1), low, 1) * (config["lora_alpha"] / rank)
            changes[f"{name.removesuffix(_A)}.weight"] = change.T if config.get("fan_in_fan_out") else change
        elif not (name.endswith(_B) and full.removesuffix(_B) + _A in tensors):
            values[name] = tensor
    if strange := next((name for name in values if ".lora_" in name), "" if changes else "no lora_A and lora_B"):
        raise of_adapter(f"with {strange}, which PEFT alone merges", source)
    return changes, values


def _rename_tensors(
    tensors: Mapping[str, Tensor], base: Mapping[str, Tensor], convert: Convert | None
) -> Mapping[str, Tensor]:
    """The tensors by the names of a model that lies in the adapted one; those of others keep a name."""
    parts = [name.split(".") for name in tensors]
    prefixes = dict.fromkeys(
        "".join(f"{step}." for step in path[:depth]) for path in parts for depth in range(len(path))
    )
    if not prefixes:
        return {}
    by_prefix = [{name.removeprefix(prefix): tensor for name, tensor in tensors.items()} for prefix in prefixes]
    placed = max(by_prefix, key=lambda named: len(named.keys() & base.keys()))
    if convert is None or placed.keys() <= base.keys():
        return placed
    converted = convert(tensors)
    return converted if len(converted.keys() & base.keys()) > len(placed.keys() & base.keys()) else placed
