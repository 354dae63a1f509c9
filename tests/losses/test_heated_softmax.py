from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from layerprobe.losses.heated_softmax import HeatedSoftmax
from layerprobe.losses.norm_softmax import NormSoftmax
from tests.losses.oracles import agrees, embeddings, log_sum_exp

LABELS = torch.tensor([0, 3, 3, 1, 0, 2])


def build(variant: str, **options: object) -> HeatedSoftmax:
    torch.manual_seed(1)
    loss = HeatedSoftmax(5, 4, variant=variant, **options).double()  # type: ignore[arg-type] # options of one test each
    if loss.bias is not None:
        torch.nn.init.normal_(loss.bias)
    return loss


def by_loops(
    loss: HeatedSoftmax,
    features: Tensor,
    *,
    feature_norm: str,
    weight_norm: bool,
    alpha: float | Tensor,
    smoothing: float = 0.0,
) -> Tensor:
    """Equations 1, 2 and 13, one image, one class and one dimension at a time."""
    rows = [list(row) for row in features]
    n, k = len(rows), len(rows[0])
    if feature_norm == "BN":
        for j in range(k):
            column = [row[j] for row in rows]
            mean = sum(column[1:], column[0]) / n
            variance = sum(((value - mean) ** 2 for value in column), features.new_zeros(())) / n
            for row in rows:
                row[j] = (row[j] - mean) / torch.sqrt(variance + 1e-5) / math.sqrt(k)
    if feature_norm == "L2":
        rows = [[value / torch.stack(row).norm() for value in row] for row in rows]
    weights = [w / w.norm() if weight_norm else w for w in loss.weight.unbind()]
    total = features.new_zeros(())
    for row, y in zip(rows, LABELS.tolist(), strict=True):
        logits = [alpha * (torch.stack(row) * w).sum() for w in weights]
        if loss.bias is not None:
            logits = [logit + b for logit, b in zip(logits, loss.bias, strict=True)]
        for m, logit in enumerate(logits):
            target = (1 - smoothing) * (m == y) + smoothing / len(logits)
            total = total + target * (log_sum_exp(logits) - logit)
    return total / n


@pytest.mark.parametrize(
    ("variant", "options", "feature_norm", "weight_norm", "alpha"),
    [
        ("SM", {}, "none", False, 1),
        ("LN", {}, "L2", True, 16),
        ("BN", {}, "BN", True, 16),
        ("BN", {"scale": 4.0}, "BN", True, 4),  # HBN
        ("SM", {"scale": 8.0}, "none", False, 8),  # SM + alpha of table 6
        ("BN", {"normalise_weights": False}, "BN", False, 16),  # BN w/o WN of table 6
        ("SM", {"normalise_weights": True}, "none", True, 1),
        ("LN", {"bias": False}, "L2", True, 16),
    ],
)
def test_value_and_gradient_equal_the_loops(
    variant: str, options: dict[str, object], feature_norm: str, weight_norm: bool, alpha: float
) -> None:
    loss = build(variant, **options)
    agrees(
        loss,
        LABELS,
        lambda features: by_loops(loss, features, feature_norm=feature_norm, weight_norm=weight_norm, alpha=alpha),
    )


def test_a_learnt_scale_has_the_loops_gradient_too() -> None:
    loss = build("BN", learn_scale=True, scale=8.0)
    agrees(
        loss,
        LABELS,
        lambda features: by_loops(loss, features, feature_norm="BN", weight_norm=True, alpha=loss.scale),
    )


def test_label_smoothing_spreads_the_target_over_all_classes() -> None:
    loss = build("LN", label_smoothing=0.1)
    agrees(
        loss,
        LABELS,
        lambda features: by_loops(loss, features, feature_norm="L2", weight_norm=True, alpha=16, smoothing=0.1),
    )


@pytest.mark.parametrize("variant", ["SM", "LN", "BN"])
def test_orthogonal_embeddings_cost_ln_c(variant: str) -> None:
    loss = HeatedSoftmax(5, 4, variant=variant).double()  # type: ignore[arg-type] # one of the three
    with torch.no_grad():
        loss.weight[:, 4] = 0
    rows = torch.zeros(2, 5, dtype=torch.float64)
    rows[:, 4] = torch.tensor([1.0, 3.0])
    assert loss(rows, torch.tensor([0, 3])).item() == pytest.approx(math.log(4), rel=1e-12)


