"""The command line: text -> one call -> text."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from typing import Any

import typer
from typer.core import TyperGroup

from layerprobe.cli import cache, data, demo, inspect, plot, probe, train
from layerprobe.cli.output import show_error
from layerprobe.errors import Bug, EnvironmentFault, InterruptedRun, LayerprobeError
from layerprobe.files import DISK_FULL


class _Commands(TyperGroup):
    """Typer would make of a KeyboardInterrupt an exit code alone, which nobody is told of."""

    def invoke(self, ctx: Any) -> Any:
        """Run a command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt as error:
            raise InterruptedRun("interrupted", signal_number=signal.SIGINT) from error


app = typer.Typer(
    cls=_Commands,
    name="layerprobe",
    help="Which layer of an embedding network generalises? Train, probe every layer, compare train and test recall.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for module in (demo, train, probe, plot, inspect, data, cache):
    module.register(app)

# typer carries click inside or beside itself, by version; its public BadParameter is a usage error in both.
_UsageError = typer.BadParameter.__mro__[1]


def main() -> None:
    """Run the command line and leave with the exit code of the contracts."""
    # Set before torch is imported: GNU OpenMP's spinning waiters starve a second process on the same cores.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    debug, as_json = "--debug" in sys.argv, "--json" in sys.argv
    try:
        code = app(standalone_mode=False)
    except Exception as error:  # the one place where every fault ends
        if debug:
            traceback.print_exc()
        fault = _as_fault(error)
        show_error(fault, as_json=as_json)
        code = fault.exit_code
    sys.exit(code if isinstance(code, int) else 0)


def _as_fault(error: BaseException) -> LayerprobeError:
    """What a user is told of an exception."""
    if isinstance(error, LayerprobeError):
        return error
    if isinstance(error, _UsageError):
        return LayerprobeError(error.format_message(), fix="layerprobe --help shows the commands and flags")  # type: ignore[attr-defined] # click's UsageError, under either of its names
    if isinstance(error, typer.Abort):
        return InterruptedRun("interrupted", signal_number=signal.SIGINT)
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return EnvironmentFault("out of memory", fix="Lower train.batch_size with --set, or use another --device")
    if isinstance(error, OSError) and error.errno in DISK_FULL:
        return EnvironmentFault(
            "disk full; whatever has its final name is whole",
            file=error.filename,
            fix="Free space, then run the same command again",
        )
    if isinstance(error, OSError) and error.filename is not None:
        return EnvironmentFault(f"{error.strerror}", file=error.filename, fix="Choose a path you may write to")
    return Bug(f"a bug in layerprobe: {error!r}", fix="--debug shows where; please report it")
