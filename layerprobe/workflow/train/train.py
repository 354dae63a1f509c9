"""train: a recipe becomes a run with a checkpoint per epoch; its time and memory are estimated."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from layerprobe.data.splits import Dataset
from layerprobe.recipe.recipe import Recipe, resolve
from layerprobe.system.errors import DataError, EnvironmentFault, LayerprobeError, NumericError, RecipeError
from layerprobe.system.files import free_bytes, require_file, require_writable, sha256, write_text
from layerprobe.system.launch import Launch
from layerprobe.system.memory import peak_memory
from layerprobe.system.progress import LONG, Forecast, Listener, Stop, stoppable
from layerprobe.system.wording import as_duration, as_size
from layerprobe.trackers.tracker import Trackers
from layerprobe.training.loop import EpochResult, Trainer
from layerprobe.values.costs import Estimate
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import Score
from layerprobe.values.sections import SEARCH_KEYS, Keep
from layerprobe.workflow.probe.measures import why_no_right_item
from layerprobe.workflow.probe.probe import drop_damaged, find_missing, measure, prepare
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_state, load_weights, save_state, save_weights
from layerprobe.workflow.run.experiments import require_same_images, settled_splits
from layerprobe.workflow.run.features import damaged_epochs, require_measured
from layerprobe.workflow.run.images import Decoding, with_contents
from layerprobe.workflow.run.run_network import new_record, record_of
from layerprobe.workflow.run.runs import (
    Run,
    command_line,
    kept_epochs,
    locked,
    other_training,
    remove_checkpoints,
    require_kept,
    set_aside,
    unwanted_epochs,
    wanted_epochs,
)
from layerprobe.workflow.run.seen import state_seen
from layerprobe.workflow.run.tracking import Tracking, log_epoch, log_epochs, untracked
from layerprobe.workflow.train.building import (
    Built,
    TrainRequest,
    build,
    build_schedule,
    find_unreached_settings,
    with_decoded_images,
)

if TYPE_CHECKING:
    import torch

DIVERGED = "diverged"  # the state of a run of which a loss, a gradient or a weight was not finite
_LONG_ENOUGH = 0.5  # seconds of steps that are timed; no further step begins after them
_OTHER_RUN = "Use --run NAME for a new run, or --fresh to move the old one aside"


def require_space(run: Run, built: Built, keep: Keep, *, fresh: bool) -> None:
    """Check that the disk has room for a run before anything is written."""
    require_writable(run.folder)
    (count, needed), free = _disk_needs(run, built, keep, fresh), free_bytes(run.folder)
    if needed > free:
        checkpoints = [f"{count} checkpoints"] if count else []
        contents = " and ".join([*checkpoints, *(["the features of the layers to probe"] if built.features else [])])
        raise EnvironmentFault(
            f"{contents} need {as_size(needed)}, {as_size(free)} are free",
            file=run.folder,
            fix="Free space, choose another --cache, or train fewer epochs",
        )


def _disk_needs(run: Run, built: Built, keep: Keep, fresh: bool) -> tuple[int, int]:
    """The checkpoints to be written that are on disk at once, and the bytes of all that is to be written.

    That is checkpoints, states to resume from, and the features of `--probe`. Beside those that `keep` retains, two
    checkpoints go when the next is written. Two states are kept while a third is written; each holds the optimiser's
    memory of every trained number.
    """
    trainer, epochs = built.trainer, _remaining_epochs(run, built.trainer, fresh)
    permanent = wanted_epochs(keep, epochs[-1]) if epochs else set()
    checkpoints = min(len(epochs), len(permanent.intersection(epochs)) + 2)
    tensors: list[torch.Tensor] = [*trainer.net.module.state_dict().values(), *trainer.loss.state_dict().values()]
    weights: int = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    momentum = 1 if trainer.plan.momentum else 0
    # Numbers that the optimiser keeps for each weight: adam and adamw have two.
    numbers_per_weight = {"sgd": momentum, "rmsprop": 1 + momentum}.get(trainer.plan.optimizer, 2)
    stored_states = 0 if fresh else sum(run.resume_file(previous=previous).exists() for previous in (False, True))
    states = 3 - stored_states if epochs else 0
    features = sum(
        size
        for epoch in range(trainer.plan.epochs + 1)
        for split, size in built.features.items()
        if fresh or not run.has_features(epoch, split)
    )
    return checkpoints, weights * (checkpoints + states * numbers_per_weight) + features


def _remaining_epochs(run: Run, trainer: Trainer, fresh: bool) -> list[int]:
    epochs = range(trainer.plan.epochs + 1)
    if fresh or not run.exists():
        return [*epochs]
    record = run.read()
    removed = {*record.epochs} - {*kept_epochs(run, record)}
    return [epoch for epoch in epochs if epoch not in removed and not run.checkpoint_file(epoch).exists()]


def estimate_training(request: TrainRequest) -> Estimate:
    """Time up to three training steps and extrapolate to the epochs left; of an ensemble from its first member."""
    ensemble = request.recipe.ensemble
    if ensemble is not None:
        member = estimate_training(member_request(request, 1))
        return replace(member, seconds=member.seconds * ensemble.members, disk=member.disk * ensemble.members)
    run, built = request.target(), build(request)
    require_writable(run.folder)
    trainer = built.trainer
    marks: list[float] = []

    def a_few_steps(loss: float) -> bool:  # noqa: ARG001 - the trainer's callback
        marks.append(time.perf_counter())
        return len(marks) < 4 and marks[-1] - marks[0] < _LONG_ENOUGH

    for _ in trainer.epochs(after_step=a_few_steps):
        pass
    # The first step is skipped: it includes the setup.
    step = (marks[-1] - marks[0]) / max(1, len(marks) - 1) if marks else 0.0
    epochs = _remaining_epochs(run, trainer, request.fresh)
    steps = trainer.plan.batches_per_epoch * sum(epoch > 0 for epoch in epochs)
    _, needed = _disk_needs(run, built, request.recipe.train.keep, request.fresh)
    return Estimate(step * steps, peak_memory(trainer.device), needed, free_bytes(run.folder))


def train_any(request: TrainRequest, listener: Listener, tracking: Tracking = untracked) -> Run:
    """Train a run, or the members of an ensemble one after the other: NAME.1, NAME.2 ...

    The same command again goes on with the member that it stopped in.

    Args:
        tracking: of each run that is trained.
    """
    ensemble = request.recipe.ensemble
    if ensemble is None:
        return train(request, listener, tracking)
    if request.probe is not None:
        raise RecipeError("--probe is for a single run", fix="Probe the ensemble when its members are trained")
    run = request.target()
    if request.fresh and run.exists():
        with locked(run):
            listener.say(f"{run.name}: the old run is now {set_aside(run).name}")
    # Whether training can continue with more epochs, each member checks for itself.
    changes = request.recipe.changes_since(run.read()) if run.exists() else []
    changes = [change for change in changes if (change.section, change.key) != ("train", "epochs")]
    if changes:
        raise RecipeError(
            f"was trained with another recipe: {', '.join(map(str, changes))}",
            file=run.folder,
            fix="Use the old values, or use --run NAME for a new run, or --fresh to move the old one aside",
        )
    members = []
    for number in range(1, ensemble.members + 1):
        listener.say(f"{run.name}: member {number} of {ensemble.members}")
        members.append(train(member_request(request, number), listener, tracking))
    first = members[0].read()
    shared = ("versions", "device", "threads", "transform", "manifests", "contents")
    record = record_of(
        request.recipe,
        state="finished",
        members=tuple(member.name for member in members),
        epochs_done=min(member.read().epochs_done for member in members),
        network=first.network and replace(first.network, cuts={}),
        **{name: getattr(first, name) for name in shared},
    )
    with locked(run):
        layer_order = run.read().layer_order if run.exists() else ()
        run.write(replace(record, layer_order=layer_order))
    return run


def member_request(request: TrainRequest, number: int) -> TrainRequest:
    """What trains a member, counted from 1."""
    return replace(request, recipe=request.recipe.member(number), run=f"{request.target().name}.{number}")


def train(request: TrainRequest, listener: Listener, tracking: Tracking = untracked) -> Run:
    """Train a run to its last epoch: a new one from epoch 0, an unfinished one from where it stopped."""
    run, recipe = request.target(), request.recipe
    if recipe.found_at is not None and (request.fresh or not run.exists()):
        fix = f"Set it in the recipe, or by --set net.name={recipe.found_at}"
        raise RecipeError("--model with another path is for a run that exists", file=run.folder, fix=fix)
    decoding = Decoding(request.cache, listener, request.workers, launch=request.launch)
    damaged = list[int]()
    if not request.fresh:
        forget_unmeasured(run, recipe, decoding)
        damaged = damaged_epochs(run, listener)
        # The last epoch is trained again where its checkpoint is damaged.
        if request.probe is None and is_done(run, recipe) and recipe.train.epochs not in damaged:
            require_same_data(run, recipe, decoding, fix=_OTHER_RUN)
            listener.say(f"nothing to do: {run.name} has all its {recipe.train.epochs} epochs")
            keep_probing(run, recipe, listener)
            _remove_unwanted(run, recipe, listener)
            with tracking(run, run.read().recipe) as trackers:
                log_epochs(trackers, run)
            return run
    built = build(request)
    _require_equal_parts(built, request.launch)
    require_space(run, built, recipe.train.keep, fresh=request.fresh)
    # Checked here, so that the user does not wait for hashing and decoding, and again under the lock.
    record = run.read() if run.exists() and not request.fresh else None
    if record is None and recipe.train.epochs:
        listener.say(f"{run.name}: {data_text(recipe, built.dataset)}")
    if record is not None:
        _require_same_recipe(run, recipe, built)
        require_kept(run, record, record.epochs_done)
    loaded = with_contents(built.loaded, decoding)
    built = replace(built, loaded=loaded, dataset=from_recipe.build_dataset(recipe, loaded=loaded))
    if record is not None:
        _require_same_images(run, record, built)
    else:
        notes = from_recipe.input_notes(recipe, built.dataset, built.trainer.net)
        notes += [why_no_right_item(built.dataset, split) for split in built.dataset.searched if split != "train"]
        for note in filter(None, notes):
            listener.say(f"note: {note}")
    for note in _notes_on_training(recipe, built.trainer):
        listener.say(f"note: {note}")
    built = with_decoded_images(built, request, listener)
    if request.fresh and run.exists():
        with locked(run):
            listener.say(f"{run.name}: the old run is now {set_aside(run).name}")
    with locked(run), stoppable() as stop:
        run.remove_leftovers()
        if run.exists():
            _require_same_recipe(run, recipe, built)
            _require_same_images(run, run.read(), built)
            _resume(run, request, built, listener)
        else:
            _begin(run, request, built)
        # What refuses the run comes first: a tracker begins anew.
        with (
            tracking(run, recipe.as_dict()) as trackers,
            _failure_recorded(run, built, stop),
            request.launch.causes_told(),
        ):
            _train_epochs(run, request, built, listener, stop, trackers)
            if request.probe is not None and record is not None:
                require_measured(run, [epoch for epoch in damaged if epoch < record.epochs_done])
    return run


def data_text(recipe: Recipe, dataset: Dataset) -> str:
    """`trains on glyphs: 1,200 images of 60 classes; held-out classes: 60 for test (1,200 images)`."""
    root = "" if recipe.data.root is None else f":{Path(recipe.data.root).name}"
    name = f"{recipe.data.name}{root}"
    classes = {split: np.unique(content.labels) for split, content in dataset.splits.items()}
    counts = {split: f"{len(content):,} images" for split, content in dataset.splits.items()}
    held_out, same = [], []
    for split in [split for split in classes if split != "train"]:
        if np.isin(classes[split], classes["train"]).all():
            same.append(f"{split}: {counts[split]} of the same classes")
        else:
            held_out.append(f"{len(classes[split]):,} for {split} ({counts[split]})")
    parts = [f"trains on {name}: {counts['train']} of {len(classes['train']):,} classes"]
    parts += [f"held-out classes: {', '.join(held_out)}"] if held_out else []
    return "; ".join([*parts, *same])


_SHORT = 600.0  # seconds of the shorter training that is named before a long one


def time_text(command: str, name: str, epochs: int, seconds: float) -> str:
    """How long a training takes, and where that is long, a command for fewer epochs."""
    text, an_epoch = f"about {as_duration(seconds)} for {epochs:,} epoch{'s' * (epochs > 1)}", seconds / epochs
    if seconds <= LONG or epochs == 1:
        return text
    fewer = max(1, min(epochs - 1, int(_SHORT / an_epoch)))
    shorter = other_training(command, f"{name}-short", f"train.epochs={fewer}")
    return text + (f"; a shorter one first takes about {as_duration(fewer * an_epoch)}: {shorter}" if shorter else "")


@contextlib.contextmanager
def _failure_recorded(run: Run, built: Built, stop: Stop) -> Iterator[None]:
    """Record in the run that the block fails, or is stopped by a signal."""
    try:
        yield
    except (LayerprobeError, KeyboardInterrupt) as error:  # the latter: a signal ended a wait
        with contextlib.suppress(EnvironmentFault):  # a full disk takes no word of its being full
            run.log(str(error), *getattr(error, "__notes__", []))
            record = run.read()
            if record.epochs_done < built.trainer.plan.epochs:
                failure = DIVERGED if isinstance(error, NumericError) else "failed"
                run.write(replace(record, state="interrupted" if stop else failure))
        # Ctrl-C reaches the data workers too. If one of them ended first, its error is not a fault of the run.
        stop.raise_if_asked(_stop_message(run, built))
        raise


def is_done(run: Run, recipe: Recipe) -> bool:
    """Whether a run has all epochs of a recipe, and was trained with this one."""
    if not run.exists():
        return False
    record = run.read()
    return record.epochs_done >= recipe.train.epochs and not recipe.changes_since(record)


def forget_unmeasured(run: Run, recipe: Recipe, decoding: Decoding) -> None:
    """Remove the record of a run whose images have changed before it was trained or measured, so that it begins anew.

    A command that meets a damaged image leaves such a run; its features, if any, belong to the images by their hashes.
    """
    if not run.exists() or run.is_measured:
        return
    record = run.read()
    trained = record.epochs_done > 0 and not record.weights_files
    if trained or recipe.changes_since(record):  # other changes are reported as such
        return
    dataset = from_recipe.build_dataset(recipe, decoding, decode=False)
    try:
        require_same_images(record, dataset, list(dataset.splits), fix="")
    except DataError:
        with locked(run):
            if not run.exists() or run.is_measured or run.read() != record:  # by another process meanwhile
                return
            run.record_file.unlink()
        if decoding.listener is not None:
            decoding.listener.say(f"{run.name}: its images have changed, and nothing was measured: it begins anew")


def require_same_data(run: Run, recipe: Recipe, decoding: Decoding, *, fix: str) -> None:
    """Check that a folder of images that is named in place of a run's holds the same ones; they are read there now."""
    record, root = run.read(), recipe.data.root
    began = record.data.get("root")
    if root is None or began in (None, root) or recipe.changes_since(record):  # other changes are reported as such
        return
    dataset = from_recipe.build_dataset(recipe, decoding, decode=False)
    try:
        require_same_images(record, dataset, list(dataset.splits), fix=fix)
    except DataError as error:
        raise RecipeError(
            f"has the images in {began}, and those in {root} are others", file=run.folder, fix=fix
        ) from error
    with locked(run):
        run.write(replace(record, recipe={**record.recipe, "data": {**record.data, "root": root}}))


