"""`choose` with a number of bytes an image at most."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe import choose
from layerprobe.post_processing.chain import parse_chain
from layerprobe.system.errors import RecipeError
from layerprobe.values.choice import Choice, advice_text
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.workflow.choose.choose import _keep_within
from layerprobe.workflow.choose.choose_among import Candidates
from layerprobe.workflow.choose.refits import _within_budget
from layerprobe.workflow.choose.request import ChooseRequest
from tests.workflow.choose.test_learned_maps import LABELS, SPLITS, noisy

Array = NDArray[Any]
RAW = RankedLayer(LayerKey("a", "none"), "none", "cosine")


def post_processings(budget: int, dim: int, post_processing: str) -> list[str]:
    return [x.post_processing for x in _within_budget(replace(RAW, post_processing=post_processing), dim, budget)]


def test_a_budget_buys_numbers_of_each_kind() -> None:
    # 128 bytes: 32 float32, 64 float16, 128 int8, 1,024 bits
    assert post_processings(128, 2048, "l2+whiten:128:0.5+l2") == [
        "l2+whiten:32:0.5+l2", "l2+whiten:64:0.5+l2+float16", "l2+whiten:128:0.5+int8", "l2+whiten:1024:0.5+binary",
    ]  # fmt: skip
    assert post_processings(128, 48, "l2+lwhiten:48:lw+l2") == [
        "l2+lwhiten:32:lw+l2", "l2+lwhiten:48:lw+l2+float16", "l2+lwhiten:48:lw+int8", "l2+lwhiten:48:lw+binary",
    ]  # fmt: skip


def test_no_map_has_more_dimensions_than_the_rank_of_what_it_is_fitted_on() -> None:
    # partial whitening of 2,048 dimensions to 20: the features have rank 20
    assert post_processings(128, 2048, "l2+whiten:20:0.5+l2") == [
        "l2+whiten:20:0.5+l2", "l2+whiten:20:0.5+l2+float16", "l2+whiten:20:0.5+int8", "l2+whiten:20:0.5+binary",
    ]  # fmt: skip


def test_a_layer_as_it_is_takes_the_codes_that_fit() -> None:
    assert post_processings(128, 64, "none") == ["l2+float16", "int8", "layernorm+binary"]
    assert post_processings(128, 128, "none") == ["int8", "layernorm+binary"]
    assert post_processings(128, 1025, "none") == []


def test_too_few_bytes_for_a_number_of_a_kind_leave_it_out() -> None:
    assert post_processings(1, 64, "l2+whiten:64:0.5+l2") == ["l2+whiten:1:0.5+int8", "l2+whiten:8:0.5+binary"]


@pytest.mark.parametrize("seen", [False, True], ids=["within folds", "cross-fitted"])
def test_every_candidate_takes_at_most_so_many_bytes(seen: bool) -> None:
    choice = choose({"early": noisy(1), "late": noisy()}, LABELS, splits=SPLITS, seen=seen, budget=12)
    names = [re.sub("^[^/]*/?", "", name) or "none" for name in choice.shares]
    sizes = [parse_chain(name).bytes_per_image(parse_chain(name).dim(24)) for name in names]
    assert max(sizes) <= 12
    assert choice.preferred.bytes_per_image <= 12
    assert choice.budget == 12
    assert "of more than 12 bytes an image: 2 candidates, which are left out" in choice.notes


def embedding_is_best() -> Choice:
    """A large embedding that tells classes apart, and a budget that it exceeds."""
    random = np.random.default_rng(0)
    centres = 3 * random.normal(size=(60, 40))
    clear = (centres[LABELS] + random.normal(size=(len(LABELS), 40))).astype(np.float32)
    return choose({"late": clear}, LABELS, splits=SPLITS, seen=False, budget=1)


def test_an_embedding_of_more_bytes_is_not_selected() -> None:
    choice = embedding_is_best()
    assert choice.embedding is not None
    assert choice.advice == "keep"
    assert choice.selected == choice.preferred != choice.embedding.layer
    assert choice.selected.bytes_per_image == 1


def test_the_text_compares_with_the_embedding_of_more_bytes() -> None:
    text = advice_text(embedding_is_best())
    assert re.match(r"Selected: late, .*, 1 bytes? an image \(1 at most\): -[\d.]+ points of R@1 ", text)
    assert "to late, which takes 160 (" in text


def test_without_a_candidate_that_fits_the_smallest_is_named() -> None:
    late = embedding_is_best().preferred
    assert late.bytes_per_image == 1
    with pytest.raises(RecipeError, match="budget 0: not a number of bytes"):
        ChooseRequest(budget=0)
    candidate: Any = type("Sized", (), {"layer": replace(late, bytes_per_image=64)})
    everything = Candidates([candidate], "test", 10, 10)
    with pytest.raises(RecipeError, match=r"budget 32: every candidate takes more bytes an image, 64 at least.*--post"):
        _keep_within(32, everything, [])
