"""A layer of a run, named or chosen, and how the run reads images -> its export."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.data.loading import batches_of
from layerprobe.data.transforms import Framing, in_grey
from layerprobe.encoder.agreement import CheckSamples
from layerprobe.encoder.fitted_map import with_ends
from layerprobe.encoder.graph import Parts
from layerprobe.hooks import find_layers
from layerprobe.measure.index_costs import Searched
from layerprobe.nets.net import Net
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import FittedStep
from layerprobe.recipe.recipe import Recipe, recorded_recipe
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError
from layerprobe.system.progress import Listener
from layerprobe.values.choice import Choice, advice_text
from layerprobe.values.layers import RankedLayer, members_of
from layerprobe.values.network_input import OwnInput, height_width
from layerprobe.values.records import RunRecord
from layerprobe.workflow.export.request import ExportRequest
from layerprobe.workflow.export.writing import (
    CHECKED,
    Exported,
    Written,
    fitted_on_text,
    make_samples,
    sample_rows,
    write,
)
from layerprobe.workflow.probe.chains import FITTED_ON
from layerprobe.workflow.probe.classifiers import classifier_of
from layerprobe.workflow.probe.post_processed_features import are_stored, stored_features
from layerprobe.workflow.probe.probed_run import ProbedRun, open_for_probing
from layerprobe.workflow.probe.request import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import load_net
from layerprobe.workflow.run.experiments import require_same_images
from layerprobe.workflow.run.images import Decoding
from layerprobe.workflow.run.opened_run import open_layer
from layerprobe.workflow.run.references import find_layers as find_ranked_layers
from layerprobe.workflow.run.references import layer_flags, open_ranked_split, parse_reference, probe_fix
from layerprobe.workflow.run.runs import Run, require_kept
from layerprobe.workflow.run.seen import split_to_choose_on
from layerprobe.workflow.run.stored_choice import stored_choice, taken_text

_CPU = torch.device("cpu")
_SPLITS = ("test", "validation", "train")  # on whose images an export is checked, the first that is ranked


def image_shape(recipe: Recipe, net: Net) -> tuple[int, int, int]:
    """(H, W, C) of the images that a run's network takes."""
    return *height_width(recipe.data.image_size), net.channels


def image_input(recipe: Recipe, net: Net) -> Mapping[str, Any]:
    """`input` of export.json: the type of images, and each step from a file to them.

    Normalisation and inversion are inside the exported network.
    """
    height, width, channels = image_shape(recipe, net)
    scaled = from_recipe.scaled_input(recipe) if recipe.data.transform == "model" else None
    normalise = from_recipe.build_normalise(recipe, channels)
    return {
        "dtype": "uint8",
        "layout": "BHWC",
        "size": (height, width),
        "channels": channels,
        "exif_rotation": recipe.data.exif_rotation,
        "white": recipe.data.white,
        "steps": _steps(recipe, scaled, (height, width)),
        "filter": "bilinear" if scaled is None else scaled.filter,
        "resized_by": "torch" if scaled is None and recipe.data.resize == "fast" else "PIL",
        "invert": recipe.data.invert,
        "mean": normalise.mean,
        "std": normalise.std,
    }


def _steps(recipe: Recipe, scaled: OwnInput | None, size: tuple[int, int]) -> list[Mapping[str, Any]]:
    """Resizing to (height, width) or by the shorter side, and the crop at the centre."""
    transform = recipe.data.transform
    if scaled is not None:
        if scaled.resized is None:
            return [{"resize": size}]
        crop = {"crop": size, "start": "down" if scaled.crop_rounding == "down" else "to even"}
        if scaled.squeezed:
            return [{"resize": height_width(scaled.resized)}, crop]
        if not isinstance(scaled.resized, int):
            return [{"cover": scaled.resized}, crop]
        return [{"shorter_side": scaled.resized, "longer_side": "truncated"}, crop]
    if transform == "square":
        return [{"resize": size}]
    crop = {"crop": size, "start": "down"}
    if transform == "D1":
        return [{"shorter_side": size[0], "longer_side": "rounded"}, crop]
    side = Framing(transform, size[0]).side
    return [{"resize": (side, side)}, crop]


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
    draws = parse_chain(reference.post_processing).members()
    if len(draws) > 1:
        message = f"{reference.post_processing} is a mean over {len(draws)} random draws, each of which is another map"
        raise LayerprobeError(message, fix=f"Name one of them, such as {draws[0]}")
    split = next((split for split in _SPLITS if run.ranked_epochs(split)), _SPLITS[0])
    epoch = reference.epoch if request.epoch is None else request.epoch
    epochs = run.ranked_epochs(split)
    ranks = open_ranked_split(run, epochs[-1] if epoch is None and epochs else epoch, split)
    layers = find_ranked_layers(ranks, reference)
    if len(layers) > 1:
        raise RecipeError(f"--layer {name} names {len(layers)} layers", fix=f"Name one, such as {layers[0]}")
    return LayerOfRun(run, ranks.epoch, split, layers[0])