def keep_probing(run: Run, recipe: Recipe, listener: Listener) -> None:
    """Copy a recipe's [probe] and [metrics] into a finished run, for later probes.

    That is [probe], [metrics], and the keys of [data] that decide which items a query may find.
    """
    record, new = run.read(), recipe.as_dict()
    old = record.recipe
    with contextlib.suppress(LayerprobeError):
        # Through the same defaults, so that a key that is new since then is no change.
        old = resolve(record.recipe_name, old, source=run.record_file, own_size=False).as_dict()
    sections = [name for name in ("probe", "metrics") if old.get(name) != new[name]]
    keys = [key for key in SEARCH_KEYS if old.get("data", {}).get(key) != new["data"][key]]
    if recipe.data.seen != old.get("data", {}).get("seen", True):
        state_seen(run, recipe.data.seen)
        listener.say(f"{run.name}: data.seen = {str(recipe.data.seen).lower()} from now on; nothing is measured again")
        record = run.read()
    if sections or keys:
        data = {**record.data, **{key: new["data"][key] for key in keys}}
        with locked(run):
            changed_sections = {"data": data, **{name: new[name] for name in sections}}
            run.write(replace(record, recipe={**record.recipe, **changed_sections}))
        changed = [*(f"[{name}]" for name in sections), *(f"data.{key}" for key in keys)]
        listener.say(f"{run.name}: layerprobe probe now follows the recipe's {' and '.join(changed)}")


