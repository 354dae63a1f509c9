"""Every command of the command line: usage, help and options, from typer."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any

import typer
from typer.main import get_command

from docs._ext.markdown import code, entry, escaped
from layerprobe.cli import command_line

_OTHER = "Commands"
# Options that almost every command has: the page describes them once.
_SHARED = ("--cache", "--json", "--quiet", "--debug", "--help")


def commands() -> Iterator[tuple[str, str, Any]]:
    """Panel, full name and click command, in the order of `--help`."""
    app = command_line()
    for info in app.registered_commands:
        if info.callback is not None:
            single = typer.Typer(add_completion=False, rich_markup_mode=None)
            single.registered_commands = [info]
            panel = info.rich_help_panel if isinstance(info.rich_help_panel, str) else _OTHER
            yield panel, f"layerprobe {info.name or info.callback.__name__}", get_command(single)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            panel = group.rich_help_panel if isinstance(group.rich_help_panel, str) else None
            panel = panel or _panel_of(group.typer_instance) or _OTHER
            inner: Mapping[str, Any] = get_command_group(group.typer_instance)
            for name, command in inner.items():
                yield panel, f"layerprobe {group.typer_instance.info.name} {name}", command


def get_command_group(app: typer.Typer) -> Mapping[str, Any]:
    """Name -> command of a group, also of one with a single command."""
    from typer.main import get_group

    return dict(get_group(app).commands)


def _panel_of(app: typer.Typer) -> str | None:
    panel = app.info.rich_help_panel
    return panel if isinstance(panel, str) else None


def page() -> str:
    """A section for each panel of commands, with one for each of its commands."""
    found = list(commands())
    panels = list(dict.fromkeys(panel for panel, *_ in found))
    return "\n\n".join(
        "\n\n".join([f"## {panel}", *(section(name, command) for other, name, command in found if other == panel)])
        for panel in panels
    )


def section(name: str, command: Any) -> str:
    """Usage, help and options of a command."""
    context = typer.Context(command, info_name=name)
    usage = " ".join(command.get_usage(context).removeprefix("Usage:").split())
    parts = [f"### {name}", f"```text\n{usage}\n```", help_markdown(command.help or "")]
    own = [one for one in command.params if one.opts[0] not in _SHARED]
    for panel, members in groupby(own, key=lambda one: one.rich_help_panel or ""):
        if isinstance(panel, str) and panel:
            parts.append(f"*{escaped(panel)}*")
        parts += [option(one, context, name) for one in members]
    shared = [code(one.opts[0]) for one in command.params if one.opts[0] in _SHARED]
    if shared:
        parts.append(f"Also {', '.join(shared)}: [options of every command](#options-of-every-command).")
    return "\n\n".join(parts)


def shared() -> str:
    """An entry for each option that almost every command has."""
    name, command = next((name, one) for _, name, one in commands() if name == "layerprobe probe")
    context = typer.Context(command, info_name=name)
    return "\n\n".join(option(one, context, "layerprobe") for one in command.params if one.opts[0] in _SHARED)


def option(parameter: Any, context: typer.Context, name: str) -> str:
    """An entry of an option or argument."""
    head, text = parameter.get_help_record(context) or (parameter.opts[0], "")
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
