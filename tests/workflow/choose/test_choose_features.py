from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.neighbors import NearestNeighbors

from layerprobe import choose
from layerprobe.statistics.choice import folds_of
from layerprobe.statistics.units import intervals, unit_sums
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.values.choice import Choice
from layerprobe.values.facts import WITHIN_FOLDS
from layerprobe.values.intervals import IntervalKind
from layerprobe.values.layers import LayerKey, spoken_name
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.feature_files import read_user_features
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.choose.user_features import UserFeatures

Array = NDArray[Any]


def some_layers(classes: int = 20, images: int = 5, seed: int = 0) -> tuple[dict[str, Array], Array]:
    """Three layers of 8 to 16 dimensions with uneven spectra: the second tells classes apart best."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.arange(classes), images)
    centres = rng.normal(size=(classes, 8))[labels]
    layers = {}
    for name, dim, noise in (("a", 16, 1.4), ("b", 12, 0.7), ("c", 8, 1.0)):
        mixed = (centres + noise * rng.normal(size=centres.shape)) @ rng.normal(size=(8, dim))
        spectrum = np.exp(-np.arange(dim) / 4)
        layers[name] = ((mixed + rng.normal(size=mixed.shape)) * spectrum + 0.5).astype(np.float32)
    return layers, labels


def unit(values: Array) -> Array:
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    made: Array = values / lengths
    return made


def partially_whitened(values: Array, fitted_on: Array) -> Array:
    """scikit-learn's PCA, each axis divided by the fourth root of its variance."""
    pca = PCA(svd_solver="full").fit(unit(fitted_on.astype(float)))
    return unit(pca.transform(unit(values.astype(float))) / pca.explained_variance_**0.25)


def hits_within(folds: Array, of_fold: Callable[[int], Array], labels: Array) -> Array:
    """Whether the nearest other row of the same fold, by that fold's features, is of the same class."""
    found = np.zeros(len(labels), bool)
    for fold in range(5):
        own = folds == fold
        found[own] = hits(of_fold(fold)[own], labels[own])
    return found


def hits(values: Array, labels: Array) -> Array:
    """Whether the nearest other row by angle is of the same class."""
    found = NearestNeighbors(n_neighbors=2).fit(unit(values.astype(float))).kneighbors(return_distance=False)[:, 0]
    same: Array = labels[found] == labels
    return same


def preferred_of(choice: Choice) -> tuple[bool, float | None]:
    """Whether partial whitening is preferred, and the value of what is preferred on test."""
    assert choice.preferred_test is not None
    return choice.preferred.post_processing != "none", choice.preferred_test.value


def assert_measured(choice: Choice, raw: Array, white: Array) -> None:
    """The hits of a single layer, raw and partially whitened, on the classes that are chosen on, are those that were
    used.

    The raw one is the embedding; where it is kept, the lead has the other.
    """
    both = [raw.mean(), white.mean()]
    is_white = choice.preferred.post_processing != "none"
    assert choice.chosen.value == both[choice.selected.post_processing != "none"]
    assert choice.lead is not None
    assert choice.lead.difference == pytest.approx(both[is_white] - both[not is_white])


def leads(white: Array, raw: Array, labels: Array) -> bool:
    """Whether partial whitening is preferred: by more than half a standard error over classes of equal size."""
    gains = np.array([white[labels == label].mean() - raw[labels == label].mean() for label in np.unique(labels)])
    return bool(gains.mean() > 0.5 * gains.std(ddof=1) / np.sqrt(len(gains)))


@pytest.mark.usefixtures("without_learned_maps")
def test_a_fold_is_judged_by_what_was_chosen_and_fitted_on_the_others() -> None:
    layers, labels = some_layers(40)
    choice = choose({"b": layers["b"]}, labels)
    folds = folds_of(labels)[labels]
    raw = hits_within(folds, lambda _: layers["b"], labels)
    white = hits_within(folds, lambda fold: partially_whitened(layers["b"], layers["b"][folds != fold]), labels)
    judged = raw.copy()
    for fold in range(5):
        others = folds != fold
        if leads(white[others], raw[others], labels[others]):
            judged[~others] = white[~others]
    assert preferred_of(choice) == (leads(white, raw, labels), judged.mean())
    assert_measured(choice, raw, white)
    assert choice.chosen.split == "test"
    assert "cross-fitted, 5 folds" in choice.chosen.notes
    assert WITHIN_FOLDS in choice.notes


