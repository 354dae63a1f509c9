"""explain: the weights and images of a run -> why a query and its nearest neighbour by each layer are similar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from layerprobe.attribution.explaining import explain as explain_pair
from layerprobe.attribution.scoring import ScoredLayer
from layerprobe.data.loading import batches_of
from layerprobe.data.splits import Split
from layerprobe.nets.net import Net
from layerprobe.plots.explanations import draw
from layerprobe.plots.plot import PlotOptions
from layerprobe.plots.saving import FORMATS, encoded
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.taps import Layer, Measured, find_layers, measure_layers
from layerprobe.values.explanations import ExplainedNeighbour, ExplainedQuery
from layerprobe.values.keys import NO_REDUCTION, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.values.views import Neighbours
from layerprobe.workflow.explain.stored import KIND
from layerprobe.workflow.plot.neighbours import RunGallery
from layerprobe.workflow.plot.panels import found_neighbours
from layerprobe.workflow.plot.query_rules import names_layers
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.embedding import embedding_among
from layerprobe.workflow.run.epoch_weights import load_net
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.run_network import run_network
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import weights_text
from layerprobe.workflow.run.stored_choice import stored_choice, taken_text

_BASELINE = (
    "Integrated gradients from an image of the normalisation's mean colour; Grad-CAM without its ReLU. Red pixels make"
    " the two more similar, blue ones less"
)
_SPLIT = "test"  # of the query
_LIKE_TRAINED = "builds the network with weights of its own, so that none with random weights can be compared"


@dataclass(frozen=True)
class ExplainRequest:
    """A call of `layerprobe explain`.

    Args:
        layers: as in `PlotOptions`; None: that of the stored choice and the embedding, or those of the rule.
        query: id of a test image.
        where: rule that chooses one, as in `plot panels`.
        out: .png, .pdf or .svg file, or a stream for a PNG; None: in the run's folder, where `report` finds it.
        model: the run's network as the user names it; None where it need not be named.
    """

    run: Run
    layers: tuple[str, ...] | None = None
    query: str | None = None
    where: str | None = None
    out: Path | None = None
    model: str | None = None


@dataclass(frozen=True)
class _Network:
    """How a run's network is built."""

    run: Run
    record: RunRecord
    recipe: Recipe

    def built(self, seed: int | None = None) -> Net:
        """The network without weights, drawn by a seed; None: the run's."""
        train = self.recipe.train if seed is None else self.recipe.train.model_copy(update={"seed": seed})
        return run_network(self.run, self.record, replace(self.recipe, train=train))


def explain(request: ExplainRequest, listener: Listener) -> tuple[ExplainedQuery, Path]:
    """Explain a query by each layer, draw it, and return the values with the figure's file."""
    run = request.run
    out = request.out or run.plot_file(KIND)
    require_output(out, *FORMATS)
    found, opened, record = _chosen(request, listener)
    recipe = recorded_recipe(record, run.record_file).at(request.model)
    explained = _explained(_Network(run, record, recipe), found, opened, listener)
    write_output(out, encoded(draw(explained), out.suffix.lower().removeprefix(".") or "png"))
    return explained, out


def _chosen(request: ExplainRequest, listener: Listener) -> tuple[Sequence[Neighbours], RunGallery, RunRecord]:
    """The neighbours of the query by each layer, and the opened images."""
    run, record = request.run, request.run.read()
    if record.members:
        fix = f"Explain one of its members, such as {record.members[0]}"
        raise RecipeError(f"{run.name} is an ensemble, which has no one network", fix=fix)
    scores = run.scores()
    embedding = embedding_among(record, dict.fromkeys(score.ranked for score in scores))
    embeddings = {} if embedding is None else {run.name: embedding}
    count = 1 if request.query is None else None
    options = PlotOptions(request.layers, None, request.query, request.where, count)
    if request.layers is None and not names_layers(request.where):
        options = _with_the_choice(run, options, embedding, listener)
    found, opened = found_neighbours([run], scores, options, embeddings)
    for one in found:
        if one.ranked.similarity == "hamming":
            fix = "Explain the layer without binary: a bit has no gradient"
            raise RecipeError(f"{one.ranked} cannot be explained", fix=fix)
        if not one.found:
            raise DataError(f"{one.query.id} has no item to find", file=run.folder, fix="Choose another query")
    return found, opened[run.name], record