def _remove_unwanted(run: Run, recipe: Recipe, listener: Listener) -> None:
    """Remove checkpoints of a finished run that `train.keep` does not keep: it has changed, or a kill left them."""
    if not (epochs := unwanted_epochs(run, recipe.train.keep, finished=True)):
        return
    with locked(run):
        remove_checkpoints(run, epochs)
    listener.say(f"{run.name}: checkpoints removed of {len(epochs)} epochs, for train.keep = {recipe.train.keep}")


def _require_same_recipe(run: Run, recipe: Recipe, built: Built) -> None:
    """Check that a run was trained with this recipe; of one with more epochs, that those done had the same rates."""
    record = run.read()
    changes, why = recipe.changes_since(record), ""
    grown = recipe.train.epochs > record.recipe.get("train", {}).get("epochs", 0)
    if grown and [(change.section, change.key) for change in changes] == [("train", "epochs")]:
        old = resolve(record.recipe_name, record.recipe, source="run.json", own_size=False)
        plan = built.trainer.plan
        old_schedule = build_schedule(old, plan.steps_per_epoch)
        if old_schedule.agrees(plan.schedule, plan.steps_per_epoch * record.epochs_done):
            return
        why = " (the learning rate of epochs that are done would change)"
    if changes:
        raise RecipeError(
            f"was trained with another recipe: {', '.join(map(str, changes))}{why}",
            file=run.folder,
            fix=f"Use the old values. {_OTHER_RUN}",
        )


