"""Scores as a pandas data frame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING

from layerprobe.system.errors import EnvironmentFault
from layerprobe.values.scores import Score

if TYPE_CHECKING:
    from pandas import DataFrame


def score_frame(scores: Sequence[Score]) -> DataFrame:
    """A row for each score, with the columns of scores.csv."""
    try:
        from pandas import DataFrame
    except ImportError as error:
        raise EnvironmentFault(
            "a data frame needs pandas, which is not installed", fix="Install it: pip install pandas"
        ) from error
    columns = ["note" if field.name == "notes" else field.name for field in fields(Score)]
    return DataFrame([score.as_json() for score in scores], columns=columns)
