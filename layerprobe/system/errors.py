"""Errors that a user can fix, with exit codes, and arguments of a wrong type; others are bugs."""

from __future__ import annotations

import copyreg
from collections.abc import Iterable

from layerprobe.system.wording import visible


class LayerprobeError(Exception):
    """An error that a user can fix, shown in one line: `file: message. fix.`; the message has no full stop."""

    exit_code = 2
    code = "usage"

    def __init__(self, message: str, *, file: object = None, fix: str = "") -> None:
        super().__init__(message, file, fix)
        self.message = message
        self.file = None if file is None else str(file)
        self.fix = fix

    def __str__(self) -> str:
        head = self.message if self.file is None else f"{self.file}: {self.message}"
        sentences = (sentence for sentence in (head, self.fix) if sentence)
        return visible(" ".join(text if text.endswith("?") else f"{text.rstrip('.')}." for text in sentences))

    def __reduce__(self) -> tuple[object, ...]:
        # A data worker's error travels to the main process as a pickle; subclasses' arguments differ, so by attributes.
        return (copyreg.__newobj__, (type(self),), self.__dict__)  # type: ignore[attr-defined] # not in typeshed


class RecipeError(LayerprobeError):
    """An invalid recipe or command line; `problems` has a line for each fault where there are several."""

    code = "recipe"

    def __init__(self, message: str, *, file: object = None, fix: str = "", problems: Iterable[str] = ()) -> None:
        super().__init__(message, file=file, fix=fix)
        self.problems = tuple(problems)


class UnknownNameError(LayerprobeError):
    """A name that is not known; the error suggests the nearest one."""

    def __init__(self, kind: str, name: str, valid_names: Iterable[str], *, file: object = None) -> None:
        super().__init__(f"unknown {kind} {name!r}", file=file, fix=near_miss(name, valid_names))


class DataError(LayerprobeError):
    """A missing or invalid data set, image, checkpoint or stored file.

    Args:
        kind: such as "truncated", by which `data check` counts.
    """

    exit_code = 3
    code = "data"

    def __init__(self, message: str, *, file: object = None, fix: str = "", kind: str = "") -> None:
        super().__init__(message, file=file, fix=fix)
        self.kind = kind

    @classmethod
    def unreadable(cls, error: OSError, *, file: object = None) -> DataError:
        """The error of an unreadable file or folder: `file`, or the one that the system's error names."""
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

    def __init__(self, rows: int, total: int) -> None:
        super().__init__(f"{rows} of {total} feature rows hold NaN or Inf")
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
    """A bug in layerprobe, shown in one line like an error of the user."""

    exit_code = 1
    code = "bug"


class InterruptedRun(LayerprobeError):  # noqa: N818 - an ending, not a fault
    """A command that a signal ended cleanly: exit code 130 for SIGINT, 143 for SIGTERM."""

    code = "interrupted"

    def __init__(self, message: str, *, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def near_miss(name: str, valid_names: Iterable[str]) -> str:
    """A fix such as `Did you mean 'pool5.3'? Known: fc6, pool5.3`; the question only if a known name is similar."""
    import difflib  # slow to import, and rarely needed

    valid_names = list(dict.fromkeys(valid_names))
    folded = {other.casefold(): other for other in valid_names}
    near = difflib.get_close_matches(name.casefold(), folded, n=1)
    question = f"Did you mean {folded[near[0]]!r}? " if near else ""
    return f"{question}Known: {', '.join(valid_names)}" if valid_names else "There is none"


def require_type(argument: str, value: object, types: type | tuple[type, ...], expected: str) -> None:
    """Check the type of an argument.

    Args:
        expected: after "must be": `a torch.nn.Module`.
    """
    if not isinstance(value, types):
        raise wrong_type(argument, value, expected)


def names_of(argument: str, value: object) -> list[str]:
    """Names from a sequence or a comma-separated string."""
    if isinstance(value, str):
        return [name.strip() for name in value.split(",")]
    if not isinstance(value, Iterable):
        raise wrong_type(argument, value, "a name or a sequence of names")
    names = list(value)
    for name in names:
        require_type(f"a name in {argument}", name, str, "text")
    return names


def wrong_type(argument: str, value: object, expected: str) -> TypeError:
    """`image_size must be a whole number, not Tensor`."""
    kind = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
    return TypeError(f"{argument} must be {expected}, not {'None' if value is None else kind}")
