"""The network of a run: its entry in run.json, building it again, and the record of a new run."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from layerprobe import __version__
from layerprobe.data.splits import Dataset
from layerprobe.hooks import Hook, Layer, Measured, find_hooks, measure_layers, member_hooks
from layerprobe.nets.net import Net
from layerprobe.recipe.recipe import Recipe
from layerprobe.registry import is_source
from layerprobe.system.errors import DataError, EnvironmentFault, RecipeError
from layerprobe.system.files import sha256
from layerprobe.system.naming import PYTHON, split_python
from layerprobe.values.network_input import ImageSize
from layerprobe.values.records import RecordedNetwork, RunRecord
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.experiments import manifests_of
from layerprobe.workflow.run.runs import Run, command_line

if TYPE_CHECKING:
    import torch

_OTHER_FILE = "Restore it, or measure the changed file as a new run by --model and --data"


def network_facts(recipe: Recipe, net: Net, measured: Measured) -> RecordedNetwork:
    """The entry of a recipe's network in run.json."""
    hooks, embedding = [], embedding_hook(recipe, measured).key
    for name in net.layers:
        try:
            hooks += find_hooks([name], measured)
        except RecipeError:  # it cannot be pooled, or is not executed
            continue
    from layerprobe.hooks.cut import count_multiply_adds  # it imports triton, by way of torch's counter of operations

    size = recipe.data.image_size
    cuts, operations = _cuts(net, hooks, size), count_multiply_adds(net.module, size, net.channels)
    return RecordedNetwork(tuple(net.layers), embedding, cuts, net.own_input, net.files, net.channels, operations)


def embedding_hook(recipe: Recipe, measured: Measured) -> Hook:
    """The embedding: the last layer, with the network's pool if it is a map."""
    pools: list[str] | None = None if recipe.net.pool is None else [recipe.net.pool]
    if pools is None and is_source(recipe.net.name):
        pools = ["cls", "avg"]  # the first that its output has, as `sources.readout` reads it
    return find_hooks([list(measured.net.layers)[-1]], measured, pools=pools)[0]


def with_layers(
    network: RecordedNetwork, net: Callable[[], Net], image_size: ImageSize, layers: Iterable[Layer]
) -> RecordedNetwork:
    """The entry of a network in run.json, with the shares after further layers; it is built only for these."""
    hooks = [hook for hook in member_hooks(layers) if hook.layer not in network.cuts]
    return replace(network, cuts={**network.cuts, **_cuts(net(), hooks, image_size)}) if hooks else network


def _cuts(net: Net, hooks: Sequence[Hook], image_size: ImageSize) -> dict[str, tuple[float, float | None]]:
    if not hooks:
        return {}
    from layerprobe.hooks.cut import shares_after  # it imports triton, by way of torch's counter of operations

    shares = shares_after(net.module, hooks, image_size, net.channels)
    return {hook.layer: share for hook, share in zip(hooks, shares, strict=True)}


def run_network(run: Run, record: RunRecord, recipe: Recipe) -> Net:
    """Build the network of a run that exists, without weights."""
    require_unchanged_files(run, record, recipe)
    net = from_recipe.build_net(recipe)
    recorded_files = (record.network and record.network.files) or net.files
    # Recorded hashes are compared above; a recorded module may be imported only in a forward pass.
    if new := net.files.keys() - recorded_files.keys():
        reason = f"is imported by the network's file, unlike when {run.name} began"
        raise RecipeError(reason, file=min(new), fix=_OTHER_FILE)
    return net


def require_unchanged_files(run: Run, record: RunRecord, recipe: Recipe, *, fix: str = _OTHER_FILE) -> None:
    """Check that the user's own files, from which the network is built, have not changed since the run began."""
    for name, digest in source_files(recipe).items():
        if record.versions.get(name) != digest:
            raise _changed(run, name, fix)
    if not recipe.network.startswith(PYTHON):
        return
    path, _ = split_python(recipe.network.removeprefix(PYTHON))
    for name, digest in (record.network.files if record.network else {}).items():
        file = path.resolve().parent / name if name else path
        try:
            now = sha256(file)
        except OSError as error:
            raise DataError.unreadable(error, file=file) from error
        if now != digest:
            raise _changed(run, file, fix)


def _changed(run: Run, file: Path | str, fix: str) -> RecipeError:
    return RecipeError(f"has changed since {run.name} began", file=file, fix=fix)


def network_text(recipe: Recipe) -> str:
    """The packages and files of an external model, with versions and hashes, as stored with features.

    Empty for layerprobe's own networks; the error where a package or file is missing, so that all features are stale.
    """
    source = from_recipe.source_of(recipe.network)
    try:
        versions = {} if source is None else {**source[0].versions(source[1]), **source_files(recipe)}
    except (EnvironmentFault, DataError) as error:
        return error.message
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def source_files(recipe: Recipe) -> Mapping[str, str]:
    """The user's own files of an external model -> hash; a moved file has the name in the recipe."""
    source = from_recipe.source_of(recipe.network)
    files = {} if source is None else source[0].files(source[1])
    if recipe.found_at is None:
        return files
    return {split_python(recipe.net.name.removeprefix(PYTHON))[0].name: digest for digest in files.values()}


def made_with(device: object) -> dict[str, Any]:
    """The fields of a record on versions and machine."""
    import torch

    return {
        "versions": {
            "layerprobe": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "torchvision": metadata.version("torchvision"),
        },
        "device": str(device),
        "threads": torch.get_num_threads(),
    }


def record_of(recipe: Recipe, **more: Any) -> RunRecord:
    """A record of a command, with further fields."""
    empty: dict[str, Any] = {"epochs_done": 0, "hashes": {}, "manifests": {}, "new_parameters": ()}
    return RunRecord(
        command=command_line(),
        recipe_name=recipe.name,
        recipe=recipe.as_dict(),
        experiment=recipe.experiment,
        seed=recipe.train.seed,
        **(empty | more),
    )


def new_record(recipe: Recipe, dataset: Dataset, net: Net, device: torch.device) -> RunRecord:
    """The record of a training that begins."""
    manifests, contents = manifests_of(dataset)
    record = record_of(
        recipe,
        state="training",
        **made_with(device),
        transform=from_recipe.transform_text(recipe, net.channels),
        network=network_facts(recipe, net, measure_layers(net, recipe.data.image_size)),
        new_parameters=tuple(sorted(net.new_parameters)),
        manifests=manifests,
        contents=contents,
        notes=tuple(from_recipe.input_notes(recipe, dataset, net)),
    )
    return replace(record, versions={**record.versions, **net.versions})
