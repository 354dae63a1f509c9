"""Sections of a recipe -> validated sections, or their problems.

Two gates, whose problems are reported together: first keys, types and registered names; then the keys that belong to a
data set, network or loss, which its own parameters define.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import ValidationError, create_model

from layerprobe.post_processing.chain import parse_chain
from layerprobe.registry import DATASETS, LOSSES, METRICS, NETWORKS, is_source, load, load_apart
from layerprobe.system.errors import LayerprobeError, near_miss
from layerprobe.values.sections import (
    AS_RECORDED,
    LARGEST_SEED,
    SECTIONS,
    Data,
    Ensemble,
    LossSection,
    Network,
    Probe,
    Problem,
    Section,
    SourceNetwork,
    Train,
)

if TYPE_CHECKING:
    from layerprobe.losses.loss import Loss

# Parameters of a data set, network or loss that no recipe states.
_NOT_OPTIONS = {"self", "root", "embedding_dim", "num_classes", "seed", "weights", "image_size", "index_folder"}
# What a loss's constructor raises: its own ValueError, and torch's errors about a number that fits into no tensor.
_REFUSALS = (ValueError, TypeError, RuntimeError, OverflowError)
_TABLES = {"data": ("data set", DATASETS), "net": ("network", NETWORKS), "loss": ("loss", LOSSES)}


def validate_section(
    section: str, values: Mapping[str, Any], problems: list[Problem], *, recorded: bool = False
) -> Section | None:
    """A section with the options of the part that it names; None, and problems, where it cannot be read.

    Args:
        recorded: options of a network or a loss are taken as they are, and it is not imported.
    """
    model = SECTIONS[section]
    for key, value in values.items():
        if isinstance(value, str) and value.encode(errors="replace").decode() != value:
            text = f"{key} = {value!a} is not UTF-8. Rename it, or give a link to it with another name"
            problems.append(Problem(section, text, (key,)))
            return None
    if recorded and section in AS_RECORDED:
        model = AS_RECORDED[section]
    elif section in _TABLES and isinstance(values.get("name"), str):
        try:
            factory, argument = load_apart(*_TABLES[section], values["name"])
        except LayerprobeError as error:
            problems.append(Problem(section, str(error).rstrip("."), ("name",)))
            values = {key: value for key, value in values.items() if key in model.model_fields}
        else:
            if section == "data":
                values, factory = {**factory.defaults, **values}, factory.load
            if section == "net" and is_source(values["name"]):
                model, factory = SourceNetwork, partial(factory.build, argument)
                values = _with_weights(values, problems)
            model = _with_options(values["name"], model, *_callee(factory))
    try:
        return model.model_validate_json(json.dumps(values, default=str))
    except ValidationError as error:
        problems += [problem_of(section, item, model) for item in error.errors()]
        return None


def _with_weights(values: Mapping[str, Any], problems: list[Problem]) -> Mapping[str, Any]:
    """[net] of a model from elsewhere; a problem where its weights are not stated, or are another network's."""
    weights = values.get("weights")
    if weights not in (None, "imagenet"):
        return values
    fault = "weights is missing" if weights is None else 'weights = "imagenet" is for the networks of layerprobe'
    text = f'{fault}. Set it to "model" for those of {values["name"]} itself, to "none", a file or "run:NAME"'
    problems.append(Problem("net", text, ("name", "weights")))
    return {**values, "weights": "none"}


