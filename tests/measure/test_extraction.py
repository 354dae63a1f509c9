from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from layerprobe.data.transforms import Normalise
from layerprobe.hooks import Hook, resolve_hooks
from layerprobe.hooks.layouts import Layout
from layerprobe.measure.analysis import Features, rank
from layerprobe.measure.extraction import Arrays, SideBySide, copy_at_once, copy_to_host, extract
from layerprobe.nets.vgg16_bn import build
from layerprobe.system.errors import NotFiniteError
from layerprobe.values.layers import LayerKey
from tests.waiting import never_waiting

FC6 = LayerKey("fc6", "none")

CPU = torch.device("cpu")


class Sums(nn.Module):
    """(B, 3, H, W) -> (B, 1): the sum of an image, by a layer that training would change."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3, eps=1e-30)  # lost in the sum with 1, but above 0
        self.fc6 = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        return torch.as_tensor(self.fc6(self.norm(images).sum((1, 2, 3))[:, None]))


TAPS = [Hook("fc6", "fc6", 1, "none", 1, Layout("vector", shape=(1,)))]


def pixels(*values: int) -> Tensor:
    """One image of 2 x 2 pixels a value: (B, 2, 2, 3)."""
    return torch.tensor(values, dtype=torch.uint8)[:, None, None, None].expand(-1, 2, 2, 3)


def as_floats(batch: Tensor) -> Tensor:
    assert batch.dtype == torch.uint8
    return batch.permute(0, 3, 1, 2).float()


def test_each_batch_gives_its_features_in_order_the_last_smaller() -> None:
    found = list(extract(Sums(), TAPS, [pixels(1, 2), pixels(3, 200), pixels(5)], as_floats, device=CPU))
    assert [batch[FC6].tolist() for batch in found] == [
        [[12.0], [24.0]],
        [[36.0], [2400.0]],
        [[60.0]],
    ]
    assert {batch[FC6].dtype for batch in found} == {np.dtype(np.float32)}


def noted(drawn: list[int]) -> Iterator[Tensor]:
    """Three batches, noted when they are drawn."""
    for value in (1, 2, 3):
        drawn.append(value)
        yield pixels(value)


def test_an_image_is_drawn_only_when_its_features_are_asked_for() -> None:
    drawn: list[int] = []
    features = extract(Sums(), TAPS, noted(drawn), as_floats, device=CPU)
    next(features)
    assert drawn == [1]


def test_between_two_batches_the_module_is_as_it_was() -> None:
    module = Sums().train()
    features = extract(module, TAPS, [pixels(1), pixels(2)], as_floats, device=CPU)
    next(features)
    assert module.norm.training
    assert not module.fc6._forward_hooks
    assert module.norm.num_batches_tracked == 0


def test_after_an_error_the_module_is_as_it_was() -> None:
    module = Sums().train()
    with pytest.raises(ValueError, match="expected 4D"):
        next(extract(module, TAPS, [pixels(1)], lambda batch: batch.float()[0], device=CPU))
    assert module.norm.training
    assert not module.fc6._forward_hooks


class Precision(nn.Module):
    """(B, 3, H, W) -> (B, 2): whether convolutions and products of GPUs are full float32."""

    def __init__(self) -> None:
        super().__init__()
        self.fc6 = nn.Identity()

    def forward(self, images: Tensor) -> Tensor:
        full = [switch.fp32_precision == "ieee" for switch in switches()]
        return torch.as_tensor(self.fc6(torch.tensor([full]).float().expand(len(images), -1)))


def switches() -> tuple[Any, ...]:
    return torch.backends.cudnn.conv, torch.backends.cuda.matmul  # type: ignore[attr-defined] # torch's stub lacks conv


@pytest.fixture
def fast() -> Iterator[None]:
    """A caller that prefers TF32."""
    before = [switch.fp32_precision for switch in switches()]
    for switch in switches():
        switch.fp32_precision = "tf32"
    yield
    for switch, precision in zip(switches(), before, strict=True):
        switch.fp32_precision = precision


@pytest.mark.usefixtures("fast")
def test_float32_is_computed_without_tf32_and_the_callers_choice_restored() -> None:
    features = extract(Precision(), TAPS, [pixels(1), pixels(2)], as_floats, device=CPU)
    assert next(features)[FC6].tolist() == [[1.0, 1.0]]
    assert [switch.fp32_precision for switch in switches()] == ["tf32", "tf32"]


@pytest.mark.usefixtures("fast")
def test_after_an_error_the_callers_precision_is_restored() -> None:
    with pytest.raises(ValueError, match="expected 4D"):
        next(extract(Sums(), TAPS, [pixels(1)], lambda batch: batch.float()[0], device=CPU))
    assert [switch.fp32_precision for switch in switches()] == ["tf32", "tf32"]


@pytest.mark.parametrize("copied", [copy_to_host, copy_at_once])
def test_features_come_to_the_host(copied: Callable[[dict[LayerKey, Tensor]], Callable[[], Arrays]]) -> None:
    maps, vectors = LayerKey("conv", "max"), torch.arange(6.0).view(3, 2).T  # strided, as a view would be
    found = copied({maps: torch.arange(6.0).view(2, 3), FC6: vectors})()
    assert list(found) == [maps, FC6]
    assert found[maps].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert found[FC6].tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]


def test_without_layers_there_are_no_features() -> None:
    assert copy_to_host({})() == {}


def test_the_size_of_a_batch_hardly_changes_features() -> None:
    net = build(fc=[16])
    net.module.to(memory_format=torch.channels_last)
    hooks = resolve_hooks(["pool5.*", "fc6"], net, image_size=32)
    images = torch.randint(0, 256, (5, 32, 32, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))

    def by(size: int) -> dict[LayerKey, np.ndarray]:
        parts = list(extract(net.module, hooks, images.split(size), lambda x: as_floats(x) / 255, device=CPU))
        return {hook.key: np.concatenate([part[hook.key] for part in parts]) for hook in hooks}

    one, two, five = by(1), by(2), by(5)
    for key, values in five.items():
        np.testing.assert_allclose(one[key], values, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(two[key], values, rtol=1e-4, atol=1e-6)
        assert values.std(0).max() > 1e-3


@pytest.mark.parametrize("pool", ["max", "avg", "gem", "grid:2"])
def test_bfloat16_is_that_of_the_products_and_what_they_give_is_pooled_in_float32(pool: str) -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(3, 2, 1), nn.ReLU())
        images = torch.rand(5, 3, 2, 2)
    hook = Hook("1", "1", 1, pool, 8 if pool == "grid:2" else 2, Layout("map", shape=(2, 2, 2)))
    (found,) = extract(module, [hook], [images], device=CPU, bfloat16=True)
    values = module.bfloat16()(images.bfloat16()).double().flatten(2).detach()
    expected = {"max": values.amax(2), "avg": values.mean(2), "gem": values.clamp(1e-6).pow(3).mean(2).pow(1 / 3)}
    np.testing.assert_allclose(found[hook.key], expected.get(pool, values.flatten(1)), rtol=1e-6)


@pytest.mark.gpu
def test_a_gpu_gives_the_cpus_features() -> None:
    torch.manual_seed(0)
    net = build(fc=[16])
    net.module.to(memory_format=torch.channels_last)
    hooks = resolve_hooks(["pool*", "fc6"], net, image_size=64)
    images = torch.randint(0, 256, (8, 64, 64, 3), dtype=torch.uint8)
    normalise = lambda x: (as_floats(x) / 255 - 0.5) / 0.25  # noqa: E731 - one expression, twice
    (expected,) = extract(net.module, hooks, [images], normalise, device=CPU)
    gpu = torch.device("cuda")
    net.module.to(gpu)
    (found,) = extract(net.module, hooks, [images], normalise, device=gpu)
    for key, values in expected.items():
        # TF32's mantissa of 10 bits would differ by 1e-3 and more.
        assert np.abs(found[key] - values).max() <= 5e-5 * np.abs(values).max()


@pytest.mark.gpu
def test_on_a_gpu_the_next_batch_is_drawn_before_the_features_of_one_are_given() -> None:
    drawn: list[int] = []
    gpu = torch.device("cuda")
    features = extract(Sums().to(gpu), TAPS, noted(drawn), as_floats, device=gpu)
    found = [(next(features)[FC6].tolist(), list(drawn)) for _ in range(3)]
    assert found == [([[12.0]], [1, 2]), ([[24.0]], [1, 2, 3]), ([[36.0]], [1, 2, 3])]


@pytest.mark.gpu
def test_nothing_but_features_is_waited_for() -> None:
    net, gpu = build(fc=[16]), torch.device("cuda")
    hooks = resolve_hooks(["pool*", "fc6"], net, image_size=64)
    net.module.to(gpu)
    images = torch.randint(0, 256, (8, 64, 64, 3), dtype=torch.uint8)
    with never_waiting():
        found = list(extract(net.module, hooks, [images, images], Normalise.of(0.5, 0.25), device=gpu))
    assert [batch[FC6].shape for batch in found] == [(8, 16), (8, 16)]


RNG = np.random.default_rng(0)
A = RNG.standard_normal((40, 3)).astype(np.float32)
B = (100 * RNG.standard_normal((40, 5))).astype(np.float32)  # of another length, which must not count
A[3] = 0
A[4], B[4] = 0, 0
LABELS = np.repeat(np.arange(10), 4)


class OnDisk:
    """Rows that only slices give, as those of a file."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self.values = values
        self.shape, self.dtype = values.shape, values.dtype

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, rows: slice) -> NDArray[np.float32]:
        assert isinstance(rows, slice)
        return self.values[rows]


