from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.soft_triple import SoftTriple
from tests.losses.oracles import agrees, cosine, embeddings, finite_where_it_hurts, log_sum_exp

LABELS = torch.tensor([0, 3, 3, 1, 0, 2])


def build(**options: float | None) -> SoftTriple:
    torch.manual_seed(1)
    return SoftTriple(5, 4, **({"centres": 3} | options)).double()  # type: ignore[arg-type] # options of one test each


def by_loops(
    loss: SoftTriple,
    features: Tensor,
    *,
    k: int = 3,
    lam: float = 20,
    gamma: float = 0.1,
    delta: float = 0.01,
    tau: float = 0.2,
) -> Tensor:
    """Similarity to each class and regulariser, one image, one class, one centre at a time."""
    classes = [list(loss.centres[c * k : (c + 1) * k]) for c in range(len(loss.centres) // k)]
    total = features.new_zeros(())
    for x, y in zip(features, LABELS.tolist(), strict=True):
        logits = []
        for c, centres in enumerate(classes):
            cosines = [cosine(x, centre) for centre in centres]
            normaliser = log_sum_exp([value / gamma for value in cosines])
            similarity = sum((torch.exp(v / gamma - normaliser) * v for v in cosines), features.new_zeros(()))
            logits.append(lam * (similarity - delta * (c == y)))
        total = total + log_sum_exp(logits) - logits[y]
    spread = features.new_zeros(())
    for centres in classes:
        for s in range(k):
            for t in range(s + 1, k):
                spread = spread + torch.sqrt(2 - 2 * cosine(centres[s], centres[t]))
    return total / len(features) + (tau * spread / (len(classes) * k * (k - 1)) if k > 1 else 0)


@pytest.mark.parametrize(
    ("options", "oracle"),
    [
        ({}, {}),
        ({"tau": 0.0}, {"tau": 0.0}),
        ({"centres": 1}, {"k": 1}),
        ({"scale": 5.0, "gamma": 0.5, "margin": 0.2, "tau": 1.0}, {"lam": 5, "gamma": 0.5, "delta": 0.2, "tau": 1.0}),
    ],
)
def test_value_and_gradient_equal_the_loops(options: dict[str, float], oracle: dict[str, float]) -> None:
    loss = build(**options)
    agrees(loss, LABELS, lambda features: by_loops(loss, features, **oracle))  # type: ignore[arg-type] # its keywords


def test_an_orthogonal_embedding_costs_the_closed_form() -> None:
    # All similarities 0: ln(1 + 3 e^(20 * 0.01)), without the regulariser.
    loss = build(tau=0.0)
    with torch.no_grad():
        loss.centres[:, 4] = 0
    rows = torch.eye(5, dtype=torch.float64)[[4, 4]]
    expected = math.log1p(3 * math.exp(0.2))
    assert loss(rows, torch.tensor([0, 3])).item() == pytest.approx(expected, rel=1e-7)


def test_equal_centres_are_one_centre_and_have_no_spread() -> None:
    several, one = build(), build(centres=1)
    with torch.no_grad():
        several.centres.copy_(one.centres.repeat_interleave(3, 0))
    torch.testing.assert_close(several(embeddings(), LABELS), one(embeddings(), LABELS))
    assert several.spread().item() == 0
    gradients = torch.autograd.grad(several.spread(), several.centres)
    assert not gradients[0].any()


def test_orthogonal_centres_have_half_of_root_two_as_spread() -> None:
    loss = build()
    with torch.no_grad():
        loss.centres.copy_(torch.eye(5)[:3].repeat(4, 1))
    assert loss.spread().item() == pytest.approx(math.sqrt(2) / 2, rel=1e-12)


def test_it_is_the_librarys_formula_with_its_regulariser() -> None:
    library = pytest.importorskip("pytorch_metric_learning.losses")
    from pytorch_metric_learning.regularizers import SparseCentersRegularizer

    ours = build()
    theirs = library.SoftTripleLoss(
        4,
        5,
        centers_per_class=3,
        weight_regularizer=SparseCentersRegularizer(4, 3),
        weight_reg_weight=0.2,
    ).double()
    theirs.fc.data = ours.centres.data.T
    torch.testing.assert_close(ours(embeddings(), LABELS), theirs(embeddings(), LABELS), rtol=1e-5, atol=1e-6)


def test_lengths_and_the_order_of_the_batch_change_nothing() -> None:
    loss, order = build(), torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(loss(embeddings()[order] * 7, LABELS[order]), loss(embeddings(), LABELS))


def test_gradients_are_finite_for_awkward_rows_and_centres() -> None:
    finite_where_it_hurts(build().float(), LABELS)
    loss = build().float()
    torch.nn.init.zeros_(loss.centres)
    finite_where_it_hurts(loss, LABELS)


def test_logits_have_one_column_per_class_and_no_margin() -> None:
    with_margin, without = build(margin=0.5), build(margin=0.0)
    assert without.logits(embeddings()).shape == (6, 4)
    torch.testing.assert_close(with_margin.logits(embeddings()), without.logits(embeddings()))


def test_the_centres_have_a_rate_of_their_own_and_no_decay() -> None:
    (group,) = build().parameter_groups()
    assert (group.learning_rate, group.weight_decay, len(group.parameters)) == (1e-2, 0.0, 1)


@pytest.mark.parametrize(
    "options",
    [{"centres": 0}, {"scale": 0.0}, {"gamma": 0.0}, {"margin": -0.1}, {"tau": -1.0}, {"centre_learning_rate": 0.0}],
)
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} is {next(iter(options.values()))}; "):
        build(**options)
