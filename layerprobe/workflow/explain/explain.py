"""explain: the weights and images of a run -> why a query and its nearest neighbour by each layer are similar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from layerprobe.attribution.explaining import explain as explain_pair
from layerprobe.attribution.maps import ScoredLayer
from layerprobe.data.loading import batches_of
from layerprobe.data.splits import Split
from layerprobe.hooks import find_layers, measure_layers
from layerprobe.nets.net import Net
from layerprobe.plots.explanations import draw
from layerprobe.plots.figure import FORMATS, encode_figure
from layerprobe.plots.plot import PlotOptions
from layerprobe.post_processing.quantised import before_rounding
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.system.errors import DataError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.explanations import ExplainedNeighbour, ExplainedQuery
from layerprobe.values.layers import NO_POST_PROCESSING, RankedLayer
from layerprobe.values.records import RunRecord
from layerprobe.values.views import QueryNeighbours
from layerprobe.workflow.explain.explain_text import KIND
from layerprobe.workflow.explain.request import ExplainRequest as ExplainRequest
from layerprobe.workflow.plot.neighbours import RunGallery
from layerprobe.workflow.plot.panels import find_neighbours
from layerprobe.workflow.plot.query_rules import names_layers
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_net
from layerprobe.workflow.run.outputs import require_output, write_output
from layerprobe.workflow.run.references import embedding_among
from layerprobe.workflow.run.run_network import run_network
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.run.seen import weights_text
from layerprobe.workflow.run.stored_choice import stored_choice, taken_text

_BASELINE = (
    "Integrated gradients from an image of the normalisation's mean colour; Grad-CAM without its ReLU. Red pixels make"
    " the two more similar, blue ones less"
)
_ROUNDED = "{}: explained by the numbers before they are rounded, which have gradients"
_SPLIT = "test"  # of the query
_LIKE_TRAINED = "builds the network with weights of its own, so that none with random weights can be compared"


def explain(request: ExplainRequest, listener: Listener) -> tuple[ExplainedQuery, Path]:
    """Explain a query by each layer, draw it, and return the values with the figure's file."""
    run = request.run
    out = request.out or run.plot_file(KIND)
    require_output(out, *FORMATS)
    neighbours_by_layer, opened, record = _find_neighbours(request, listener)
    explained = _explain_layers(request, record, neighbours_by_layer, opened, listener)
    write_output(out, encode_figure(draw(explained), out.suffix.lower().removeprefix(".") or "png"))
    return explained, out


def _find_neighbours(
    request: ExplainRequest, listener: Listener
) -> tuple[Sequence[QueryNeighbours], RunGallery, RunRecord]:
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
        options = _apply_stored_choice(run, options, embedding, listener)
    neighbours_by_layer, opened = find_neighbours([run], scores, options, embeddings)
    for nearest in neighbours_by_layer:
        if nearest.ranked.similarity == "hamming":
            fix = "Explain the layer without binary: a bit has no gradient"
            raise RecipeError(f"{nearest.ranked} cannot be explained", fix=fix)
        if not nearest.found:
            raise DataError(f"{nearest.query.id} has no item to find", file=run.folder, fix="Choose another query")
    return neighbours_by_layer, opened[run.name], record


def _apply_stored_choice(
    run: Run, options: PlotOptions, embedding: RankedLayer | None, listener: Listener
) -> PlotOptions:
    """Set layers and epoch to those of the stored choice, with the embedding; unchanged where no choice is stored."""
    stored = stored_choice(run, listener.say)
    if stored is None:
        listener.say(
            f"{run.name}: no choice is stored: the last two layers are explained; next: {run.command('choose')}"
        )
        return options
    choice = stored.choice
    selected, epoch = choice.chosen.ranked, choice.chosen.epoch
    ranks = run.ranks(epoch, _SPLIT).stored.ranks if run.has_ranks(epoch, _SPLIT) else {}
    plain = [x for x in ranks if (x.layer, x.post_processing) == (selected.layer, NO_POST_PROCESSING)]
    can_be_shown = selected in ranks and selected.similarity != "hamming"
    explained = selected if can_be_shown or not plain else plain[0]
    without = "" if explained == selected else f", explained without its post-processing {selected.post_processing}"
    listener.say(taken_text(run, choice, f"the stored choice{without}"))
    # The embedding alone would leave nothing to compare it with.
    layers: tuple[str, ...] = ()
    if explained != embedding:
        layers = tuple(ranked.full_name for ranked in (explained, embedding) if ranked is not None and ranked in ranks)
    return replace(options, layers=layers or None, epoch=epoch)


