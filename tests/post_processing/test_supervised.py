"""Maps that are fitted with classes, against scikit-learn and plain loops in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from sklearn.covariance import ledoit_wolf as sklearn_ledoit_wolf
from sklearn.covariance import oas as sklearn_oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from layerprobe.post_processing.applying import Blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.post_processing.post_processing import NotApplicableError, Projection
from layerprobe.post_processing.supervised import (
    ClassMoments,
    class_moments_of,
    learned_whitening,
    ledoit_wolf,
    oracle_approximating,
    parse_whitening,
)
from layerprobe.system.errors import LayerprobeError, NotFiniteError, RecipeError
from tests.post_processing.fitting import CPU, features

Rows = NDArray[np.float64]
SIZES = np.array([2, 9, 1, 5, 30, 3, 4, 6])  # images of each class


def labelled(dim: int = 6, *, seed: int = 0) -> tuple[Rows, NDArray[np.int64]]:
    """Features whose classes lie apart, and the class of each, in no order."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(SIZES)) * 3, SIZES))
    return features(len(labels), dim, seed) + 3 * random.normal(size=(len(SIZES), dim))[labels // 3], labels


def centred_in_classes(rows: Rows, labels: NDArray[np.int64]) -> Rows:
    """Each row less the mean of its class."""
    return np.stack([row - rows[labels == label].mean(0) for row, label in zip(rows, labels, strict=True)])


def fitted(text: str, rows: Rows, labels: NDArray[np.int64], asked: Rows) -> Rows:
    """`asked` through a chain, fitted on rows with labels."""
    post_process = parse_chain(text).fit(Blocks(rows, CPU), rows.shape[1], seed=0, labels=labels)
    return post_process(torch.from_numpy(asked)).numpy()


def moments(rows: Rows, labels: NDArray[np.int64], size: int = 7) -> ClassMoments:
    """The moments of rows in batches of some size."""
    batches = [torch.from_numpy(rows[start : start + size]) for start in range(0, len(rows), size)]
    return class_moments_of(batches, rows.shape[1], labels)


def equal_up_to_signs(first: Rows, second: Rows) -> bool:
    """Whether columns are equal, each perhaps times -1."""
    signs = np.sign((first * second).sum(0))
    return np.allclose(first, second * signs, rtol=1e-9, atol=1e-9)


def test_class_moments_are_those_of_a_loop_over_the_classes() -> None:
    """A mean of 1000 leaves the digits of the scatter."""
    rows, labels = labelled()
    rows += 1000
    taken, centred = moments(rows, labels), centred_in_classes(rows, labels)
    means = np.stack([rows[labels == label].mean(0) for label in np.unique(labels)])
    assert taken.counts.tolist() == SIZES.tolist()
    assert np.allclose(taken.means, means, rtol=1e-14)
    assert np.allclose(taken.within, centred.T @ centred, rtol=1e-10)
    assert taken.fourth == pytest.approx(sum(np.linalg.norm(row) ** 4 for row in centred), rel=1e-10)
    whole = (rows - rows.mean(0)).T @ (rows - rows.mean(0))
    assert np.allclose(taken.within + taken.between, whole, rtol=1e-9)


def test_moments_of_two_sets_of_classes_merge_into_those_of_all() -> None:
    """As folds of classes do."""
    rows, labels = labelled()
    first = labels < 12
    merged = moments(rows[first], labels[first]).merged(moments(rows[~first], labels[~first]))
    together = moments(rows, labels)
    for part in ("counts", "means", "within", "mean", "between"):
        assert np.allclose(getattr(merged, part), getattr(together, part), rtol=1e-12), part
    assert merged.fourth == pytest.approx(together.fourth, rel=1e-12)


@pytest.mark.parametrize("dim", [6, 90], ids=["more rows", "more dimensions"])
def test_automatic_shrinkage_is_scikit_learns_on_rows_less_their_class_mean(dim: int) -> None:
    """Both are of 60 rows."""
    rows, labels = labelled(dim)
    taken, centred = moments(rows, labels), centred_in_classes(rows, labels)
    assert ledoit_wolf(taken) == pytest.approx(sklearn_ledoit_wolf(centred, assume_centered=True)[1], rel=1e-9)
    assert oracle_approximating(taken) == pytest.approx(sklearn_oas(centred, assume_centered=True)[1], rel=1e-9)


@pytest.mark.parametrize("shrinkage", ["0", "0.25", "1"])
def test_lda_gives_scikit_learns_discriminants(shrinkage: str) -> None:
    """But for the mean, which it subtracts, and signs.

    scikit-learn shrinks each class's covariance, and adds them by the classes' shares: the same, as shrinkage is linear
    in the covariance.
    """
    rows, labels = labelled()
    rows, labels = rows[labels != 6], labels[labels != 6]  # scikit-learn warns of the class of one image
    asked, _ = labelled(seed=1)
    peer = LinearDiscriminantAnalysis(solver="eigen", shrinkage=float(shrinkage), n_components=4).fit(rows, labels)
    expected = peer.transform(asked) - peer.transform(rows.mean(0, keepdims=True))
    assert equal_up_to_signs(fitted(f"lda:4:{shrinkage}", rows, labels, asked), expected)


def by_cholesky_factors(rows: Rows, labels: NDArray[np.int64], asked: Rows, count: int, shrinkage: float) -> Rows:
    """By Cholesky factors and the eigenvectors of the whitened rows, as `whitenlearn` goes."""
    centred = centred_in_classes(rows, labels)
    within = centred.T @ centred / len(rows)
    shrunk = (1 - shrinkage) * within + shrinkage * np.trace(within) / len(within) * np.eye(len(within))
    whitening = np.linalg.inv(np.linalg.cholesky(shrunk)).T
    whitened = (rows - rows.mean(0)) @ whitening
    variances, axes = np.linalg.eigh(whitened.T @ whitened)
    leading: Rows = axes[:, np.argsort(-variances)[:count]]
    return np.asarray((asked - rows.mean(0)) @ whitening @ leading)


@pytest.mark.parametrize("dim", [6, 90], ids=["more rows", "more dimensions"])
@pytest.mark.parametrize("shrinkage", ["0.1", "lw", "oas"])
def test_learned_whitening_is_that_of_cholesky_factors(dim: int, shrinkage: str) -> None:
    """Another factor of the inverse covariance gives the same coordinates, up to signs."""
    rows, labels = labelled(dim)
    asked, _ = labelled(dim, seed=1)
    centred = centred_in_classes(rows, labels)
    automatic = {"lw": sklearn_ledoit_wolf, "oas": sklearn_oas}
    amount = automatic[shrinkage](centred, assume_centered=True)[1] if shrinkage in automatic else float(shrinkage)
    expected = by_cholesky_factors(rows, labels, asked, 5, amount)
    assert equal_up_to_signs(fitted(f"lwhiten:5:{shrinkage}", rows, labels, asked), expected)


def test_more_directions_than_classes_can_be_asked_for() -> None:
    """8 classes have 7 means apart from the features' mean; D = 20 of 90."""
    rows, labels = labelled(90)
    assert fitted("lwhiten:20:lw", rows, labels, rows).shape == (len(rows), 20)


def test_without_power_or_with_full_shrinkage_learned_whitening_is_pca() -> None:
    """Full shrinkage divides all directions by the same number."""
    rows, labels = labelled()
    expected = fitted("pca:3", rows, labels, rows)
    assert equal_up_to_signs(fitted("lwhiten:3:0:0", rows, labels, rows), expected)
    shrunk = fitted("l2+lwhiten:3:1+l2", rows, labels, rows)
    assert equal_up_to_signs(shrunk, fitted("l2+pca:3+l2", rows, labels, rows))


def test_half_power_divides_by_the_square_root_of_the_standard_deviation() -> None:
    """Within-class variances 4 and 1/16 along the axes, classes apart along the second: worked by hand.

    The mean of the products is diagonal, so that the map divides the first number by 4 ** 0.25 and the second by
    (1 / 16) ** 0.25 = 1 / 2.
    """
    rows = np.array([[-2.0, 9.75], [2.0, 10.25], [2.0, -10.25], [-2.0, -9.75], [2.0, 9.75], [-2.0, 10.25],
                     [-2.0, -10.25], [2.0, -9.75]])  # fmt: skip
    labels = np.array([0, 0, 1, 1, 0, 0, 1, 1])
    expected = np.stack([rows[:, 1] * 2, rows[:, 0] / 2**0.5], axis=1)
    assert equal_up_to_signs(fitted("lwhiten:2:0:0.5", rows, labels, rows), expected)


def test_the_order_of_rows_and_the_numbers_of_classes_do_not_matter() -> None:
    """The map is the same, signs included."""
    rows, labels = labelled()
    order = np.random.default_rng(2).permutation(len(rows))
    expected = fitted("lwhiten:4:lw", rows, labels, rows)
    assert np.allclose(fitted("lwhiten:4:lw", rows[order], 100 - labels[order], rows), expected, atol=1e-9)


def test_a_chain_fits_with_classes_on_what_came_before() -> None:
    """`l2+lwhiten` is `lwhiten` of unit vectors."""
    rows, labels = labelled()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    assert np.allclose(fitted("l2+lwhiten:3:0.2", rows, labels, rows), fitted("lwhiten:3:0.2", unit, labels, unit))


def test_the_map_is_one_projection() -> None:
    """So that every export has it."""
    rows, labels = labelled()
    post_process = parse_chain("lwhiten:3:lw").fit(Blocks(rows, CPU), 6, seed=0, labels=labels)
    assert isinstance(post_process.steps[0], Projection)  # type: ignore[attr-defined] # a chain's


def many_classes(dim: int = 70) -> tuple[Rows, NDArray[np.int64], NDArray[np.int64]]:
    """24 classes of 2 to 4 images, the class of each row and the fold of its class."""
    labels = np.random.default_rng(4).permutation(np.repeat(np.arange(24), np.resize([2, 3, 4], 24)))
    return features(len(labels), dim, seed=4), labels, labels % 3


def test_fits_without_folds_are_those_of_the_chain_on_the_other_classes() -> None:
    """Merged moments, for both numbers of dimensions: 47 rows that are fitted on have rank 46."""
    rows, labels, folds = many_classes()
    fits = learned_whitening(Blocks(rows, CPU), labels, folds, [None, 0, 2])
    assert fits is not None
    assert fits.dim == min((folds != fold).sum() for fold in (0, 2)) - 1
    for count, end in ((fits.dim, "l2"), (5, "int8")):
        map_without = fits.onto(count, parse_chain(end).fit((), count, seed=0))
        for fold in (None, 0, 2):
            others = folds != fold if fold is not None else folds >= 0
            expected = fitted(f"l2+lwhiten:{count}:lw+{end}", rows[others], labels[others], rows)
            assert np.allclose(map_without(fold)(torch.from_numpy(rows)).numpy(), expected, atol=1e-8)


def test_features_are_whitened_to_128_dimensions_unless_more_are_asked_for() -> None:
    """Of 130, by 400 rows."""
    labels = np.repeat(np.arange(40), 10)
    blocks = Blocks(features(400, 130), CPU)
    dims = [learned_whitening(blocks, labels, labels % 5, [None], most) for most in (128, 130, 500)]
    assert [None if fits is None else fits.dim for fits in dims] == [128, 130, 130]


@pytest.mark.parametrize(
    ("chain", "parts"),
    [
        ("l2+lwhiten:64:lw+l2", (True, 64, "l2")),
        ("l2+lwhiten:64:lw", (True, 64, "none")),
        ("l2+whiten:8:0.5+l2+float16", (False, 8, "l2+float16")),
        ("l2+whiten:8:0.5+binary", (False, 8, "binary")),
        ("l2+whiten:8:1+l2", None),
        ("lwhiten:64:lw+l2", None),
        ("l2+lwhiten:64:0.1+l2", None),
        ("l2+whiten:8:0.5+l2@gallery", None),
        ("l2+whiten:8:0.5+pca:4", None),
        ("l2+whiten:8:0.5+random:4", None),
        ("none", None),
    ],
)
def test_the_chains_that_fits_by_fold_serve_are_told_apart(chain: str, parts: tuple[bool, int, str] | None) -> None:
    """Learned or partial whitening, to how many dimensions, and the rest."""
    assert parse_whitening(chain) == parts


def test_few_classes_have_no_learned_whitening() -> None:
    """A fit on fewer than 16 classes of two images or more; 24 classes in 3 folds leave 16, in 2 folds 12."""
    rows, labels, folds = many_classes()
    assert learned_whitening(Blocks(rows, CPU), labels, folds, [0]) is not None
    assert learned_whitening(Blocks(rows, CPU), labels, labels % 2, [0]) is None
    lone = np.where(np.arange(len(labels)) < 20, 100 + np.arange(len(labels)), labels)
    assert learned_whitening(Blocks(rows, CPU), lone, lone % 3, [0]) is None


def test_classes_whose_features_do_not_differ_have_no_learned_whitening() -> None:
    """Not an error: other candidates remain."""
    rows, labels, folds = many_classes()
    assert learned_whitening(Blocks(rows[labels], CPU), labels, folds, [None]) is None


ONE_A_CLASS = np.arange(60)
SAME_IN_CLASS = np.repeat(features(6, 6, seed=3), 10, axis=0)
CLASSES_OF_TEN = np.repeat(np.arange(6), 10)
ROWS = features(60, 6)


@pytest.mark.parametrize(
    ("text", "rows", "labels", "error", "message"),
    [
        ("lwhiten:3:lw", ROWS, ONE_A_CLASS, NotApplicableError, "lwhiten:3:lw: each class .* has one image"),
        ("lda:3", ROWS, ONE_A_CLASS, NotApplicableError, "lda:3: each class .* has one image"),
        ("lda:6", ROWS, CLASSES_OF_TEN, NotApplicableError, "6 classes, which have one discriminant fewer"),
        ("lwhiten:7:lw", ROWS, CLASSES_OF_TEN, NotApplicableError, "lwhiten:7:lw: the features have 6 dimensions"),
        ("lwhiten:3:lw", SAME_IN_CLASS, CLASSES_OF_TEN, NotApplicableError, "have the same features"),
        ("lwhiten:3:0", ROWS[:6], np.repeat(np.arange(2), 3), NotApplicableError, "in 4 of 6 .*, as lw does"),
        ("lwhiten:4:0.5", np.tile(ROWS[:3], (20, 1)), CLASSES_OF_TEN, NotApplicableError, "Use at most 2"),
        ("lda:3:lw", np.ones((60, 6)), CLASSES_OF_TEN, NotApplicableError, "have the same features"),
        ("lwhiten:3:lw", np.where(ROWS > 5, np.nan, ROWS), CLASSES_OF_TEN, NotFiniteError, "7 of 60 feature rows"),
    ],
)  # fmt: skip
def test_features_that_cannot_be_fitted_on_are_refused(
    text: str, rows: Rows, labels: NDArray[np.int64], error: type[LayerprobeError], message: str
) -> None:
    """In a line that says why."""
    with pytest.raises(error, match=message):
        fitted(text, rows, labels, rows)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lwhiten:3", "'' is no shrinkage: a number from 0 to 1, lw, oas"),
        ("lwhiten:3:2", "'2' is no shrinkage"),
        ("lwhiten:3:-1", "'-1' is no shrinkage"),
        ("lwhiten:3:nan", "'nan' is no shrinkage"),
        ("lwhiten:3:lw:", "'' is no power from 0 to 1"),
        ("lwhiten:3:lw:1.5", "'1.5' is no power from 0 to 1"),
        ("lwhiten:0:lw", "'0' is no number of dimensions"),
        ("lda:x", "'x' is no number of dimensions"),
        ("lda:3:", "'' is no shrinkage"),
        ("lda:3:lwx", "'lwx' is no shrinkage"),
        ("lwhiten:3:lw@gallery", "it is fitted with classes"),
        ("l2+lda:3@gallery", "it is fitted with classes"),
    ],
)
def test_a_name_that_says_no_such_map_is_refused(text: str, message: str) -> None:
    """Before anything is fitted."""
    with pytest.raises(RecipeError, match=message):
        parse_chain(text)


def test_unknown_classes_are_refused() -> None:
    """Where a caller has none."""
    with pytest.raises(NotApplicableError, match="lda:2: the classes of the features .* are not known"):
        parse_chain("lda:2").fit(Blocks(ROWS, CPU), 6, seed=0)
