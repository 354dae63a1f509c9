"""Recipe -> data set, network, loss and device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from layerprobe import registry
from layerprobe.data.image_files import Files, read_with
from layerprobe.data.images import GREY_16, WHITE, level_note
from layerprobe.data.pixel_cache import FOLDER, held, is_small
from layerprobe.data.search_rules import read_searching, with_search_rules
from layerprobe.data.splits import Dataset, label_notes, overlaps, require_retrieval, shared_labels
from layerprobe.data.subsets import with_share, with_validation, with_validation_fold
from layerprobe.data.transforms import (
    Channels,
    Framing,
    Normalise,
    describe_decoding,
    describe_transform,
    frame_as_model,
    frame_dataset,
    invert_dataset,
    resize_dataset,
)
from layerprobe.nets.weight_files import split_part
from layerprobe.recipe.recipe import Recipe
from layerprobe.system.computing import local_rank, processes_here, usable_cores
from layerprobe.system.errors import EnvironmentFault, RecipeError
from layerprobe.system.naming import require_device_name
from layerprobe.values.network_input import ImageSize, OwnInput, height_width, size_text
from layerprobe.values.sections import SEARCH_KEYS, Data
from layerprobe.workflow.run.epoch_weights import last_weights
from layerprobe.workflow.run.images import Decoding, with_contents, with_decoded
from layerprobe.workflow.run.runs import find_run

if TYPE_CHECKING:
    import torch

    from layerprobe.losses.loss import Loss
    from layerprobe.nets.checkpoint_files import FileWeights
    from layerprobe.nets.net import Net
    from layerprobe.sources.source import Source

# Kind of image -> how it is read, by default.
_READ_AS = {
    "transparency": "images with transparent pixels, which are laid on white",
    "animated": "images with several frames or pages, of which the first is read",
    "EXIF rotation": "images that are not rotated as their EXIF data say (data.exif_rotation = true does)",
    "CMYK": "CMYK images, which are converted to RGB without a colour profile",
    GREY_16: "images of 16-bit grey, which is divided by 257",
}


def load_dataset(data: Data, cache: Path | None = None) -> Dataset:
    """The data set of [data] of a recipe, in original sizes; no image is read.

    Args:
        cache: in which the index of a large data set is kept; None: it is made anew.
    """
    spec = registry.load("data set", registry.DATASETS, data.name)
    common: dict[str, object] = {"root": Path(data.root or ""), "image_size": max(height_width(data.image_size))}
    if cache is not None:
        common["index_folder"] = cache / FOLDER / "shards"
    dataset: Dataset = spec.load(**spec.taken(common), **data.options())
    return dataset


def build_dataset(
    recipe: Recipe, decoding: Decoding | None = None, loaded: Dataset | None = None, *, decode: bool = True
) -> Dataset:
    """The data set as the network's input: resized, inverted, split and checked.

    Args:
        decoding: hash all images, and decode those of files unless the data set is small or `data.cache` is "off".
            None: neither.
        decode: False: only hash the images, as nobody is going to read their pixels.
    """
    data, dataset = recipe.data, loaded or load_dataset(recipe.data, decoding.cache if decoding else None)
    # A list that names a missing image is refused before any image is read.
    searching = read_searching(dataset, **{key: getattr(data, key) for key in SEARCH_KEYS})
    dataset = with_contents(dataset, decoding) if decoding else dataset
    dataset = read_with(dataset, exif_rotation=data.exif_rotation, fast=data.resize == "fast", white=data.white)
    files = {name: split.image for name, split in dataset.splits.items() if isinstance(split.image, Files)}
    framing = Framing(data.transform, max(height_width(data.image_size)), data.resize)  # D1 to D3 take a side
    describe = partial(describe_decoding, method=data.resize, exif_rotation=data.exif_rotation, white=data.white)
    if data.transform == "square":
        steps = size_text(height_width(data.image_size))
        dataset = resize_dataset(dataset, data.image_size, data.resize)
    elif data.transform == "model":
        model_input = scaled_input(recipe)
        dataset, steps = frame_as_model(dataset, model_input), model_input.steps()
        describe = partial(describe, filter=model_input.filter)
    else:
        dataset, steps = frame_dataset(dataset, framing), framing.kept
    kept_on_disk = decode and data.cache == "auto" and len(files) == len(dataset.splits)
    if decoding and kept_on_disk and not (decoding.in_process and is_small(dataset)):
        decoded = partial(with_decoded, decoding=decoding, files=files, source=f"{data.name}:{data.root}")
        if data.transform == "D1":
            dataset = _with_decoded_views(dataset, decoded, describe(steps), describe(framing.tested_as))
        else:
            dataset = decoded(dataset, steps=describe(steps))
    dataset = with_validation(dataset, data.validation_classes)
    dataset = with_validation_fold(dataset, data.validation_folds, data.validation_fold)
    dataset = with_share(dataset, data.share, seed=recipe.train.seed)
    dataset = replace(dataset, notes=(*dataset.notes, *overlaps(dataset), *shared_labels(dataset)))
    dataset = require_retrieval(with_search_rules(dataset, searching), source=data.root or data.name)
    dataset = invert_dataset(dataset) if data.invert else dataset
    return held(dataset) if decode else dataset


def _with_decoded_views(dataset: Dataset, decode: Callable[..., Dataset], train_steps: str, test_steps: str) -> Dataset:
    """The data set with its images for training and for testing decoded."""
    splits = dataset.splits
    to_train_on = {name: split for name, split in splits.items() if name == "train"}
    to_test_on = {name: replace(split, image=split.test_image or split.image) for name, split in splits.items()}
    splits = {**splits, **decode(replace(dataset, splits=to_train_on), steps=train_steps).splits}
    tested = decode(replace(dataset, splits=to_test_on), steps=test_steps).splits
    return replace(dataset, splits={name: replace(s, test_image=tested[name].image) for name, s in splits.items()})


def input_notes(recipe: Recipe, dataset: Dataset, net: Net) -> list[str]:
    """Notes on how files, images, labels and weights are read, and on images in two splits."""
    white, texts = recipe.data.white, dict(_READ_AS)
    if recipe.data.exif_rotation:
        del texts["EXIF rotation"]
    if white != WHITE:
        texts[GREY_16] = f"images of 16-bit grey, in which {white} is white"
    read_as = [f"{text}: {count:,}" for kind, text in texts.items() if (count := dataset.rules.get(kind))]
    level = [note] if (note := level_note(dataset.largest_grey, white)) else []
    grey = [] if net.channels == 3 else ["the network takes grey images: colours are converted to luma (ITU-R 601)"]
    return [*net.notes, *dataset.input_notes, *grey, *read_as, *level, *overlaps(dataset), *label_notes(dataset)]


def build_normalise(recipe: Recipe, channels: int = 3) -> Normalise:
    """The normalisation of pixels to the input of a network that takes 3 channels, or 1."""
    return Normalise.of(*_statistics(recipe), channels)


def _statistics(recipe: Recipe) -> tuple[Channels, Channels]:
    if recipe.data.transform == "model":
        model_input = scaled_input(recipe)
        return model_input.mean, model_input.std
    # (x / 255 - 0.5) * 2
    return (0.5, 0.5) if recipe.data.transform == "D3" else (recipe.data.mean, recipe.data.std)


def scaled_input(recipe: Recipe) -> OwnInput:
    """The input of an external model for data.transform = "model", at the recipe's size."""
    model_input = own_input(recipe)
    if model_input is None:
        raise RecipeError(
            f'[data]: transform = "model", but the input of {recipe.net.name} is not known',
            fix="Set data.transform = square (or D1, D2, D3), and data.image_size, data.mean and data.std if they are"
            " not those of ImageNet at 224 px",
        )
    return model_input.at(recipe.data.image_size)


