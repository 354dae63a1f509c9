"""The numbers that runs' losses have learnt, from their checkpoints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from layerprobe.recipe.recipe import recorded_recipe
from layerprobe.system.errors import RecipeError
from layerprobe.values.scores import Score
from layerprobe.workflow.plot.training_log import training_subjects
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import read_tensors
from layerprobe.workflow.run.runs import Run, kept_epochs


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