def test_a_collapsed_batch_costs_ln_c_after_batch_norm() -> None:
    loss = HeatedSoftmax(5, 4, variant="BN").double()
    rows = torch.ones(6, 5, dtype=torch.float64, requires_grad=True)
    value = loss(rows, LABELS)
    value.backward()
    assert value.item() == pytest.approx(math.log(4), rel=1e-12)
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


@pytest.mark.parametrize("variant", ["SM", "LN", "BN"])
def test_gradients_of_zero_rows_are_finite(variant: str) -> None:
    loss = build(variant, learn_scale=True).float()
    rows = torch.zeros(6, 5, requires_grad=True)
    gradients = torch.autograd.grad(loss(rows, LABELS), [rows, *loss.parameters()])
    assert all(gradient.isfinite().all() and gradient.abs().max() < 1e4 for gradient in gradients)


def test_ln_without_bias_is_the_normalised_softmax() -> None:
    ours, theirs = build("LN", bias=False), NormSoftmax(5, 4, temperature=1 / 16).double()
    theirs.proxies = ours.weight
    torch.testing.assert_close(ours(embeddings(), LABELS), theirs(embeddings(), LABELS))


def test_batch_norm_in_the_network_and_the_sm_form_are_bn() -> None:
    inside = build("BN")
    outside = build("SM", normalise_weights=True, scale=16 / math.sqrt(5))
    outside.load_state_dict(inside.state_dict() | {"scale": outside.scale}, strict=False)
    normalised = torch.nn.BatchNorm1d(5, affine=False).double()(embeddings())
    torch.testing.assert_close(outside(normalised, LABELS), inside(embeddings(), LABELS), rtol=1e-6, atol=1e-9)


def test_batch_norm_in_the_network_is_bn_without_its_own() -> None:
    inside, outside = build("BN"), build("BN", batch_norm=False)
    assert "norm.running_mean" not in outside.state_dict()
    outside.load_state_dict(inside.state_dict(), strict=False)
    normalised = torch.nn.BatchNorm1d(5, affine=False).double()(embeddings())
    torch.testing.assert_close(outside(normalised, LABELS), inside(embeddings(), LABELS), rtol=1e-12, atol=0)


def test_batch_norm_removes_shift_and_scale_of_every_dimension() -> None:
    loss = build("BN")
    moved = embeddings() * torch.tensor([3.0, 40, 5, 6, 70]) + torch.tensor([1.0, -2, 3, 4, 5])
    torch.testing.assert_close(loss(moved, LABELS), loss(embeddings(), LABELS), rtol=1e-4, atol=1e-4)


def test_lengths_change_nothing_in_ln() -> None:
    loss = build("LN")
    torch.testing.assert_close(loss(embeddings() * 7, LABELS), loss(embeddings(), LABELS))


def test_the_order_of_the_batch_changes_nothing() -> None:
    loss, order = build("BN"), torch.tensor([3, 1, 5, 0, 2, 4])
    torch.testing.assert_close(loss(embeddings()[order], LABELS[order]), loss(embeddings(), LABELS))


# Properties 1 to 3 of section 3.2 speak of the gradients for features and weights that are normalised already, so that
# the form without normalisation (SM), given unit vectors, is theirs. M = 3 classes at 0, 80 and 180 degrees.
ANGLES = (0.0, 80.0, 180.0)
CORRECT, INCORRECT, TIED = 10.0, 50.0, 40.0  # of class 0: nearest to it, nearest to class 1, between the two


def on_circle(*degrees: float) -> Tensor:
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], 1)


def gradients(angle: float, alpha: float) -> tuple[Tensor, Tensor]:
    """Of an image of class 0 at that angle: |dl/df|, and |dl/dw_m| of every class."""
    loss = HeatedSoftmax(2, 3, variant="SM", scale=alpha, bias=False).double()
    with torch.no_grad():
        loss.weight.copy_(on_circle(*ANGLES))
    feature = on_circle(angle).requires_grad_()
    found = torch.autograd.grad(loss(feature, torch.tensor([0])), [feature, loss.weight])
    return found[0].norm(), found[1].norm(dim=1)


