from __future__ import annotations

import csv
import re

from benchmarks.maps_tables import TABLES
from docs._ext import tables


def test_each_study_has_its_command_and_its_tables() -> None:
    text = tables.findings()
    assert text.count("```sh\npython benchmarks/findings.py ") == len(tables.FINDINGS)
    assert "python benchmarks/findings.py findings-share docs/results/share.csv\n" in text
    assert max(map(len, text.split("```sh\n")[1].partition("```")[0].splitlines())) <= 88


def test_a_cell_has_the_mean_of_its_scores() -> None:
    with (tables.RESULTS / "share.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    held_out = {row["run"] for row in rows if row["split"] == "validation"}
    wanted = ("blocks.6.0", "avg", "none", "test", "R@1")
    values: dict[str, list[float]] = {"0": [], "12": []}
    for row in rows:
        asked = (row["layer"], row["pool"], row["post_processing"], row["split"], row["metric"])
        if asked == wanted and row["run"] in held_out and row["epoch"] in values:
            values[row["epoch"]].append(float(row["value"]))
    assert [len(numbers) for numbers in values.values()] == [3, 3]
    start, end = (f"{100 * sum(numbers) / 3:.1f}" for numbers in values.values())
    text = tables.findings().partition("## Shares of the training classes")[2]
    assert re.search(rf"\| `blocks.6.0` \| {start} \[[^|]* \| {end} \[", text)


def test_every_table_of_the_maps_is_there() -> None:
    assert tables.maps().count("\n### ") == len(TABLES)