def _require_same_images(run: Run, record: RunRecord, built: Built) -> None:
    settled = settled_splits(run, list(built.dataset.splits), trains=True)
    fix = "Restore them, or use --run NAME for a new run"
    require_same_images(record, built.dataset, settled, fix=fix)


def _begin(run: Run, request: TrainRequest, built: Built) -> None:
    record = new_record(request.recipe, built.dataset, built.trainer.net, built.trainer.device)
    _save(run, record, built)
    run.log(f"begun: {record.command}")
    for note in record.notes:
        run.log(f"note: {note}")


def _save(run: Run, record: RunRecord, built: Built) -> None:
    """Write the present epoch: weights, then the state to resume from, then run.json with the hashes of both."""
    epoch, hashes = built.trainer.epoch, dict(record.hashes)
    weights = run.checkpoint_file(epoch)
    hashes[weights.name] = save_weights(weights, {"net": built.trainer.net.module, "loss": built.trainer.loss})
    newest, before = run.resume_file(), run.resume_file(previous=True)
    recorded_hashes = {hashes[path.name] for path in (newest, before) if path.name in hashes}
    hashes[newest.name] = save_state(newest, before, built.trainer.state(), recorded=recorded_hashes)
    hashes.pop(before.name, None)
    if before.exists() and (digest := sha256(before)) in recorded_hashes:
        hashes[before.name] = digest
    state = "finished" if epoch >= built.trainer.plan.epochs else "training"
    run.write(replace(record, epochs_done=epoch, state=state, hashes=hashes))