def test_the_gradients_are_equations_3_and_4() -> None:
    feature, weights = on_circle(INCORRECT)[0], on_circle(*ANGLES)
    exponentials = [math.exp(7 * float(w @ feature)) for w in weights]
    error = torch.tensor([e / sum(exponentials) for e in exponentials], dtype=torch.float64) - torch.eye(3)[0]
    for_feature, for_weights = gradients(INCORRECT, 7)
    torch.testing.assert_close(for_feature, (7 * sum(e * w for e, w in zip(error, weights, strict=True))).norm())
    torch.testing.assert_close(for_weights, 7 * error.abs())


def test_equation_5_high_alpha_is_one_over_the_ties_and_low_alpha_uniform() -> None:
    loss = HeatedSoftmax(2, 3, variant="LN", scale=1e4, bias=False).double()
    with torch.no_grad():
        loss.weight.copy_(on_circle(*ANGLES))
        high = loss.logits(on_circle(TIED, INCORRECT)).softmax(1)
        loss.scale.fill_(1e-9)
        low = loss.logits(on_circle(TIED, INCORRECT)).softmax(1)
    torch.testing.assert_close(high, torch.tensor([[0.5, 0.5, 0], [0, 1, 0]], dtype=torch.float64))
    torch.testing.assert_close(low, torch.full((2, 3), 1 / 3, dtype=torch.float64))


@pytest.mark.parametrize("angle", [CORRECT, INCORRECT, TIED])
def test_property_1_all_gradients_vanish_with_alpha(angle: float) -> None:
    for alpha in (1e-1, 1e-3, 1e-6):
        for_feature, for_weights = gradients(angle, alpha)
        assert for_feature <= 2 * alpha
        assert (for_weights <= alpha).all()


def test_property_2_a_correct_feature_gets_no_gradient_at_high_alpha() -> None:
    assert gradients(CORRECT, 4)[0] > 0.1
    assert gradients(CORRECT, 1000)[0] < 1e-100


@pytest.mark.parametrize("angle", [INCORRECT, TIED])
def test_property_2_an_incorrect_feature_gets_a_gradient_that_grows_with_alpha(angle: float) -> None:
    slow, fast = gradients(angle, 1e3)[0], gradients(angle, 1e6)[0]
    assert slow > 100
    assert (fast / slow).item() == pytest.approx(1e3, rel=1e-6)


def test_property_3_a_correct_feature_moves_no_weight_at_high_alpha() -> None:
    assert gradients(CORRECT, 1000)[1].max() < 1e-100


@pytest.mark.parametrize("angle", [INCORRECT, TIED])
def test_property_3_an_incorrect_feature_moves_the_nearest_weights_and_its_own_only(angle: float) -> None:
    slow, fast = gradients(angle, 1e3)[1], gradients(angle, 1e6)[1]
    torch.testing.assert_close(fast[:2] / slow[:2], torch.full((2,), 1e3, dtype=torch.float64))
    assert slow[:2].min() > 100
    assert slow[2] < 1e-100


def test_ln_has_the_gradient_of_the_unit_feature_without_its_radial_part_over_the_length() -> None:
    # Equations 11 and 12, for a feature of length 3.
    loss = HeatedSoftmax(2, 3, variant="LN", bias=False).double()
    plain = HeatedSoftmax(2, 3, variant="SM", scale=16, bias=False).double()
    with torch.no_grad():
        loss.weight.copy_(on_circle(*ANGLES))
        plain.weight.copy_(on_circle(*ANGLES))
    long, direction = (3 * on_circle(INCORRECT)).requires_grad_(), on_circle(INCORRECT).requires_grad_()
    loss(long, torch.tensor([0])).backward()
    plain(direction, torch.tensor([0])).backward()
    assert direction.grad is not None
    radial = (direction.grad * direction).sum() * direction
    torch.testing.assert_close(long.grad, (direction.grad - radial).detach() / 3)