def _with_the_choice(run: Run, options: PlotOptions, embedding: RankedLayer | None, listener: Listener) -> PlotOptions:
    """The options with the layer of the stored choice, and the embedding, at its epoch; as they are without one."""
    stored = stored_choice(run, listener.say)
    if stored is None:
        listener.say(
            f"{run.name}: no choice is stored: the last two layers are explained; next: {run.command('choose')}"
        )
        return options
    choice = stored.choice
    selected, epoch = choice.chosen.ranked, choice.chosen.epoch
    known = run.ranks(epoch, _SPLIT).stored.ranks if run.has_ranks(epoch, _SPLIT) else {}
    plain = [x for x in known if (x.layer, x.reduction) == (selected.layer, NO_REDUCTION)]
    can_be_shown = selected in known and selected.similarity != "hamming"
    shown = selected if can_be_shown or not plain else plain[0]
    without = "" if shown == selected else f", explained without its post-processing {selected.reduction}"
    listener.say(taken_text(run, choice, f"the stored choice{without}"))
    # The embedding alone would leave nothing to compare it with.
    layers = (
        None if shown == embedding else tuple(x.full_name for x in (shown, embedding) if x is not None and x in known)
    )
    return replace(options, layers=layers or None, epoch=epoch)


def _explained(
    network: _Network, found: Sequence[Neighbours], opened: RunGallery, listener: Listener
) -> ExplainedQuery:
    run, recipe, epoch, split = network.run, network.recipe, found[0].epoch, found[0].split
    device, net = opened.searches.device(), network.built()
    random, doubt = _random_net(network, net)
    load_net(run, epoch, net)
    measured = measure_layers(net, recipe.data.image_size)
    layers = {one.ranked: _layer(one.ranked, measured) for one in found}
    for module in (net.module, random):
        if module is not None:
            module.to(device)
    normalise = from_recipe.build_normalise(recipe, net.channels)
    query = _pixels(opened.queries, found[0].query.id)
    neighbours: list[ExplainedNeighbour] = []
    with listener.task("explaining", len(found), "layers") as task:
        for one in found:
            image = _pixels(opened.items, one.found[0].item.id)
            first, second = (normalise(pixels.to(device)) for pixels in (query, image))
            reduce = opened.searches.reduced.map_of(epoch, split, one.ranked)
            scored = ScoredLayer(layers[one.ranked], one.ranked, reduce)
            explanation = explain_pair(measured, scored, (first, second), random=random)
            neighbours.append(ExplainedNeighbour(one.found[0], image[0].numpy(), explanation))
            task.advance()
    notes = dict.fromkeys((_BASELINE, *doubt, *(note for one in found for note in one.notes)))
    shown = (found[0].query, query[0].numpy(), tuple(neighbours), tuple(notes))
    return ExplainedQuery(run.name, epoch, split, *shown, weights=weights_text(network.record))


def _layer(ranked: RankedLayer, measured: Measured) -> Layer:
    (layer,) = find_layers([str(ranked.layer)], measured)
    return layer


def _pixels(split: Split, name: str) -> Tensor:
    """(1, H, W, C) the image as the network's input before normalisation."""
    (pixels,) = batches_of(split, [np.array([split.ids.index(name)])], workers=0)
    return pixels


def _random_net(network: _Network, other: Net) -> tuple[nn.Module | None, tuple[str, ...]]:
    """The network without weights, by the seed after the run's, or a line on why it is not random.

    Args:
        other: the same by the run's seed, without the run's weights: what both have is not random.
    """
    built = network.built(network.recipe.train.seed + 1).module
    weights = dict(other.module.named_parameters())
    drawn = {name: own for name, own in built.named_parameters() if own.ndim > 1}
    kept = sum(own.numel() for name, own in drawn.items() if torch.equal(own, weights[name]))
    if 2 * kept > sum(own.numel() for own in drawn.values()):
        return None, (f"No check against random weights: {network.recipe.net.name} {_LIKE_TRAINED}",)
    return built, ()
