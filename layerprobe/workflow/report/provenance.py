"""How a report's runs and its page were made, a heading and a text each."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

from layerprobe import __version__
from layerprobe.ranking.vectors import TIE_WINDOW
from layerprobe.system.errors import DataError
from layerprobe.system.files import sha256
from layerprobe.system.wording import as_moment
from layerprobe.values.records import RunRecord
from layerprobe.workflow.run.runs import Run, command_line
from layerprobe.workflow.run.seen import weights_text

Provenance = tuple[tuple[str, str], ...]  # headings and texts

_RULES = (
    "R@K is the share of queries that have a right item among"
    " their K nearest. Each query is searched for exactly, among all items. Ties"
    f" count with their expected value under a random order; two similarities are tied if they differ by at most"
    f" {TIE_WINDOW:g} in float64. A query without another right item counts as a miss."
)


def page_provenance(seconds: float, *, in_python: bool = False) -> Provenance:
    """How the page was made.

    Args:
        seconds: since 1970, now.
        in_python: by the report of a result, not by the command.
    """
    source = "the result's scores" if in_python else "scores.csv, in its run's folder"
    return (
        ("command", "layerprobe.probe(...).report(...)" if in_python else command_line()),
        ("made by", f"layerprobe {__version__}, Python {platform.python_version()}"),
        ("made at", as_moment(seconds)),
        ("how numbers are made", f"Every number is one of {source}. {_RULES}"),
    )


def run_provenance(run: Run, *, is_kept: bool = True) -> Provenance:
    """How a run was made, as its record says; of a record that cannot be read, why.

    Args:
        is_kept: whether its files last, and are named.
    """
    scores = (("scores", f"{run.scores_file}, sha256 {sha256(run.scores_file)}"),) if is_kept else ()
    try:
        record = run.read()
    except DataError as error:
        return (("record", str(error)), *scores)
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    threads = record.threads
    device = ", ".join(str(value) for value in (record.device, threads and _count_text(threads, "thread")) if value)
    experiment = record.experiment and f"experiment {record.experiment}, "
    fields = {
        "command": record.command,
        "state": f"{record.state}, {_count_text(record.epochs_done, 'epoch')} done",
        "recipe": f"{record.recipe_name}, {experiment}seed {record.seed}",
        "recipe in full": _recipe(record.recipe),
        "versions": versions,
        "device": device,
        "input": record.transform,
        "weights": _weights(run, record),
        "images": _hashes(record.contents),
        "images and classes": _hashes(record.manifests),
        "notes": "\n".join(record.notes),
    }
    return (*((heading, str(text)) for heading, text in fields.items() if text), *scores)


def _count_text(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _recipe(sections: Mapping[str, Mapping[str, Any]]) -> str:
    """A line for each section, as TOML; keys without a value are omitted."""
    lines = []
    for name, section in sections.items():
        keys = [f"{key} = {json.dumps(x, ensure_ascii=False)}" for key, x in section.items() if x is not None]
        lines += [f"[{name}] {', '.join(keys)}"] if keys else []
    return "\n".join(lines)


def _weights(run: Run, record: RunRecord) -> str:
    """The hash of the last epoch's weights, or of the files that they came from."""
    numbered = not weights_text(record)
    files = [f"epoch {file.epoch}: " * numbered + f"{file.path}, sha256 {file.sha256}" for file in record.weights_files]
    name = run.checkpoint_file(record.epochs_done).name
    digest = record.hashes.get(name)
    return "\n".join([*files, *([f"{name}, sha256 {digest}"] if digest else [])])


def _hashes(splits: Mapping[str, str]) -> str:
    return "\n".join(f"{split}: sha256 {value}" for split, value in splits.items() if value)