def concatenated(*members: NDArray[np.float32]) -> NDArray[np.float64]:
    """Each row of each member over its length in float64, one after the other; zero vectors stay."""
    rows = []
    for of_row in zip(*members, strict=True):
        parts = []
        for vector in of_row:
            length = sum(float(x) ** 2 for x in vector) ** 0.5
            parts += [float(x) / length if length else 0.0 for x in vector]
        rows.append(parts)
    return np.array(rows)


def test_each_member_is_normalised_and_they_stand_side_by_side() -> None:
    found = SideBySide([A, B, A])
    assert (found.shape, len(found), found.dtype) == ((40, 11), 40, np.dtype(np.float32))
    np.testing.assert_array_equal(found[:], concatenated(A, B, A).astype(np.float32))


def test_a_zero_vector_stays_zero() -> None:
    found = SideBySide([A, B])[3:5]
    assert not found[0, :3].any()
    assert np.isclose(np.linalg.norm(found[0, 3:]), 1)
    assert not found[1].any()


def test_slices_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = SideBySide([A, B])[:]
    monkeypatch.setattr("layerprobe.measure.extraction._ROWS", 7)
    table = SideBySide([OnDisk(A), OnDisk(B)])
    for rows in (slice(0, 40), slice(5, 30), slice(33, 99), slice(8, 8)):
        np.testing.assert_array_equal(table[rows], whole[rows])