def _explain_layers(
    request: ExplainRequest,
    record: RunRecord,
    neighbours_by_layer: Sequence[QueryNeighbours],
    opened: RunGallery,
    listener: Listener,
) -> ExplainedQuery:
    run, epoch, split = request.run, neighbours_by_layer[0].epoch, neighbours_by_layer[0].split
    recipe = recorded_recipe(record, run.record_file).at(request.model)
    device, net = opened.searches.device(), run_network(run, record, recipe)
    # Before the run's weights are loaded into it: only what differs by the seed is random.
    random, doubt = _random_net(run, record, recipe, net)
    load_net(run, epoch, net)
    measured = measure_layers(net, recipe.data.image_size)
    for module in (net.module, random):
        if module is not None:
            module.to(device)
    normalise = from_recipe.build_normalise(recipe, net.channels)
    query = _read_pixels(opened.queries, neighbours_by_layer[0].query.id)
    neighbours: list[ExplainedNeighbour] = []
    rounded: list[str] = []
    maps = len(neighbours_by_layer) * (2 if random is None else 4)  # of two images, and with random weights
    with listener.task("explaining", maps, "maps") as task:
        for nearest in neighbours_by_layer:
            image = _read_pixels(opened.items, nearest.found[0].item.id)
            query_input, item_input = (normalise(pixels.to(device)) for pixels in (query, image))
            post_process = opened.searches.post_processed.map_of(epoch, split, nearest.ranked)
            if (before := before_rounding(post_process)) is not None:
                post_process = before
                rounded.append(_ROUNDED.format(nearest.ranked))
            (layer,) = find_layers([str(nearest.ranked.layer)], measured)
            scored = ScoredLayer(layer, nearest.ranked, post_process)
            explanation = explain_pair(measured, scored, (query_input, item_input), random=random, advance=task.advance)
            neighbours.append(ExplainedNeighbour(nearest.found[0], image[0].numpy(), explanation))
    notes = dict.fromkeys(
        (_BASELINE, *doubt, *rounded, *(note for nearest in neighbours_by_layer for note in nearest.notes))
    )
    values = (neighbours_by_layer[0].query, query[0].numpy(), tuple(neighbours), tuple(notes))
    return ExplainedQuery(run.name, epoch, split, *values, weights=weights_text(record))


def _read_pixels(split: Split, name: str) -> Tensor:
    """(1, H, W, C) the image as the network's input before normalisation."""
    (pixels,) = batches_of(split, [np.array([split.ids.index(name)])], workers=0)
    return pixels


def _random_net(run: Run, record: RunRecord, recipe: Recipe, other: Net) -> tuple[nn.Module | None, tuple[str, ...]]:
    """The network with random weights of another seed than the run's; or None, and a line on why there is none.

    Args:
        other: the network of the run's seed, before its weights are loaded. Tensors equal in both are not random.
    """
    train = recipe.train.model_copy(update={"seed": recipe.train.seed + 1})
    built = run_network(run, record, replace(recipe, train=train)).module
    weights = dict(other.module.named_parameters())
    drawn = {name: tensor for name, tensor in built.named_parameters() if tensor.ndim > 1}
    equal_count = sum(tensor.numel() for name, tensor in drawn.items() if torch.equal(tensor, weights[name]))
    if 2 * equal_count > sum(tensor.numel() for tensor in drawn.values()):
        return None, (f"No check against random weights: {recipe.net.name} {_LIKE_TRAINED}",)
    return built, ()
