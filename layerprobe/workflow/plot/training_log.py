"""What trainings recorded: the loss by epoch, and the numbers that losses have learnt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from layerprobe.plots.drawn_scores import metric_of
from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.files import require_file
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.values.scores import Score, Subject
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import read_tensors
from layerprobe.workflow.run.experiments import experiments_of
from layerprobe.workflow.run.references import embedding_among
from layerprobe.workflow.run.runs import Run, kept_epochs

_METRIC = "training loss"


def training_losses(runs: Sequence[Run], scores: Sequence[Score]) -> list[Score]:
    """The losses of runs as scores of their embedding, and the scores of the embedding on test.

    Args:
        scores: of these runs, of one metric or of R@1 among others.
    """
    losses: list[Score] = []
    metric = metric_of(scores)
    for run, subject in training_subjects(runs):
        losses += [replace(subject, epoch=epoch).score(_METRIC, loss, n) for epoch, loss, n in logged_losses(run)]
        embedding_scores = [s for s in scores if (s.run, s.split, s.metric) == (run.name, "test", metric)]
        embedding = embedding_among(run.read(), dict.fromkeys(score.ranked for score in embedding_scores))
        losses += [replace(s, experiment=subject.experiment) for s in embedding_scores if s.ranked == embedding]
    return losses


def training_subjects(runs: Sequence[Run]) -> list[tuple[Run, Subject]]:
    """Runs, each with the embedding on the training images at epoch 0 as what a number is of."""
    experiments = experiments_of(runs)
    subjects = []
    for run in runs:
        record = run.read()
        if record.network is None or not record.recipe.get("train", {}).get("epochs") or record.members:
            reason = "is an ensemble" if record.members else "was measured only, not trained here"
            fix = (
                f"Name its members: {' '.join(record.members)}" if record.members else "Name a run of layerprobe train"
            )
            raise DataError(f"{run.name} {reason}, so that it has no loss of its own", fix=fix)
        ranked = RankedLayer(record.network.embedding, NO_REDUCTION, record.similarity)
        experiment = experiments.names.get(run, run.name)
        subjects.append((run, Subject(run.name, experiment, record.seed, 0, "train", ranked, experiments.notes)))
    return subjects


def logged_losses(run: Run) -> list[tuple[int, float, int]]:
    """Epoch, loss and number of images of each line."""
    path = run.training_log_file
    try:
        require_file(path)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [(int(line["epoch"]), float(line["loss"]), int(line["images"])) for line in lines]
    except FileNotFoundError as error:
        fix = f"Train it: layerprobe train, or leave {run.name} out"
        raise DataError("no epoch has been trained yet", file=run.folder, fix=fix) from error
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError("not the log of a training", file=path, fix="Train it again with --fresh") from error


def learnt_parameters(runs: Sequence[Run]) -> list[Score]:
    """The trained parameters of the losses other than class weights, as scores of the embedding, at the kept epochs.

    One number for each class is drawn as the mean. Where epoch 0 is not kept, the value there is the recipe's.
    """
    scores = []
    for run, subject in training_subjects(runs):
        record = run.read()
        recipe = recorded_recipe(record, run.record_file)
        # The values before training depend neither on the dimensions nor on the classes.
        loss = from_recipe.build_loss(recipe, embedding_dim=2, num_classes=2)
        if not (names := loss.learnt_numbers()):
            message = f"{run.name}: its loss {recipe.loss.name} learns no number besides class weights"
            fix = "Name a run of heated_softmax or smooth_triplet with loss.learn_scale = true, or of margin"
            raise RecipeError(message, fix=fix)
        start = {name: tensor.detach() for name, tensor in loss.named_parameters() if name in names}
        epochs = [epoch for epoch in kept_epochs(run, record) if epoch > 0]
        kept_note = f"epochs 0 and {', '.join(map(str, epochs))} alone; train with train.keep = all for the others"
        notes = (kept_note,) if len(epochs) < record.epochs_done else ()
        for epoch in (0, *epochs):
            path = run.checkpoint_file(epoch)
            tensors = read_tensors(path, "loss", names, expected=[record.hashes.get(path.name, "")]) if epoch else start
            for name in names:
                value = float(tensors[name].double().mean())
                scores.append(
                    replace(subject, epoch=epoch, notes=(*subject.notes, *notes)).score(names[name], value, 1)
                )
    return scores
