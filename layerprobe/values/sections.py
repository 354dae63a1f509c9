"""The sections of a recipe: their keys, types, ranges and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError

from layerprobe.values.layers import Pool, VectorSimilarity
from layerprobe.values.network_input import ImageSize

LARGEST_SEED = 2**64 - 1  # of torch
_Fraction = Annotated[float, Field(gt=0, lt=1)]
# Checkpoints to keep: of all epochs, of the last one, or of the epochs 0, N, 2N ... and the last.
Keep = Literal["all", "last"] | Annotated[int, Field(ge=1)]
# Keys of [data] that decide which items are right for a query, and which are taken out.
RULE_KEYS = ("group", "positives", "ignore")
# Keys of [data] that change ranks, but neither images nor weights.
SEARCH_KEYS = (*RULE_KEYS, "queries")
# What decides the trained weights, without the keys that say where images come from, what is kept on the disk, how
# queries are searched, and what weights from a file were trained on.
DECIDING = ("data", "net", "loss", "train", "ensemble")
NOT_DECIDING = frozenset(
    {("train", "keep")} | {("data", key) for key in ("root", "download", "cache", "seen", *SEARCH_KEYS)}
)
_Channels = float | tuple[float, float, float] | Literal["imagenet"]
_SIDES = range(1, 4097)  # pixels


@dataclass(frozen=True)
class Problem:
    """An error in a recipe.

    Args:
        keys: the keys that cause it, `section.key` in another section; empty: possibly any key of the section.
    """

    section: str
    text: str
    keys: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"[{self.section}]: {self.text}"


class Section(BaseModel):
    """Keys that every part shares. The reader of recipes adds the part's own options, read from its signature."""

    # Strict: the text "15" is not the number 15. Sections are read as JSON, where a tuple is an array.
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    def without_defaults(self) -> dict[str, Any]:
        """The keys that differ from their default, as JSON values."""
        fields, values = type(self).model_fields, self.model_dump(mode="json")
        return {name: value for name, value in values.items() if getattr(self, name) != fields[name].default}

    def options(self) -> dict[str, Any]:
        """The named part's own keys: the keyword arguments of its factory."""
        common = SECTIONS[self.section_name()].model_fields
        names = [*type(self).model_fields, *(self.model_extra or {})]
        return {name: getattr(self, name) for name in names if name not in common}

    @classmethod
    def section_name(cls) -> str:
        """The section's name in a recipe: `loss` for LossSection and the models derived from it."""
        return next(name for name, section in SECTIONS.items() if issubclass(cls, section))