def metric_options(values: Any, problems: list[Problem]) -> dict[str, dict[str, Any]]:
    """The options of each [metrics.NAME], checked against the metric's parameters."""
    if not isinstance(values, Mapping):
        text = "not a section. Write [metrics.NAME] and its keys below it"
        problems.append(Problem("metrics", text, ("metrics",)))
        return {}
    options_by_metric: dict[str, dict[str, Any]] = {}
    for name, options in values.items():
        section = f"metrics.{name}"
        if name not in METRICS:
            problems.append(Problem(section, f"unknown metric {name!r}. {near_miss(name, METRICS)}"))
        elif not isinstance(options, Mapping):
            problems.append(
                Problem("metrics", f"{name} is not a section. Write [{section}] and its keys below it", (name,))
            )
        else:
            factory = load("metric", METRICS, name)
            model = _with_options(name, Section, *_callee(factory))
            try:
                options_by_metric[name] = model.model_validate_json(json.dumps(options, default=str)).model_dump(
                    mode="json"
                )
                factory(**options_by_metric[name])  # refuses an option out of its range
            except ValidationError as error:
                problems += [problem_of(section, item, model) for item in error.errors()]
            except ValueError as error:
                problems.append(Problem(section, f"{error}. Change it, or leave it out"))
    return options_by_metric


def _callee(factory: Callable[..., object]) -> tuple[Callable[..., object], int]:
    """What a factory calls, and how many of its first parameters are given."""
    return (factory.func, len(factory.args)) if isinstance(factory, partial) else (factory, 0)


@cache  # a study reads hundreds of recipes, and to make a model takes longer than all else in reading one
def _with_options(name: str, base: type[Section], function: Callable[..., object], given: int) -> type[Section]:
    """A section with the parameters of a part's factory as further keys.

    Args:
        given: how many of the function's first parameters are no keys.
    """
    hints = get_type_hints(function.__init__ if inspect.isclass(function) else function)
    parameters = list(inspect.signature(function).parameters.items())[given:]
    fields: dict[str, Any] = {
        name: (hints[name], parameter.default)
        for name, parameter in parameters
        if name not in base.model_fields and (name not in _NOT_OPTIONS or (base is Data and name == "seed"))
    }
    return create_model(name, __base__=base, **fields)


def problem_of(section: str, error: Any, model: type[Section]) -> Problem:
    """What pydantic found, in words."""
    key_name, *indices = error["loc"] or (section,)
    key = f"{key_name}{''.join(f'[{index}]' for index in indices if isinstance(index, int))}"
    if error["type"] == "extra_forbidden":
        return Problem(section, f"unknown key {key!r}. {near_miss(key, model.model_fields)}", (str(key_name),))
    if error["type"] == "missing":
        return Problem(section, f"{key} is missing", (str(key_name),))
    value_text = json.dumps(error["input"])
    text = error["msg"][0].lower() + error["msg"][1:]
    if error["type"] == "tuple_type":
        text = f"a list is expected. Write {key} = [{value_text}]"
    return Problem(section, f"{key} = {value_text}: {text}", (str(key_name),))


def check_loss(section: LossSection, problems: list[Problem]) -> Loss | None:
    """The loss without values; None, and a problem, where it refuses an option."""
    factory: type[Loss] = load(*_TABLES["loss"], section.name)
    try:
        return factory.without_values(section.options())
    except _REFUSALS as error:
        # The options that are refused on their own; none where only several together are.
        refused = []
        for name, value in section.options().items():
            try:
                factory.without_values({name: value})
            except _REFUSALS:
                refused.append(name)
        text = str(error)
        if not isinstance(error, ValueError):  # torch's words say less, in fifty lines
            settings = [f"{name} = {section.options()[name]}" for name in refused]
            text = f"{', '.join(settings) or 'all options together'}: too large"
        problems.append(Problem("loss", f"{text}. Change it, or leave it out", tuple(refused)))
        return None


def with_defaults_of(loss: LossSection, train: Train) -> Train:
    """[train] with the defaults that depend on the loss and the optimiser."""
    factory = load(*_TABLES["loss"], loss.name)
    sampler = train.sampler or factory.sampler
    update: dict[str, Any] = {"sampler": sampler}
    if sampler == "shuffled":
        update |= {"images_per_class": None, "replacement": None}
    else:
        default = 2 if sampler == "n_pairs" else factory.images_per_class
        update["images_per_class"] = train.images_per_class or default
        update["replacement"] = sampler == "balanced" if train.replacement is None else train.replacement
    if train.momentum is None:
        update["momentum"] = {"sgd": 0.9, "rmsprop": 0.0}.get(train.optimizer)
    # A record of a run that was trained without a limit states None.
    if "clip_gradient" not in train.model_fields_set and train.optimizer == "sgd":
        update["clip_gradient"] = factory.clip_gradient
    elif train.clip_gradient == 0:
        update["clip_gradient"] = None
    return train.model_copy(update=update)