def layer_of_choice(choice: Choice, runs: Sequence[Run]) -> LayerOfRun:
    """What a choice selects; of several trainings of an experiment, that of the first."""
    run = next(run for run in runs if choice.run in (run.name, run.read().experiment))
    epoch, ranked = choice.chosen.epoch, choice.chosen.ranked
    layers = run.ranks(epoch, "test").stored.ranks if run.has_ranks(epoch, "test") else {}
    return LayerOfRun(run, epoch, "test" if ranked in layers else choice.chosen.split, ranked)


def layer_to_export(run: Run, request: ExportRequest, listener: Listener) -> LayerOfRun:
    """The layer that a request names, or the one that `choose` selects: the stored choice where that holds."""
    require_exportable(run.read(), run, request)
    if request.layer is not None:
        return resolve_layer(run, request.layer, request)
    choice = _find_choice(run, request, listener)
    listener.say(f"{run.name}: {advice_text(choice)}")
    return layer_of_choice(choice, [run])


def _find_choice(run: Run, exporting: ExportRequest, listener: Listener) -> Choice:
    """The stored choice, at that epoch if one is named; else that of `choose`, which stores it without an epoch."""
    stored, epoch = stored_choice(run), exporting.epoch
    if stored is not None and epoch in (None, stored.choice.selected.epoch):
        listener.say(taken_text(run, stored.choice, "the stored choice"))
        return stored.choice
    # Imported here, as a stored choice needs none of it.
    from layerprobe.workflow.choose.choose import choose_runs
    from layerprobe.workflow.choose.choose_once import choose_once, whitened_of
    from layerprobe.workflow.choose.request import ChooseRequest

    if epoch is None:
        choice = choose_once([run], ChooseRequest(memory=exporting.memory), listener)
        listener.say(taken_text(run, choice, f"as {run.command('choose')} says"))
        return choice
    if stored is None:
        stored_choice(run, listener.say)
    request = ChooseRequest(str(epoch), memory=exporting.memory)
    choice = choose_runs([run], request, listener, whitened_of([run], request, listener))
    command = run.command("choose", "--epochs", str(epoch))
    listener.say(taken_text(run, choice, f"as {command} says; it is not stored"))
    return choice


def require_exportable(record: RunRecord, run: Run, request: ExportRequest) -> None:
    """Check that a run has a network that can be built again, unless only the map is asked for."""
    if not request.with_network:
        return
    command = run.command("export", "--format", "npz", "--out", str(request.out))
    fix = f"{command} exports the map of its features alone"
    if record.from_python:
        reason = "was measured from Python, and its network is not stored"
        raise LayerprobeError(f"{run.name} {reason}", fix=fix)
    if record.members:
        raise LayerprobeError(f"{run.name} is an ensemble: its features are of several networks", fix=fix)


def export_run(layer: LayerOfRun, request: ExportRequest, listener: Listener) -> Written:
    """Export a layer of a run.

    Raises:
        DataError: features that it is fitted on or checked with are not stored.
        LayerprobeError: the folder exists, or the network or map cannot be exported.
        NumericError: the files do not give the probe's features.
    """
    run, record, epoch, ranked = layer.run, layer.run.read(), layer.epoch, layer.ranked
    require_exportable(record, run, request)
    _require_stored(layer, record)
    with contextlib.ExitStack() as stack:  # features on disk stay open
        searched = _read_searched(layer, request, listener, stack)
        opened = None
        if request.with_network:
            require_kept(run, record, epoch)
            opened = open_for_probing(run, ProbeRequest(model=request.model, device="cpu"))
            load_net(run, epoch, opened.net)
        finish, fitted_on = _fit_map(layer, record, opened)
        parts = None if opened is None else _network_parts(opened, ranked, finish)
        name = str(ranked) if ranked.similarity in (record.similarity, "hamming") else ranked.full_name
        exported = Exported(
            f"{run.name}#{epoch}:{name}",
            str(record.net.get("name", "python")),
            ranked,
            fitted_on,
            finish,
            _read_samples(layer, opened, parts, finish),
            run=run.name,
            epoch=epoch,
            parts=parts,
            how=None if opened is None else image_input(opened.recipe, opened.net),
            searched=searched,
        )
        return write(exported, request, listener)


def _read_searched(
    layer: LayerOfRun, request: ExportRequest, listener: Listener, stack: contextlib.ExitStack
) -> Searched | None:
    """The features of the requested index; None where none is."""
    if request.index is None:
        return None
    from layerprobe.workflow.choose.indexed_layer import read_searched

    run, epoch, trained_on = layer.run, layer.epoch, "test"
    with contextlib.suppress(RecipeError):
        trained_on = split_to_choose_on(run, run.read(), [epoch])
    searched, notes = read_searched(run, epoch, layer.ranked, trained_on, _CPU, memory=request.memory, stack=stack)
    for note in notes:
        listener.say(note)
    return searched


