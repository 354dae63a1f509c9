from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from layerprobe.system.errors import DataError, RecipeError
from layerprobe.values.choice import Choice
from layerprobe.values.costs import IndexCosts
from layerprobe.values.retrieval import SearchRules
from layerprobe.workflow.choose.choose import choose_runs
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.feature_files import read_user_features
from layerprobe.workflow.choose.indexed_layer import measure_indexes, read_searched
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.probe.rerank import StoredSearch
from layerprobe.workflow.run.runs import Run
from tests.workflow.conftest import Silent
from tests.workflow.selection_runs import C1, FC6, labels_of, write_run

pytestmark = pytest.mark.usefixtures("faiss")

CLASSES = 12
REQUEST = ChooseRequest("0", device="cpu", indexes=("flat", "ivfpq"))


def features_of(split: str, noise: float, dim: int = 8) -> NDArray[np.float32]:
    rng, labels = np.random.default_rng(len(split)), labels_of(split, CLASSES)
    means = rng.standard_normal((CLASSES, dim))[labels - labels.min()]
    found: NDArray[np.float32] = (means + noise * rng.standard_normal(means.shape)).astype(np.float32)
    return found


def write(cache: Path, *splits: str, chain: str = "none") -> Run:
    """A run of epoch 0, in which fc6 is the better layer."""
    features = {split: {"c1@max": features_of(split, 2), "fc6@none": features_of(split, 0.6)} for split in splits}
    layers = {C1: np.zeros(4 * CLASSES)} | dict.fromkeys(
        [FC6, replace(FC6, post_processing=chain)], np.ones(4 * CLASSES)
    )
    return write_run(cache, "a", dict.fromkeys(splits, layers), features=features, epochs=(0,))


def of(choice: Choice) -> IndexCosts:
    assert choice.indexes is not None
    return choice.indexes


def test_a_runs_chosen_layer_is_indexed_on_test_and_trained_on_the_selection_classes(tmp_path: Path) -> None:
    choice = choose_runs([write(tmp_path, "train", "validation", "test")], REQUEST, Silent())
    found = of(choice)
    assert choice.test is not None
    assert found.rows[0].recall == choice.test.value  # the engine's, as probe stored it
    assert (found.layer, found.items, found.trained_on, found.notes) == ("a#0:fc6", 48, 48, ())
    assert [row.kind for row in found.rows] == ["exact", "flat", "ivfpq"]


def test_without_an_index_asked_for_there_is_none(tmp_path: Path) -> None:
    asked = replace(REQUEST, indexes=())
    assert choose_runs([write(tmp_path, "train", "validation", "test")], asked, Silent()).indexes is None


def test_a_cross_fitted_choice_trains_on_nothing_of_test(tmp_path: Path) -> None:
    found = of(choose_runs([write(tmp_path, "test")], REQUEST, Silent()))
    assert ([row.kind for row in found.rows], found.trained_on) == (["exact", "flat"], None)
    reason = "ivfpq has to be trained on other images than the indexed ones, and there are none"
    assert found.notes == (f"left out: {reason}",)


def directions(values: NDArray[np.float32]) -> NDArray[np.float64]:
    """(N, N) cosines, which do not depend on the signs of PCA's axes."""
    unit = values / np.linalg.norm(values, axis=1, keepdims=True)
    found: NDArray[np.float64] = unit @ unit.T
    return found


@pytest.mark.parametrize(
    ("splits", "fitted_on", "trained_on", "notes"),
    [
        (("train", "validation", "test"), "train", "validation", 0),
        (("validation", "test"), "validation", "validation", 0),
    ],
)
def test_an_index_is_trained_through_the_map_of_the_searched_images(
    splits: tuple[str, ...], fitted_on: str, trained_on: str, notes: int, tmp_path: Path
) -> None:
    run, chain = write(tmp_path, *splits, chain="whiten:3:0"), "whiten:3:0"  # PCA: no axis is divided
    searched, said = read_searched(run, 0, replace(FC6, post_processing=chain), "validation", torch.device("cpu"))
    pca = PCA(3).fit(features_of(fitted_on, 0.6))
    for values, split in ((searched.queries.values, "test"), (searched.training, trained_on)):
        expected = directions(pca.transform(features_of(split, 0.6)))
        np.testing.assert_allclose(directions(np.asarray(values)), expected, atol=1e-4)
    assert len(said) == notes


@pytest.mark.parametrize(
    ("splits", "chosen_on", "chain", "note"),
    [
        (("test",), "test", "pca:2", "fitted on the test images, as there are no others"),
        (
            ("test",),
            "test",
            "lda:2",
            "with their classes, as there are no others: recall is overestimated, and only its",
        ),
        (("validation", "test"), "validation", "lda:2", None),
    ],
)
def test_a_map_that_is_fitted_on_the_test_images_is_told(
    splits: tuple[str, ...], chosen_on: str, chain: str, note: str | None, tmp_path: Path
) -> None:
    run = write(tmp_path, *splits)
    _, notes = read_searched(run, 0, replace(FC6, post_processing=chain), chosen_on, torch.device("cpu"))
    assert len(notes) == (note is not None)
    assert all(str(note) in told for told in notes)


