"""The command line: each command turns its words into one call and the result into text.

A command module imports torch, numpy, h5py, matplotlib and rich only inside the command that needs them.

Typer commands: words -> one call -> text; the fields of requests with a `Flag` become a command's options
(`with_options`), streams, progress bars.

Types and words: `Terminal`, `Output`, `ModelOptions`; typer's Option and Argument.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from typer.main import get_command, get_group

from layerprobe import __version__
from layerprobe.cli.help import with_groups
from layerprobe.cli.output import show_error
from layerprobe.cli.streams import prepare_streams
from layerprobe.system.errors import Bug, DataError, EnvironmentFault, InterruptedRun, LayerprobeError
from layerprobe.system.files import disk_fault
from layerprobe.system.launch import Launch, started
from layerprobe.system.memory import FIX, is_out_of_memory, keep_freed_memory

_HELP = "Find the layer of your embedding model that retrieves best, with a confidence interval, and deploy it."
# Each module and its commands, in the order of `--help`; that of a command is imported when the command is run.
_MODULES = {
    "demo": ("demo",),
    "train": ("train",),
    "probe": ("probe",),
    "summary": ("summary",),
    "compare": ("compare",),
    "choose": ("choose",),
    "export": ("export",),
    "threshold": ("threshold",),
    "classes": ("classes",),
    "labels": ("labels",),
    "features": ("features",),
    "explain": ("explain",),
    "plot": ("plot",),
    "report": ("report",),
    "study": ("study",),
    "inspect": ("layers", "recipes", "runs", "doctor"),
    "data": ("data",),
    "cache": ("cache",),
}
_PACKAGE = "layerprobe"
_PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn", "faiss": "faiss-cpu"}  # of modules with another name
_RESUMED = ("choose", "demo", "probe", "study", "train")  # commands that store what they have done as they go
_SHARED = ("train", "probe")  # what the processes of torchrun do together
# typer carries click inside or beside itself, by version; its public BadParameter is a usage error in both.
_UsageError = typer.BadParameter.__mro__[1]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"layerprobe {__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    pass


def command_line(command: str | None = None) -> typer.Typer:
    """All commands, or those of the modules that have one of that name, if any have."""
    app = typer.Typer(
        name="layerprobe",
        help=_HELP,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    for module in [name for name, commands in _MODULES.items() if command in commands] or _MODULES:
        import_module(f"layerprobe.cli.{module}").register(app)
    return with_groups(app)


def main() -> NoReturn:
    """Run the command line and end the process with its exit code."""
    prepare_streams()
    # Set before torch is imported: while they wait, the threads of GNU OpenMP would take the cores of other processes.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    keep_freed_memory()
    words = sys.argv[1:] or ["--help"]
    debug, as_json = "--debug" in words, "--json" in words
    launch = Launch()
    try:
        launch = started(os.environ)
        launch.begin(lambda fault: show_error(fault, as_json=as_json))
        _require_working_directory()
        if launch.rank:
            launch.serve()
        code = _run(words, launch)
    except (Exception, KeyboardInterrupt) as error:  # the one place where every fault ends
        if debug:
            traceback.print_exc()
        fault = launch.cause(error) or _as_fault(error, words)
        if launch.rank:
            launch.wait_for_end(None if launch.lost(error) else fault)
        show_error(fault, as_json=as_json)
        code = fault.exit_code
    sys.stdout.flush()  # torchrun ends this process as soon as another has ended
    launch.end(code)
    sys.exit(code)


def _require_working_directory() -> None:
    """Refuse to work in a folder that is gone: numerical libraries end the process there."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise DataError("the working directory is gone", fix="Change to another one") from error


def _run(words: Sequence[str], launch: Launch) -> int:
    """Run the command that the words name and return its exit code."""
    if launch.is_shared and not words[0].startswith("-") and words[0] not in _SHARED:
        raise LayerprobeError("only train and probe run under torchrun", file=words[0], fix="Start it without torchrun")
    app = command_line(words[0])
    command, depth = _find(app, words)
    if command is None:
        # The list of commands, shell completion, or the error that there is no such command.
        return app(args=words, prog_name="layerprobe", standalone_mode=False) or 0
    try:
        with command.make_context(" ".join(["layerprobe", *words[:depth]]), [*words[depth:]], obj=launch) as context:
            command.invoke(context)
    except typer.Exit as ended:
        return ended.exit_code
    return 0


def _find(group: typer.Typer, words: Sequence[str]) -> tuple[Any, int]:
    """The click command or group that the first words name, and how many words name it; (None, 0) where none do.

    It is run alone, not through the whole: typer would first turn every command into click's terms and read the flags
    of the groups above it with pydantic, which a `--help` would wait 0.2 s for.
    """
    first = words[0] if words else ""
    inner = next((inner for inner in _groups(group) if inner.info.name == first), None)
    if inner is not None:
        inner.rich_markup_mode = None
        command, depth = _find(inner, words[1:])
        if command is not None:
            return command, depth + 1
    for info in group.registered_commands:  # `runs` is one, beside the group of `runs remove`
        if info.callback is not None and first == (info.name or info.callback.__name__):
            only = typer.Typer(add_completion=False, rich_markup_mode=None)
            only.registered_commands = [info]
            return get_command(only), 1
    return (None, 0) if inner is None else (get_group(inner), 1)


def _groups(group: typer.Typer) -> list[typer.Typer]:
    return [info.typer_instance for info in group.registered_groups if info.typer_instance is not None]


def _as_fault(error: BaseException, words: Sequence[str]) -> LayerprobeError:
    """The error to show for an exception of the command that the words name."""
    if isinstance(error, LayerprobeError):
        return error
    if isinstance(error, _UsageError):
        path = getattr(getattr(error, "ctx", None), "command_path", "layerprobe")
        return LayerprobeError(error.format_message(), fix=f"{path} --help shows what there is")  # type: ignore[attr-defined] # click's UsageError, under either of its names
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        resumed = "; the same command goes on from what is stored" if words[0] in _RESUMED else ""
        return InterruptedRun(f"interrupted{resumed}", signal_number=signal.SIGINT)
    if is_out_of_memory(error):
        training = "Lower train.batch_size or set train.chunk by --set, or use another --device"
        return EnvironmentFault("out of memory", fix=training if "train" in words[:1] else FIX)
    if isinstance(error, RuntimeError) and "can't start new thread" in str(error):
        return EnvironmentFault("no further thread can be started", fix="Free memory, or raise `ulimit -u`")
    if isinstance(error, ModuleNotFoundError) and not (error.name or _PACKAGE).startswith(_PACKAGE):
        module = str(error.name).partition(".")[0]
        package = _PACKAGES.get(module, module)
        return EnvironmentFault(
            f"{package} is not installed", fix=f"pip install {package}; layerprobe doctor lists the others"
        )
    if getattr(error, "errno", None) == errno.ELOOP or "Symlink loop" in str(error):  # the latter before Python 3.13
        return DataError("a link that leads back to itself", file=getattr(error, "filename", None), fix="Remove it")
    if isinstance(error, PermissionError) and not os.access(".", os.R_OK | os.X_OK):
        return DataError("the working directory cannot be read", file=Path.cwd(), fix="Change to another one")
    if isinstance(error, OSError) and (fault := disk_fault(error, error.filename and Path(error.filename))):
        return fault
    if isinstance(error, OSError) and error.filename is not None:
        return EnvironmentFault(f"{error.strerror}", file=error.filename, fix="Choose a path you may read and write to")
    return Bug(f"a bug in layerprobe: {error!r}", fix="Run it again with --debug and report what it prints")