def transform_text(recipe: Recipe, channels: int = 3) -> str:
    """Every step from a file to the input of a network that takes so many channels, as stored with the features."""
    data = recipe.data
    mean, std = _statistics(recipe)
    describe = partial(describe_transform, image_size=data.image_size, invert=data.invert, mean=mean, std=std)
    describe = partial(describe, method=data.resize, exif_rotation=data.exif_rotation, white=data.white)
    describe = partial(describe, channels=channels)
    if data.transform != "model":
        return describe(framing=data.transform)
    model_input = scaled_input(recipe)
    return describe(framing=model_input.steps(), filter=model_input.filter)


def source_of(name: str) -> tuple[Source, str] | None:
    """The source of an external model and its name there; None for layerprobe's own networks."""
    return registry.load_apart("network", registry.SOURCES, name) if registry.is_source(name) else None


def own_input(recipe: Recipe) -> OwnInput | None:
    """The input that an external model was trained on; None if unknown. No weights are loaded."""
    return recipe.own_input or _own_input_of(recipe.network)


@cache
def _own_input_of(network: str) -> OwnInput | None:
    source = source_of(network)
    return None if source is None else source[0].own_input(source[1])


def build_net(recipe: Recipe, *, cache: Path | None = None) -> Net:
    """Build the network.

    Args:
        cache: folder of the run in `weights = "run:NAME"`. None: load no weights, as a checkpoint follows.
    """
    net = recipe.net
    source_options: dict[str, ImageSize] = {}
    if (source := source_of(recipe.network)) is None:
        build = registry.load("network", registry.NETS, net.name)
    else:
        build, source_options = partial(source[0].build, source[1]), {"image_size": recipe.data.image_size}
    weights = None if cache is None else _pretrained(net.weights, net.name, cache)
    built: Net = build(
        fc=net.fc,
        pool=net.pool,
        weights=weights,
        from_scratch=net.from_scratch,
        seed=recipe.train.seed,
        **source_options,
        **net.options(),
    )
    if cache is not None:
        require_input(recipe, built)
    return built


