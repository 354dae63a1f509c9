"""What `--help` shows of every command."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from typing import Any

import pytest
import typer
from typer.main import get_command

from layerprobe.cli import command_line
from layerprobe.cli.help import COMMAND_GROUPS, DOCUMENTATION, EXAMPLES, OPTION_GROUPS

LETTERS_THAT_ARE_WORDS = {"N", "D", "K"}


def leaves(group: typer.Typer, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The path of each command that does something, and the command."""
    for info in group.registered_commands:
        assert info.callback is not None
        only = typer.Typer(add_completion=False, rich_markup_mode=None)
        only.registered_commands = [info]
        yield f"{prefix}{info.name or info.callback.__name__}", get_command(only)
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from leaves(inner.typer_instance, f"{prefix}{inner.typer_instance.info.name} ")


COMMANDS = dict(leaves(command_line()))
PARAMETERS = [
    pytest.param(parameter, id=f"{path} {parameter.opts[0]}")
    for path, command in COMMANDS.items()
    for parameter in command.params
    if not getattr(parameter, "is_flag", False)
]


def context(path: str, *words: str) -> Any:
    return COMMANDS[path].make_context(f"layerprobe {path}", [*words])


def option_names(path: str) -> list[str]:
    """All options of a command, `--help` among them."""
    parameters = COMMANDS[path].get_params(context(path, *["x"] * required(path)))
    return [parameter.opts[0] for parameter in parameters if parameter.param_type_name == "option"]


def required(path: str) -> int:
    return sum(parameter.required for parameter in COMMANDS[path].params)


def help_of(path: str) -> str:
    text: str = COMMANDS[path].get_help(context(path, *["x"] * required(path)))
    return text


def is_word(text: str) -> bool:
    """Whether a part of a metavar is a word, in capitals, or a value as it is written."""
    return text.islower() or len(text) > 1 or text in LETTERS_THAT_ARE_WORDS


def test_there_are_all_commands() -> None:
    assert len(COMMANDS) > 20
    assert {"choose", "runs", "runs remove", "data check"} <= COMMANDS.keys()


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_has_one_group_and_is_shown_once(path: str) -> None:
    names = option_names(path)
    grouped = Counter(chain.from_iterable(OPTION_GROUPS.values()))
    assert [grouped[name] for name in names] == [1] * len(names)
    _, sections = re.split(r"^(?=\w.*:$)", help_of(path), maxsplit=1, flags=re.MULTILINE)
    assert "Options:" not in sections
    assert [len(re.findall(rf"^  {name}(?: |$)", sections, re.MULTILINE)) for name in names] == [1] * len(names)


def test_no_group_names_an_option_that_no_command_has() -> None:
    assert {*chain.from_iterable(OPTION_GROUPS.values())} == {*chain.from_iterable(map(option_names, COMMANDS))}


def test_the_groups_are_in_one_order_and_an_empty_one_is_left_out() -> None:
    titles = re.findall(r"^(\w.*):$", help_of("probe"), re.MULTILINE)
    assert titles == [
        "Arguments",
        "Model",
        "Data",
        "What is measured",
        "Statistics",
        "Computation",
        "Output",
        "Example",
    ]
    assert re.findall(r"^(\w.*):$", help_of("doctor"), re.MULTILINE) == ["Output", "Example"]


def test_what_writes_a_layer_measures_none() -> None:
    text = help_of("export")
    assert "\nWhat is exported:\n  --layer LAYER" in text
    assert "What is measured" not in text


@pytest.mark.parametrize("parameter", PARAMETERS)
def test_what_a_parameter_takes_is_named_by_words(parameter: Any) -> None:
    assert parameter.metavar is not None
    parts = re.findall(r"[^\W\d_]+", parameter.metavar)
    assert parts
    assert all(map(is_word, parts))


def test_no_type_of_python_is_shown() -> None:
    assert [path for path in COMMANDS if re.search(r"<\w", help_of(path))] == []


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        ("train", "[OPTIONS] RECIPE"),
        ("probe", "[OPTIONS] [RUN]"),
        ("plot", "[OPTIONS] KIND [RUN]..."),
        ("choose", "[OPTIONS] [RUN ... | FEATURES]"),
        ("cache clean", "[OPTIONS] [ID]..."),
        ("compare", "[OPTIONS] [FIRST] [SECOND]"),
    ],
)
def test_the_usage_has_brackets_around_what_may_be_left_out(path: str, usage: str) -> None:
    assert help_of(path).startswith(f"Usage: layerprobe {path} {usage}\n")


@pytest.mark.parametrize("path", COMMANDS)
def test_no_line_is_wider_than_a_terminal_and_no_name_is_broken(path: str) -> None:
    lines = help_of(path).splitlines()
    assert max(map(len, lines)) <= 80
    assert [line for line in lines if line.endswith("-") and not line.endswith(" -")] == []


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_shows_an_example_that_it_reads(path: str) -> None:
    example = EXAMPLES[path]
    assert help_of(path).endswith(f"\nExample:\n  {'  '.join(example.splitlines(keepends=True))}")
    words = shlex.split(example.replace("\\\n", " "))
    named = ["layerprobe", *path.split()]
    assert words[: len(named)] == named
    assert context(path, *words[len(named) :]).params  # a usage error otherwise


def test_no_example_is_of_a_command_that_is_not_there() -> None:
    assert EXAMPLES.keys() == COMMANDS.keys()


def test_every_command_is_in_one_group_of_the_list() -> None:
    listed = [*chain.from_iterable(COMMAND_GROUPS.values())]
    assert sorted(listed) == sorted({path.partition(" ")[0] for path in COMMANDS})
    root = get_command(command_line())
    text = root.get_help(root.make_context("layerprobe", [], resilient_parsing=True))
    titles = ["Options", *COMMAND_GROUPS]
    assert re.findall(r"^(\w.*):$", text, re.MULTILINE) == titles
    assert re.findall(r"^  (\w\S*)  ", text.partition("\nStart:")[2], re.MULTILINE) == listed


def test_the_list_of_commands_alone_ends_with_the_documentation() -> None:
    root = get_command(command_line())
    text = root.get_help(root.make_context("layerprobe", [], resilient_parsing=True))
    assert text.endswith(f"\nDocumentation: {DOCUMENTATION}")
    assert [path for path in COMMANDS if DOCUMENTATION in help_of(path)] == []
