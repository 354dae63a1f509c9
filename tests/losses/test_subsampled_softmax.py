from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.norm_softmax import NormSoftmax
from layerprobe.losses.subsampled_softmax import SubsampledSoftmax, draw, draw_classes
from layerprobe.training.loop import RowSGD
from tests.losses.oracles import agrees, cosine, embeddings, finite_where_it_hurts, log_sum_exp

LABELS = torch.tensor([0, 30, 30, 17, 0, 2])
CPU = torch.device("cpu")


def build(**options: object) -> SubsampledSoftmax:
    torch.manual_seed(1)
    return SubsampledSoftmax(5, 40, **options).double()  # type: ignore[arg-type] # options of one test each


def by_loops(loss: SubsampledSoftmax, features: Tensor, classes: list[int], sigma: float = 0.05) -> Tensor:
    """Equation 5 over those classes, one image and one class at a time."""
    total = features.new_zeros(())
    for x, y in zip(features, LABELS.tolist(), strict=True):
        logits = {c: cosine(x, loss.proxies[c]) / sigma for c in classes}
        total = total + log_sum_exp(list(logits.values())) - logits[y]
    return total / len(features)


@pytest.mark.parametrize("sparse", [True, False])
def test_value_and_gradient_equal_the_loops_over_the_same_classes(sparse: bool) -> None:
    loss = build(classes=12, sparse=sparse)
    torch.manual_seed(7)
    classes, _ = draw_classes(LABELS, 40, 12)
    torch.manual_seed(7)
    agrees(loss, LABELS, lambda features: by_loops(loss, features, classes.tolist()))


def test_all_classes_are_the_normalised_softmax() -> None:
    ours, theirs = build(ratio=1.0), NormSoftmax(5, 40).double()
    theirs.proxies = ours.proxies
    torch.testing.assert_close(ours(embeddings(), LABELS), theirs(embeddings(), LABELS))
    torch.testing.assert_close(ours.logits(embeddings()), theirs.logits(embeddings()))


def test_an_embedding_orthogonal_to_all_proxies_costs_ln_of_the_sampled_classes() -> None:
    loss = build(classes=12)
    with torch.no_grad():
        loss.proxies[:, 4] = 0
    rows = torch.eye(5, dtype=torch.float64)[[4] * 6]
    assert loss(rows, LABELS).item() == pytest.approx(math.log(12), rel=1e-12)


def test_the_gradient_holds_the_sampled_rows_only() -> None:
    loss = SubsampledSoftmax(4, 100_000, classes=50)
    labels = torch.tensor([99_999, 5, 5])
    torch.manual_seed(3)
    classes, _ = draw_classes(labels, 100_000, 50)
    torch.manual_seed(3)
    loss(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), labels).backward()
    gradient = loss.proxies.grad
    assert gradient is not None
    assert gradient.is_sparse
    assert gradient._values().shape == (50, 4)
    assert gradient.coalesce().indices()[0].tolist() == classes.sort().values.tolist()


def test_the_sampled_rows_alone_are_moved_by_the_row_optimiser() -> None:
    loss = build(classes=12)
    before = loss.proxies.detach().clone()
    optimizer = RowSGD([{"params": [loss.proxies], "lr": 0.1, "weight_decay": 0.0}], lr=0.1, momentum=0.9)
    torch.manual_seed(7)
    classes, _ = draw_classes(LABELS, 40, 12)
    torch.manual_seed(7)
    loss(embeddings(), LABELS).backward()
    optimizer.step()
    moved = (loss.proxies.detach() != before).any(1).nonzero()[:, 0]
    assert moved.tolist() == classes.sort().values.tolist()


def test_the_subset_holds_each_class_of_the_batch_and_no_class_twice() -> None:
    for seed in range(50):
        torch.manual_seed(seed)
        classes, places = draw_classes(LABELS, 40, 12)
        assert len(classes) == len(set(classes.tolist())) == 12
        assert classes[places].tolist() == LABELS.tolist()
        assert classes.min() >= 0
        assert classes.max() < 40


