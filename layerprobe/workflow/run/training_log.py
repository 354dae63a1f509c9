"""metrics.jsonl, the log of a training: a line for each epoch."""

from __future__ import annotations

import json

from layerprobe.system.errors import DataError
from layerprobe.system.files import require_file
from layerprobe.workflow.run.runs import Run


def logged_losses(run: Run) -> list[tuple[int, float, int]]:
    """Epoch, loss and number of images of each line."""
    path = run.training_log_file
    try:
        require_file(path)
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return [(int(line["epoch"]), float(line["loss"]), int(line["images"])) for line in lines]
    except FileNotFoundError as error:
        fix = f"Train it, or leave {run.name} out"
        raise DataError("no epoch has been trained yet", file=run.folder, fix=fix) from error
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DataError("not the log of a training", file=path, fix="Train it again with --fresh") from error