def test_validation_classes_choose_by_what_is_fitted_on_training_classes() -> None:
    layers, labels = some_layers(45)
    splits = np.array(["train", "validation", "test"])[labels // 15]
    choice = choose({"b": layers["b"]}, labels, splits=splits)
    rows = {name: splits == name for name in ("train", "validation", "test")}
    found = {}
    for name in ("validation", "test"):
        some = layers["b"][rows[name]]
        white = partially_whitened(some, layers["b"][rows["train"]])
        found[name] = [hits(each, labels[rows[name]]) for each in (some, white)]
    raw, white = found["validation"]
    best = leads(white, raw, labels[rows["validation"]])
    assert choice.chosen.split == "validation"
    assert preferred_of(choice) == (best, found["test"][best].mean())
    assert_measured(choice, raw, white)
    assert choice.best_on_test is not None
    assert choice.best_on_test.value == max(each.mean() for each in found["test"])
    assert WITHIN_FOLDS not in choice.notes


@pytest.mark.usefixtures("without_learned_maps")
def test_training_classes_choose_out_of_fold_and_test_is_fitted_on_all_of_them() -> None:
    layers, labels = some_layers(40)
    splits = np.array(["train", "test"])[labels // 20]
    train, test = splits == "train", splits == "test"
    choice = choose({"b": layers["b"]}, labels, splits=splits, seen=False)
    some, folds = layers["b"][train], folds_of(labels[train])[labels[train]]
    raw = hits_within(folds, lambda _: some, labels[train])
    white = hits_within(folds, lambda fold: partially_whitened(some, some[folds != fold]), labels[train])
    tested = [layers["b"][test], partially_whitened(layers["b"][test], layers["b"][train])]
    found = [hits(each, labels[test]).mean() for each in tested]
    best = leads(white, raw, labels[train])
    assert choice.chosen.split == "train"
    assert preferred_of(choice) == (best, found[best])
    assert_measured(choice, raw, white)
    assert choice.best_on_test is not None
    assert choice.best_on_test.value == max(found)
    assert any("not trained on the 20 selection and 20 test classes" in note for note in choice.notes)
    assert f"selection classes: {WITHIN_FOLDS}" in choice.notes


@pytest.mark.usefixtures("without_learned_maps")
def test_classes_that_may_have_been_seen_do_not_choose_but_fit_what_test_chooses_cross_fitted() -> None:
    layers, labels = some_layers(40)
    splits = np.array(["train", "test"])[labels // 20]
    train, test = splits == "train", splits == "test"
    choice = choose({"b": layers["b"]}, labels, splits=splits)
    some, folds = layers["b"][test], folds_of(labels[test])[labels[test] - 20]
    raw = hits(some, labels[test])
    white = hits(partially_whitened(some, layers["b"][train]), labels[test])
    judged = raw.copy()
    for fold in range(5):
        others = folds != fold
        if leads(white[others], raw[others], labels[test][others]):
            judged[~others] = white[~others]
    assert choice.chosen.split == "test"
    assert preferred_of(choice) == (leads(white, raw, labels[test]), judged.mean())
    assert_measured(choice, raw, white)
    assert "cross-fitted, 5 folds" in choice.notes
    assert WITHIN_FOLDS not in choice.notes
    assert choice.basis.endswith("as the network may have been trained on the 20 training classes")


def test_a_layer_that_knows_the_training_classes_by_heart_is_chosen_only_as_unseen() -> None:
    rng, labels = np.random.default_rng(0), np.repeat(np.arange(40), 5)
    splits = np.array(["train", "test"])[labels // 20]
    classes = rng.normal(size=(40, 16))[labels]
    noise = rng.normal(size=classes.shape)
    layers = {"early": classes + noise, "late": classes + noise * np.where(splits == "train", 0.1, 3)[:, None]}
    assert choose(layers, labels, splits=splits).selected.layer == "early"
    assert choose(layers, labels, splits=splits, seen=False).selected.layer == "late"


def test_training_rows_alone_are_refused_where_they_may_have_been_seen(tmp_path: Path) -> None:
    layers, labels = some_layers()
    splits = np.full(len(labels), "train")
    np.savez(tmp_path / "f.npz", b=layers["b"], labels=labels, split=splits)
    with pytest.raises(RecipeError, match=r"f.npz: all are train rows, .* leave the splits out"):
        choose_file(read_user_features(tmp_path / "f.npz"))
    assert choose({"b": layers["b"]}, labels, splits=splits, seen=False).selected.layer == "b"


def test_nothing_of_the_test_rows_changes_the_choice() -> None:
    layers, labels = some_layers(40)
    splits = np.array(["train", "test"])[labels // 20]
    others = {name: np.where(splits[:, None] == "test", values[::-1], values) for name, values in layers.items()}
    first, second = (choose(given, labels, splits=splits, seen=False) for given in (layers, others))
    assert (first.chosen, first.selected, first.shares) == (second.chosen, second.selected, second.shares)
    assert first.test != second.test


def test_the_last_layer_is_the_embedding() -> None:
    layers, labels = some_layers(80)
    splits = np.array(["validation", "test"])[labels // 40]
    choice = choose({"b": layers["b"], "a": layers["a"]}, labels, splits=splits)
    assert choice.embedding is not None
    assert choice.embedding.layer.name == "a"
    rows = splits == "test"
    assert choice.embedding.test.value == hits(layers["a"][rows], labels[rows]).mean()
    assert choice.gain is not None
    assert choice.preferred_test is not None
    assert choice.preferred_test.value is not None
    assert choice.embedding.test.value is not None
    assert (choice.advice, choice.gain_classes, choice.gain_elsewhere) == ("switch", 40, True)
    assert choice.gain.difference == pytest.approx(choice.preferred_test.value - choice.embedding.test.value)


def test_a_score_within_folds_says_so_and_the_embedding_has_that_of_the_whole_gallery() -> None:
    layers, labels = some_layers()
    choice = choose(layers, labels)
    assert choice.embedding is not None
    assert choice.embedding.whole_gallery is not None
    for score in (choice.chosen, choice.test, choice.preferred_test, choice.best_on_test, choice.embedding.test):
        assert score is not None
        assert WITHIN_FOLDS in score.notes
    whole = choice.embedding.whole_gallery
    assert (whole.value, WITHIN_FOLDS in whole.notes) == (hits(layers["c"], labels).mean(), False)
    assert choice.embedding.test.value is not None
    assert whole.value is not None
    assert whole.value < choice.embedding.test.value


@pytest.mark.parametrize("splits", [("train", "test"), ("validation", "test")])
def test_a_score_of_the_whole_gallery_says_nothing_of_folds(splits: tuple[str, str]) -> None:
    layers, labels = some_layers(40)
    choice = choose(layers, labels, splits=np.array(splits)[labels // 20])
    assert choice.embedding is not None
    assert choice.embedding.whole_gallery is None
    for score in (choice.test, choice.embedding.test):
        assert score is not None
        assert WITHIN_FOLDS not in score.notes


@pytest.mark.parametrize(
    ("splits", "seen", "classes"),
    [
        (None, True, "40 test"),
        (("train", "test"), True, "20 test"),
        (("train", "test"), False, "20 selection and 20 test"),
        (("validation", "test"), True, "20 validation and 20 test"),
    ],
)
def test_the_classes_that_are_taken_for_unseen_are_named(
    splits: tuple[str, str] | None, seen: bool, classes: str
) -> None:
    layers, labels = some_layers(40)
    rows = None if splits is None else np.array(splits)[labels // 20]
    choice = choose(layers, labels, splits=rows, seen=seen)
    assert f"assumed, not verified: the model was not trained on the {classes} classes" in choice.notes


@pytest.mark.parametrize(("metric", "gallery"), [("R@1", 30), ("R@2", 30), ("MAP@R", 3)])
def test_bounds_are_for_the_gallery_of_test_where_recall_decides(metric: str, gallery: int) -> None:
    # Without training classes to fit on, fifths of the 15 are searched.
    layers, labels = some_layers(45)
    splits = np.where(labels < 15, "validation", "test")
    choice = choose({"b": layers["b"], "c": layers["c"]}, labels, splits=splits, metric=metric)
    assert (choice.classes, choice.test_classes, choice.gallery_classes) == (15, 30, gallery)


@pytest.mark.usefixtures("without_learned_maps")
def test_layers_can_be_named_and_the_embedding_stays(tmp_path: Path) -> None:
    layers, labels = some_layers()
    np.savez(tmp_path / "f.npz", labels=labels, **layers)  # type: ignore[arg-type] # numpy's stub
    choice = choose_file(read_user_features(tmp_path / "f.npz"), ChooseRequest(layers=("a",)))
    assert (choice.preferred.layer, choice.candidates) == ("a", 2)
    assert not any(name.startswith(("b", "c")) for name in choice.shares)
    assert choice.embedding is not None
    assert choice.embedding.layer.name == "c"
    with pytest.raises(UnknownNameError, match="unknown layer 'd'"):
        choose_file(read_user_features(tmp_path / "f.npz"), ChooseRequest(layers=("d",)))


def test_another_metric_decides() -> None:
    layers, labels = some_layers(40)
    splits = np.array(["train", "test"])[labels // 20]
    choice = choose(layers, labels, splits=splits, metric="MAP@R", within=100)
    assert choice.chosen.metric == "MAP@R"
    values, own = unit(layers[choice.selected.layer][splits == "test"].astype(float)), labels[splits == "test"]
    if choice.selected.post_processing != "none":
        values = partially_whitened(values, layers[choice.selected.layer][splits == "train"])
    expected = []
    for row, query in enumerate(values):
        others = np.arange(len(own)) != row
        right = (own[others] == own[row])[np.argsort(-(values[others] @ query), kind="stable")]
        count = int(right.sum())
        expected.append((np.cumsum(right)[:count] / np.arange(1, count + 1) * right[:count]).sum() / count)
    assert choice.chosen.value == pytest.approx(np.mean(expected))
    with pytest.raises(RecipeError, match="NMI is not the mean of a value for each query"):
        choose(layers, labels, metric="NMI")


@pytest.mark.usefixtures("without_learned_maps")
def test_equal_layers_count_once() -> None:
    layers, labels = some_layers()
    choice = choose({"b": layers["b"], "copy": layers["b"], "c": layers["c"]}, labels)
    assert choice.candidates == 4
    assert not any("copy" in name for name in choice.shares)


def test_items_of_one_class_and_group_are_taken_out(tmp_path: Path) -> None:
    layers, labels = some_layers()
    groups = np.arange(len(labels)) % 5 // 2  # three images of a class have another in their group
    np.savez(tmp_path / "f.npz", b=layers["b"], labels=labels, group=groups)
    choice = choose_file(read_user_features(tmp_path / "f.npz"), ChooseRequest(within=100))  # the cheapest: as it is
    distances = 1 - unit(layers["b"].astype(float)) @ unit(layers["b"].astype(float)).T
    folds = folds_of(labels)[labels]
    out = (groups[:, None] == groups) & (labels[:, None] == labels) | (folds[:, None] != folds)
    expected = (labels[np.where(out, np.inf, distances).argmin(1)] == labels).mean()
    assert choice.selected.post_processing == "none"
    assert choice.chosen.value == expected


@pytest.mark.parametrize("kind", [">f2", ">f4", ">f8"])
def test_features_in_another_byte_order_or_read_backwards_are_the_same(tmp_path: Path, kind: str) -> None:
    layers, labels = some_layers()
    layers = {name: values.astype(kind) for name, values in layers.items()}
    same = {name: values.astype(np.dtype(kind).newbyteorder("=")) for name, values in layers.items()}
    np.savez(tmp_path / "f.npz", labels=labels.astype(">i8"), **layers)  # type: ignore[arg-type] # numpy's stub
    assert choose_file(read_user_features(tmp_path / "f.npz")) == choose(same, labels)
    backwards = {name: values[::-1] for name, values in same.items()}
    assert choose(backwards, labels[::-1]).chosen.value == choose(same, labels).chosen.value


def test_texts_name_classes_and_splits_as_numbers_do(tmp_path: Path) -> None:
    layers, labels = some_layers(40)
    splits = np.array(["train", "test"])[labels // 20]
    texts = np.char.add("class ", labels.astype(str))
    np.savez(tmp_path / "f.npz", a=layers["a"], b=layers["b"], c=layers["c"], labels=texts, split=splits)
    assert (
        choose_file(read_user_features(tmp_path / "f.npz")).selected == choose(layers, labels, splits=splits).selected
    )


def test_constant_features_have_no_partial_whitening() -> None:
    layers, labels = some_layers()
    choice = choose({"b": layers["b"], "dead": np.ones((len(labels), 4), np.float32)}, labels)
    assert choice.selected.layer == "b"


def pairs_of_two_classes() -> tuple[Array, Array]:
    """Rows whose nearest other one is always of another class, so that chance is better; and their classes."""
    rng = np.random.default_rng(0)
    return np.repeat(rng.normal(size=(30, 8)), 2, axis=0) + 0.01 * rng.normal(size=(60, 8)), np.arange(60) % 20


def test_a_layer_of_one_vector_is_named_and_not_shipped_where_it_would_be_the_best() -> None:
    wrong, labels = pairs_of_two_classes()
    # By the cosine, numbers above 0 of a single dimension are one direction.
    lengths = np.linspace(0.1, 9, 60, dtype=np.float32)[:, None]
    collapsed = {"dead": np.ones((60, 4)), "zero": np.zeros((60, 3)), "single": lengths, "scaled": lengths * wrong[:1]}
    layers, _ = some_layers(20, 3)
    choice = choose({**collapsed, "right": layers["b"][np.argsort(np.argsort(labels, kind="stable"))]}, labels)
    assert choice.selected.layer == "right"
    assert not any(name in candidate for name in collapsed for candidate in choice.shares)
    assert "skipped: collapsed to one vector: dead, zero, single, scaled" in choice.notes


def test_layers_that_are_all_of_one_vector_are_refused_by_name(tmp_path: Path) -> None:
    dead = np.ones((60, 4), np.float32)
    np.savez(tmp_path / "f.npz", dead=dead, gone=0 * dead, labels=np.arange(60) % 20)
    with pytest.raises(DataError, match=r"f.npz: every layer has collapsed to one vector: dead, gone\. Give"):
        choose_file(read_user_features(tmp_path / "f.npz"))


@pytest.mark.parametrize("within", [-1, 101, float("nan")])
def test_points_that_are_not_from_0_to_100_are_refused(within: float) -> None:
    layers, labels = some_layers()
    with pytest.raises(RecipeError, match=r"not a number of points from 0 to 100"):
        choose(layers, labels, within=within)


def test_rows_that_can_find_none_of_their_class_are_counted(tmp_path: Path) -> None:
    layers, labels = some_layers(12)
    rows, mates = np.flatnonzero(labels == 0), np.arange(len(labels))
    labels[rows[1:]] = 1  # the first row of class 0 is alone
    assert "1 lone queries count as misses" in choose({"b": layers["b"]}, labels).chosen.notes
    mates[labels == 2] = -1  # one group: all of class 2 are taken out of each other's results
    np.savez(tmp_path / "f.npz", b=layers["b"], labels=labels, group=mates)
    number = 1 + (labels == 2).sum()
    assert f"{number} lone queries count as misses" in choose_file(read_user_features(tmp_path / "f.npz")).chosen.notes
    with pytest.raises(DataError, match="rows has another row of its class to find"):
        choose({"b": layers["b"]}, np.arange(len(labels)))


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (
            np.ones((4, 2)),
            {},
            r"features must be \(N, D\) arrays by the names of layers, .*, not ndarray",
        ),
        ({"a": np.ones((4, 2))}, {"layers": 1}, "layers must be a name or a sequence of names, not int"),
        ({"a": np.ones((4, 2))}, {"within": "1"}, "within must be a number of points, not str"),
        ({"a": np.ones((4, 2))}, {"metric": 1}, "metric must be a name, not int"),
        ({"a": np.ones((4, 2))}, {"seed": None}, "seed must be a whole number, not None"),
    ],
)
def test_an_argument_of_another_type_is_told(features: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        choose(features, [0, 0, 1, 1], **options)


def test_identical_rows_are_told_with_their_effect() -> None:
    layers, labels = some_layers()
    splits = np.where(labels < 8, "validation", "test")
    rows = np.r_[np.arange(100), 41, 77]  # two test rows again
    layers = {name: values[rows] for name, values in layers.items()}
    choice = choose(layers, labels[rows], splits=splits[rows], layers=["b"])
    test = np.flatnonzero(splits[rows] == "test")
    identical = np.isin(test, [41, 77, 100, 101])
    values = layers[choice.selected.layer][test]
    if choice.selected.post_processing != "none":
        values = partially_whitened(values, layers[choice.selected.layer][splits[rows] == "validation"])
    others = 100 * hits(values, labels[rows][test])[~identical].mean()
    line = "test: 4 of 62 queries have an identical row in what they search; without those R@1 of "
    assert f"{line}{spoken_name(choice.selected.ranked)} is {others:.1f} %" in choice.notes
    # A row that is equal in one layer alone is another image.
    layers["a"] = layers["a"] + np.where(np.arange(102)[:, None] >= 100, np.float32(1e-3), 0)
    assert not any("identical" in note for note in choose(layers, labels[rows], splits=splits[rows]).notes)


def test_recall_in_fifths_without_identical_rows_is_labelled() -> None:
    layers, labels = some_layers()
    rows = np.r_[np.arange(100), 41]
    choice = choose({name: values[rows] for name, values in layers.items()}, labels[rows])
    (line,) = (note for note in choice.notes if "identical" in note)
    assert f"R@1 of {spoken_name(choice.selected.ranked)}, in fifths of the classes, is " in line


def test_rows_that_groups_take_out_are_not_identical_to_what_is_searched() -> None:
    layers, labels = some_layers()
    rows = np.r_[np.arange(100), 41]
    given = UserFeatures({LayerKey("b", "none"): layers["b"][rows]}, labels[rows], groups=np.r_[np.arange(100), 41])
    assert not given.find_identical(np.arange(101)).any()
    assert np.flatnonzero(UserFeatures(given.features, given.labels).find_identical(np.arange(101))).tolist() == [
        41,
        100,
    ]


def clustered(seed: int = 0) -> tuple[dict[str, Array], Array, Array]:
    """Two layers of 24 classes in 12 clusters of two, and the cluster of each row."""
    layers, labels = some_layers(24, 5, seed)
    return layers, labels, labels // 2


def test_clusters_are_the_units_of_intervals_and_folds() -> None:
    layers, labels, clusters = clustered()
    choice = choose(layers, labels, clusters=clusters)
    assert (choice.units, choice.classes, choice.test_classes) == ("clusters", 12, 12)
    # The embedding, searched by brute force within folds of whole clusters.
    folds = folds_of(clusters)[np.unique(clusters, return_inverse=True)[1]]
    raw = hits_within(folds, lambda _: layers["c"], labels)
    (interval,) = intervals(unit_sums(raw, clusters))
    assert choice.embedding is not None
    assert interval is not None
    score = choice.embedding.test
    assert (score.value, score.low, score.high) == pytest.approx((raw.mean(), interval.low, interval.high))
    assert score.kind == IntervalKind(cluster="clusters")


def test_clusters_of_single_classes_choose_as_classes_do() -> None:
    layers, labels, _ = clustered()
    of_classes, of_clusters = choose(layers, labels), choose(layers, labels, clusters=labels)
    assert (of_clusters.selected, of_clusters.gain, of_clusters.max_loss) == (
        of_classes.selected, of_classes.gain, of_classes.max_loss,
    )  # fmt: skip


def test_clusters_that_divide_classes_are_refused() -> None:
    layers, labels, _ = clustered()
    with pytest.raises(DataError, match="rows of class 0 are of several clusters"):
        choose(layers, labels, clusters=np.arange(len(labels)))


def test_classes_in_folders_are_told(tmp_path: Path) -> None:
    layers, labels, clusters = clustered()
    names = np.array([f"alphabet{cluster}/letter{label}" for cluster, label in zip(clusters, labels, strict=True)])
    np.savez(tmp_path / "f.npz", labels=names, a=layers["a"], b=layers["b"])
    plain, parents = (
        choose_file(read_user_features(tmp_path / "f.npz", cluster=cluster)) for cluster in (None, "parent")
    )
    assert any("classes lie in 12 folders" in note and "--cluster parent" in note for note in plain.notes)
    assert (parents.units, parents.classes) == ("clusters", 12)
    assert not any("folders" in note for note in parents.notes)
