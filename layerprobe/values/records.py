"""RunRecord: the content of run.json."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, get_args

from layerprobe.system.encoding import encoded
from layerprobe.values.keys import LayerKey
from layerprobe.values.own_input import Filter, OwnInput

_LARGEST_SIDE = 100_000  # of an image, in pixels
_MOST_EPOCHS = 1_000_000  # of a training whose epochs are counted, not listed as weights files


@dataclass(frozen=True)
class WeightsFile:
    """A file of a foreign training with the weights of one epoch, hashed in place.

    Args:
        part: path of the dict inside it, separated by dots; empty for the whole file; None for the only one that fits
            the network.
        size: in bytes; compared before the file is read.
        epoch: by the file's name, or its place among the files.
    """

    path: str
    part: str | None
    sha256: str
    size: int
    epoch: int

    @property
    def weights_sha256(self) -> str:
        """Hash of the weights: two parts of one file are two networks."""
        if self.part is None:
            return self.sha256
        return hashlib.sha256(f"{self.sha256}#{self.part}".encode()).hexdigest()


@dataclass(frozen=True)
class RecordedNetwork:
    """The facts on a run's network, so that no reader has to build it.

    Args:
        layers: in execution order.
        cuts: layer -> shares of the parameters and of the multiply-adds after it; None for those that cannot be
            counted.
        channels: of its images; written only where it is not 3.
        files: path from the folder of the user's own file -> SHA-256; the file itself under the empty path.
    """

    layers: tuple[str, ...]
    embedding: LayerKey
    cuts: Mapping[str, tuple[float, float | None]] = field(default_factory=dict)
    input: OwnInput | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    channels: int = 3

    @property
    def before(self) -> str | None:
        """The layer before the embedding."""
        index = self.layers.index(self.embedding.layer) if self.embedding.layer in self.layers else len(self.layers)
        return self.layers[index - 1] if index else None

    def as_json(self) -> dict[str, Any]:
        """The network in run.json."""
        embedding = self.embedding.layer, self.embedding.pool
        found = {
            "layers": self.layers,
            "embedding": embedding,
            "cuts": self.cuts,
            "input": self.input,
            "files": self.files,
        }
        return found if self.channels == 3 else found | {"channels": self.channels}

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> RecordedNetwork:
        """The network that `as_json` gave."""
        own = value["input"]
        cuts = {layer: (shares[0], shares[1]) for layer, shares in value["cuts"].items()}
        recorded = own and OwnInput(**own | {key: tuple(x) for key, x in own.items() if isinstance(x, list)})
        layers, embedding = tuple(value["layers"]), LayerKey(*value["embedding"])
        return cls(layers, embedding, cuts, recorded, value["files"], value.get("channels", 3))


@dataclass(frozen=True)
class RunRecord:
    """run.json. Fields with a default are written only if they differ from it, `notes` always.

    Args:
        recipe: sections of the recipe -> keys -> values.
        experiment: hash of the recipe without its seed.
        epochs_done: the last epoch; 0 = before any step.
        hashes: name of a checkpoint -> SHA-256.
        manifests: split -> hash of names, classes and sizes of its images.
        contents: split -> hash of names, classes and contents of its images.
        transform: the steps from an image to the network's input.
        network: None for a model measured from Python.
        layer_order: every layer ever measured, in execution order.
        checkpoints_removed: epochs. Their hashes remain, so that their features stay valid.
        weights_files: one for each epoch of a run that wrote no checkpoints, by epoch.
        untrained: whether epoch 0 is the network before training.
        request: hash of the call of `probe --model` that last gave this recipe, and of the recipe.
        touched: when run.json was written, in ISO 8601.
        others: fields that a later version wrote.
    """

    state: str
    recipe_name: str
    recipe: Mapping[str, Mapping[str, Any]]
    experiment: str
    seed: int
    epochs_done: int
    hashes: Mapping[str, str]
    manifests: Mapping[str, str]
    new_parameters: tuple[str, ...]
    contents: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = ""
    threads: int | None = None
    transform: str = ""
    notes: tuple[str, ...] = ()
    network: RecordedNetwork | None = None
    layer_order: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    checkpoints_removed: tuple[int, ...] = ()
    weights_files: tuple[WeightsFile, ...] = ()
    untrained: bool = True
    from_python: bool = False
    request: str = ""
    touched: str = ""
    others: Mapping[str, Any] = field(default_factory=dict)

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

    @property
    def similarity(self) -> str:
        """The default similarity."""
        return str(self.recipe.get("probe", {}).get("similarity", "cosine"))

    def as_json(self) -> dict[str, Any]:
        """As run.json has it."""
        found: dict[str, Any] = {}
        for each in fields(self):
            value = getattr(self, each.name)
            default = each.default_factory() if each.default_factory is not MISSING else each.default
            if each.name != "others" and (value != default or each.name == "notes"):
                found[each.name] = value
        encoded_fields: dict[str, Any] = encoded(found | dict(self.others))
        return encoded_fields

    @classmethod
    def of_json(cls, value: Mapping[str, Any]) -> RunRecord:
        """The record in run.json.

        Raises:
            ValueError: a field is missing or of another type, with its name and the expected type.
        """
        if fault := _fault(value):
            raise ValueError(fault)
        names = [each.name for each in fields(cls) if each.name != "others"]
        known: dict[str, Any] = {name: value[name] for name in names if name in value}
        known = {name: tuple(each) if isinstance(each, list) else each for name, each in known.items()}
        if "network" in known:
            known["network"] = RecordedNetwork.of_json(known["network"])
        known["weights_files"] = tuple(WeightsFile(**file) for file in value.get("weights_files", ()))
        return cls(**known, others={name: value[name] for name in value if name not in (*names, "schema")})


_Check = Callable[[Any], bool]


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_whole(value: Any) -> bool:
    return type(value) is int and value >= 0


def _is_truth(value: Any) -> bool:
    return isinstance(value, bool)


def _list_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _section_of(check: _Check) -> _Check:
    return lambda value: isinstance(value, dict) and all(map(check, value.values()))


def _is_recipe(value: Any) -> bool:
    sections = _section_of(lambda section: isinstance(section, dict))(value)
    return sections and ("train" not in value or _is_whole(value["train"].get("epochs")))


def _is_weights_file(value: Any) -> bool:
    if not isinstance(value, dict) or value.keys() != {each.name for each in fields(WeightsFile)}:
        return False
    is_part = value["part"] is None or _is_text(value["part"])
    wholes = _is_whole(value["size"]) and _is_whole(value["epoch"])
    return _is_text(value["path"]) and _is_text(value["sha256"]) and is_part and wholes


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and 0 <= value <= 1


def _is_cut(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) == 2
        and _is_share(value[0])
        and (value[1] is None or _is_share(value[1]))
    )


def _sides(size: Any) -> list[Any]:
    return size if isinstance(size, list) else [size, size]


def _is_size(size: Any) -> bool:
    sides = _sides(size)
    return len(sides) == 2 and all(type(side) is int and 1 <= side <= _LARGEST_SIDE for side in sides)


def _is_input(value: Any) -> bool:
    if value is None:
        return True
    if not isinstance(value, dict) or value.keys() != {each.name for each in fields(OwnInput)}:
        return False
    sizes = [value["size"], value["size"] if value["resized"] is None else value["resized"]]
    channels = [value["mean"], value["std"]]
    return (
        all(map(_is_size, sizes))
        and all(own <= resized for own, resized in zip(*map(_sides, sizes), strict=True))
        and value["filter"] in get_args(Filter)
        and value["crop_rounding"] in ("down", "even")
        and isinstance(value["squeezed"], bool)
        and all(isinstance(numbers, list) and len(numbers) in (1, 3) for numbers in channels)
        and len(channels[0]) == len(channels[1])
        and all(isinstance(number, int | float) and abs(number) <= 1e6 for numbers in channels for number in numbers)
        and (value["kept"] is None or (isinstance(value["kept"], int | float) and 1e-3 <= value["kept"] <= 1))
    )


def _is_network(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and _list_of(_is_text)(value.get("layers"))
        and _list_of(_is_text)(value.get("embedding"))
        and len(value["embedding"]) == 2
        and _section_of(_is_cut)(value.get("cuts"))
        and _is_input(value.get("input"))
        and value.get("channels", 3) in (1, 3)
        and _section_of(_is_text)(value.get("files"))
        and not any("\0" in path for path in value["files"])
    )


_CHECKS: Mapping[str, tuple[_Check, str]] = {
    "state": (_is_text, "text"),
    "recipe_name": (_is_text, "text"),
    "recipe": (_is_recipe, "the sections of a recipe, train.epochs a whole number"),
    "experiment": (_is_text, "text"),
    "seed": (_is_whole, "a whole number"),
    "epochs_done": (_is_whole, "a whole number"),
    "hashes": (_section_of(_is_text), "the hash of each file"),
    "manifests": (_section_of(_is_text), "the hash of each split"),
    "new_parameters": (_list_of(_is_text), "a list of names"),
    "contents": (_section_of(_is_text), "the hash of each split"),
    "command": (_is_text, "text"),
    "versions": (_section_of(_is_text), "a version of each package"),
    "device": (_is_text, "text"),
    "threads": (_is_whole, "a whole number"),
    "transform": (_is_text, "text"),
    "notes": (_list_of(_is_text), "a list of sentences"),
    "network": (_is_network, "the network's layers, cuts, input and files"),
    "layer_order": (_list_of(_is_text), "a list of layers"),
    "members": (_list_of(_is_text), "a list of runs"),
    "checkpoints_removed": (_list_of(_is_whole), "a list of epochs"),
    "weights_files": (_list_of(_is_weights_file), "the path, part, sha256, size and epoch of files"),
    "untrained": (_is_truth, "true or false"),
    "from_python": (_is_truth, "true or false"),
    "request": (_is_text, "text"),
    "touched": (_is_text, "a time"),
}
_REQUIRED = [each.name for each in fields(RunRecord) if each.default is each.default_factory is MISSING]


def _fault(value: Mapping[str, Any]) -> str:
    """The first field that is missing or has another type; empty if all are valid."""
    for name, (is_right, expected) in _CHECKS.items():
        if name not in value and name in _REQUIRED:
            return f"{name} is missing, expected {expected}"
        if name in value and not is_right(value[name]):
            return f"{name} is {_shown(value[name])}, expected {expected}"
    epochs, last = [file["epoch"] for file in value.get("weights_files", ())], value["epochs_done"]
    if epochs and (epochs != sorted(set(epochs)) or epochs[-1] != last):
        return f"weights_files has the epochs {', '.join(map(str, epochs))}, expected ascending ones up to {last}"
    if not epochs and last > _MOST_EPOCHS:
        return f"epochs_done is {last}, expected at most {_MOST_EPOCHS:,}"
    return ""


def _shown(value: Any) -> str:
    text = ascii(value)
    return text if len(text) < 60 else f"{text[:57]}..."
