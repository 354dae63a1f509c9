"""Every command of the command line: usage, help and options, from typer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import typer
from typer.main import get_command, get_group

from docs._ext.markdown import code, entry, escaped
from layerprobe.cli import command_line
from layerprobe.cli.help import COMMAND_GROUPS, EXAMPLES, name_and_text, parameters_by_title

# Options that almost every command has: the page describes them once.
_SHARED = ("--cache", "--json", "--quiet", "--debug", "--help")


def commands() -> Iterator[tuple[str, str, Any]]:
    """Panel, full name and click command, in the order of `--help`."""
    registered = dict(_registered(command_line()))
    for panel, names in COMMAND_GROUPS.items():
        for name in names:
            for words, command in registered.items():
                if words.split()[0] == name:
                    yield panel, f"layerprobe {words}", command


def _registered(app: typer.Typer) -> Iterator[tuple[str, Any]]:
    for info in app.registered_commands:
        if info.callback is not None:
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.registered_commands = [info]
            yield info.name or info.callback.__name__, get_command(single)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            for name, command in _commands_of(group.typer_instance).items():
                yield f"{group.typer_instance.info.name} {name}", command


def _commands_of(app: typer.Typer) -> Mapping[str, Any]:
    """Name -> command of a group, also of one with a single command."""
    return dict(get_group(app).commands)


def page() -> str:
    """A section for each panel of commands, with one for each of its commands."""
    listed = list(commands())
    panels = list(dict.fromkeys(panel for panel, *_ in listed))
    return "\n\n".join(
        "\n\n".join([f"## {panel}", *(section(name, command) for other, name, command in listed if other == panel)])
        for panel in panels
    )


def section(name: str, command: Any) -> str:
    """Usage, help and options of a command."""
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    parts = [f"### {name}", f"```text\n{usage}\n```", help_markdown(command.help or "")]
    for panel, members in parameters_by_title(command, context).items():
        if unshared := [one for one in members if one.opts[0] not in _SHARED]:
            parts += [f"*{escaped(panel)}*", *(option(one, context, name) for one in unshared)]
    shared = [code(one.opts[0]) for one in command.params if one.opts[0] in _SHARED]
    if shared:
        parts.append(f"Also {', '.join(shared)}: [options of every command](#options-of-every-command).")
    parts.append(f"```sh\n{EXAMPLES[name.partition(' ')[2]]}\n```")
    return "\n\n".join(parts)


def shared() -> str:
    """An entry for each option that almost every command has."""
    name, command = next((name, one) for _, name, one in commands() if name == "layerprobe probe")
    context = typer.Context(command, info_name=name)
    return "\n\n".join(option(one, context, "layerprobe") for one in command.params if one.opts[0] in _SHARED)


def option(parameter: Any, context: typer.Context, name: str) -> str:
    """An entry of an option or argument."""
    head, text = name_and_text(parameter, context)
    text, _, extra = text.partition("  [")
    flag = head.partition(" ")[0].rstrip(",")
    target = f"{name} {flag}".replace(" ", "-") if flag.startswith("-") else ""
    return entry(head, (_facts(extra.removesuffix("]")),), escaped(text), target=target)


def _facts(extra: str) -> str:
    """What typer prints in brackets: `default: (auto); x>=1`, in words."""
    extra = re.sub(r"default: \(?([^();]*)\)?", lambda match: f"default {code(match[1])}", extra)
    extra = re.sub(r"x>=(-?[\d.]+)", r"at least \1", extra)
    extra = re.sub(r"env var: (\w+)", r"variable `\1`", extra)
    return extra.replace("(", "").replace(")", "")


def help_markdown(text: str) -> str:
    """The help of a command; what it indents, such as examples, is code."""
    blocks = re.split(r"\n\s*\n", inspect.cleandoc(text.replace("\b\n", "")))
    return "\n\n".join(
        f"```sh\n{inspect.cleandoc(block)}\n```" if block.startswith(("    ", "layerprobe ")) else escaped(block)
        for block in blocks
    )
