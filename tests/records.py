"""Records of runs for tests, with what every record has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from layerprobe.values.records import RunRecord
from layerprobe.workflow.run.runs import Run

_REQUIRED: Mapping[str, object] = {
    "state": "finished", "recipe_name": "a", "recipe": {}, "experiment": "e", "seed": 0, "epochs_done": 0,
    "hashes": {}, "manifests": {}, "new_parameters": [],
}  # fmt: skip


def recorded(fields: Mapping[str, object]) -> RunRecord:
    """A record with some fields as run.json has them."""
    return RunRecord.of_json({**_REQUIRED, **fields})


def rewrite(run: Run, **changes: Any) -> None:
    """Change fields of a run's record."""
    run.write(replace(run.read(), **changes))