class Data(Section):
    """The data set, its split, and the preprocessing of images; further keys are the data set's own options."""

    name: str = Field(description="The data set: one of those that `layerprobe data list` shows.")
    root: str | None = Field(default=None, description="Folder or file of the data set; `--data NAME:ROOT` sets it.")
    image_size: ImageSize = Field(
        default=224, description="Size of the network's input in pixels: the side of a square, or [height, width]."
    )
    invert: bool = Field(default=False, description="Invert the pixels, so that black becomes white.")
    mean: _Channels = Field(
        default="imagenet",
        description='Mean of the pixels, which is subtracted, in the scale 0 to 1: one number, three, or "imagenet".',
    )
    std: _Channels = Field(
        default="imagenet",
        description="Standard deviation of the pixels, which divides, in the scale 0 to 1: as for `mean`.",
    )
    augment: Literal["none", "affine", "photo"] = Field(
        default="photo",
        description='Augmentation in training: "photo" scales by 1 to 1.1, crops and mirrors; "affine" rotates by up to'
        " 10 degrees, scales and shifts, and does not mirror.",
    )
    transform: Literal["square", "D1", "D2", "D3", "model"] = Field(
        default="square",
        description='How an image becomes the input: "square" squeezes it; D1, D2 and D3 crop as the papers do; "model"'
        " is the model's own preprocessing.",
    )
    resize: Literal["exact", "fast"] = Field(
        default="exact",
        description='How images are resized: "exact" by PIL; "fast" by torch, which differs by rounding.',
    )
    exif_rotation: bool = Field(default=False, description="Turn photographs as their EXIF orientation says.")
    white: int = Field(
        default=65535,
        ge=1,
        le=65535,
        description="The value of 16-bit grey images that is white; larger values become white.",
    )
    validation_classes: float = Field(
        default=0.0,
        ge=0,
        lt=1,
        description="Share of the training classes that is held out for validation; 0 holds out none.",
    )
    validation_folds: int = Field(
        default=0,
        ge=0,
        description="Number of parts of the training classes, one of which is held out; 0 holds out none.",
    )
    validation_fold: int = Field(
        default=0, ge=0, description="Which part of `validation_folds` is held out, counted from 0."
    )
    seen: bool = Field(
        default=True,
        description="Whether the weights that are loaded were trained on the training classes; false: they were not.",
    )
    share: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="Share of the images of each training class; at least two images of a class are kept.",
    )
    cache: Literal["auto", "off"] = Field(
        default="auto", description='Whether decoded images are kept on the disk; "off" decodes them in every epoch.'
    )
    # The right and the excluded items of a query (RULE_KEYS): a column, and csv files; empty text is None.
    group: str | None = Field(
        default=None,
        description="Column: items of the query's class with the query's value of it are taken out of the results.",
    )
    positives: str | None = Field(
        default=None,
        description="A csv file of query,item with the right items of each query; the default is those of its class.",
    )
    ignore: str | None = Field(
        default=None, description="A csv file of query,item with the items that are taken out of a query's results."
    )
    queries: int | None = Field(
        default=None,
        ge=1,
        description="Number of test images that are searched for, drawn by class; the default is all.",
    )

    @field_validator("image_size", mode="before")
    @classmethod
    def _size(cls, value: Any) -> Any:
        sides = value if isinstance(value, list | tuple) and len(value) == 2 else [value]
        for side in sides:
            if type(side) is not int:
                refusal = "input should be a whole number, or two, [height, width]"
                raise PydanticCustomError("image_size", refusal)
            if side not in _SIDES:
                limit = "greater than or equal to 1" if side < _SIDES.start else "less than or equal to 4096"
                raise PydanticCustomError("image_size", f"input should be {limit}")
        return sides[0] if len({*sides}) == 1 else tuple(sides)

    @field_validator("mean", "std", mode="before")
    @classmethod
    def _of_all_channels(cls, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            return value
        return value[0] if len(value) == 1 else tuple(value)  # strict, and no longer JSON


class Network(Section):
    """Backbone and head; further keys are the network's own options."""

    name: str = Field(description='The network, such as "resnet50", or a model from elsewhere, such as "timm:NAME".')
    fc: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(
        default=(512,),
        description="Outputs of the fully connected layers fc6, fc7 ...; [] puts the loss on the pooled layer.",
    )
    pool: Pool | None = Field(
        default=None, description='Pooling before the head: "max", "avg" or "gem"; the default is the network\'s.'
    )
    weights: str = Field(
        default="none",
        description='Weights at the start: "none", "imagenet", a file, or "run:NAME" for those of a run.',
    )
    from_scratch: tuple[str, ...] = Field(
        default=(), description="Layers that start from random weights although `weights` has theirs."
    )


class SourceNetwork(Network):
    """A network of `registry.SOURCES`: it has no head by default, and states the origin of its weights."""

    fc: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = Field(
        default=(), description="Outputs of the fully connected layers fc6, fc7 ...; [] adds no head to the model."
    )
    weights: str = Field(
        description='Weights at the start: "model" for the model\'s own, "none", a file, or "run:NAME".'
    )


class LossSection(Section):
    """The loss's name; its further keys are its own options."""

    name: str = Field(description='The loss, such as "smooth_triplet"; the other keys of [loss] are its options.')


class NetworkAsRecorded(Network):
    """[net] of a run, with whatever options it has."""

    model_config = ConfigDict(extra="allow")


class LossAsRecorded(LossSection):
    """[loss] of a run, with whatever options it has."""

    model_config = ConfigDict(extra="allow")


class Train(Section):
    """Batches, optimiser and schedule; the defaults are those of Vo & Hays 2019 (section 5)."""

    epochs: int = Field(ge=0, le=100_000, description="Number of epochs; 0 trains nothing.")
    batch_size: int = Field(
        default=32, ge=2, description="Images in a batch; fewer where `images_per_class` does not divide it."
    )
    sampler: Literal["classes", "balanced", "shuffled", "n_pairs", "episodes"] | None = Field(
        default=None,
        description='How a batch is drawn: some images of each of some classes, or any images ("shuffled"); the default'
        " is that of the loss.",
    )
    images_per_class: int | None = Field(
        default=None,
        ge=1,
        description='Images of a class in a batch, except of "shuffled"; the default is the loss\'s.',
    )
    replacement: bool | None = Field(
        default=None,
        description='Whether the images of a class are drawn with replacement; by default "balanced" alone does.',
    )
    self_pairs: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description='Share of the pairs of sampler "n_pairs" that are one image, augmented twice.',
    )
    meta_classes: int | None = Field(
        default=None,
        ge=2,
        description="Number of groups into which the classes are merged at random; the default merges none.",
    )
    accumulate: int = Field(
        default=1,
        ge=1,
        description="Batches whose mean gradient makes one step of the optimiser; each has a loss of its own.",
    )
    chunk: int = Field(
        default=0,
        ge=0,
        description="Images of a batch that the network takes at once, to fit a large batch into memory; 0 takes all.",
    )
    precision: Literal["float32", "bfloat16"] = Field(
        default="float32",
        description="Number format of the network's products; weights, loss and gradients are float32.",
    )
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop"] = Field(
        default="sgd", description="The optimiser, as torch implements it."
    )
    learning_rate: float = Field(
        default=0.01, gt=0, description="Learning rate after the warm-up and before any decay."
    )
    momentum: float | None = Field(
        default=None, ge=0, lt=1, description="Momentum of sgd and rmsprop; the default is 0.9 of sgd and 0 of rmsprop."
    )
    epsilon: float | None = Field(
        default=None,
        gt=0,
        description="Epsilon in the denominator of adam, adamw and rmsprop; the default is torch's, 1e-8.",
    )
    weight_decay: float = Field(
        default=5e-4,
        ge=0,
        description="L2 penalty that is added to the gradient; adamw applies it apart from the gradient.",
    )
    clip_gradient: float | None = Field(
        default=None,
        ge=0,
        description="Largest norm of the gradient; the default is the loss's with sgd, and else none; 0 is none.",
    )
    new_layers_factor: float = Field(
        default=1.0,
        gt=0,
        description="Learning rate of layers that start from random weights, as a multiple of `learning_rate`.",
    )
    decay: Literal["steps", "cosine"] = Field(
        default="steps",
        description="How the learning rate falls: at the times of one of `decay_at`, `decay_epochs` and"
        " `decay_iterations`, or along half a cosine to 0 at the end.",
    )
    decay_at: tuple[_Fraction, ...] = Field(
        default=(),
        description="Times at which `decay_factor` multiplies the learning rate, as fractions of the run; [] is never.",
    )
    decay_epochs: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), description="In place of `decay_at`: the same as numbers of completed epochs."
    )
    decay_iterations: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), description="In place of `decay_at`: the same as numbers of steps of the optimiser."
    )
    decay_factor: float = Field(
        default=0.1,
        gt=0,
        description="Factor of the learning rate at each time of `decay_at`, `decay_epochs` or `decay_iterations`.",
    )
    heat_at: tuple[_Fraction, ...] = Field(
        default=(), description="Times at which the loss is heated, as fractions of the run between 0 and 1."
    )
    heat_epochs: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(), description="Times at which the loss is heated, as numbers of completed epochs."
    )
    heat_factor: float = Field(default=0.25, gt=0, description="Factor of the loss's scale at each heating.")
    heat_rate: float = Field(default=0.1, gt=0, description="Factor of the learning rate at each heating.")
    warmup_iterations: int = Field(
        default=0, ge=0, description="Length of the warm-up in steps of the optimiser; 0 is none."
    )
    warmup_epochs: int = Field(default=0, ge=0, description="Length of the warm-up in epochs; 0 is none.")
    warmup: Literal["zero_rate", "freeze", "new_layers", "linear"] = Field(
        default="zero_rate",
        description='What the warm-up does: "linear" raises all learning rates; the others train new layers alone, and'
        " differ in BatchNorm statistics and momentum.",
    )
    seed: int = Field(
        default=0,
        ge=0,
        le=LARGEST_SEED,
        description="Seed of all that is random: initial weights, batches, augmentation, dropout.",
    )
    keep: Keep = Field(
        default="all",
        description='Checkpoints that are kept: "all", "last", or N for the epochs 0, N, 2N ... and the last.',
    )

    @field_validator("keep", mode="before")
    @classmethod
    def _one_problem(cls, value: Any) -> Any:
        # A union that fails yields a problem for each of its types.
        if value not in ("all", "last") and (type(value) is not int or value < 1):
            raise PydanticCustomError("keep", 'input should be "all", "last" or a whole number above 0')
        return value