def test_without_its_length_the_gradient_is_the_same_at_every_length() -> None:
    loss = build("LN", length_in_gradient=False)
    features = embeddings().detach()
    # Equations 3, 11 and 12 by loops, without 1 / |f|: alpha * sum of (p_m - q_m) w_m less its part along f, over N.
    assert loss.bias is not None
    weights = [w / w.norm() for w in loss.weight.detach()]
    wanted = []
    for row, y in zip(features, LABELS.tolist(), strict=True):
        direction = row / row.norm()
        logits = [16 * (direction @ w) + b for w, b in zip(weights, loss.bias.detach(), strict=True)]
        total = sum(math.exp(z) for z in logits)
        slope = sum(
            (16 * (math.exp(z) / total - (m == y)) * w for m, (z, w) in enumerate(zip(logits, weights, strict=True))),
            torch.zeros_like(row),
        )
        wanted.append((slope - (slope @ direction) * direction) / len(features))
    for factor in (1.0, 3.0, 1e-3):
        x = (factor * features).requires_grad_()
        value = loss(x, LABELS)
        (found,) = torch.autograd.grad(value, [x])
        torch.testing.assert_close(found, torch.stack(wanted))
        torch.testing.assert_close(value, build("LN")(x, LABELS))


@pytest.mark.parametrize("variant", ["SM", "BN"])
def test_a_gradient_without_a_length_is_refused_where_there_is_none(variant: str) -> None:
    with pytest.raises(ValueError, match=f"length_in_gradient is False and variant is {variant}; LN alone"):
        build(variant, length_in_gradient=False)


def test_without_its_length_the_gradient_of_a_zero_row_is_finite() -> None:
    x = torch.zeros(6, 5, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(build("LN", length_in_gradient=False)(x, LABELS), [x])
    assert gradient.isfinite().all()


def test_the_scale_is_a_buffer_unless_it_is_learnt() -> None:
    assert [name for name, _ in build("LN").named_parameters()] == ["weight", "bias"]
    assert build("LN").state_dict()["scale"].item() == 16
    classifier, scale = build("LN", learn_scale=True).parameter_groups()
    assert (len(classifier.parameters), classifier.learning_rate, classifier.weight_decay) == (2, None, None)
    assert (len(scale.parameters), scale.learning_rate, scale.weight_decay) == (1, None, 0.0)


def test_heating_a_learnt_scale_keeps_it_learnt() -> None:
    loss = build("BN", learn_scale=True)
    with torch.no_grad():
        loss.scale.mul_(0.25)
    before = loss(embeddings(), LABELS)
    before.backward()
    torch.testing.assert_close(before, build("BN", scale=4.0)(embeddings(), LABELS))
    assert loss.scale.grad is not None


def test_a_learnt_scale_below_zero_is_used_as_positive_and_can_recover() -> None:
    loss = build("LN", learn_scale=True)
    with torch.no_grad():
        loss.scale.fill_(-3)
    value = loss(embeddings(), LABELS)
    value.backward()
    torch.testing.assert_close(value, build("LN", scale=0.01)(embeddings(), LABELS))
    assert loss.scale.grad is not None
    assert loss.scale.grad != 0


@pytest.mark.parametrize(("variant", "batch_norm"), [("SM", True), ("LN", True), ("BN", True), ("BN", False)])
def test_logits_differ_by_constants_from_the_classifier_weight_times_the_embedding(
    variant: str, batch_norm: bool
) -> None:
    loss = build(variant, batch_norm=batch_norm)
    for seed in range(20):
        loss(embeddings(seed=seed) * 2 + 1, LABELS)
    loss.eval()
    features = embeddings().detach()
    if variant == "LN":
        features /= features.norm(dim=1, keepdim=True)
    difference = loss.logits(features) - loss.scale * features @ loss.classifier_weight.T
    torch.testing.assert_close(difference, difference[:1].expand(6, -1))


def test_a_batch_of_one_is_refused_by_bn_in_training_only() -> None:
    loss = build("BN")
    with pytest.raises(ValueError, match=r"^a batch of one image has no statistics for variant BN; it needs at least"):
        loss(embeddings(1), LABELS[:1])
    assert loss.eval()(embeddings(1), LABELS[:1]).isfinite()


@pytest.mark.parametrize(
    "options", [{"variant": "HBN"}, {"scale": 0.0}, {"scale": -1.0}, {"label_smoothing": 1.0}, {"scale": math.inf}]
)
def test_options_out_of_range_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=rf"^{next(iter(options))} is {next(iter(options.values()))}; "):
        build(**({"variant": "LN"} | options))  # type: ignore[arg-type] # options of one test each
