"""The options of a command, from the fields of its requests."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cached_property, partial
from itertools import pairwise
from typing import Annotated, Any, get_args, get_origin

import typer

from layerprobe.system.options import Flag

_Request = tuple[Callable[..., object], list[str]]  # what makes it, and of which options


def with_options(command: Callable[..., None], *orders: str) -> Callable[..., None]:
    """The command as typer reads it: a parameter that is a request becomes the options of its flagged fields.

    A request is a dataclass; `partial[Request]` leaves the fields without a flag to the command. An option that several
    requests or the command itself have is one option, defined where it stands last.

    Args:
        orders: names of options in the order of `--help`; they follow the first of them.
    """
    return _WithOptions(command, orders)


@dataclass(frozen=True)
class _Option:
    """A parameter in typer's terms, and what makes the value of what typer reads."""

    parameter: inspect.Parameter
    value_of: Callable[[Any], object]


class _WithOptions:
    def __init__(self, command: Callable[..., None], orders: tuple[str, ...]) -> None:
        self._command, self._orders = command, orders
        self.__name__, self.__doc__, self.__annotations__ = command.__name__, command.__doc__, {}

    # Made when typer reads the command: for all commands it would slow down every start.
    @cached_property
    def _options(self) -> tuple[dict[str, _Option], dict[str, _Request]]:
        """The options by name, and the requests that are made of some of them."""
        options: dict[str, _Option] = {}
        requests: dict[str, _Request] = {}
        for parameter in inspect.signature(self._command, eval_str=True).parameters.values():
            kind = parameter.annotation
            request: Any = get_args(kind)[0] if get_origin(kind) is partial else kind
            flagged = [(parameter.name, kind, parameter.default)]
            if is_dataclass(request) and isinstance(request, type):
                flagged = [(field.name, field.type, field.default) for field in fields(request) if _flag(field.type)]
                make = request if request is kind else partial(partial, request)
                requests[parameter.name] = make, [name for name, *_ in flagged]
            for name, annotation, default in flagged:
                options.pop(name, None)
                options[name] = _option(name, annotation, default)
        for before, name in (pair for order in self._orders for pair in pairwise(order.split())):
            names = [other for other in options if other != name]
            names.insert(names.index(before) + 1, name)
            options = {other: options[other] for other in names}
        return options, requests

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.Signature([option.parameter for option in self._options[0].values()])

    def __call__(self, **texts: Any) -> None:
        options, requests = self._options
        values = {name: options[name].value_of(text) for name, text in texts.items() if text is not None}
        arguments = {name: values[name] for name in inspect.signature(self._command).parameters if name in values}
        for parameter, (make, names) in requests.items():
            arguments[parameter] = make(**{name: values[name] for name in names if name in values})
        self._command(**arguments)


def _flag(annotation: Any) -> Flag | None:
    return next((item for item in getattr(annotation, "__metadata__", ()) if isinstance(item, Flag)), None)


def _option(name: str, annotation: Any, default: Any) -> _Option:
    flag = _flag(annotation)
    value_of: Callable[[Any], object] = _unchanged
    if flag is not None:
        kind = annotation.__origin__
        if flag.parse is not None:
            kind, value_of = str | None, flag.parse
            default = flag.default or ",".join(default or ()) or None
        elif tuple[str, ...] in (kind, *get_args(kind)):
            kind, value_of, default = list[str] | None, tuple, None
        option = typer.Option(
            flag.name or f"--{name.replace('_', '-')}",
            help=flag.help,
            metavar=flag.metavar,
            min=flag.min,
            show_default=True if flag.parse else flag.default or True,
        )
        annotation = Annotated[kind, option]
    default = inspect.Parameter.empty if default is MISSING else default
    parameter = inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
    return _Option(parameter, value_of)


def _unchanged(value: object) -> object:
    return value
