"""The errors that a user can mend, each with its exit code. Any other exception is a bug of layerprobe."""

from __future__ import annotations

import functools
from collections.abc import Iterable

from layerprobe.system.wording import visible


class LayerprobeError(Exception):
    """An error that a user can mend, shown in one line: the file, what is wrong, how to mend it.

    Args:
        message: what is wrong, without the file's name and without a full stop.
        file: the file or folder that is at fault, if one is.
    """

    exit_code = 2
    code = "usage"

    def __init__(self, message: str, *, file: object = None, fix: str = "") -> None:
        super().__init__(message, file, fix)
        self.message = message
        self.file = None if file is None else str(file)
        self.fix = fix

    def __str__(self) -> str:
        head = self.message if self.file is None else f"{self.file}: {self.message}"
        parts = [part if part.endswith("?") else f"{part.rstrip('.')}." for part in (head, self.fix) if part]
        return visible(" ".join(parts))

    def __reduce__(self) -> tuple[object, ...]:
        # A data worker's error travels to the main process as a pickle. The attributes bring what subclasses add.
        return (_rebuild, (type(self), self.message, self.file, self.fix), self.__dict__)


def _rebuild(kind: type[LayerprobeError], message: str, file: str | None, fix: str) -> LayerprobeError:
    return kind(message, file=file, fix=fix)


class RecipeError(LayerprobeError):
    """A recipe or command line that cannot be carried out.

    Args:
        problems: a line for each fault, where there are several; without full stops.
    """

    code = "recipe"

    def __init__(self, message: str, *, file: object = None, fix: str = "", problems: Iterable[str] = ()) -> None:
        super().__init__(message, file=file, fix=fix)
        self.problems = tuple(problems)


class UnknownNameError(LayerprobeError):
    """A name that is not among the known ones; the error suggests the nearest."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, file: object = None) -> None:
        known = list(known)
        super().__init__(f"unknown {kind} {name!r}", file=file, fix=near_miss(name, known))
        self.arguments = (kind, name, tuple(known))

    def __reduce__(self) -> tuple[object, ...]:
        return (functools.partial(UnknownNameError, file=self.file), self.arguments)


class DataError(LayerprobeError):
    """A data set, image, checkpoint or stored file that is missing or bad.

    Args:
        kind: the kind of fault, in a word or two, by which `data check` counts ("truncated"); empty where it does not.
    """

    exit_code = 3
    code = "data"

    def __init__(self, message: str, *, file: object = None, fix: str = "", kind: str = "") -> None:
        super().__init__(message, file=file, fix=fix)
        self.kind = kind

    @classmethod
    def unreadable(cls, error: OSError, *, file: object = None) -> DataError:
        """The error of a file or folder that cannot be read: `file`, or the one that the system's error names."""
        return cls(
            f"cannot be read ({error.strerror})",
            file=error.filename if file is None else file,
            fix="Check that it is there and that you may read it",
            kind="unreadable",
        )


class NumericError(LayerprobeError):
    """A number that is not finite."""

    exit_code = 4
    code = "numeric"


class NotFiniteError(NumericError):
    """Features in which some rows hold NaN or Inf."""

    def __init__(self, rows: int, of: int) -> None:
        super().__init__(f"{rows} of {of} feature rows hold NaN or Inf")
        self.rows = rows


class EnvironmentFault(LayerprobeError):  # noqa: N818 - EnvironmentError is a name of Python's own
    """A fault of the machine: its disk, memory, device or an installed package."""

    exit_code = 5
    code = "environment"


class BusyError(LayerprobeError):
    """Another process is using what the command needs, such as the run."""

    exit_code = 6
    code = "busy"


class Bug(LayerprobeError):  # noqa: N818 - it is one
    """A bug of layerprobe, shown in one line like the errors of users."""

    exit_code = 1
    code = "bug"


class InterruptedRun(LayerprobeError):  # noqa: N818 - an ending, not a fault
    """A command that a signal ended cleanly: exit code 130 for SIGINT, 143 for SIGTERM."""

    code = "interrupted"

    def __init__(self, message: str, *, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def near_miss(name: str, known: Iterable[str]) -> str:
    """A fix such as `Did you mean 'pool5.3'? Known: fc6, pool5.3`; it asks only where a known name is near."""
    import difflib  # slow to import, and rarely needed

    known = list(dict.fromkeys(known))
    folded = {other.casefold(): other for other in known}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    question = f"Did you mean {folded[near[0]]!r}? " if near else ""
    return f"{question}Known: {', '.join(known)}" if known else "There is none"
