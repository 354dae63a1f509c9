from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from layerprobe.values.models import LeftOut
from layerprobe.workflow.choose.models_text import models_rows, models_table, report_step
from tests.values.test_models import table_of

ORDER = "the order is that on test: R@1 of the highest of"
GROUP = "group: models that share a letter do not differ significantly (differences paired by queries, over classes"


def test_a_row_has_what_is_preferred_beside_the_embedding() -> None:
    table = models_table(table_of((0,), (0, 1), (1,)))
    assert [name.replace("\n", " ") for name in table.columns] == [
        "model", "layer", "test R@1", "group", "output, cosine", "bytes", "million mult-adds", "switch?",
    ]  # fmt: skip
    assert table.rows[1] == ("timm:b", "output", "59.0", "ab", "59.0", "16", "9e-06", "no")
    assert models_rows(table)[1][2:5] == ("59.0 [49.0, 69.0]", "ab", "59.0 [49.0, 69.0]")
    assert table.heading == (
        "Best: timm:a, R@1 60.0 [50.0, 70.0] %; 1 other does not differ significantly from it: timm:b.",
        "R@1 in % on 20 test classes, in brackets: 95 % interval over 20 classes, against this gallery",
        "layer: selected on training classes, which the network has not seen",
    )
    assert table.notes == (f"{GROUP}; p corrected by Holm for 3 pairs)", f"{ORDER} 3 models is a little too high")


def test_the_heading_says_which_models_are_cross_fitted() -> None:
    table = table_of((0,), (1,))
    crossed = replace(table, models=(table.models[0], replace(table.models[1], chosen_on="test")), within_folds=True)
    _, first, *lines = models_table(crossed).heading
    assert models_table(crossed).notes[0] == f"{GROUP})"  # a single pair needs no correction
    assert first.startswith("R@1 in % on fifths of 20 test classes, ")
    assert lines == [
        "layer of timm:a: selected on training classes, which the network has not seen",
        "layer of timm:b: cross-fitted, each fold of the test classes by the choice on the others",
    ]


def test_the_heading_says_where_too_few_classes_select() -> None:
    table = table_of((0,), (1,))
    few = replace(table, models=(table.models[0], replace(table.models[1], classes=8)))
    assert models_table(few).heading[-1] == (
        "layer of timm:b: the embedding where it is known: 8 selection classes are too few to tell candidates apart;"
        " 10 are needed"
    )


def test_what_is_assumed_and_left_out_are_notes() -> None:
    table = replace(table_of((0,)), left_out=(LeftOut("timm:x", "unknown model."),))
    assert models_table(table).notes == ("timm:x is left out: unknown model.",)
    assumed = replace(table_of((0,)), assumed=("timm:a", "timm:b"))
    assert models_table(assumed).notes == ("assumed, not verified: not trained on the test classes: timm:a, timm:b",)
    few = replace(table_of((), ()), count=9)
    assert models_table(few).notes == (
        "no groups: 9 classes, and it takes 10",
        f"{ORDER} 2 models is a little too high",
    )
    assert models_table(few).rows[0][3] == "-"


@pytest.mark.parametrize(
    ("share", "count", "text"),
    [(0.5, 1_820_400_000, "1,820"), (0.5, 390_000, "0.39"), (0.5, None, "50 % of all"), (None, None, "?")],
)
def test_multiply_adds_are_millions_or_a_share(share: float | None, count: int | None, text: str) -> None:
    table = table_of((0,))
    model = replace(table.models[0], share_of_multiply_adds=share, multiply_adds=count)
    assert models_table(replace(table, models=(model,))).rows[0][6] == text


def test_embeddings_of_other_names_have_a_common_one() -> None:
    table = table_of((0,), (0,))
    assert table.models[1].embedding is not None
    ranked = replace(table.models[1].embedding.ranked, similarity="euclidean")
    other = replace(table.models[1], embedding=replace(table.models[1].embedding, ranked=ranked))
    assert models_table(replace(table, models=(table.models[0], other))).columns[4] == "embedding"


def test_the_next_command_writes_the_page_of_all() -> None:
    assert report_step(table_of((0,), (0,)), Path("here")) == "next: layerprobe report r r --cache here"
