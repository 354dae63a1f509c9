"""The kernel of Triton, which the interpreter runs on tensors of the CPU, and the search that counts with it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from layerprobe.ranking import items, nearest_positive_ranks, products, search, sweep
from layerprobe.ranking.products import Product
from layerprobe.ranking.sweep import works_in_one_pass
from layerprobe.ranking.tiles import Thresholds
from layerprobe.values.retrieval import SIMILARITIES, Similarity
from tests.ranking.conftest import KINDS, SPECTRA, Array, Labels, counts, loop, make

pytest.importorskip("triton")


@pytest.fixture
def interpreted() -> None:
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip("Triton compiles for the GPU")


def float16(device: torch.device, dim: int) -> Product:
    """What a GPU gives: factors of float16, sums that stay float32."""
    return Product("float16", torch.float16, torch.float32, 2.0**-22, 3, 32, lambda a, b: a.float() @ b.float().T)


@pytest.fixture
def one_pass(monkeypatch: pytest.MonkeyPatch, interpreted: None) -> None:
    """Every search counts with the kernel, in small tiles."""
    monkeypatch.setattr(search, "works_in_one_pass", lambda device: True)
    monkeypatch.setattr(search, "_PAIRS_FOR_A_SAMPLE", 0)
    monkeypatch.setattr(search, "half_precision", float16)
    monkeypatch.setattr(search, "float32", lambda device: replace(products.float32(device), tile=32))


def case(kind: str, seed: int = 0) -> tuple[Array, Labels]:
    rng = np.random.default_rng(seed)
    labels = rng.integers(8, size=50)
    return make(kind, rng, labels, 6), labels


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("fits", [0, 5, 2000])
def test_a_tile_is_counted_and_its_unclear_pairs_are_listed(turned: bool, fits: int, interpreted: None) -> None:
    from layerprobe.ranking.fused import count_in_one_pass

    rng = np.random.default_rng(0)
    similarities = rng.integers(16, size=(70, 150)).astype(np.float32)  # some equal a threshold
    similarities = similarities.T if turned else similarities
    labels, item_labels = (rng.integers(5, size=(size,)) for size in similarities.shape)
    low = rng.integers(14, size=len(labels)).astype(np.float32)
    high = low + 2
    closer, unclear = torch.zeros(2, len(labels), dtype=torch.int32)
    pairs, number = torch.full((2, fits), -1, dtype=torch.int32), torch.zeros((), dtype=torch.int64)
    tile, own, others = (torch.from_numpy(some) for some in (similarities, labels, item_labels))
    bounds = Thresholds(torch.from_numpy(low), torch.from_numpy(high))
    count_in_one_pass(tile, own, others, (1000, 2000), bounds, closer, unclear, pairs, number)
    negative = labels[:, None] != item_labels
    above = negative & (similarities > high[:, None])
    between = negative & (similarities >= low[:, None]) & ~above
    assert (closer.tolist(), unclear.tolist()) == (above.sum(1).tolist(), between.sum(1).tolist())
    assert number == (between.sum() if fits else 0)
    expected = {(1000 + int(i), 2000 + int(j)) for i, j in np.argwhere(between)}
    listed = [(i, j) for i, j in pairs.T.tolist() if i >= 0]
    assert len(set(listed)) == len(listed) == min(fits, len(expected))
    assert set(listed) <= expected


@pytest.mark.parametrize("similarity", ["cosine", "dot", "euclidean"])
@pytest.mark.parametrize("kind", [*KINDS, *SPECTRA])
def test_one_pass_gives_the_counts_of_a_loop(
    kind: str, similarity: Similarity, one_pass: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search, "count_blocks", None)  # nothing is counted again
    features, labels = case(kind)
    found = nearest_positive_ranks(features, labels, similarity=similarity)
    assert counts(found) == loop(features, labels, features, labels, list(range(len(labels))), similarity)


def test_one_pass_counts_bits(one_pass: None) -> None:
    rng = np.random.default_rng(0)
    labels, bits = rng.integers(8, size=50), rng.integers(256, size=(50, 2), dtype=np.uint8)
    floats = bits.astype(float)
    found = nearest_positive_ranks(bits, labels, similarity="hamming")
    assert counts(found) == loop(floats, labels, floats, labels, list(range(50)), "hamming")


def test_the_list_holds_the_pairs_of_a_row_of_tiles(one_pass: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "count_blocks", None)  # nothing is counted again
    features, labels = case("near-ties across the truncation")
    monkeypatch.setattr(sweep, "_LISTED", 200)  # of 230 pairs in all
    found = nearest_positive_ranks(features, labels)
    assert counts(found) == loop(features, labels, features, labels, list(range(len(labels))), "cosine")


@pytest.mark.parametrize("fits", [1, 18, 10_000])
def test_a_gallery_is_counted_block_by_block(fits: int, one_pass: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the pairs of no block, or of some, can be listed."""
    monkeypatch.setattr(items, "BLOCK_ROWS", 16)
    monkeypatch.setattr(sweep, "_LISTED", fits)
    features, labels = case("near-ties across the truncation", 1)
    gallery, gallery_labels = features[20:], labels[20:]
    found = nearest_positive_ranks(features[:20], labels[:20], gallery=gallery, gallery_labels=gallery_labels)
    assert counts(found) == loop(features[:20], labels[:20], gallery, gallery_labels, [-1] * 20, "cosine")


def test_where_too_many_pairs_are_unclear_they_are_counted_again(
    one_pass: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "_LISTED", 3)
    features, labels = case("near-ties across the truncation")
    found = nearest_positive_ranks(features, labels)
    assert counts(found) == loop(features, labels, features, labels, list(range(len(labels))), "cosine")


_COMPILED = """
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from layerprobe.ranking import fused

names = fused._count.arg_names
for contiguous in ("query_stride", "item_stride"):
    signature = dict.fromkeys(names, "i32") | dict.fromkeys(("similarities", "low", "high"), "*fp32")
    signature |= dict.fromkeys(("labels", "item_labels", "number"), "*i64")
    signature |= dict.fromkeys(("closer", "unclear", "pairs"), "*i32")
    constants = {contiguous: 1, "height": fused._HEIGHT, "width": fused._WIDTH}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fused._count, signature, {(names.index(name),): value for name, value in constants.items()})
    assert compile(source, target=GPUTarget("cuda", 80, 32)).asm["cubin"]
"""


def test_the_kernel_compiles_for_a_gpu() -> None:
    pytest.importorskip("triton.backends.nvidia")
    given = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", _COMPILED], env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.gpu
def test_a_gpu_counts_in_one_pass() -> None:
    assert works_in_one_pass(torch.device("cuda", 0))


@pytest.mark.gpu
@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_gives_the_counts_of_the_cpu(kind: str, similarity: Similarity) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(50, size=1500)
    features: Any = make(kind, rng, labels, 40)
    if similarity == "hamming":
        features = np.packbits(features > 0, axis=1)
    found = nearest_positive_ranks(torch.from_numpy(features).cuda(), labels, similarity=similarity)
    assert counts(found) == counts(nearest_positive_ranks(features, labels, similarity=similarity))
