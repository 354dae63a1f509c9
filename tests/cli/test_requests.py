from dataclasses import dataclass
from functools import partial
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from layerprobe.cli.requests import with_options
from layerprobe.system.options import Flag, split_names


@dataclass(frozen=True)
class Drawing:
    folder: str
    size: Annotated[int, Flag("Size.", min=1)] = 3
    layers: Annotated[tuple[str, ...], Flag("Layers.", name="--names", metavar="L,...", parse=split_names)] = ("a", "b")
    settings: Annotated[tuple[str, ...], Flag("Setting.", name="--set")] = ()
    hidden: int = 7


def run(*words: str, orders: tuple[str, ...] = ()) -> tuple[Drawing, str]:
    """The request that a command gets, and what it prints."""
    requests = []

    def draw(*, request: partial[Drawing], size: Annotated[int, Flag("Size in inches.")] = 4) -> None:
        requests.append(request("out"))
        print(size)

    app = typer.Typer(rich_markup_mode=None)
    app.command()(with_options(draw, *orders))
    result = CliRunner().invoke(app, words)
    return (requests or [Drawing("none")])[0], result.output


def test_options_that_are_not_named_leave_the_defaults() -> None:
    assert run() == (Drawing("out", size=4), "4\n")


def test_each_option_is_read_as_its_field() -> None:
    request, _ = run("--names", "c, d", "--set", "x=1", "--set", "y=2", "--size", "5")
    assert request == Drawing("out", 5, ("c", "d"), ("x=1", "y=2"))


def test_a_field_without_a_flag_is_no_option() -> None:
    assert "No such option: --hidden" in run("--hidden", "1")[1]


@pytest.mark.parametrize(
    ("orders", "names"),
    [((), ["--names", "--set", "--size"]), (("settings size layers",), ["--set", "--size", "--names"])],
)
def test_the_help_has_the_order_of_the_command(orders: tuple[str, ...], names: list[str]) -> None:
    text = run("--help", orders=orders)[1]
    assert sorted(names, key=text.index) == names
    assert "[default: a,b]" in text
    assert "Size in inches." in text