def test_the_other_classes_are_drawn_alike_often() -> None:
    torch.manual_seed(0)
    rounds, counts = 4000, torch.zeros(40)
    for _ in range(rounds):
        counts[draw_classes(LABELS, 40, 12)[0]] += 1
    own = torch.zeros(40, dtype=torch.bool)
    own[LABELS] = True
    assert (counts[own] == rounds).all()
    probability = 8 / 36  # 12 less the batch's 4, of the 40 less these
    deviation = math.sqrt(rounds * probability * (1 - probability))
    assert ((counts[~own] - rounds * probability).abs() < 4.5 * deviation).all()


def test_a_batch_with_more_classes_keeps_them_all() -> None:
    classes, places = draw_classes(LABELS, 40, 2)
    assert classes.tolist() == [0, 2, 17, 30]
    assert places.tolist() == [0, 3, 3, 2, 0, 1]


def test_a_batch_of_all_classes_leaves_none_to_draw() -> None:
    classes, _ = draw_classes(torch.arange(6), 6, 6)
    assert classes.tolist() == list(range(6))


@pytest.mark.parametrize(("population", "size"), [(10, 10), (10, 4), (10, 3), (10, 1), (7, 0), (0, 0)])
def test_numbers_are_drawn_without_repetition_and_alike_often(population: int, size: int) -> None:
    torch.manual_seed(0)
    rounds, counts = 3000, torch.zeros(population)
    for _ in range(rounds):
        found = draw(population, size, CPU)
        assert len(found) == size
        counts[found] += 1
    assert counts.max().item() <= rounds if population else True
    expected = rounds * size / max(population, 1)
    deviation = math.sqrt(expected * (1 - size / max(population, 1)))
    assert ((counts - expected).abs() <= 4.5 * deviation + 1e-6).all()


def test_every_pair_is_drawn_alike_often() -> None:
    torch.manual_seed(0)
    rounds, counts = 9000, torch.zeros(10, 10)
    for _ in range(rounds):
        first, second, third = draw(10, 3, CPU).sort().values.tolist()
        counts[[first, first, second], [second, third, third]] += 1
    pairs = counts[torch.ones(10, 10).triu(1).bool()]
    expected = rounds * 3 / 45
    assert ((pairs - expected).abs() < 4.5 * math.sqrt(expected)).all()


def test_a_population_too_large_to_permute_is_drawn_from() -> None:
    torch.manual_seed(0)
    found = draw(10**15, 1000, CPU)
    assert len(found.unique()) == 1000


def test_the_seed_settles_the_subset_and_each_batch_draws_anew() -> None:
    torch.manual_seed(5)
    first, second = draw_classes(LABELS, 40, 12)[0], draw_classes(LABELS, 40, 12)[0]
    torch.manual_seed(5)
    assert draw_classes(LABELS, 40, 12)[0].tolist() == first.tolist()
    assert first.tolist() != second.tolist()


def test_the_ratio_counts_all_classes_and_a_tenth_is_the_default() -> None:
    assert SubsampledSoftmax(2, 30).sampled == 3
    assert SubsampledSoftmax(2, 11_318).sampled == 1132
    assert SubsampledSoftmax(2, 11_318, ratio=0.001).sampled == 11
    assert SubsampledSoftmax(2, 30, ratio=0.001).sampled == 1
    assert SubsampledSoftmax(2, 30, classes=7).sampled == 7


def test_gradients_are_finite_for_awkward_rows() -> None:
    finite_where_it_hurts(build(classes=12).float(), LABELS)


def test_the_scale_is_kept_with_the_weights() -> None:
    assert build(temperature=0.1).state_dict()["scale"].item() == pytest.approx(10)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ratio": 0.0}, "ratio is 0.0; it is a share of the classes, above 0 and at most 1"),
        ({"ratio": 1.5}, "ratio is 1.5; it is a share"),
        ({"classes": 0}, "classes is 0; it is a number of the 40 classes, at least 1"),
        ({"classes": 41}, "classes is 41; it is a number of the 40 classes"),
        ({"ratio": 0.5, "classes": 5}, "ratio is 0.5 and classes is 5; one of them"),
        ({"temperature": 0.0}, "temperature is 0.0; "),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=f"^{message}"):
        build(**options)
