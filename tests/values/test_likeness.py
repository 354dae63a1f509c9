from __future__ import annotations

import pytest

from layerprobe.values.likeness import unlike_text
from tests.workflow.stored_ranks import ranked


@pytest.mark.parametrize(
    ("first", "second", "dims", "text"),
    [
        ("c1@max", "c2@max", (64, 64), ""),
        ("c1@max", "c2@avg", (64, 64), "they differ in pool (max, avg)"),
        ("c1@max", "fc6@none", (256, 1024), "they differ in dimensions (256, 1,024)"),
        ("c1@max", "c2@avg", (None, 64), "they differ in pool (max, avg)"),
        ("c1@max", "c2@avg", (8, 64), "they differ in pool (max, avg) and dimensions (8, 64)"),
    ],
)
def test_pool_and_dimensions_are_named(first: str, second: str, dims: tuple[int | None, int | None], text: str) -> None:
    assert unlike_text(ranked(first), ranked(second), dims) == text


def test_post_processing_is_named_last() -> None:
    text = "they differ in pool (max, avg), dimensions (8, 4) and post-processing (none, l2+pca:4)"
    assert unlike_text(ranked("c1@max"), ranked("c1@avg", "l2+pca:4"), (8, 4)) == text
