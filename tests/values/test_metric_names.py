from __future__ import annotations

import pytest

from layerprobe.values.metric_names import Recall, is_fraction, is_recall, recall_of


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("R@1", Recall(1)),
        ("R@10(G=1000)", Recall(10, gallery=1000)),
    ],
)
def test_a_recall_is_read_as_it_is_written(name: str, found: Recall) -> None:
    assert recall_of(name) == found
    assert str(found) == name


@pytest.mark.parametrize("name", ["R@0", "R@", "R@1-sd", "R@1(G=)", "R@1(2x2)", "MAP@R", "R@²", "r@1"])
def test_other_names_are_no_recall(name: str) -> None:
    assert recall_of(name) is None


def test_recall_in_the_whole_gallery_is_told_from_that_in_a_smaller_one() -> None:
    names = ["R@4", "R@4(G=10)", "mAP"]
    assert [is_recall(name) for name in names] == [True, False, False]


def test_shares_are_shown_in_percent_and_their_deviations_too() -> None:
    names = ["R@1", "NMI-sd", "unknown", "rho", "two-nn-sd"]
    assert [is_fraction(name) for name in names] == [True, True, True, False, False]
