from __future__ import annotations

from pathlib import Path

import numpy as np

from benchmarks.choice_rules import Candidate, average_precisions_of, closer_of, docs_table

ROOT = Path(__file__).parents[2]
FILES = {"Omniglot": "choice-rules-omniglot.csv", "emoji": "choice-rules-emoji.csv"}


def test_the_table_of_the_page_is_that_of_the_files() -> None:
    table = docs_table({called: ROOT / "docs" / "results" / name for called, name in FILES.items()})
    assert table in (ROOT / "docs" / "results" / "choice.md").read_text(encoding="utf-8")


def test_closer_negatives_and_average_precisions_are_those_of_a_hand_worked_case() -> None:
    # Images 0 and 1 of class 0, 2 and 3 of class 1, at 0, 20, 30 and 90 degrees; class 2 is not drawn.
    angles = np.radians([0, 20, 30, 90, 25])
    values = np.cos(angles[:, None] - angles)
    np.fill_diagonal(values, -np.inf)
    candidate, labels = Candidate(0, True, values, (4, 0, 0)), np.array([0, 0, 1, 1, 2])
    closer, classes = closer_of(candidate, labels, np.array([0, 1]))
    # Nearest positives are 20, 20, 60 and 60 degrees away; nearer negatives: none, 2 (10), 0 and 1 (30, 10), none.
    assert closer.tolist() == [0, 1, 2, 0]
    assert classes.tolist() == [0, 0, 1, 1]
    # With a single positive MAP@R is whether the nearest is it.
    assert average_precisions_of(candidate, labels, np.array([0, 1])).tolist() == [1.0, 1.0]