def _require_stored(layer: LayerOfRun, record: RunRecord) -> None:
    """Check that the features that a layer was ranked by, and its map fitted on, are stored and unchanged."""
    run, ranked = layer.run, layer.ranked
    if not are_stored(run, layer.epoch, layer.split, layer.gallery, ranked):
        epoch_name = f"{run.name}, epoch {layer.epoch}"
        message = f"{epoch_name}: the features that {ranked} was ranked by are not stored, or have changed"
        flags = layer_flags(record, [ranked])
        raise DataError(message, file=run.folder, fix=probe_fix(run, record, layer.epoch, layer.split, *flags))


def _fit_map(layer: LayerOfRun, record: RunRecord, opened: ProbedRun | None) -> tuple[FittedStep, str]:
    """The map of pooled features to the export's, fitted as for the stored ranks; and what it is fitted on."""
    run, epoch, ranked = layer.run, layer.epoch, layer.ranked
    chain = parse_chain(ranked.post_processing)
    # Chosen by fits within folds of the images that are chosen on: all of them fit what is exported.
    split = FITTED_ON if FITTED_ON in record.manifests else split_to_choose_on(run, record, [epoch])
    split = split if chain.fits_on_train else layer.gallery
    trained = None
    if chain.needs_classifier:
        recipe = recorded_recipe(record, run.record_file) if opened is None else opened.recipe
        trained = classifier_of(run, recipe, run.feature_head(epoch, FITTED_ON).labels, lambda: _CPU)
    features = stored_features(run, lambda _: layer.gallery, _CPU, trained, fitted_on=split)
    post_process = features.map_of(epoch, layer.split, ranked)
    dims = run.feature_head(epoch, layer.split).dims
    sizes = [dims[member] for member in members_of(ranked.layer, dims)]
    fitted_on = fitted_on_text(chain, split, run.feature_head(epoch, split).labels)
    return with_ends(post_process, sizes=sizes, similarity=ranked.similarity), fitted_on


def _network_parts(opened: ProbedRun, ranked: RankedLayer, finish: FittedStep) -> Parts:
    (hooked,) = find_layers([str(ranked.layer)], opened.measured)
    if hooked.key != ranked.layer:
        raise ValueError(f"{ranked.layer} is now {hooked.key}")
    recipe, net = opened.recipe, opened.net
    normalise = from_recipe.build_normalise(recipe, net.channels)
    shape = image_shape(recipe, net)
    return Parts(net.module.requires_grad_(False), hooked, normalise, recipe.data.invert, shape, finish)


def _read_samples(layer: LayerOfRun, opened: ProbedRun | None, parts: Parts | None, finish: FittedStep) -> CheckSamples:
    """Images of the split with their stored features, or random images with those that the network gives."""
    try:
        with open_layer(layer.run, layer.epoch, layer.split, layer.ranked.layer) as table:
            rows = sample_rows(table.shape[0])
            pooled = np.concatenate([table[row : row + 1] for row in rows.tolist()])
        facts = layer.run.feature_head(layer.epoch, layer.split).facts
        for fact, how in (("dtype", "stored as"), ("precision", "computed in")):
            if facts.get(fact) and parts is not None:
                raise DataError(f"the probe's features are {how} {facts[fact]}")
        images = None if opened is None else _read_images(layer, opened, rows)
        name = f"{len(rows)} {layer.split} images against the probe's features"
    except DataError as error:
        if parts is None:
            raise
        generator = torch.Generator().manual_seed(0)
        pixels = torch.randint(0, 256, (CHECKED, *parts.shape), generator=generator, dtype=torch.uint8)
        images, pooled = pixels.numpy(), parts.pooled(pixels).numpy()
        name = f"{CHECKED} random images against the network itself, as {error.message.rstrip('.')}"
    return make_samples(name, pooled, images, layer.ranked.similarity, finish)


def _read_images(layer: LayerOfRun, opened: ProbedRun, rows: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Some images of the split, resized and not inverted; DataError if the images have changed."""
    dataset = from_recipe.build_dataset(opened.recipe, Decoding(opened.run.folder.parent))
    require_same_images(opened.record, dataset, [layer.split], fix="")
    (pixels,) = batches_of(dataset.splits[layer.split], [rows], workers=0)
    # The data set inverts images when they are read, and the exported network does it itself.
    pixels = ~pixels if opened.recipe.data.invert else pixels
    images: NDArray[np.uint8] = (in_grey(pixels) if opened.net.channels == 1 else pixels).numpy()
    return images
