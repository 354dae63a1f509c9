"""What `--help` shows: options and commands in groups, an example of each command, and where the documentation is."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

DOCUMENTATION = "https://layerprobe.readthedocs.io"
_MEASURED = "What is measured"
# Of single commands: group -> its title there.
_TITLES: Mapping[str, Mapping[str, str]] = {
    "train": {"Data": "Recipe"},
    "export": {_MEASURED: "What is exported"},
    "features": {_MEASURED: "What is written"},
    "explain": {_MEASURED: "What is explained"},
    "plot": {_MEASURED: "What is drawn"},
    "report": {_MEASURED: "What is shown"},
}
# An option has one meaning in all commands, and so one group.
OPTION_GROUPS: Mapping[str, Sequence[str]] = {
    "Model": ("--model", "--weights", "--models", "--not-trained-on-these"),
    "Data": ("--data", "--set", "--seed", "--labels", "--small"),
    _MEASURED: (
        "--layers", "--layer", "--probe", "--pool", "--epochs", "--epoch", "--splits", "--split", "--post", "--fit",
        "--equal-dim", "--similarity", "--k", "--metric", "--metrics", "--far", "--gallery-size", "--budget", "--index",
        "--paper", "--key", "--by", "--classes", "--query", "--where", "--queries",
    ),
    "Statistics": ("--within", "--interval", "--cluster", "--seeds"),
    "Computation": (
        "--device", "--workers", "--jobs", "--precision", "--memory", "--store", "--store-post", "--shard-rows",
        "--dry-run",
    ),
    "What is removed": ("--features", "--checkpoints", "--yes"),
    "Output": (
        "--list", "--run", "--fresh", "--out", "--force", "--export", "--sort", "--csv", "--confusions", "--scores",
        "--watch", "--log", "--full", "--format", "--cache", "--json", "--quiet", "--debug", "--help",
    ),
}  # fmt: skip
COMMAND_GROUPS: Mapping[str, Sequence[str]] = {
    "Start": ("demo", "doctor"),
    "Train": ("train", "study", "recipes"),
    "Measure": ("probe", "summary", "layers"),
    "Decide": ("choose", "compare"),
    "Understand": ("classes", "labels", "explain", "plot", "report"),
    "Deploy": ("export", "threshold", "features"),
    "Manage": ("data", "runs", "cache"),
}
# They can be run in this order.
EXAMPLES: Mapping[str, str] = {
    "demo": "layerprobe demo",
    "doctor": "layerprobe doctor",
    "recipes": "layerprobe recipes quick",
    "train": "layerprobe train quick --set net.name=lenet \\\n    --set data.validation_classes=0.2 --run try",
    "study": "layerprobe study vo-hays-batchnorm --small --dry-run",
    "probe": "layerprobe probe try --epochs last --metrics MAP@R",
    "summary": "layerprobe summary try --metric MAP@R",
    "layers": "layerprobe layers try",
    "choose": "layerprobe choose --model timm:tf_efficientnet_lite0 --data glyphs \\\n    --set data.image_size=96",
    "compare": "layerprobe compare try:pool5 try:fc6",
    "classes": "layerprobe classes try --csv classes.csv",
    "labels": "layerprobe labels try --csv labels.csv",
    "explain": "layerprobe explain try --where worst --out pair.png",
    "plot": "layerprobe plot train-vs-test try --out layers.png",
    "report": "layerprobe report try --out report.html",
    "export": "layerprobe export try --layer fc6 --out fc6",
    "threshold": "layerprobe threshold try --layer fc6 --far 1e-2",
    "features": "layerprobe features try --layers fc6 --out features.npz",
    "data list": "layerprobe data list",
    "data check": "layerprobe data check glyphs",
    "runs": "layerprobe runs try",
    "runs remove": "layerprobe runs remove try --features --yes",
    "cache list": "layerprobe cache list",
    "cache clean": "layerprobe cache clean",
}
_WIDEST = 24  # characters of a name that stands on one line with its text


class Command(TyperCommand):
    """A command whose help has its options in groups, and an example."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """`[OPTIONS]`, then each argument: `RECIPE`, `[RUN]`, `[RUN]...`."""
        return [*super().collect_usage_pieces(ctx)[:1], *map(_usage, _arguments(self))]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and, in groups, the options."""
        sections = parameters_by_title(self, ctx)
        _write(formatter, {title: [name_and_text(item, ctx) for item in items] for title, items in sections.items()})

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write the example, in lines as they are."""
        if example := EXAMPLES.get(_path(ctx)):
            with formatter.section("Example"):
                for line in example.splitlines():
                    formatter.write(f"{'':{formatter.current_indent}}{line}\n")


class Group(TyperGroup):
    """The whole command line, whose help has the commands in groups, or a command of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write each command and its first sentence."""
        names = self.list_commands(ctx)
        grouped = {"Commands": names} if _path(ctx) else COMMAND_GROUPS
        limit = formatter.width - 6 - max(map(len, names))
        texts = {name: self.commands[name].get_short_help_str(limit) for name in names}
        sections = {
            group: [(name, texts[name]) for name in members if name in texts] for group, members in grouped.items()
        }
        _write(formatter, sections)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write where the documentation is, below the list of all commands."""
        if not _path(ctx):
            formatter.write_paragraph()
            formatter.write_text(f"Documentation: {DOCUMENTATION}")


