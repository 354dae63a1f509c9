"""Every way through the search gives the counts of a loop over pairs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layerprobe.metrics.precision import precision_and_ranks
from layerprobe.ranking import (
    items,
    nearest_positive_ranks,
    positives,
    products,
    ranks,
    retrieval,
    rounded,
    search,
    sweep,
)
from layerprobe.ranking.products import Product
from layerprobe.ranking.ranks import RecallAlone
from layerprobe.ranking.search import Team
from layerprobe.ranking.sweep import Way
from layerprobe.system.errors import NumericError
from layerprobe.values.retrieval import Ranks, SearchRules
from tests.processes import run_python
from tests.ranking.conftest import KINDS, Array, Labels, counts, exponential_labels, loop, make

FLOATS = ("cosine", "dot", "euclidean")


class Table:
    """Rows that are read in slices only, as from an HDF5 file."""

    def __init__(self, rows: Any) -> None:
        self.rows, self.shape, self.dtype = rows, rows.shape, rows.dtype

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, part: slice) -> Any:
        assert isinstance(part, slice)
        return self.rows[part].copy()


def emulated_bfloat16(device: torch.device, dim: int) -> Product:
    """What hardware gives: factors of bfloat16, a sum in float32, rounded once."""
    return Product(
        "bfloat16", torch.bfloat16, torch.bfloat16, 2.0**-23, 3, 16, lambda a, b: (a.float() @ b.float().T).bfloat16()
    )


def wide_bfloat16(device: torch.device, dim: int) -> Product:
    """What a GPU gives: factors of bfloat16, sums that stay float32."""
    return Product("bfloat16", torch.bfloat16, torch.float32, 2.0**-22, 3, 16, lambda a, b: a.float() @ b.float().T)


def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (items, ranks):
        monkeypatch.setattr(module, "BLOCK_ROWS", 24)
    monkeypatch.setattr(search, "_QUERIES_AT_ONCE", 20)
    monkeypatch.setattr(sweep, "_PAIRS_AT_ONCE", 40)
    monkeypatch.setattr(sweep, "_HEIGHT", 5)
    monkeypatch.setattr(positives, "_CELLS", 200)
    monkeypatch.setattr(positives, "_NUMBERS", 300)
    monkeypatch.setattr(positives, "_SCREENED_FROM", 12)
    monkeypatch.setattr(search, "float32", lambda device: replace(products.float32(device), tile=16))
    monkeypatch.setattr(search, "half_precision", emulated_bfloat16)


@pytest.fixture
def tiled(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch)


def choose_ways(monkeypatch: pytest.MonkeyPatch, suits: Callable[[Way], bool]) -> None:
    """Whatever the size and the cost, count in the first way that suits; in float32 where none does."""
    monkeypatch.setattr(search, "_PAIRS_FOR_A_SAMPLE", 0)
    monkeypatch.setattr(search, "_PAIRS_FOR_INTERVALS", 0)
    monkeypatch.setattr(search, "_SHARE_OF_A_BASIS", 1e9)
    monkeypatch.setattr(search, "_DIRECTIONS", (1, 2, 5))
    monkeypatch.setattr(rounded, "_FLAT", 1e9)
    monkeypatch.setattr(search, "cheapest", lambda found: next((way for _, way in found if suits(way)), found[0][1]))


@pytest.fixture(params=["intervals", "at once", "wide", "listed", "leading", "most leading"])
def low(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """bfloat16 or few dimensions whatever the size, and what they leave unclear."""
    small_tiles(monkeypatch)
    suits: dict[str, Callable[[Way], bool]] = {
        "intervals": lambda way: not way.exactly,
        "at once": lambda way: way.exactly and way.product.name == "bfloat16",
        "wide": lambda way: not way.exactly,
        "listed": lambda way: way.listed,
        "leading": lambda way: way.leading is not None and way.leading.count == 1,
        "most leading": lambda way: way.leading is not None and way.leading.count > 1,
    }
    choose_ways(monkeypatch, suits[request.param])
    if request.param == "wide":
        monkeypatch.setattr(search, "half_precision", wide_bfloat16)
    if request.param == "listed":
        monkeypatch.setattr(sweep, "FEW", 4)


def case(kind: str, seed: int) -> tuple[Array, Labels]:
    rng = np.random.default_rng(seed)
    n, d = int(rng.integers(30, 80)), int(rng.integers(1, 20))
    labels = exponential_labels(rng, n, int(rng.integers(1, 20)))
    return make(kind, rng, labels, d), labels


def truth(features: Array, labels: Labels, similarity: str, split: int = 0) -> list[tuple[int, int, int]]:
    """Among all, or of the first `split` in the others."""
    if split:
        return loop(features[:split], labels[:split], features[split:], labels[split:], [-1] * split, similarity)
    return loop(features, labels, features, labels, list(range(len(labels))), similarity)


def ranks_of(found: list[tuple[int, int, int]]) -> Ranks:
    closer, negatives, positive = np.array(found, np.int32).T
    return Ranks(closer, closer.copy(), negatives, positive)


repeatedly = settings(
    max_examples=3, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
often = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
seeds = st.integers(0, 2**32 - 1)


def check_all_ways(kind: str, similarity: Any, seed: int) -> None:
    features, labels = case(kind, seed)
    wanted = truth(features, labels, similarity)
    assert counts(nearest_positive_ranks(features, labels, similarity=similarity)) == wanted
    on_disk = nearest_positive_ranks(Table(features), labels, similarity=similarity)
    assert counts(on_disk) == wanted
    by_parts = nearest_positive_ranks(features, labels, similarity=similarity, memory=1)
    assert counts(by_parts) == wanted
    half = len(labels) // 2
    wanted = truth(features, labels, similarity, half)
    for gallery in (features[half:], Table(features[half:])):
        found = nearest_positive_ranks(
            features[:half], labels[:half], gallery=gallery, gallery_labels=labels[half:], similarity=similarity
        )
        assert counts(found) == wanted


def check_some_ks(kind: str, similarity: Any, seed: int) -> None:
    """Only what these K need is exact, the rest is an interval around the truth, and completes to it."""
    features, labels = case(kind, seed)
    half = len(labels) // 2
    for gallery, split in ((None, 0), (features[half:], half), (Table(features[half:]), half)):
        given_: dict[str, Any] = {"similarity": similarity, "resolve": (2, 5)}
        if gallery is not None:
            given_ |= {"gallery": gallery, "gallery_labels": labels[half:]}
        queries, classes = (features[:split], labels[:split]) if split else (features, labels)
        wanted = ranks_of(truth(features, labels, similarity, split))
        found = nearest_positive_ranks(queries, classes, **given_)
        for k in (2, 5):
            assert (found.hits(k) == wanted.hits(k)).all()
        assert (found.closer <= wanted.closer).all()
        assert (found.closer_high + found.tied_negatives >= wanted.closer + wanted.tied_negatives).all()
        assert (found.tied_positives == wanted.tied_positives).all()
        whole = nearest_positive_ranks(queries, classes, **given_ | {"resolve": "all", "previous_ranks": found})
        assert counts(whole) == counts(wanted)
        alone = nearest_positive_ranks(queries, classes, **given_ | {"resolve": RecallAlone(frozenset((2, 5)))})
        for k in (2, 5):
            assert (alone.hits(k) == wanted.hits(k)).all()


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity", FLOATS)
def test_memory_disk_parts_and_galleries_give_the_counts_of_a_loop(kind: str, similarity: str, seed: int) -> None:
    check_all_ways(kind, similarity, seed)


@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity", FLOATS)
def test_any_first_count_gives_the_recall_of_a_loop_for_the_ks_asked(kind: str, similarity: str, seed: int) -> None:
    check_some_ks(kind, similarity, seed)


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity", FLOATS)
def test_float32_gives_the_recall_of_a_loop_for_the_ks_asked(kind: str, similarity: str, seed: int) -> None:
    check_some_ks(kind, similarity, seed)


@pytest.mark.slow
@pytest.mark.usefixtures("low")
@pytest.mark.parametrize("check", [check_all_ways, check_some_ks])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("similarity", FLOATS)
@often
@given(seed=seeds)
def test_every_way_gives_the_counts_of_a_loop_in_many_cases(
    kind: str, similarity: str, check: Callable[[str, str, int], None], seed: int
) -> None:
    check(kind, similarity, seed)


@pytest.mark.usefixtures("tiled")
@repeatedly
@given(seed=seeds)
def test_packed_bits_give_the_counts_of_a_loop_over_bits_that_differ(seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = exponential_labels(rng, 60, 12)
    codes = rng.integers(0, 256, (60, int(rng.integers(1, 5))), dtype=np.uint8)
    wanted = truth(codes, labels, "hamming")  # type: ignore[arg-type] # codes are no floats
    for features in (codes, torch.from_numpy(codes), Table(codes)):
        assert counts(nearest_positive_ranks(features, labels, similarity="hamming")) == wanted


def test_long_codes_are_counted_exactly() -> None:
    # 16,384 bits: beyond what bfloat16 and a rounding bound of float32 would tell apart.
    codes = np.zeros((4, 2048), np.uint8)
    codes[1, 0], codes[2, 0], codes[3, 0] = 0b11, 0b1, 0b11000000
    found = nearest_positive_ranks(codes, [0, 0, 1, 1], similarity="hamming")
    # From row 0: its positive differs in 2 bits, row 2 in 1, row 3 in 2.
    assert counts(found)[0] == (1, 1, 1)


@pytest.mark.usefixtures("low")
def test_tiles_of_one_class_count_nothing() -> None:
    features = np.random.default_rng(0).normal(size=(100, 4))
    labels = np.repeat([0, 1], 50)
    assert counts(nearest_positive_ranks(features, labels)) == truth(features, labels, "cosine")


@pytest.mark.usefixtures("tiled")
def test_the_item_with_the_querys_id_is_no_negative_on_disk_either() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(40, 3)), np.arange(40) % 4
    wrong = np.where(np.arange(40) % 5 == 0, labels + 1, labels)  # in the gallery some have another class
    names = [f"{i}.png" for i in range(40)]
    wanted = loop(features, labels, features, wrong, list(range(40)), "cosine")
    for gallery in (features, Table(features)):
        found = nearest_positive_ranks(
            features, labels, gallery=gallery, gallery_labels=wrong, ids=names, gallery_ids=names
        )
        assert counts(found) == wanted


def test_float64_settles_what_float32_cannot_tell_apart() -> None:
    # cos 0.01 and cos 0.01000001 differ by 1e-10: nothing in float32, far more than the tie window.
    angles = np.array([0, 0.01, 0.01000001, 1])
    features = np.stack([np.cos(angles), np.sin(angles)], 1)
    assert counts(nearest_positive_ranks(features, [0, 0, 1, 1]))[0] == (0, 0, 1)
    assert counts(nearest_positive_ranks(features, [0, 1, 0, 1]))[0] == (1, 0, 1)


def test_bad_rows_on_disk_are_counted() -> None:
    features = np.ones((10, 2), np.float32)
    features[3], features[9, 1] = np.nan, np.inf
    with pytest.raises(NumericError, match="2 of 10 feature rows hold NaN or Inf"):
        nearest_positive_ranks(Table(features), np.arange(10) % 2)


def test_below_twenty_thousand_items_every_count_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 2)).astype(np.float32), np.arange(60) % 30
    choose_ways(monkeypatch, lambda way: not way.exactly)
    monkeypatch.setattr(search, "half_precision", emulated_bfloat16)
    assert not nearest_positive_ranks(features, labels).open().any()
    monkeypatch.setattr(ranks, "RESOLVE_ALL_BELOW", 60)
    monkeypatch.setattr(ranks, "USUAL_KS", (1,))
    assert nearest_positive_ranks(features, labels).open().any()


@pytest.mark.parametrize(
    ("resolve", "message"),
    [("every", "unknown resolve 'every': 'all' or the K"), ([0, 1], "K = 0: must be at least 1")],
)
def test_an_unknown_resolve_is_refused(resolve: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nearest_positive_ranks(np.eye(3), [0, 0, 1], resolve=resolve)


def test_known_ranks_of_another_set_are_refused() -> None:
    known = nearest_positive_ranks(np.eye(4), [0, 0, 1, 1])
    with pytest.raises(ValueError, match="previous_ranks: ranks of 4 queries, not 3"):
        nearest_positive_ranks(np.eye(3), [0, 0, 1], previous_ranks=known)


def test_sums_that_stay_float32_are_compared_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of very different lengths, so that thresholds rounded to bfloat16 would move by more than the bound.
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 60, 600)
    features = rng.normal(size=(600, 64)) * np.exp(rng.normal(size=(600, 1)))
    exact = nearest_positive_ranks(features, labels, similarity="euclidean")
    choose_ways(monkeypatch, lambda way: not way.exactly)
    monkeypatch.setattr(search, "half_precision", wide_bfloat16)
    found = nearest_positive_ranks(features, labels, similarity="euclidean", resolve=(1,))
    assert (found.closer <= exact.closer).all()
    assert (found.closer_high + found.tied_negatives >= exact.closer + exact.tied_negatives).all()
    assert (found.hits(1) == exact.hits(1)).all()


@pytest.mark.usefixtures("low")
def test_long_codes_with_a_contradicted_id_are_counted_exactly() -> None:
    codes = np.zeros((3, 128), np.uint8)
    codes[1, :2], codes[2, :2] = (0xFF, 0xE0), (0xFF, 0xC0)  # 11 and 10 bits from the query
    found = nearest_positive_ranks(
        codes[:1], [0], gallery=codes, gallery_labels=[1, 0, 1], ids=["a"], gallery_ids=["a", "b", "c"],
        similarity="hamming",
    )  # fmt: skip
    assert counts(found) == [(1, 0, 1)]


def test_autocast_does_not_reach_the_products(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(400, 64)), np.arange(400) % 40
    exact = counts(nearest_positive_ranks(features, labels))
    monkeypatch.setattr(products, "_one_dnn_works", lambda: False)
    with torch.autocast("cpu"):
        assert counts(nearest_positive_ranks(features, labels)) == exact


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("known", [False, True])
def test_no_more_queries_are_held_than_the_memory_allows(known: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(200, 4)).astype(np.float32), np.arange(200) % 20
    exact = nearest_positive_ranks(features, labels)
    before = replace(exact, closer_high=exact.closer + 1) if known else None
    sizes: list[int] = []
    counted = search.Search.counts

    def noted(self: search.Search, ks: Any) -> Any:
        sizes.append(len(self.queries))
        return counted(self, ks)

    monkeypatch.setattr(search.Search, "counts", noted)
    found = nearest_positive_ranks(features, labels, memory=50 * 4 * 16, previous_ranks=before)
    assert counts(found) == counts(exact)
    assert sizes == [50, 50, 50, 50]


def backwards(x: Any) -> Any:
    return x[::-1].copy()[::-1]


@pytest.mark.parametrize(
    "change",
    [lambda x: x.astype(">f4"), backwards, lambda x: np.asfortranarray(x), lambda x: x[:, ::-1].copy()[:, ::-1]],
)
def test_any_order_of_bytes_and_rows_is_taken(change: Callable[[Any], Any]) -> None:
    features = np.random.default_rng(0).normal(size=(30, 4)).astype(np.float32)
    labels = np.arange(30) % 5
    wanted = counts(nearest_positive_ranks(features, labels))
    assert counts(nearest_positive_ranks(change(features), labels)) == wanted


def test_vectors_below_the_normal_range_are_ranked() -> None:
    features = np.array([[1e-310, 0], [1e-310, 1e-311], [0, 1e-310], [1e-311, 1e-310]])
    assert counts(nearest_positive_ranks(features, [0, 0, 1, 1], similarity="dot"))[2] == (0, 0, 1)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"features": np.ones((3, 2), complex)}, "features: expected real numbers of at most 64 bits, got complex128"),
        ({"features": torch.ones(3, 2, dtype=torch.complex64)}, "expected real numbers"),
        ({"features": np.ones((3, 2), object)}, "expected real numbers of at most 64 bits, got object"),
        ({"features": np.ones((3, 2), np.longdouble)}, "expected real numbers of at most 64 bits"),
        ({"features": np.eye(3), "memory": 0}, "memory = 0: must be at least 1 byte"),
        ({"features": np.eye(3), "resolve": [1.5]}, "K = 1.5: must be a whole number"),
    ],
)
def test_what_cannot_be_ranked_is_refused(keywords: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        nearest_positive_ranks(labels=[0, 0, 1], **keywords)


@pytest.mark.parametrize("similarity", FLOATS)
def test_collapsed_features_are_told_without_a_product(similarity: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    labels = np.append(np.arange(99) % 20, 50)  # the last is lone
    # Lengths and distances differ by more than a tie window, angles do not.
    features = 1 + (1e-8 if similarity == "cosine" else 0) * rng.normal(size=(100, 6))
    wanted = truth(features, labels, similarity)
    monkeypatch.setattr(search, "count_symmetric", None)
    monkeypatch.setattr(search, "nearest_positives", None)
    assert counts(nearest_positive_ranks(features, labels, similarity=similarity)) == wanted
    assert wanted[-1] == (99, 0, 0)


def test_lone_queries_among_unclear_pairs_have_no_ties() -> None:
    rng = np.random.default_rng(0)
    labels = np.r_[np.arange(40) % 4, 50 + np.arange(20)]
    features = np.zeros((60, 3))
    features[:10] = rng.normal(size=(10, 3))  # the others tie with everything
    assert counts(nearest_positive_ranks(features, labels)) == truth(features, labels, "cosine")


def test_processes_agree_on_exactness_and_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_ways(monkeypatch, lambda way: not way.exactly)
    monkeypatch.setattr(search, "half_precision", emulated_bfloat16)
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 4)), np.arange(60) % 30
    seen = []

    class Another(Team):
        """A process beside this one that counts exactly in larger tiles, and finds nothing."""

        @property
        def share(self) -> slice:
            return slice(None)

        def maximum(self, values: torch.Tensor) -> torch.Tensor:
            return values + torch.tensor([1, 32]) if values.dtype == torch.int64 else values

        def total(self, values: torch.Tensor) -> torch.Tensor:
            return values

    symmetric = sweep.count_symmetric

    def noted(targets: Any, form: Any, way: Way, *others: Any) -> Any:
        seen.append((way.exactly, way.product.tile))
        return symmetric(targets, form, way, *others)

    monkeypatch.setattr(search, "count_symmetric", noted)
    monkeypatch.setattr(search, "Team", lambda group: Another(group))
    nearest_positive_ranks(features, labels, resolve=(1,))
    nearest_positive_ranks(features, labels, resolve=(1,), group=object())  # type: ignore[arg-type] # only told apart
    assert seen == [(False, 16), (True, 48)]


@pytest.mark.parametrize("leading_directions", [False, True])
def test_a_query_that_misses_at_each_k_is_counted_no_further(
    leading_directions: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_tiles(monkeypatch)
    choose_ways(monkeypatch, lambda way: way.listed and (way.leading is not None) == leading_directions)
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(400, 3)), np.arange(400) % 200
    exact = nearest_positive_ranks(features, labels)
    found = nearest_positive_ranks(features, labels, resolve=RecallAlone(frozenset((1, 4))))
    far = exact.closer >= 100  # more than two tiles hold
    assert far.any()
    assert (found.closer[far] >= 4).all()
    assert (found.closer[far] < exact.closer[far]).all()
    assert (found.closer_high[far] == 398).all()
    near = exact.closer < 4
    assert (found.closer[near] == exact.closer[near]).all()
    assert (found.closer_high[near] == exact.closer[near]).all()
    assert not nearest_positive_ranks(features, labels, resolve=(1, 4)).open(None).any()


def test_a_k_of_any_size_may_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_ways(monkeypatch, lambda way: way.listed)
    features, labels = np.random.default_rng(0).normal(size=(40, 3)), np.arange(40) % 20
    found = nearest_positive_ranks(features, labels, resolve=RecallAlone(frozenset([sys.maxsize])))
    assert found.hits(sys.maxsize).all()


def test_threads_share_the_search_of_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch)
    monkeypatch.setattr(sweep, "FEW", 0)
    choose_ways(monkeypatch, lambda way: way.listed)
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(100, 6)), np.arange(100) % 25
    threads = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert counts(nearest_positive_ranks(features, labels)) == truth(features, labels, "cosine")
    finally:
        torch.set_num_threads(threads)


def test_classes_of_many_sizes_come_once_with_all_their_items(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(positives, "_CELLS", 300)
    rng = np.random.default_rng(0)
    sizes = [1, 2, 3, 5, 9, 17, 40, 250]
    labels = rng.permutation(np.repeat(np.arange(len(sizes)), sizes))
    features = rng.normal(size=(len(labels), 5))
    assert counts(nearest_positive_ranks(features, labels)) == truth(features, labels, "cosine")


def test_a_query_that_is_counted_no_further_has_no_ties(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tied item in a later tile is taken out, and was never counted."""
    small_tiles(monkeypatch)
    choose_ways(monkeypatch, lambda way: way.listed and way.leading is None)
    rng = np.random.default_rng(0)
    labels = np.arange(60) // 2
    features = rng.normal(size=(60, 4))
    features[0], features[1] = (1, 0, 0, 0), (-1, 0.3, 0, 0)
    features[2:15, 0] = np.abs(features[2:15, 0]) + 1  # closer to the first than its positive, in the first tile
    features[15:] = -features[0]
    features[50] = features[1]
    taken_out = SearchRules(ignored=np.array([[0, item] for item in range(15, 60)]))
    found = nearest_positive_ranks(features, labels, resolve=RecallAlone(frozenset([1])), rules=taken_out)
    assert found.tied_negatives.min() == 0


