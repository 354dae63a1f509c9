from __future__ import annotations

import pytest
import torch

from layerprobe.ranking import products
from layerprobe.ranking.products import pair_products


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("works", [True, False])
def test_products_of_pairs_are_those_of_their_rows(
    dtype: torch.dtype, works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert products._sampled_products_work()
    if not works:
        monkeypatch.setattr(products, "_sampled_products_work", lambda: False)
    # Whole numbers, whose sums are exact in any order.
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randint(-9, 9, (n, 40), generator=generator).to(dtype) for n in (30, 50))
    rows = torch.randint(30, (1000,), generator=generator).sort()[0]
    columns = torch.randint(50, (1000,), generator=generator)
    assert (pair_products(first, second, rows, columns) == (first @ second.T)[rows, columns]).all()
    none = rows[:0]
    assert pair_products(first, second, none, none).shape == (0,)


def test_bfloat16_is_offered_only_where_it_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "_cpu_sums_bfloat16_in_float32", lambda: True)
    cpu = torch.device("cpu")
    for seconds, offered in ((0.5, True), (5.0, False)):
        products._fast_bfloat16.cache_clear()
        monkeypatch.setattr(
            products, "seconds_per_number", lambda product, s=seconds: s if product.dtype == torch.bfloat16 else 1.0
        )
        assert (products.half_precision(cpu, 512) is not None) == offered
    products._fast_bfloat16.cache_clear()


@pytest.mark.parametrize(
    ("capability", "dim", "dtype"),
    [((8, 0), 2**14 - 1, torch.float16), ((8, 0), 2**14, torch.bfloat16), ((7, 5), 512, None)],
)
def test_a_gpu_multiplies_in_float16_unless_biases_may_leave_its_range(
    capability: tuple[int, int], dim: int, dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    found = products.half_precision(torch.device("cuda"), dim)
    assert (found and found.dtype) == dtype


@pytest.mark.gpu
def test_a_product_of_any_width_is_wide() -> None:
    wide = products.half_precision(torch.device("cuda"), 512)
    assert wide is not None
    first, second = (torch.randint(-9, 9, (rows, 40), dtype=torch.float16).cuda() for rows in (30, 13))
    assert (wide.multiply(first, second) == first.float() @ second.float().T).all()


@pytest.mark.parametrize(("seconds", "name"), [(0.95, "float32"), (0.85, "float32 oneDNN")])
def test_one_dnn_is_taken_where_it_is_faster_by_a_tenth(
    seconds: float, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    products._fastest_float32.cache_clear()
    monkeypatch.setattr(products, "_one_dnn_works", lambda: True)
    monkeypatch.setattr(products, "seconds_per_number", lambda some: seconds if "oneDNN" in some.name else 1.0)
    assert products.float32(torch.device("cpu")).name == name
    products._fastest_float32.cache_clear()


def test_the_fastest_float32_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for fastest in ("float32", "float32 oneDNN"):
        products._fastest_float32.cache_clear()
        monkeypatch.setattr(products, "_one_dnn_works", lambda: True)
        monkeypatch.setattr(products, "seconds_per_number", lambda product, name=fastest: float(product.name != name))
        assert products.float32(torch.device("cpu")).name == fastest
    products._fastest_float32.cache_clear()
