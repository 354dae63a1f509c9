"""probe --model: a foreign model as a run of 0 epochs.

Its weights are the source's own or drawn from the seed, and are then the checkpoint of epoch 0; or they are files of
somebody else's training, measured where they lie, one for each epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os.path import commonpath
from pathlib import Path
from typing import TYPE_CHECKING

from layerprobe.nets.weight_files import expand, expand_epochs, renumber_epoch, sha256_of_weights, size_of_weights
from layerprobe.recipe.recipe import Recipe
from layerprobe.system.errors import LayerprobeError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.system.wording import first_named
from layerprobe.values.costs import Estimate
from layerprobe.values.records import WeightsFile
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import LoadedFile, last_weights, load_file
from layerprobe.workflow.run.experiments import require_same_images
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.run_network import new_record, require_unchanged_files
from layerprobe.workflow.run.runs import Run, command_line, find_run, locked, named_run
from layerprobe.workflow.train.frozen_request import FrozenRequest, require_weights

if TYPE_CHECKING:
    from torch import Tensor

    from layerprobe.nets.net import Net

_NEW_RUN = "Use --run NAME for a new run"
_EpochFiles = Mapping[int, tuple[Path, str | None]]  # epoch -> the file with its weights, and the part that is meant


def frozen_run(request: FrozenRequest, listener: Listener) -> Run:
    """The run of a model: a new one, or that of the same request, which may by now have further files."""
    epoch_files, run = _list_epoch_files(request), request.find_repeated_run()
    if run is not None and run.is_measured:
        recorded_files = run.read().weights_files
        # The numbers first: hashing reads every file.
        if len(epoch_files) == len(recorded_files) and {*_hash_files(epoch_files)} == {*recorded_files}:
            _say_epochs(epoch_files, listener)
            return run
    run = _make_run(request, epoch_files, listener)
    with locked(run):
        record = run.read()
        run.write(replace(record, request=request.digest(run, record)))
    return run


def _make_run(request: FrozenRequest, epoch_files: _EpochFiles, listener: Listener) -> Run:
    """The run of a model whose epochs are some files."""
    from layerprobe.workflow.train.building import TrainRequest
    from layerprobe.workflow.train.train import forget_unmeasured, is_done, keep_probing, require_same_data, train

    recipe = request.recipe()
    decoding = Decoding(request.cache, listener, request.workers, launch=request.launch)
    run = request.target(recipe)
    forget_unmeasured(run, recipe, decoding)
    if run.exists():
        require_same_data(run, recipe, decoding, fix=_NEW_RUN)
    if not epoch_files:
        if run.exists():
            fix = f"Restore it. {_NEW_RUN} that measures it as it is now"
            require_unchanged_files(run, run.read(), recipe, fix=fix)
        if is_done(run, recipe):
            keep_probing(run, recipe, listener)
        else:
            train(
                TrainRequest(
                    recipe,
                    True,
                    request.cache,
                    run=run.name,
                    device=request.device,
                    workers=request.workers,
                    launch=request.launch,
                ),
                listener,
            )
        return run
    recorded_files = run.read().weights_files if run.exists() else ()
    _say_epochs(epoch_files, listener)
    if run.exists():
        _require_same(run, recipe, recorded_files, epoch_files)
        if len(recorded_files) == len(epoch_files):
            keep_probing(run, recipe, listener)
            return run
    recorded_epochs = {file.epoch for file in recorded_files}
    further = {epoch: file for epoch, file in epoch_files.items() if epoch not in recorded_epochs}
    files = sorted([*recorded_files, *_hash_files(further)], key=lambda file: file.epoch)
    _begin(request, recipe, files, listener)
    return run


def _list_epoch_files(request: FrozenRequest) -> _EpochFiles:
    """The files that the epochs are read from; none where the weights are the source's own or random."""
    if not request.has_files:
        return {}
    if request.weights.startswith("run:"):
        return {0: last_weights(find_run(request.cache, request.weights.removeprefix("run:")))}
    return {epoch: (path.absolute(), part_name) for epoch, (path, part_name) in expand_epochs(request.weights).items()}


def _say_epochs(epoch_files: _EpochFiles, listener: Listener) -> None:
    """`epoch 5 is epoch_05.pth, 12 is epoch_12.pth`, unless there is one file, of epoch 0, or none."""
    if epoch_files.keys() - {0}:
        folder = commonpath([path.parent for path, _ in epoch_files.values()])
        names = [f"{epoch} is {path.relative_to(folder)}" for epoch, (path, _) in sorted(epoch_files.items())]
        listener.say(f"epoch {', '.join(names)}")


def _hash_files(epoch_files: _EpochFiles) -> list[WeightsFile]:
    return [
        WeightsFile(str(path), part_name, _sha256(path), size_of_weights(path), epoch)
        for epoch, (path, part_name) in epoch_files.items()
    ]


def _sha256(path: Path) -> str:
    require_weights(path)
    return sha256_of_weights(path)


def _require_same(run: Run, recipe: Recipe, recorded_files: Sequence[WeightsFile], epoch_files: _EpochFiles) -> None:
    """Check that this request started the run, and that its files are unchanged; there may be further files."""
    changes = recipe.changes_since(run.read())
    if changes:
        message = f"measures something else: {', '.join(map(str, changes))}"
        raise RecipeError(message, file=run.folder, fix=f"Use the old values. {_NEW_RUN}")
    for file in recorded_files:
        path, part_name = epoch_files.get(file.epoch, ("no file", None))
        if (str(path), part_name) != (file.path, file.part):
            message = f"epoch {file.epoch} is {file.path}, and would now be {path}"
            raise RecipeError(message, file=run.folder, fix=_NEW_RUN)
        if _sha256(Path(file.path)) != file.sha256:
            message = f"has changed since {run.name} began, whose epoch {file.epoch} it is"
            raise RecipeError(message, file=file.path, fix=f"Restore it. {_NEW_RUN} that measures it as it is now")


