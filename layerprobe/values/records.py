"""RunRecord, the content of run.json."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.dataclasses import dataclass
from pydantic.fields import FieldInfo

from layerprobe.system.wording import encoded
from layerprobe.values.layers import LayerKey
from layerprobe.values.network_input import Filter, OwnInput

_MOST_EPOCHS = 1_000_000  # of a training whose epochs are counted, not listed as weights files
# Values are strict: the text "15" is not the number 15. Tuples are not, as JSON has arrays only.
_CONFIG = ConfigDict(extra="forbid", allow_inf_nan=False)
_Text = Annotated[str, Field(strict=True)]
_Flag = Annotated[bool, Field(strict=True)]
_Whole = Annotated[int, Field(strict=True, ge=0)]
_Number = Annotated[int, Field(strict=True)] | Annotated[float, Field(strict=True)]
_Share = Annotated[_Number, Field(ge=0, le=1)]
_Side = Annotated[int, Field(strict=True, ge=1, le=100_000)]  # of an image, in pixels
_Channels = tuple[Annotated[_Number, Field(ge=-1e6, le=1e6)], ...]


def _checked_recipe(recipe: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    epochs = recipe["train"].get("epochs") if "train" in recipe else 0
    if type(epochs) is not int or epochs < 0:
        raise ValueError("train.epochs is not a whole number")
    return recipe


def _checked_path(path: str) -> str:
    # Not by a pattern: pydantic's read no name that is not UTF-8.
    if "\0" in path:
        raise ValueError("a path has no NUL")
    return path


def _checked_channels(channels: int) -> int:
    if channels not in (1, 3):
        raise ValueError("images have 1 channel or 3")
    return channels


def _layer_key(value: Any) -> Any:
    match value:
        case [str(layer), str(pool)]:
            return LayerKey(layer, pool)
    return value


def _own_input(value: Any) -> Any:
    return OwnInput(**dict(_Input.model_validate(value))) if isinstance(value, dict) else value


class _Input(BaseModel):
    """An OwnInput in run.json, which states every key."""

    model_config = _CONFIG

    size: _Side | tuple[_Side, _Side]
    resized: _Side | tuple[_Side, _Side] | None
    filter: Filter
    mean: _Channels
    std: _Channels
    crop_rounding: Literal["down", "even"]
    squeezed: _Flag
    kept: Annotated[_Number, Field(ge=1e-3, le=1)] | None

    @model_validator(mode="after")
    def _of_all_channels(self) -> _Input:
        if not len(self.mean) == len(self.std) in (1, 3):
            raise ValueError("mean and std have a number for each channel")
        return self


@dataclass(frozen=True, config=_CONFIG)
class WeightsFile:
    """A file of a foreign training with the weights of one epoch, hashed in place.

    Args:
        part: path of the dict inside it, separated by dots; empty for the whole file; None for the only one that fits
            the network.
        size: in bytes; compared before the file is read.
        epoch: by the file's name, or its place among the files.
    """

    path: _Text
    part: _Text | None
    sha256: _Text
    size: _Whole
    epoch: _Whole

    @property
    def weights_sha256(self) -> str:
        """Hash of the weights: two parts of one file are two networks."""
        if self.part is None:
            return self.sha256
        return hashlib.sha256(f"{self.sha256}#{self.part}".encode()).hexdigest()


@dataclass(frozen=True, config=_CONFIG | {"extra": "ignore"})
class RecordedNetwork:
    """The facts on a run's network, so that no reader has to build it.

    Args:
        layers: in execution order.
        cuts: layer -> shares of the parameters and of the multiply-adds after it; None for those that cannot be
            counted.
        channels: of its images; written only where it is not 3.
        multiply_adds: of an image; None where they cannot be counted, and of runs of former versions.
        files: path from the folder of the user's own file -> SHA-256; the file itself under the empty path.
    """

    layers: tuple[_Text, ...]
    embedding: Annotated[LayerKey, BeforeValidator(_layer_key)]
    cuts: Mapping[str, tuple[_Share, _Share | None]]
    input: Annotated[OwnInput, BeforeValidator(_own_input)] | None
    files: Mapping[Annotated[_Text, AfterValidator(_checked_path)], _Text]
    channels: Annotated[int, Field(strict=True), AfterValidator(_checked_channels)] = 3
    multiply_adds: _Whole | None = None

    @property
    def before(self) -> str | None:
        """The layer before the embedding."""
        index = self.layers.index(self.embedding.layer) if self.embedding.layer in self.layers else len(self.layers)
        return self.layers[index - 1] if index else None

    def as_json(self) -> dict[str, Any]:
        """The network in run.json."""
        values = {name: getattr(self, name) for name in ("layers", "embedding", "cuts", "input", "files")}
        values["embedding"] = self.embedding.layer, self.embedding.pool
        values |= {} if self.channels == 3 else {"channels": self.channels}
        return values if self.multiply_adds is None else values | {"multiply_adds": self.multiply_adds}


@dataclass(frozen=True, config=_CONFIG)
class RunRecord:
    """run.json. Fields with a default are written only if they differ from it, `notes` always.

    Args:
        recipe: sections of the recipe -> keys -> values.
        experiment: hash of the recipe without its seed.
        epochs_done: the last epoch; 0 = before any step.
        hashes: name of a checkpoint -> SHA-256; of a watched run `network` -> that of its modules and shapes.
        manifests: split -> hash of names, classes and sizes of its images.
        contents: split -> hash of names, classes and contents of its images.
        transform: the steps from an image to the network's input.
        network: None for a model measured from Python.
        layer_order: every layer ever measured, in execution order.
        checkpoints_removed: epochs. Their hashes remain, so that their features stay valid.
        weights_files: one for each epoch of a run that wrote no checkpoints, by epoch.
        untrained: whether epoch 0 is the network before training.
        request: hash of the call of `probe --model` that last gave this recipe, and of the recipe.
        processes: (epoch, number) of those that trained from this epoch on, where it was not one from the first on.
        touched: when run.json was written, in ISO 8601.
        others: fields that a later version wrote.
    """

    state: _Text = Field(description="text")
    recipe_name: _Text = Field(description="text")
    recipe: Annotated[Mapping[str, Mapping[str, Any]], AfterValidator(_checked_recipe)] = Field(
        description="the sections of a recipe, train.epochs a whole number"
    )
    experiment: _Text = Field(description="text")
    seed: _Whole = Field(description="a whole number")
    epochs_done: _Whole = Field(description="a whole number")
    hashes: Mapping[str, _Text] = Field(description="the hash of each file")
    manifests: Mapping[str, _Text] = Field(description="the hash of each split")
    new_parameters: tuple[_Text, ...] = Field(description="a list of names")
    contents: Mapping[str, _Text] = Field(default_factory=dict, description="the hash of each split")
    command: _Text = Field(default="", description="text")
    versions: Mapping[str, _Text] = Field(default_factory=dict, description="a version of each package")
    device: _Text = Field(default="", description="text")
    threads: _Whole | None = Field(default=None, description="a whole number")
    transform: _Text = Field(default="", description="text")
    notes: tuple[_Text, ...] = Field(default=(), description="a list of sentences")
    network: RecordedNetwork | None = Field(default=None, description="the network's layers, cuts, input and files")
    layer_order: tuple[_Text, ...] = Field(default=(), description="a list of layers")
    members: tuple[_Text, ...] = Field(default=(), description="a list of runs")
    checkpoints_removed: tuple[_Whole, ...] = Field(default=(), description="a list of epochs")
    weights_files: tuple[WeightsFile, ...] = Field(
        default=(), description="the path, part, sha256, size and epoch of files"
    )
    untrained: _Flag = Field(default=True, description="true or false")
    from_python: _Flag = Field(default=False, description="true or false")
    request: _Text = Field(default="", description="text")
    processes: tuple[tuple[_Whole, _Whole], ...] = Field(default=(), description="pairs of an epoch and a number")
    touched: _Text = Field(default="", description="a time")
    others: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def data(self) -> Mapping[str, Any]:
        """[data] of the recipe; empty for a run from Python."""
        return self.recipe.get("data", {})

    @property
    def net(self) -> Mapping[str, Any]:
        """[net] of the recipe."""
        return self.recipe.get("net", {})

    @property
    def epochs(self) -> Sequence[int]:
        """The epochs that the run has weights of, ascending, whether or not they were removed."""
        return [file.epoch for file in self.weights_files] or range(self.epochs_done + 1)

    def weights_file(self, epoch: int) -> WeightsFile:
        """The file of an epoch that the run has, where it wrote no checkpoints."""
        return next(file for file in self.weights_files if file.epoch == epoch)

    def processes_note(self, epoch: int) -> str:
        """How many processes trained which epochs up to this one; empty where all of them as many."""
        numbers = {first: number for first, number in ((1, 1), *self.processes) if first <= epoch}
        if len(numbers) < 2:
            return ""
        lasts = [first - 1 for first in [*numbers, epoch + 1][1:]]
        spans = [f"{first}-{last} by {n}" for (first, n), last in zip(numbers.items(), lasts, strict=True)]
        return f"epochs {', '.join(spans)} processes"

    @property
    def similarity(self) -> str:
        """The default similarity."""
        return str(self.recipe.get("probe", {}).get("similarity", "cosine"))

    def as_json(self) -> dict[str, Any]:
        """As run.json has it."""
        values = {
            name: getattr(self, name)
            for name, field in _FIELDS.items()
            if name == "notes" or getattr(self, name) != field.get_default(call_default_factory=True)
        }
        encoded_fields: dict[str, Any] = encoded(values | values.pop("others", {}))
        return encoded_fields

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> RunRecord:
        """The record in run.json.

        Raises:
            ValueError: a field is missing or of another type, with its name and the expected type.
        """
        names = _FIELDS.keys() - {"others"}
        other_fields = {name: value[name] for name in value if name not in {*names, "schema"}}
        try:
            record = cls(**{name: value[name] for name in value if name in names}, others=other_fields)
        except ValidationError as error:
            name = str(error.errors()[0]["loc"][0])
            fault = f"is {_shortened(value[name])}" if name in value else "is missing"
            raise ValueError(f"{name} {fault}, expected {_FIELDS[name].description}") from error
        epochs, epochs_done = [file.epoch for file in record.weights_files], record.epochs_done
        if epochs and (epochs != sorted(set(epochs)) or epochs[-1] != epochs_done):
            text = ", ".join(map(str, epochs))
            raise ValueError(f"weights_files has the epochs {text}, expected ascending ones up to {epochs_done}")
        if not epochs and epochs_done > _MOST_EPOCHS:
            raise ValueError(f"epochs_done is {epochs_done}, expected at most {_MOST_EPOCHS:,}")
        return record


_FIELDS: Mapping[str, FieldInfo] = RunRecord.__pydantic_fields__  # type: ignore[attr-defined] # pydantic adds it


def _shortened(value: Any) -> str:
    text = ascii(value)
    return text if len(text) < 60 else f"{text[:57]}..."