def data_problems(data: Data) -> list[Problem]:
    """Keys of [data] that contradict each other."""
    problems = []

    def refuse(text: str, *keys: str) -> None:
        problems.append(Problem("data", text, keys))

    framed = data.transform not in ("square", "model")
    if framed and data.augment == "affine":
        text = f'transform = "{data.transform}" frames training images by itself. Set augment = "photo" or "none"'
        refuse(text, "transform", "augment")
    if framed and not isinstance(data.image_size, int):
        text = f'transform = "{data.transform}" crops a square. Give one image_size, or set transform = "square"'
        refuse(text, "image_size", "transform")
    if data.transform == "D3" and (data.mean, data.std) not in (("imagenet", "imagenet"), (0.5, 0.5)):
        refuse('transform = "D3" scales pixels to -1 ... 1. Leave mean and std out', "transform", "mean", "std")
    if load(*_TABLES["data"], data.name).takes_root and not data.root:
        refuse(f"{data.name} needs a root. Give --data {data.name}:PATH", "name", "root")
    folds, fold = data.validation_folds, data.validation_fold
    if folds == 1:
        text = "validation_folds = 1 leaves nothing to train on. Set it to 2 or more, or leave it out"
        refuse(text, "validation_folds")
    elif folds and data.validation_classes:
        text = "validation_folds and validation_classes both hold classes out. Leave one of them out"
        refuse(text, "validation_folds", "validation_classes")
    elif fold >= max(folds, 1):
        right = f"0 to {folds - 1}" if folds else "0, or set validation_folds"
        refuse(f"validation_fold = {fold}: must be {right}", "validation_fold", "validation_folds")
    return problems


def training_problems(data: Data, train: Train) -> list[Problem]:
    """Keys of [data] that a training contradicts."""
    problems = []
    if not data.seen and train.epochs:
        why = f"a network that is trained for {train.epochs} epochs sees the training classes"
        problems.append(Problem("data", f"seen = false: {why}. Leave it out", ("seen",)))
    # A loss would take images that share one of several labels for negatives.
    if train.epochs and data.options().get("label_separator"):
        why = "losses take each image as of one class"
        text = f"label_separator: {why}. Set train.epochs = 0, or give a frozen model"
        problems.append(Problem("data", text, ("label_separator", "train.epochs")))
    return problems


def own_input_problems(data: Data, net: Network) -> list[Problem]:
    """Keys that contradict `transform = "model"`."""
    if data.transform != "model":
        return []
    problems = []
    if not is_source(net.name):
        text = f'transform = "model": {net.name} has no input of its own. Set it to "square", D1, D2 or D3'
        problems.append(Problem("data", text, ("transform", "net.name")))
    if data.resize == "fast":
        text = 'transform = "model" resizes as the model\'s library does. Leave resize = "fast" out'
        problems.append(Problem("data", text, ("transform", "resize")))
    usual = load(*_TABLES["data"], data.name).defaults
    normalisation_keys = tuple(key for key in ("mean", "std") if getattr(data, key) not in ("imagenet", usual.get(key)))
    if normalisation_keys:
        text = f'transform = "model" has a mean and std of its own. Leave {" and ".join(normalisation_keys)} out'
        problems.append(Problem("data", text, ("transform", *normalisation_keys)))
    return problems


def with_own_size(data: Data, network: str, section: Mapping[str, Any]) -> Data:
    """[data] with the size of the model's own input where it takes that, no size is given and one is known.

    Args:
        data: with every default filled in.
    """
    if data.transform != "model" or "image_size" in section or not is_source(network):
        return data
    source, name = load_apart("network", NETWORKS, network)
    own_input = source.own_input(name)
    return data if own_input is None else data.model_copy(update={"image_size": own_input.size})