def _begin(request: FrozenRequest, recipe: Recipe, files: list[WeightsFile], listener: Listener) -> None:
    """Check that each file fits the network, and write the record of a run that reads the files in place."""
    run = request.target(recipe)
    device = from_recipe.choose_device(request.device)
    net = from_recipe.build_net(recipe)
    loaded = {file: load_file(net, request.model, Path(file.path), file.part) for file in files}
    notes = dict.fromkeys(note for weights in loaded.values() for note in weights.notes)
    notes |= dict.fromkeys([*_explain_left_out(net, request, files), *_explain_missing_weights(net, loaded)])
    lacking = frozenset(key for weights in loaded.values() for key in weights.lacking)
    decoding = Decoding(request.cache, listener, request.workers, launch=request.launch)
    dataset = from_recipe.build_dataset(recipe, decoding, decode=False)
    net = replace(net, notes=(*net.notes, *notes), new_parameters=lacking)
    with locked(run):
        run.remove_leftovers()
        if run.exists():
            require_same_images(run.read(), dataset, list(dataset.splits), fix=_NEW_RUN)
        record = new_record(recipe, dataset, net, device)
        record = replace(
            record,
            notes=(*record.notes, *_note_other_preprocessing(request, record.transform)),
            weights_files=tuple(files),
            untrained=False,
            epochs_done=files[-1].epoch,
            state="finished",
        )
        run.write(record)
        run.log(f"begun: {command_line()}")
        for note in record.notes:
            listener.say(f"note: {note}")
            run.log(f"note: {note}")


def _explain_missing_weights(net: Net, loaded: Mapping[WeightsFile, LoadedFile]) -> list[str]:
    """A line on each file without tensors of the last layers: these layers cannot be measured."""
    from layerprobe.hooks import keep_calls_without, measure_layers
    from layerprobe.hooks.hooks import plain_path

    lines = []
    for file, weights in loaded.items():
        if weights.lacking and net.image_size is not None:
            computed = keep_calls_without(measure_layers(net, net.image_size), weights.lacking)
            layers = [name for name, path in net.layers.items() if not computed.calls.get(plain_path(path))]
            names = first_named([key.removeprefix(f"{net.root}.") for key in weights.lacking])
            lines.append(
                f"{Path(file.path).name} has no {names}: layers that need them are left out, {first_named(layers)}"
            )
    return lines


def _explain_left_out(net: Net, request: FrozenRequest, files: Sequence[WeightsFile]) -> list[str]:
    """Lines on the files of a pattern that are no epochs: copies of an epoch's weights, and files without a number."""
    if not request.has_files or request.weights.startswith("run:"):
        return []
    epoch_files = [(Path(file.path), file.part) for file in files]
    matched = [(path.absolute(), part_name) for path, part_name in expand(request.weights)]
    spare = [file for file in matched if file not in epoch_files]
    states = {path: _load_state(net, request.model, path, part_name) for path, part_name in spare}
    lines = []
    for (path, part_name), file in zip(epoch_files, files, strict=True):
        state = _load_state(net, request.model, path, part_name)
        copies = [
            spare_path
            for spare_path, tensors in states.items()
            if tensors and all(tensor.equal(state[name]) for name, tensor in tensors.items())
        ]
        for copy in copies:
            del states[copy]
            lines.append(f"{copy.name} is left out: it has the weights of epoch {file.epoch}, {path.name}")
    if states:
        last_file = files[-1]
        example = renumber_epoch(Path(last_file.path), last_file.epoch, last_file.epoch + 1)
        lines.append(
            f"{', '.join(path.name for path in states)}: left out, without an epoch of its own in the name; to measure"
            f" it, rename it like {example}"
        )
    return lines


def _load_state(net: Net, model: str, path: Path, part_name: str | None) -> dict[str, Tensor]:
    """The network's tensors with the weights of a file; empty where these are of another network."""
    try:
        load_file(net, model, path, part_name)
    except LayerprobeError:
        return {}
    return {name: tensor.clone() for name, tensor in net.module.state_dict().items()}


def _note_other_preprocessing(request: FrozenRequest, transform: str) -> list[str]:
    """A note where the weights are those of a run that was trained on images preprocessed otherwise; else none."""
    if not request.weights.startswith("run:"):
        return []
    run = named_run(request.cache, request.weights.removeprefix("run:"))
    if not run.exists() or run.read().transform == transform:
        return []
    return [
        f"{run.name} was trained on images made in another way; --set data.KEY=VALUE makes them as its run.json says"
    ]


def estimate_frozen(request: FrozenRequest, probe_request: ProbeRequest) -> tuple[str, Estimate]:
    """The name of a model's run, and what measuring it takes; a source's own weights are not loaded."""
    from layerprobe.workflow.probe.estimate_probe import estimate_new_probe, estimate_probe

    recipe = request.recipe()
    run = request.target(recipe)
    if run.exists():
        return run.name, estimate_probe(run, probe_request)
    epoch_files = _list_epoch_files(request)
    if epoch_files:
        net = from_recipe.build_net(recipe)
        for path, part_name in epoch_files.values():  # a mismatch is reported now
            load_file(net, request.model, path, part_name)
    return run.name, estimate_new_probe(run, recipe, probe_request, len(epoch_files) or 1)
