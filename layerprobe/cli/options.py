"""The options that several commands have, beside those of their requests.

`cli.requests` reads the annotations, which are therefore evaluated here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from layerprobe.cli.output import Terminal
from layerprobe.system.errors import RecipeError, UnknownNameError
from layerprobe.system.options import Flag
from layerprobe.system.wording import DEFAULT_CACHE as DEFAULT_CACHE
from layerprobe.tables.formats import FORMATS, TERMINAL

if TYPE_CHECKING:
    from layerprobe.workflow.train.frozen_request import FrozenRequest

Cache = Annotated[
    Path,
    typer.Option(
        "--cache", metavar="DIR", envvar="LAYERPROBE_CACHE", help="Folder that holds all runs.", show_default="./cache"
    ),
]
DryRun = Annotated[bool, Flag("Estimate time, memory and disk space; do nothing.")]
Format = Annotated[
    str | None,
    Flag("Format of tables: table, markdown, latex or csv.", name="--format", metavar="FORMAT", default="table"),
]
Log = Annotated[
    tuple[str, ...],
    Flag("Also log to tensorboard, wandb, mlflow or trackio; repeatable.", name="--log", metavar="TRACKER[:WHERE]"),
]
RunName = Annotated[str | None, typer.Argument(metavar="RUN", help="Run name (default: the most recent).")]
RunNames = Annotated[list[str] | None, typer.Argument(metavar="RUN", help="Run names (default: the most recent).")]
RunOrFeatures = Annotated[
    str | None,
    typer.Argument(
        metavar="[RUN | FEATURES]",
        help="Run (default: the most recent), or a file of features: .npz, .npy, .pt or .h5.",
    ),
]
Unseen = Annotated[
    bool,
    Flag("The weights were not trained on the training classes (data.seen = false).", name="--not-trained-on-these"),
]
Labels = Annotated[Path | None, Flag("Labels of FEATURES: a .npy (N,), or text with one label a line.", metavar="FILE")]


@dataclass(frozen=True)
class Output:
    """How a command shows its result, in its last options."""

    as_json: Annotated[bool, Flag("Print the result as one JSON object.", name="--json")] = False
    quiet: Annotated[bool, Flag("Show no progress and no messages.")] = False
    # `main` reads it: errors are shown there, for all commands.
    debug: Annotated[bool, Flag("Show the traceback of an error.")] = False

    def terminal(self, form: str | None = None) -> Terminal:
        """What shows progress and results, tables in the form of `--format`."""
        if form is not None and form not in FORMATS:
            raise UnknownNameError("format", form, FORMATS)
        if form is not None and self.as_json:
            raise RecipeError("--format and --json are two forms of one result", fix="Leave one of them out")
        return Terminal(self.as_json, self.quiet, form or TERMINAL)


_Data = Annotated[str | None, Flag("Data set on which --model is measured.", metavar="NAME[:ROOT]")]
_Settings = Annotated[
    tuple[str, ...] | None, Flag("Key of [data] for --model; repeatable.", name="--set", metavar="data.KEY=VALUE")
]
_Seed = Annotated[int | None, Flag("Random seed of --weights none.", metavar="N", min=0)]
_Run = Annotated[str | None, Flag("Name of the run of --model.", metavar="NAME")]
_WEIGHTS = "Weights of --model: model, none, FILE[#PART], 'DIR/*.pt' or run:NAME"


@dataclass(frozen=True)
class ModelOptions:
    """A frozen model to measure, and its images."""

    model: Annotated[str | None, Flag("Pretrained model to measure, such as timm:NAME.", metavar="SOURCE")] = None
    weights: Annotated[str | None, Flag(f"{_WEIGHTS}.", metavar="WEIGHTS")] = None
    data: _Data = None
    settings: _Settings = None
    seed: _Seed = None
    run: _Run = None

    def require_absent(self, *, seed: bool = True) -> None:
        """Refuse flags for a model without --model.

        Args:
            seed: whether `--seed` is one of them.
        """
        flags = {
            "--weights": self.weights,
            "--data": self.data,
            "--set": self.settings,
            "--seed": self.seed if seed else None,
            "--run": self.run,
        }
        for flag, value in flags.items():
            if value is not None:
                fix = f"Add --model SOURCE and leave RUN out, or leave {flag} out"
                raise RecipeError(f"{flag} is for a model that is named by --model, without RUN", fix=fix)

    def request(self, run: str | None, *, unseen: bool, **others: Any) -> "FrozenRequest":
        """The request, whose other fields are the command's.

        Args:
            run: the RUN that the command line names, which excludes a model.
        """
        from layerprobe.workflow.train.frozen_request import FrozenRequest

        if run is not None:
            raise RecipeError(
                f"{run} and --model {self.model}: one of them", fix=f"Name the model's run by --run {run}"
            )
        if self.data is None:
            raise RecipeError(f"--model {self.model} needs images", fix="Add --data, such as --data folder:DIR")
        options = {name: value for name, value in vars(self).items() if value is not None}
        settings = (*(self.settings or ()), *(["data.seen=false"] if unseen else []))
        return FrozenRequest(**options | others | {"weights": self.weights or "model", "settings": settings})


@dataclass(frozen=True)
class ModelsOptions:
    """Frozen models to measure, and their images."""

    model: Annotated[
        tuple[str, ...] | None,
        Flag("Pretrained model to measure, such as timm:NAME; repeatable.", metavar="SOURCE"),
    ] = None
    weights: Annotated[tuple[str, ...] | None, Flag(f"{_WEIGHTS}; one for each --model.", metavar="WEIGHTS")] = None
    models: Annotated[Path | None, Flag("Models: a csv table of model, weights and run.", metavar="FILE")] = None
    data: _Data = None
    settings: _Settings = None
    seed: _Seed = None
    run: _Run = None

    def by_model(self) -> list[ModelOptions]:
        """The options of each model; of none where none is named."""
        models, weights = self.model or (), self.weights or ()
        if self.models is not None:
            return self._listed(self.models)
        if len(weights) > max(len(models), 1) or 0 < len(weights) < len(models):
            message = f"{len(models)} --model and {len(weights)} --weights"
            raise RecipeError(message, fix="Give --weights for each --model, in the same order, or for none of them")
        pairs = list(zip_longest(models or (None,), weights))
        for model, weights_file in pairs:
            if pairs.count((model, weights_file)) > 1:
                raise RecipeError(f"--model {model} is named twice", fix="Name it once, or with other --weights")
        if len(pairs) > 1 and self.run is not None:
            message = f"--run {self.run} is the name of one run, and there are {len(pairs)} models"
            raise RecipeError(message, fix="Leave it out, or name each in the column run of --models FILE")
        return [self._of(model, weights_file, self.run) for model, weights_file in pairs]

    def _listed(self, file: Path) -> list[ModelOptions]:
        """The options of the models of a table."""
        from layerprobe.workflow.choose.model_list import read_models

        for flag, value in {"--model": self.model, "--weights": self.weights, "--run": self.run}.items():
            if value is not None:
                raise RecipeError(f"{flag} and --models {file}: one of them", fix=f"Leave {flag} out")
        return [self._of(row.model, row.weights, row.run) for row in read_models(file)]

    def _of(self, model: str | None, weights: str | None, run: str | None) -> ModelOptions:
        return ModelOptions(model, weights, self.data, self.settings, self.seed, run)


def feature_files(words: Sequence[str], labels: Path | None) -> tuple[Path, ...]:
    """The files of features that words name; empty if they name runs, or nothing."""
    from layerprobe.workflow.choose.request import FEATURE_SUFFIXES

    # A file of another kind is refused as one, rather than as an unknown run.
    files = [word for word in words if word.endswith(FEATURE_SUFFIXES) or ("." in word and Path(word).is_file())]
    if files and len(files) < len(words):
        raise RecipeError(f"{files[0]} and {len(words) - 1} more", fix="Name one file of features, or runs")
    if labels is not None and not files:
        raise RecipeError("--labels: no file of features is named", fix="Name one, such as layer4.npy, or leave it out")
    return tuple(map(Path, files))