def _resume(run: Run, request: TrainRequest, built: Built, listener: Listener) -> None:
    """Load the newest checkpoint and continue from it; where it is damaged, say so and take the one before."""
    record = run.read()
    hashes = record.hashes
    # If the run was killed after the state but before run.json was written, the state that run.json knows has the other
    # name.
    states = [hashes[path.name] for path in (run.resume_file(), run.resume_file(previous=True)) if path.name in hashes]
    for older in (False, True):
        try:
            file = run.resume_file(previous=older)
            state = load_state(file, expected=states)
            weights = run.checkpoint_file(state["epoch"])
            modules = {"net": built.trainer.net.module, "loss": built.trainer.loss}
            load_weights(weights, modules, expected=[hashes.get(weights.name, "")])
            _restore(built, state, file)
        except DataError as error:
            if older:
                raise
            listener.say(f"{error.file}: {error.message}; trying the checkpoint before it")
            continue
        break
    if built.trainer.epoch < built.trainer.plan.epochs:
        listener.say(f"{run.name}: continuing after epoch {built.trainer.epoch}")
    else:
        listener.say(f"nothing to train: {run.name} has all its {built.trainer.plan.epochs} epochs")
    # The recipe may now ask for more epochs, or for other layers and metrics to probe.
    recipe = request.recipe
    if built.trainer.epoch < built.trainer.plan.epochs:
        record = replace(record, state="training")
    run.write(replace(record, recipe=recipe.as_dict(), experiment=recipe.experiment))
    run.log(f"continued after epoch {built.trainer.epoch}: {command_line()}")