class Ensemble(Section):
    """Members trained independently, each with its own seed; their embeddings are concatenated."""

    of: str = Field(
        description="The recipe, by name or as a .toml file, whose sections a member has except those given here."
    )
    members: int = Field(ge=2, le=1000, description="Number of networks whose embeddings are concatenated.")


class Probe(Section):
    """Defaults of `probe`; no part of a run's identity."""

    layers: tuple[str, ...] = Field(
        default=("*",), min_length=1, description='Layers that are measured: names or patterns, such as "pool5.*".'
    )
    pool: tuple[str, ...] | None = Field(
        default=None,
        min_length=1,
        description='Pooling of feature maps, such as "max"; the default is that of each layer.',
    )
    similarity: VectorSimilarity = Field(
        default="cosine", description='Similarity that ranks the gallery: "cosine", "euclidean" or "dot".'
    )
    post: tuple[str, ...] = Field(
        default=("none",),
        min_length=1,
        description='Post-processing of features that is measured; "none" is the feature itself.',
    )
    k: tuple[Annotated[int, Field(ge=1)], ...] = Field(
        default=(1, 2, 4, 8, 16, 32), min_length=1, description="The K of Recall@K, whole numbers above 0."
    )
    metrics: tuple[str, ...] = Field(
        default=(), description='Metrics besides Recall@K, such as "MAP@R"; [metrics.NAME] has the options of one.'
    )


SECTIONS: dict[str, type[Section]] = {
    "data": Data,
    "net": Network,
    "loss": LossSection,
    "train": Train,
    "probe": Probe,
    "ensemble": Ensemble,
}
# Of a run's record, as `recorded_recipe` reads it without importing the network and the loss.
AS_RECORDED: dict[str, type[Section]] = {"net": NetworkAsRecorded, "loss": LossAsRecorded}