def require_input(recipe: Recipe, net: Net) -> None:
    """Check that a network which converts its own input gets pixels in the expected scale."""
    if "transform_input" not in dict(net.module.named_children()):
        return
    name, weights = recipe.net.name, recipe.net.weights
    if recipe.data.transform == "D3":
        raise RecipeError(
            f'[data]: transform = "D3" scales pixels to -1 ... 1, but {name} converts its input itself',
            fix='Set data.transform = "D2"',
        )
    pretrained = weights != "none" and not weights.startswith("run:")
    if pretrained and build_normalise(recipe) != Normalise.of("imagenet", "imagenet"):
        raise RecipeError(
            f"[data]: {name} itself converts pixels normalised by ImageNet's mean and std",
            fix="Remove data.mean and data.std",
        )


def weights_file(weights: str) -> Path | None:
    """The file that `net.weights` names; None where it names none."""
    is_file = weights not in ("none", "model", "imagenet") and not weights.startswith("run:")
    return split_part(weights)[0] if is_file else None


def _pretrained(weights: str, net: str, cache: Path) -> FileWeights | Literal["model"] | None:
    """The tensors of a weights file; "model" for weights that the source loads."""
    from layerprobe.nets.assembly import imagenet_weights
    from layerprobe.nets.checkpoint_files import read_checkpoint

    if weights == "none":
        return None
    if weights == "model":
        return "model"
    if weights == "imagenet":
        return imagenet_weights(net)
    if weights.startswith("run:"):
        return read_checkpoint(*last_weights(find_run(cache, weights.removeprefix("run:"))))
    return read_checkpoint(*split_part(weights))


def build_loss(recipe: Recipe, *, embedding_dim: int, num_classes: int) -> Loss:
    """Build the loss, with parameters drawn from the recipe's seed alone."""
    import torch

    factory = registry.load("loss", registry.LOSSES, recipe.loss.name)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(recipe.train.seed)
        try:
            loss: Loss = factory(embedding_dim, num_classes, **recipe.loss.options())
        except ValueError as error:
            raise RecipeError(f"[loss]: {error}", fix="Change [loss], or train on more classes") from error
    return loss


def require_device(name: str) -> None:
    """Check the name of a device, and that torch sees the GPU that it names."""
    require_device_name(name)
    if name not in ("auto", "cpu"):
        choose_device(name)


def choose_device(name: str) -> torch.device:
    """The device of a name: `auto`, `cpu`, `cuda`, `cuda:i` or `mps`; under torchrun each process has its own GPU.

    `auto` is cuda where torch has it, else mps, else the CPU.
    """
    import torch

    has_mps = torch.backends.mps.is_available()
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "mps" if has_mps else "cpu"
    require_device_name(name)
    rank = local_rank()
    if processes_here() > 1 and name.startswith("cuda:"):
        raise RecipeError(f"--device {name}: each process of torchrun takes a GPU of its own", fix="Leave it out")
    if rank is not None and name == "cuda":
        name = f"cuda:{rank}"
    kind, _, index = name.partition(":")
    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise EnvironmentFault(
            f"no device {name}: torch {torch.__version__} (CUDA {torch.version.cuda or 'not built in'}) sees"
            f" {torch.cuda.device_count()} GPUs",
            fix="Use --device cpu, or see layerprobe doctor",
        )
    if kind == "mps" and not has_mps:
        raise EnvironmentFault(
            f"no device mps: torch {torch.__version__} sees no Apple GPU",
            fix="Use --device cpu, or see layerprobe doctor",
        )
    return torch.device(name)


def choose_workers(workers: int | None, device: torch.device) -> int:
    """Number of data workers, by default 0 on the CPU, and one per usable spare core (at most 8) with a GPU."""
    if workers is not None:
        return workers
    return 0 if device.type == "cpu" else min(8, max(1, usable_cores() - 1))