def with_groups(app: typer.Typer) -> typer.Typer:
    """The commands with a help in groups."""
    app.info.cls = Group
    for command in app.registered_commands:
        command.cls = Command
    for group in app.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            with_groups(group.typer_instance)
    return app


def parameters_by_title(command: TyperCommand, ctx: Any) -> dict[str, list[Any]]:
    """The arguments of a command, then its options by the title of their group."""
    arguments, titles = _arguments(command), _TITLES.get(_path(ctx), {})
    options: dict[str, Any] = {item.opts[0]: item for item in command.get_params(ctx) if item not in arguments}
    return {"Arguments": arguments} | {
        titles.get(group, group): [options[name] for name in names if name in options]
        for group, names in OPTION_GROUPS.items()
    }


def name_and_text(parameter: Any, ctx: Any) -> tuple[str, str]:
    """The two columns of a parameter: `--seed N` and its text, or `RUN` and its text."""
    name, text = parameter.get_help_record(ctx)
    if parameter.param_type_name == "option":
        return name, text
    metavar: str = parameter.metavar
    return metavar.strip("[].") if metavar.startswith("[") else metavar, text


def _path(ctx: Any) -> str:
    """The words that name the command: `runs remove`; of the whole command line none."""
    path: str = ctx.command_path
    return path.partition(" ")[2]


def _arguments(command: TyperCommand) -> list[Any]:
    return [item for item in command.params if item.param_type_name == "argument"]


def _usage(argument: Any) -> str:
    metavar: str = argument.metavar
    if argument.required:
        return metavar
    return metavar if metavar.startswith("[") else f"[{metavar}]{'...' if argument.nargs == -1 else ''}"


def _write(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Write the sections that have rows, with one column of names for all of them."""
    names = [name for rows in sections.values() for name, _ in rows]
    width = max(len(name) for name in names if len(name) <= _WIDEST)
    for title, rows in sections.items():
        if rows:
            with formatter.section(title):
                for name, text in rows:
                    formatter.write(_row(name, text, width, formatter.width))


def _row(name: str, text: str, width: int, whole: int) -> str:
    """A name and, from one column on, its text; click would break lines within `vo-hays-2019`."""
    lines = textwrap.wrap(text, whole - width - 4, break_on_hyphens=False, break_long_words=False)
    first = [f"  {name}"] if len(name) > width else [f"  {name.ljust(width)}  {lines.pop(0)}"]
    return "".join(f"{line}\n" for line in [*first, *(f"{'':{width + 4}}{line}" for line in lines)])