def test_a_default_type_of_the_caller_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    choose_ways(monkeypatch, lambda way: way.listed)
    features, labels = np.random.default_rng(0).normal(size=(1200, 64)), np.arange(1200) % 60
    expected = counts(nearest_positive_ranks(features, labels))
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert counts(nearest_positive_ranks(features, labels)) == expected
    finally:
        torch.set_default_dtype(before)


# What each of two processes runs: it knows its rank and shares nothing but the features and a file to meet at.
PROCESS = """
import json, sys
from dataclasses import replace
import numpy as np
import torch.distributed as dist
from layerprobe.ranking import nearest_positive_ranks, products, search
from tests.ranking.test_search import answers

rank, meeting = int(sys.argv[1]), sys.argv[2]
# Each may find another product the fastest.
search.float32 = lambda device: replace(products.float32(device), tile=(512, 768)[rank])
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
print(json.dumps(answers(dist.group.WORLD)))
dist.destroy_process_group()
"""


def answers(group: Any) -> list[Any]:
    """Counts of queries among themselves and in a gallery: several tiles each, with ties and lone queries."""
    rng = np.random.default_rng(0)
    labels = np.append(np.arange(1699) % 400, 1000)
    features = rng.normal(size=(401, 12))[np.minimum(labels, 400)] + 0.7 * rng.normal(size=(1700, 12))
    features[::7] = features[3]
    pairs = np.unique(rng.integers(0, 1700, (3000, 2)), axis=0)
    asked: tuple[dict[str, Any], ...] = (
        {},
        {"gallery": features[1000:], "gallery_labels": labels[1000:]},
        {"resolve": (1, 4)},
        {"rules": SearchRules(groups=np.arange(1700) % 5, ignored=pairs[::2])},
        {"rules": SearchRules(positives=pairs)},
        {
            "rules": SearchRules(
                label_sets=np.array([(label, one) for label in range(1001) for one in (label, label // 3)])
            )
        },
    )
    answered = []
    for keywords in asked:
        searched = [nearest_positive_ranks(features, labels, group=group, **keywords)]
        if "resolve" not in keywords:
            (values, _), ranks = precision_and_ranks(retrieval(features, labels, **keywords), group)
            answered += [of_metric.tolist() for of_metric in values.values()]
            searched.append(ranks)
        for ranks in searched:
            counts = ranks.closer, ranks.closer_high, ranks.tied_negatives, ranks.tied_positives
            answered.append([count.tolist() for count in counts])
    return answered


def test_two_processes_give_the_integers_of_one(tmp_path: Path) -> None:
    def run(rank: int) -> Any:
        ended = run_python(PROCESS, str(rank), str(tmp_path / "meeting"), folder=Path(__file__).parents[2])
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(run, range(2))
    assert first == second == answers(None)