def test_the_largest_and_smallest_numbers_have_a_length() -> None:
    huge, tiny = np.full((1, 4), 3e38, np.float32), np.full((1, 4), 1e-44, np.float32)
    np.testing.assert_allclose(SideBySide([huge, tiny])[:], 0.5, rtol=1e-6)


def test_ranks_are_those_of_the_concatenated_rows_and_of_brute_force() -> None:
    unit = concatenated(A, B)
    lengths = np.linalg.norm(unit, axis=1, keepdims=True)
    cosine = (unit / np.where(lengths, lengths, 1)) @ (unit / np.where(lengths, lengths, 1)).T
    np.fill_diagonal(cosine, -np.inf)
    ids = [str(i) for i in range(40)]
    side_by_side = SideBySide([OnDisk(A), OnDisk(B)])
    found = rank(Features(side_by_side, LABELS, ids), None)
    again = rank(Features(unit.astype(np.float32), LABELS, ids), None)
    np.testing.assert_array_equal(found.closer, again.closer)
    finite = [i for i in range(40) if i != 4]  # the zero vector has no nearest
    brute = [LABELS[cosine[i].argmax()] == LABELS[i] for i in finite]
    np.testing.assert_array_equal(found.hits(1)[finite], brute)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_number_that_is_not_finite_stays_to_be_told_of(bad: float) -> None:
    broken = A.copy()
    broken[2, 1] = bad
    ids = [str(i) for i in range(40)]
    with pytest.raises(NotFiniteError, match="1 of 40"):
        rank(Features(SideBySide([broken, B]), LABELS, ids), None)


def test_rows_are_read_one_after_the_other() -> None:
    with pytest.raises(ValueError, match="one after the other"):
        SideBySide([A, B])[::2]
