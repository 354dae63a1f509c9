"""A report as one HTML file that opens without a network: text, styles, data, pictures and script inside."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from layerprobe.report.data import page_data
from layerprobe.report.values import Report
from layerprobe.system.wording import visible
from layerprobe.values.facts import assumed_lines, run_lines

_HERE = Path(__file__).parent
_STYLES = ("page.css", "gallery.css")
_SCRIPTS = ("state.js", "readout.js", "charts.js", "map.js", "table.js", "gallery.js", "start.js")  # in this order


def render(report: Report) -> str:
    """The page of a report.

    What the page may do is written in it: it runs one script, its own, and loads nothing from anywhere. Text of users
    is escaped, and control characters in it are replaced.

    Returns:
        HTML.
    """
    script = _join_files(_SCRIPTS)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")
    assumed = list(dict.fromkeys(line for facts in report.data.values() for line in assumed_lines(facts)))
    template = _environment().get_template("page.html.j2")
    return template.render(
        report=report,
        data=page_data(report),
        facts=run_lines(report.data) + assumed,
        style=Markup(_join_files(_STYLES)),
        script=Markup(script),
        digest=digest,
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # Sorted keys would put test before train.
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode("ascii")
    environment.filters["visible"] = lambda text: visible(text, keep="\n")
    return environment


def _join_files(names: tuple[str, ...]) -> str:
    return "\n".join((_HERE / name).read_text(encoding="utf-8") for name in names)
