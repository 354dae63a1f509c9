from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.margin_softmax import ArcFace, CosFace
from tests.losses.oracles import agrees, cosine, embeddings, finite_where_it_hurts, log_sum_exp

LABELS = torch.tensor([0, 3, 3, 1, 0, 2])
Margin = ArcFace | CosFace


def build(kind: type[Margin], **options: float) -> Margin:
    torch.manual_seed(1)
    return kind(5, 4, **options).double()


def by_loops(loss: Margin, features: Tensor, *, scale: float, margin: float) -> Tensor:
    """One image and one class at a time; ArcFace by way of the angle itself."""
    total = features.new_zeros(())
    for x, y in zip(features, LABELS.tolist(), strict=True):
        logits = []
        for c, proxy in enumerate(loss.proxies.unbind()):
            value = cosine(x, proxy)
            if c == y and isinstance(loss, CosFace):
                value = value - margin
            elif c == y:
                angle = torch.acos(value)
                if angle + margin <= math.pi:
                    value = torch.cos(angle + margin)
                else:
                    value = torch.cos(angle) - margin * math.sin(margin)
            logits.append(scale * value)
        total = total + log_sum_exp(logits) - logits[y]
    return total / len(features)


@pytest.mark.parametrize("kind", [ArcFace, CosFace])
@pytest.mark.parametrize(("scale", "margin"), [(64.0, 0.5), (30.0, 0.35), (8.0, 2.0)])
def test_value_and_gradient_equal_the_loops(kind: type[Margin], scale: float, margin: float) -> None:
    loss = build(kind, scale=scale, margin=margin)
    agrees(loss, LABELS, lambda features: by_loops(loss, features, scale=scale, margin=margin))


def test_the_batch_of_the_loops_has_angles_on_both_sides_of_pi_minus_the_margin() -> None:
    loss = build(ArcFace)
    angles = [math.acos(cosine(x, loss.proxies[int(y)]).item()) for x, y in zip(embeddings(), LABELS, strict=True)]
    assert min(angles) < math.pi - 2 < max(angles)


@pytest.mark.parametrize(("kind", "target"), [(ArcFace, -64 * math.sin(0.5)), (CosFace, -64 * 0.35)])
def test_an_orthogonal_embedding_costs_the_closed_form(kind: type[Margin], target: float) -> None:
    # All cosines are 0, the target's becomes cos(pi / 2 + 0.5) = -sin 0.5, or -0.35.
    loss = build(kind)
    with torch.no_grad():
        loss.proxies[:, 4] = 0
    rows = torch.eye(5, dtype=torch.float64)[[4, 4]]
    expected = math.log(math.exp(target) + 3) - target
    assert loss(rows, torch.tensor([0, 3])).item() == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("kind", [ArcFace, CosFace])
def test_without_a_margin_an_orthogonal_embedding_costs_ln_c(kind: type[Margin]) -> None:
    loss = build(kind, margin=0.0)
    with torch.no_grad():
        loss.proxies[:, 4] = 0
    rows = torch.eye(5, dtype=torch.float64)[[4, 4]]
    assert loss(rows, torch.tensor([0, 3])).item() == pytest.approx(math.log(4), rel=1e-12)


@pytest.mark.parametrize("margin", [0.5, 1.5])
def test_the_arc_margin_falls_over_all_angles(margin: float) -> None:
    loss = build(ArcFace, margin=margin, scale=4.0)
    with torch.no_grad():
        loss.proxies.copy_(torch.eye(5)[:4])
    angles = torch.linspace(0, math.pi, 50, dtype=torch.float64)
    rows = torch.zeros(50, 5, dtype=torch.float64)
    rows[:, 0], rows[:, 4] = angles.cos(), angles.sin()
    values = torch.stack([loss(row[None], torch.tensor([0])) for row in rows])
    assert (values.diff() > 0).all()


def test_they_are_the_librarys_formulas() -> None:
    library = pytest.importorskip("pytorch_metric_learning.losses")
    arc, cos = build(ArcFace), build(CosFace)
    theirs = library.ArcFaceLoss(4, 5, margin=math.degrees(0.5), scale=64).double()
    theirs.W.data = arc.proxies.data.T
    torch.testing.assert_close(arc(embeddings(), LABELS), theirs(embeddings(), LABELS), rtol=1e-6, atol=1e-9)
    theirs = library.CosFaceLoss(4, 5, margin=0.35, scale=64).double()
    theirs.W.data = cos.proxies.data.T
    torch.testing.assert_close(cos(embeddings(), LABELS), theirs(embeddings(), LABELS), rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("kind", [ArcFace, CosFace])
def test_lengths_and_the_order_of_the_batch_change_nothing(kind: type[Margin]) -> None:
    loss, order = build(kind), torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(loss(embeddings()[order] * 7, LABELS[order]), loss(embeddings(), LABELS))


@pytest.mark.parametrize("kind", [ArcFace, CosFace])
def test_gradients_are_finite_for_awkward_rows(kind: type[Margin]) -> None:
    finite_where_it_hurts(build(kind).float(), LABELS)
    finite_where_it_hurts(build(kind), LABELS)


@pytest.mark.parametrize("kind", [ArcFace, CosFace])
def test_logits_are_scaled_cosines_without_the_margin(kind: type[Margin]) -> None:
    loss = build(kind)
    expected = 64 * embeddings() / embeddings().norm(dim=1, keepdim=True) @ loss.classifier_weight.T
    torch.testing.assert_close(loss.logits(embeddings()), expected)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (ArcFace, {"scale": 0.0}),
        (ArcFace, {"margin": -0.1}),
        (ArcFace, {"margin": 3.2}),
        (CosFace, {"scale": -1.0}),
        (CosFace, {"margin": -0.1}),
    ],
)
def test_options_out_of_range_are_refused(kind: type[Margin], options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} is {next(iter(options.values()))}; "):
        build(kind, **options)
