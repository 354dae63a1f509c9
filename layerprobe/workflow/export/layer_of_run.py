"""Which layer of a run is exported: the one that a name says, or that `choose` ships."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from layerprobe.reductions.chain import parse_chain
from layerprobe.system.errors import LayerprobeError, RecipeError
from layerprobe.values.choice import Choice
from layerprobe.values.layers import NO_REDUCTION, RankedLayer
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.run.references import find_layers, open_ranked_split, parse_reference
from layerprobe.workflow.run.runs import Run

_SPLITS = ("test", "validation", "train")  # on whose images an export is checked, the first that is ranked


@dataclass(frozen=True)
class LayerOfRun:
    """A ranked layer of a run.

    Args:
        split: on whose images the export is checked.
    """

    run: Run
    epoch: int
    split: str
    ranked: RankedLayer

    @property
    def gallery(self) -> str:
        """The split that the images are searched in."""
        itself = self.run.ranks(self.epoch, self.split).searched_itself
        return self.split if itself else "gallery"

    @property
    def stored(self) -> RankedLayer:
        """The layer as it is ranked: without a reduction where `choose` fitted that within folds."""
        ranks = self.run.ranks(self.epoch, self.split).stored.ranks
        return self.ranked if self.ranked in ranks else replace(self.ranked, reduction=NO_REDUCTION)


def resolve_layer(run: Run, name: str, request: ExportRequest) -> LayerOfRun:
    """The ranked layer of a name such as `pool5.3@max/l2+pca:64+l2`, by default at the last ranked epoch.

    Raises:
        DataError: the epoch is not ranked.
        LayerprobeError: it is a mean over random draws.
        RecipeError: the name is of another run, of several layers, or of none that is ranked.
    """
    reference = parse_reference(name, bare="layer")
    if reference.run not in (None, run.name):
        fix = f"Name {reference.run} as the run to layerprobe export"
        raise RecipeError(f"--layer {name}: the run is {run.name}", fix=fix)
    if None not in (reference.epoch, request.epoch) and reference.epoch != request.epoch:
        raise RecipeError(f"--layer {name} and --epoch {request.epoch} name two epochs", fix="Omit one of them")
    draws = parse_chain(reference.reduction).members()
    if len(draws) > 1:
        message = f"{reference.reduction} is a mean over {len(draws)} random draws, each of which is another map"
        raise LayerprobeError(message, fix=f"Name one of them, such as {draws[0]}")
    split = next((split for split in _SPLITS if run.ranked_epochs(split)), _SPLITS[0])
    epoch = reference.epoch if request.epoch is None else request.epoch
    epochs = run.ranked_epochs(split)
    ranks = open_ranked_split(run, epochs[-1] if epoch is None and epochs else epoch, split)
    layers = find_layers(ranks, reference)
    if len(layers) > 1:
        raise RecipeError(f"--layer {name} names {len(layers)} layers", fix=f"Name one, such as {layers[0]}")
    return LayerOfRun(run, ranks.epoch, split, layers[0])


def layer_of_choice(choice: Choice, runs: Sequence[Run]) -> LayerOfRun:
    """What a choice ships; of several trainings of an experiment, that of the first."""
    run = next(run for run in runs if choice.run in (run.name, run.read().experiment))
    epoch, ranked = choice.chosen.epoch, choice.chosen.ranked
    layers = run.ranks(epoch, "test").stored.ranks if run.has_ranks(epoch, "test") else {}
    return LayerOfRun(run, epoch, "test" if ranked in layers else choice.chosen.split, ranked)