def _restore(built: Built, state: dict[str, Any], file: Path) -> None:
    try:
        built.trainer.load_state(state)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise DataError(
            f"a resume state of another network or optimiser ({error})", file=file, fix="Train it again with --fresh"
        ) from error


def _train_epochs(  # noqa: PLR0913 - a training, and all that follows it
    run: Run, request: TrainRequest, built: Built, listener: Listener, stop: Stop, trackers: Trackers
) -> None:
    """Train the epochs that are left; store, measure, log and tidy after each."""
    trainer, keep, probing = built.trainer, request.recipe.train.keep, None
    if trainer.epoch < trainer.plan.epochs:
        _record_processes(run, request.launch, trainer.epoch + 1, listener)
    if request.probe is not None:
        probe_request = ProbeRequest(
            layers=request.probe,
            splits=request.splits,
            device=request.device,
            workers=request.workers,
            launch=request.launch,
        )
        probing = prepare(run, probe_request, built.dataset, listener)

    def measure_and_tidy(epochs: Sequence[int], *, earlier: bool = False) -> Sequence[Score]:
        scores: Sequence[Score] = ()
        if probing is not None:  # no checkpoint goes before it is measured
            missing = find_missing(probing, epochs)
            scores = measure(probing, drop_damaged(probing, missing, listener) if earlier else missing, listener, stop)
        finished = trainer.epoch >= trainer.plan.epochs
        remove_checkpoints(run, unwanted_epochs(run, keep, finished=finished))
        return scores

    # What an earlier start did not get to is measured too.
    measured_epochs = [epoch for epoch in kept_epochs(run, run.read()) if epoch <= trainer.epoch]
    measure_and_tidy(measured_epochs, earlier=True)
    log_epochs(trackers, run)
    if trainer.epoch >= trainer.plan.epochs:
        return
    request.launch.call(follow, request)
    trainer.share(request.launch.group)
    batches, batch = trainer.plan.batches_per_epoch, trainer.plan.images_per_batch
    remaining_batches = (trainer.plan.epochs - trainer.epoch) * batches
    images = remaining_batches * batch

    def tell_time(seconds: float) -> None:
        listener.say(time_text(command_line(), request.recipe.name, trainer.plan.epochs - trainer.epoch, seconds))

    with listener.task(f"training {run.name}", images, "images") as shown:
        task = Forecast(shown, images, tell_time)

        def after_step(loss: float) -> bool:
            task.advance(batch, loss=loss)
            return not stop

        for result in trainer.epochs(after_step=after_step):
            if 2 * result.idle > batches:
                listener.say(
                    f"warning: in {result.idle} of {batches} batches of epoch {result.epoch} no pair or triplet"
                    " counted; nothing is learnt from them"
                )
            if result.epoch in trainer.equalised:
                run.log(f"epoch {result.epoch}: the loss of a process differed; that of the first holds")
            try:
                _append_metrics(run, result)
                _save(run, run.read(), built)
            except EnvironmentFault as fault:
                message = f"{fault.message}, up to epoch {result.epoch - 1}"
                raise EnvironmentFault(message, file=fault.file, fix=fault.fix) from fault
            listener.say(
                f"epoch {result.epoch}/{trainer.plan.epochs}: loss {result.loss:.4f},"
                f" {result.images / result.seconds:.0f} images/s, learning rate {result.learning_rate:g}"
            )
            log_epoch(trackers, run, result.epoch, measure_and_tidy([result.epoch]), loss=result.loss)
            request.launch.call(None)  # the other processes go on to the next epoch
    if trainer.epoch < trainer.plan.epochs:
        stop.raise_if_asked(_stop_message(run, built))