def test_a_mean_of_draws_has_no_index(tmp_path: Path) -> None:
    run, layer = write(tmp_path, "validation", "test"), replace(FC6, post_processing="random:3x2")
    with pytest.raises(RecipeError, match="fc6/random:3x2 is a mean of draws, each of which is another map"):
        read_searched(run, 0, layer, "validation", torch.device("cpu"))


def with_rules(rules: SearchRules, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StoredSearch, "is_plain", False)
    monkeypatch.setattr(StoredSearch, "rules", rules)


def test_images_of_the_querys_group_count_in_no_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(tmp_path, "train", "validation", "test")
    choice = choose_runs([run], replace(REQUEST, indexes=()), Silent())
    groups = np.arange(4 * CLASSES) % 2
    with_rules(SearchRules(groups=groups), monkeypatch)
    found = measure_indexes(run, choice, ("flat",), torch.device("cpu"))
    values, labels = features_of("test", 0.6), labels_of("test", CLASSES)
    cosines = directions(values)
    same = labels[:, None] == labels
    cosines[same & (groups[:, None] == groups)] = -2
    right = same[np.arange(len(labels)), cosines.argmax(1)].mean()
    assert [row.recall for row in found.rows] == pytest.approx([right, right])


def test_listed_items_have_an_index_but_no_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write(tmp_path, "train", "validation", "test")
    choice = choose_runs([run], replace(REQUEST, indexes=()), Silent())
    with_rules(SearchRules(positives=np.array([[0, 1]])), monkeypatch)
    with pytest.raises(DataError, match="--index: a list says which test images are right"):
        measure_indexes(run, choice, ("flat",), torch.device("cpu"))
    searched, _ = read_searched(run, 0, FC6, "validation", torch.device("cpu"))
    assert len(searched.items.labels) == 4 * CLASSES


def test_features_that_are_gone_are_told(tmp_path: Path) -> None:
    run = write(tmp_path, "train", "validation", "test")
    run.feature_file(0, "test").unlink()
    with pytest.raises(DataError):
        choose_runs([run], REQUEST, Silent())


def write_file(path: Path, *splits: str, group: bool = False) -> Path:
    labels = np.concatenate([labels_of(split, CLASSES) for split in splits])
    arrays = {"early": features_of, "late": features_of}
    noise = {"early": 2.0, "late": 0.6}
    layers = {name: np.concatenate([of(split, noise[name]) for split in splits]) for name, of in arrays.items()}
    groups = {"group": np.arange(len(labels)) % 2} if group else {}
    names = {"split": np.repeat(splits, 4 * CLASSES)} if len(splits) > 1 else {}
    np.savez(path, labels=labels, **names, **groups, **layers)  # type: ignore[arg-type] # numpy's stub
    return path


@pytest.mark.parametrize("group", [False, True])
def test_of_arrays_the_exact_row_is_the_score_on_test(group: bool, tmp_path: Path) -> None:
    path = write_file(tmp_path / "f.npz", "train", "validation", "test", group=group)
    choice = choose_file(read_user_features(path), ChooseRequest(layers=("late",), indexes=("flat", "hnsw")))
    assert choice.test is not None
    assert of(choice).rows[0].recall == choice.test.value
    assert of(choice).layer == choice.selected.name
    assert of(choice).rows[1].difference == 0


def test_train_rows_train_an_index_where_nothing_is_chosen_on_them(tmp_path: Path) -> None:
    found = of(
        choose_file(
            read_user_features(write_file(tmp_path / "f.npz", "train", "test")), ChooseRequest(indexes=("ivfpq",))
        )
    )
    assert found.trained_on == 48
    assert "ivfpq is trained on train, as is post-processing: there are no classes beside those of test" in found.notes


def test_another_metric_than_recall_is_shown_as_recall_at_1(tmp_path: Path) -> None:
    path = write_file(tmp_path / "f.npz", "validation", "test")
    assert of(choose_file(read_user_features(path), ChooseRequest(metric="MAP@R", indexes=("flat",)))).metric == "R@1"
    assert of(choose_file(read_user_features(path), ChooseRequest(metric="R@2", indexes=("flat",)))).metric == "R@2"


def test_without_test_classes_no_index_is_begun(tmp_path: Path) -> None:
    path = write_file(tmp_path / "f.npz", "train", "validation")
    with pytest.raises(RecipeError, match="--index shows recall on test, and there are no test classes"):
        choose_file(read_user_features(path), ChooseRequest(indexes=("flat",)))
