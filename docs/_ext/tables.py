"""The tables of the findings and of the maps, from the scores in docs/results."""

from __future__ import annotations

from pathlib import Path

from benchmarks.findings import markdown, tables_of
from benchmarks.maps import read_rows
from benchmarks.maps_tables import TABLES, Stored
from layerprobe.values.scores import read_scores

RESULTS = Path(__file__).parents[1] / "results"
# Heading -> study, scores, scores at the start, pool.
FINDINGS = {
    "Emoji, average pooling": ("findings-emoji", "emoji", "emoji-start", "avg"),
    "Emoji, max pooling": ("findings-emoji", "emoji", "emoji-start", "max"),
    "Omniglot, average pooling": ("findings-omniglot", "omniglot", "omniglot-start", "avg"),
    "Shares of the training classes": ("findings-share", "share", "", "avg"),
    "A graded shift": ("shift", "shift", "", "avg"),
}


def findings() -> str:
    """Every layer of every study, with the command that prints it."""
    return "\n\n".join(_study(title, *values) for title, values in FINDINGS.items())


def _study(title: str, study: str, scores: str, start: str, pool: str) -> str:
    lines = [f"python benchmarks/findings.py {study} docs/results/{scores}.csv"]
    lines += [f"--start docs/results/{start}.csv"] if start else []
    lines += [f"--pool {pool}"] if pool != "avg" else []
    command = " \\\n  ".join(lines)
    at_start = read_scores(RESULTS / f"{start}.csv") if start else []
    text = tables_of(study, read_scores(RESULTS / f"{scores}.csv"), at_start, pool)
    return f"## {title}\n\n```sh\n{command}\n```\n\n{text}"


def maps() -> str:
    """Every table of the maps, with the command that prints them."""
    stored = Stored(read_rows(RESULTS / "maps.csv"))
    parts = [f"### {name[0].upper()}{name[1:]}\n\n{markdown(table(stored))}" for name, table in TABLES.items()]
    command = "```sh\npython -m benchmarks.maps_tables docs/results/maps.csv\n```"
    return "\n\n".join([command, *parts])