def follow(launch: Launch, request: TrainRequest) -> None:
    """In another process than the first of a launch: train with it, and do between two epochs what it calls."""
    request = replace(request, launch=launch)
    trainer = with_decoded_images(build(request), request).trainer
    trainer.share(launch.group)
    for _ in trainer.epochs():
        launch.serve()


def _notes_on_training(recipe: Recipe, trainer: Trainer) -> list[str]:
    """What a reader of the recipe may not expect of its training."""
    plan = trainer.plan
    notes = [
        f"{key} is not reached in {plan.epochs} epochs" for key in find_unreached_settings(recipe, plan, trainer.loss)
    ]
    if trainer.chunks_normalise:
        sizes = f"chunks of {plan.chunk} of the {plan.images_per_batch} images of a batch"
        notes.append(f"BatchNorm normalises by {sizes}")
    return notes


def _require_equal_parts(built: Built, launch: Launch) -> None:
    """Check that a batch can be shared equally by the processes of a launch."""
    plan = built.trainer.plan
    images = plan.images_per_batch
    if plan.epochs and images % launch.size:
        numbers = [str(number) for number in range(1, images) if images % number == 0]
        raise RecipeError(
            f"batches of {images} images cannot be shared by {launch.size} processes",
            fix=f"Start {', '.join(numbers)} or {images}, or set train.batch_size to a multiple of {launch.size}",
        )
    if plan.epochs and plan.images_at_once % launch.size:
        raise RecipeError(
            f"chunks of {plan.chunk} images cannot be shared by {launch.size} processes",
            fix=f"Set train.chunk to a multiple of {launch.size}, or leave it out",
        )


def _record_processes(run: Run, launch: Launch, epoch: int, listener: Listener) -> None:
    """Record, from an epoch on, how many processes train, where that is another number than before it."""
    record = run.read()
    earlier = [(first, size) for first, size in record.processes if first < epoch]
    before = earlier[-1][1] if earlier else 1
    processes = tuple(earlier) if launch.size == before else (*earlier, (epoch, launch.size))
    if processes == record.processes:
        return
    if epoch > 1 and launch.size != before:
        text = f"{run.name}: from epoch {epoch} on with {launch.size} processes, before with {before}"
        listener.say(f"{text}; results are those of {before} but for rounding")
        run.log(text)
    run.write(replace(record, processes=processes))


def _stop_message(run: Run, built: Built) -> str:
    return f"{run.name}: stopped after epoch {built.trainer.epoch}; the same command resumes"


def _append_metrics(run: Run, result: EpochResult) -> None:
    """Add an epoch's line to metrics.jsonl; lines of epochs that are trained again are dropped."""
    lines: list[str] = []
    with contextlib.suppress(FileNotFoundError):
        require_file(run.training_log_file)
        lines = run.training_log_file.read_text(encoding="utf-8").splitlines()
    earlier_lines = [line for line in lines if json.loads(line)["epoch"] < result.epoch]
    write_text(run.training_log_file, "\n".join([*earlier_lines, json.dumps(asdict(result))]) + "\n")
