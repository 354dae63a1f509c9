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
    """The data set, its split, and the preprocessing of images."""

    name: str
    root: str | None = None
    image_size: ImageSize = 224  # side, or [height, width]
    invert: bool = False
    mean: _Channels = "imagenet"
    std: _Channels = "imagenet"
    augment: Literal["none", "affine", "photo"] = "photo"
    transform: Literal["square", "D1", "D2", "D3", "model"] = "square"
    resize: Literal["exact", "fast"] = "exact"
    exif_rotation: bool = False
    white: Annotated[int, Field(ge=1, le=65535)] = 65535  # the value of 16-bit grey that is white
    validation_classes: Annotated[float, Field(ge=0, lt=1)] = 0.0
    validation_folds: Annotated[int, Field(ge=0)] = 0  # 0: none
    validation_fold: Annotated[int, Field(ge=0)] = 0  # the held-out one
    seen: bool = True  # whether weights from a file were trained on the training classes
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    cache: Literal["auto", "off"] = "auto"
    # The right and the excluded items of a query (RULE_KEYS): a column, and csv files; empty text is None.
    group: str | None = None
    positives: str | None = None
    ignore: str | None = None
    queries: Annotated[int, Field(ge=1)] | None = None  # the test images that are searched for; None: all

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
    """Backbone and head; `fc` lists the sizes of fc6, fc7 ...; no entry puts the loss on the pooled layer."""

    name: str
    fc: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = (512,)
    pool: Pool | None = None
    weights: str = "none"
    from_scratch: tuple[str, ...] = ()


class SourceNetwork(Network):
    """A network of `registry.SOURCES`: it has no head by default, and states the origin of its weights."""

    fc: tuple[Annotated[int, Field(ge=1, le=65536)], ...] = ()
    weights: str


class LossSection(Section):
    """The loss's name; its further keys are its own options."""

    name: str


class NetworkAsRecorded(Network):
    """[net] of a run, with whatever options it has."""

    model_config = ConfigDict(extra="allow")


class LossAsRecorded(LossSection):
    """[loss] of a run, with whatever options it has."""

    model_config = ConfigDict(extra="allow")


class Train(Section):
    """Batches, optimiser and schedule; the defaults are those of Vo & Hays 2019 (section 5)."""

    epochs: int = Field(ge=0, le=100_000)
    batch_size: int = Field(32, ge=2)
    sampler: Literal["classes", "balanced", "shuffled", "n_pairs", "episodes"] | None = None
    images_per_class: int | None = Field(None, ge=1)
    replacement: bool | None = None
    self_pairs: float = Field(0.0, ge=0, le=1)  # share of the pairs of n_pairs that are one image, augmented twice
    meta_classes: int | None = Field(None, ge=2)
    accumulate: int = Field(1, ge=1)
    chunk: int = Field(0, ge=0)  # images of a batch that are forwarded at once; 0: all of them
    precision: Literal["float32", "bfloat16"] = "float32"
    optimizer: Literal["sgd", "adam", "adamw", "rmsprop"] = "sgd"
    learning_rate: float = Field(0.01, gt=0)
    momentum: float | None = Field(None, ge=0, lt=1)
    epsilon: float | None = Field(None, gt=0)
    weight_decay: float = Field(5e-4, ge=0)
    clip_gradient: float | None = Field(None, ge=0)  # 0: no limit, where the loss has one
    new_layers_factor: float = Field(1.0, gt=0)
    decay: Literal["steps", "cosine"] = "steps"
    decay_at: tuple[_Fraction, ...] = ()
    decay_epochs: tuple[Annotated[int, Field(ge=1)], ...] = ()
    decay_iterations: tuple[Annotated[int, Field(ge=1)], ...] = ()
    decay_factor: float = Field(0.1, gt=0)
    heat_at: tuple[_Fraction, ...] = ()
    heat_epochs: tuple[Annotated[int, Field(ge=1)], ...] = ()
    heat_factor: float = Field(0.25, gt=0)
    heat_rate: float = Field(0.1, gt=0)
    warmup_iterations: int = Field(0, ge=0)
    warmup_epochs: int = Field(0, ge=0)
    warmup: Literal["zero_rate", "freeze", "new_layers", "linear"] = "zero_rate"
    seed: int = Field(0, ge=0, le=LARGEST_SEED)
    keep: Keep = "all"

    @field_validator("keep", mode="before")
    @classmethod
    def _one_problem(cls, value: Any) -> Any:
        # A union that fails yields a problem for each of its types.
        if value not in ("all", "last") and (type(value) is not int or value < 1):
            raise PydanticCustomError("keep", 'input should be "all", "last" or a whole number above 0')
        return value


class Ensemble(Section):
    """Members trained independently, each with its own seed; their embeddings are concatenated."""

    of: str
    members: int = Field(ge=2, le=1000)


class Probe(Section):
    """Defaults of `probe`; no part of a run's identity."""

    layers: tuple[str, ...] = Field(("*",), min_length=1)
    pool: tuple[str, ...] | None = Field(None, min_length=1)  # None: the default of each layer
    similarity: VectorSimilarity = "cosine"
    post: tuple[str, ...] = Field(("none",), min_length=1)
    k: tuple[Annotated[int, Field(ge=1)], ...] = Field((1, 2, 4, 8, 16, 32), min_length=1)
    metrics: tuple[str, ...] = ()


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