def probe_problems(probe: Probe) -> list[Problem]:
    """Names in [probe] that mean nothing."""
    problems = [
        Problem("probe", f"unknown metric {name!r}. {near_miss(name, METRICS)}", ("metrics",))
        for name in probe.metrics
        if name not in METRICS and not re.fullmatch(r"R@[1-9][0-9]*", name)
    ]
    for name in probe.post:
        try:
            parse_chain(name)
        except LayerprobeError as error:
            problems.append(Problem("probe", str(error).rstrip("."), ("post",)))
    return problems


def schedule_problems(train: Train) -> list[Problem]:
    """Keys of [train] that say one thing twice, or that the optimiser does not take."""
    problems = []
    for subject, names in (
        ("when the learning rate falls", ("decay_at", "decay_epochs", "decay_iterations")),
        ("when the loss is heated", ("heat_at", "heat_epochs")),
        ("how long the warm-up is", ("warmup_iterations", "warmup_epochs")),
    ):
        keys = tuple(name for name in names if getattr(train, name))
        if len(keys) > 1:
            problems.append(Problem("train", f"{' and '.join(keys)} both say {subject}. Keep one", keys))
        if names[0] == "decay_at" and keys and train.decay == "cosine":
            text = f'{keys[0]} is for decay = "steps". Leave it out, or decay = "cosine"'
            problems.append(Problem("train", text, (*keys, "decay")))
    if train.momentum is not None and train.optimizer in ("adam", "adamw"):
        problems.append(Problem("train", f"{train.optimizer} has no momentum. Leave it out", ("momentum", "optimizer")))
    if train.epsilon is not None and train.optimizer == "sgd":
        problems.append(Problem("train", "sgd has no epsilon. Leave it out", ("epsilon", "optimizer")))
    return problems


def batch_problems(data: Data, train: Train, loss: LossSection) -> list[Problem]:
    """What the sampler cannot draw. A loss that needs positives asks for more, and says so itself."""
    k, problems = train.images_per_class, []
    if train.self_pairs and train.sampler != "n_pairs":
        text = f'self_pairs = {train.self_pairs} is for pairs, not for {train.sampler}. Set sampler = "n_pairs"'
        problems.append(Problem("train", text, ("self_pairs", "sampler")))
    elif train.self_pairs and data.augment == "none" and data.transform in ("square", "model"):
        text = f"self_pairs = {train.self_pairs}: without augmentation a pair is one image twice. Set data.augment"
        problems.append(Problem("train", text, ("self_pairs", "data.augment")))
    needs_positives = load(*_TABLES["loss"], loss.name).needs_positives
    if k is None:
        return problems
    if train.sampler == "n_pairs" and k != 2:
        text = f"images_per_class = {k}: n_pairs takes 2 of a class. Leave it out"
        problems.append(Problem("train", text, ("images_per_class", "sampler")))
    elif k < 2 and train.sampler != "balanced" and not needs_positives:
        text = f"images_per_class = {k}: {train.sampler} needs each class twice. Set 2 or more"
        problems.append(Problem("train", text, ("images_per_class", "sampler")))
    if train.batch_size < k and not needs_positives:
        text = f"batch_size = {train.batch_size} holds no class of images_per_class = {k}. Raise it"
        problems.append(Problem("train", text, ("batch_size", "images_per_class")))
    return problems


def ensemble_problems(train: Train, ensemble: Ensemble | None) -> list[Problem]:
    """A seed from which the last member of an ensemble would get a seed that is too large."""
    if ensemble is None or (train.seed + 1) * ensemble.members - 1 <= LARGEST_SEED:
        return []
    text = f"seed = {train.seed} is too large for {ensemble.members} members. Set it below 2^64 / {ensemble.members}"
    return [Problem("train", text, ("seed", "ensemble.members"))]
