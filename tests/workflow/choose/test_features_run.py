from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from layerprobe.post_processing.applying import Blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.unfitted import unit
from layerprobe.system.progress import Listener, Silent
from layerprobe.values.choice import Choice
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.workflow.choose.choose import choose_candidates
from layerprobe.workflow.choose.features_run import open_features, rows_by_split, run_of_features
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.choose.user_features import UserFeatures, check_features
from layerprobe.workflow.probe.rerank import StoredSearch, whitening_fits

LABELS = np.repeat(np.arange(40), 4)


def some_features(splits: tuple[str, ...] | None) -> UserFeatures:
    rng = np.random.default_rng(0)
    classes = rng.normal(size=(40, 8))[LABELS]
    layers = {name: classes + noise * rng.normal(size=classes.shape) for name, noise in (("a", 0.5), ("b", 0.9))}
    return check_features(layers, LABELS, None if splits is None else np.array(splits)[LABELS * len(splits) // 40])


def choose_among(given: UserFeatures, listener: Listener | None = None) -> Choice:
    run, request, listener = (
        run_of_features(given, seen=True, seed=0),
        ChooseRequest(device="cpu"),
        listener or Silent(),
    )
    candidates, further = open_features(given, run, request, listener)
    return choose_candidates([candidates], request, listener, further)


@pytest.mark.parametrize(
    ("splits", "rows"),
    [
        (None, {"test": 160}),
        (("validation",), {"test": 160}),  # a single split is cross-fitted, whatever it is called
        (("train", "test"), {"train": 80, "test": 80}),
        (("train", "validation", "test", "test"), {"train": 40, "validation": 40, "test": 80}),
    ],
)
def test_the_rows_of_each_split(splits: tuple[str, ...] | None, rows: dict[str, int]) -> None:
    assert {split: len(found) for split, found in rows_by_split(some_features(splits)).items()} == rows


def test_candidates_within_folds_are_not_searched_in_the_whole_gallery_but_for_the_embedding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []
    values = StoredSearch.values

    def counted(search: StoredSearch, ranked: object, metric: str) -> object:
        searched.append((str(ranked), metric))
        return values(search, ranked, metric)  # type: ignore[arg-type] # a ranked layer

    monkeypatch.setattr(StoredSearch, "values", counted)
    choose_among(some_features(None))
    assert searched == [("b", "R@1")]


@pytest.mark.usefixtures("without_learned_maps")
def test_validation_without_train_rows_fits_maps_on_validation_and_measures_them_on_test() -> None:
    choice = choose_among(some_features(("validation", "test")))
    assert choice.candidates == 4
    assert choice.preferred_test is not None
    assert choice.preferred_test.split == "test"


class OneAtATime(Silent):
    """A task whose last layer is searched only once another one is said to be done."""

    def __init__(self) -> None:
        self.advanced = threading.Event()

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.advanced.set()


def test_ranking_advances_by_each_layer_that_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    listener, values = OneAtATime(), StoredSearch.values

    def late(search: StoredSearch, ranked: RankedLayer, metric: str) -> object:
        if str(ranked).startswith("b/l2+whiten"):
            assert listener.advanced.wait(60)
        return values(search, ranked, metric)

    monkeypatch.setattr(StoredSearch, "values", late)
    given = some_features(("train", "validation", "test"))
    open_features(given, run_of_features(given, seen=True, seed=0), ChooseRequest(device="cpu"), listener)


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int64])
def test_partial_whitening_within_folds_is_the_chain_on_the_same_rows_whatever_their_type(dtype: type) -> None:
    values: NDArray[Any] = (10 * np.random.default_rng(0).normal(size=(160, 6))).astype(dtype)
    run = run_of_features(check_features({"a": values}, LABELS), seen=True, seed=0)
    folds, layer, cpu = LABELS % 5, LayerKey("a", "none"), torch.device("cpu")
    fitted = whitening_fits(run, 0, "test", layer, folds, cpu, learned=False)
    assert fitted is not None
    assert fitted.dim == 6
    numbers = torch.from_numpy(values.astype(np.float64))
    for fold in range(5):
        alone = parse_chain("l2+whiten:6:0.5+l2").fit(Blocks(numbers[folds != fold], cpu), 6, seed=0)
        torch.testing.assert_close(fitted.onto(6, unit)(fold)(numbers), alone(numbers))
