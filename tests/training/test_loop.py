from __future__ import annotations

import copy
import math
import multiprocessing
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from layerprobe.data.splits import Image, Split
from layerprobe.losses.loss import Loss, ParameterGroup
from layerprobe.losses.softmax import Softmax
from layerprobe.nets.net import Net
from layerprobe.system.errors import NumericError, RecipeError
from layerprobe.training import loop
from layerprobe.training.loop import Plan, RowSGD, Trainer, build_optimizer, gradients
from layerprobe.training.schedule import Schedule
from tests.waiting import never_waiting

COUNT = 8
BATCHES = [np.array([0, 1, 4, 5]), np.array([2, 3, 6, 7])]


class Hinge(Loss):
    """Zero as soon as the embeddings are longer than a margin."""

    sampler, needs_positives = "shuffled", False

    def __init__(self, margin: float) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        short = (self.margin - embeddings.norm(dim=1)).clamp(min=0)
        self.informative = (short > 0).sum()
        total: Tensor = short.sum()
        return total


class Scaled(Loss):
    """A loss with a temperature."""

    sampler, needs_positives = "shuffled", False
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor(16.0))
        self.seen: list[float] = []

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.seen.append(float(self.scale))
        return (self.scale * embeddings).square().mean()


class Undefined(Loss):
    sampler, needs_positives = "shuffled", False

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        raise ValueError("a batch without pairs")


class Exploding(Loss):
    """A finite value whose gradient is not."""

    sampler, needs_positives = "shuffled", False

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        return (embeddings - embeddings.detach()).abs().sqrt().sum()


PIXELS = np.random.default_rng(0).integers(0, 256, (COUNT, 4, 4, 3), np.uint8)


def image(index: int) -> Image:
    one: Image = PIXELS[index]
    return one


def split() -> Split:
    return Split("train", np.repeat([0, 1], 4), tuple(f"{i}.png" for i in range(COUNT)), image)


def net() -> Net:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = nn.Sequential(nn.Flatten(), nn.Linear(48, 5))
    return Net(module, {"fc": "1"}, 5, frozenset())


def softmax() -> Softmax:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return Softmax(5, 2)


def normalise(pixels: Tensor) -> Tensor:
    return pixels.float() / 255


def trainer(loss: Loss | None = None, **options: Any) -> Trainer:
    plan: dict[str, Any] = {"epochs": 1, "batches": lambda epoch: BATCHES, "schedule": Schedule(), "weight_decay": 0.0}
    plan |= options
    batches = plan["batches"](1)
    counts = {"batches_per_epoch": len(batches), "images_per_batch": len(batches[0])}
    return Trainer(net(), loss or softmax(), split(), normalise, Plan(**(plan | counts)))


def last_weight(module: nn.Module) -> Tensor:
    return module.get_parameter("1.weight").detach()


def by_hand(step: Callable[[nn.Module, Softmax, list[tuple[Tensor, Tensor]]], None]) -> Tensor:
    """The linear layer's weight after steps written out in plain torch."""
    module, loss, images = net().module, softmax(), split()
    batches = [
        (
            normalise(torch.from_numpy(np.stack([images.image(i) for i in batch.tolist()]))),
            torch.from_numpy(images.labels[batch]),
        )
        for batch in BATCHES
    ]
    step(module, loss, batches)
    return last_weight(module)


def weight(trained: Trainer) -> Tensor:
    return last_weight(trained.net.module)


def test_accumulated_batches_make_one_step_of_their_mean() -> None:
    def step(module: nn.Module, loss: Softmax, batches: list[tuple[Tensor, Tensor]]) -> None:
        optimizer = torch.optim.SGD([*module.parameters(), *loss.parameters()], lr=0.1, momentum=0.9)
        (sum(loss(module(x), y) for x, y in batches) / 2).backward()
        optimizer.step()

    ours = trainer(accumulate=2, learning_rate=0.1)
    (result,) = list(ours.epochs())
    assert (ours.iteration, ours.plan.steps_per_epoch, result.images) == (1, 1, 8)
    torch.testing.assert_close(weight(ours), by_hand(step))


def test_an_image_that_is_augmented_twice_keeps_its_label() -> None:
    twice = [np.array([0, COUNT, 4, COUNT + 4])]
    same = [np.array([0, 0, 4, 4])]
    (one,), (other,) = (trainer(batches=lambda epoch, x=x: x).epochs() for x in (twice, same))
    assert one.loss == other.loss


def test_the_last_step_of_an_epoch_may_have_fewer_batches() -> None:
    ours, plain = trainer(accumulate=3, learning_rate=0.1), trainer(accumulate=2, learning_rate=0.1)
    for one in (ours, plain):
        list(one.epochs())
    assert torch.equal(weight(ours), weight(plain))


def test_a_gradient_shorter_than_the_limit_is_left() -> None:
    ours, plain = trainer(clip_gradient=1e3), trainer()
    for one in (ours, plain):
        list(one.epochs())
    assert torch.equal(weight(ours), weight(plain))


def test_a_clipped_gradient_has_the_limit_as_its_length() -> None:
    ours = trainer(clip_gradient=1e-3, batches=lambda epoch: BATCHES[:1], learning_rate=1.0, momentum=0.0)
    before = [p.detach().clone() for p in (*ours.net.module.parameters(), *ours.loss.parameters())]
    list(ours.epochs())
    after = [*ours.net.module.parameters(), *ours.loss.parameters()]
    squares = sum(float((a.detach() - b).square().sum()) for a, b in zip(after, before, strict=True))
    assert math.sqrt(squares) == pytest.approx(1e-3, rel=1e-3)


def test_bfloat16_is_the_networks_and_not_the_losss_or_the_weights() -> None:
    full, half = trainer(), trainer(bfloat16=True)
    results = [next(iter(one.epochs())).loss for one in (full, half)]
    assert results[0] != results[1]
    assert results[0] == pytest.approx(results[1], rel=0.02)
    assert {p.dtype for p in half.net.module.parameters()} == {torch.float32}


def test_a_gradient_that_is_not_finite_names_parameter_and_images_and_moves_nothing() -> None:
    ours = trainer(Exploding())
    before = weight(ours).clone()
    with pytest.raises(
        NumericError, match=r"the gradient of 1\.weight is not finite at epoch 1, iteration 1"
    ) as caught:
        list(ours.epochs())
    assert torch.equal(weight(ours), before)
    assert "(images 0.png, 1.png, 4.png, 5.png ...); last good checkpoint: epoch 0" in str(caught.value)
    assert caught.value.fix == "Look at the options of [loss] and at the weights"  # no rate has acted yet
    assert caught.value.__notes__ == ["images of the step: 0.png, 1.png, 4.png, 5.png"]


@pytest.mark.parametrize(
    ("own", "rate"),
    [({}, 0.5 * 3), ({"learning_rate": 0.25}, 0.25), ({"rate_factor": 10.0}, 0.5 * 10)],
)
def test_a_losss_own_parameters_have_a_rate_or_a_multiple_of_the_networks(own: dict[str, float], rate: float) -> None:
    class Own(Softmax):
        def parameter_groups(self) -> list[ParameterGroup]:
            return [ParameterGroup(list(self.parameters()), **own)]

    trained = trainer(Own(5, 2), learning_rate=0.5, new_layers_factor=3.0)
    assert [group["lr"] for group in trained.optimizer.param_groups] == [0.5, rate]


@pytest.mark.parametrize(("warmup_by", "anew"), [("freeze", False), ("new_layers", True)])
def test_after_a_warm_up_of_new_layers_the_optimiser_starts_anew(
    warmup_by: Literal["freeze", "new_layers"], anew: bool
) -> None:
    def weights(epochs: int, momentum: float) -> Tensor:
        schedule = Schedule(warmup=1, warmup_by=warmup_by)
        batches = [BATCHES[:1], BATCHES[1:]]
        trained = trainer(epochs=epochs, batches=lambda epoch: batches[epoch - 1], schedule=schedule, momentum=momentum)
        list(trained.epochs())
        return next(trained.loss.parameters()).detach()

    # One step in the warm-up and one after it. A first step of SGD is the same with and without momentum, and so is a
    # second one that remembers nothing.
    assert torch.equal(weights(1, 0.9), weights(1, 0.0))
    assert torch.equal(weights(2, 0.9), weights(2, 0.0)) == anew


def test_batches_in_which_nothing_counts_are_counted() -> None:
    (idle,) = list(trainer(Hinge(0.0)).epochs())
    (busy,) = list(trainer(Hinge(100.0)).epochs())
    assert (idle.idle, busy.idle) == (2, 0)


def test_a_batch_that_the_loss_is_not_defined_for_is_the_recipes_fault() -> None:
    with pytest.raises(RecipeError, match=r"\[loss\]: a batch without pairs. Choose another train.sampler"):
        list(trainer(Undefined()).epochs())


def test_heating_multiplies_the_scale_once_before_its_step() -> None:
    loss = Scaled()
    list(trainer(loss, epochs=2, schedule=Schedule(heatings=(3,))).epochs())
    assert loss.seen == [16, 16, 16, 4]


def test_a_loss_without_a_scale_cannot_be_heated() -> None:
    with pytest.raises(RecipeError, match="Hinge has no scale to heat"):
        trainer(Hinge(1.0), schedule=Schedule(heatings=(3,)))


def test_a_frozen_network_gets_no_optimizer() -> None:
    assert "optimizer" not in vars(trainer(epochs=0))


def weight_rows(rows: int = 6) -> nn.Parameter:
    return nn.Parameter(torch.randn(rows, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64))


def loss_of(table: Tensor, rows: list[int], *, sparse: bool) -> Tensor:
    """A function of some rows alone."""
    return F.embedding(torch.tensor(rows), table, sparse=sparse).square().sum()


def trained(draws: list[list[int]], *, sparse: bool, **options: float) -> Tensor:
    table = weight_rows()
    kind: Any = RowSGD if sparse else torch.optim.SGD
    optimizer = kind([table], lr=0.1, **options)
    for rows in draws:
        optimizer.zero_grad()
        loss_of(table, rows, sparse=sparse).backward()
        optimizer.step()
    return table.detach()


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "weight_decay": 0.01}])
def test_with_every_row_drawn_it_is_torchs_sgd(options: dict[str, float]) -> None:
    draws = [[0, 1, 2, 3, 4, 5], [5, 4, 3, 2, 1, 0], [0, 1, 2, 3, 4, 5]]
    torch.testing.assert_close(trained(draws, sparse=True, **options), trained(draws, sparse=False, **options))


def test_a_row_that_is_drawn_twice_has_both_gradients() -> None:
    torch.testing.assert_close(trained([[1, 1, 2]], sparse=True), trained([[1, 1, 2]], sparse=False))


def test_rows_that_are_not_drawn_stay_to_the_bit() -> None:
    after = trained([[0, 1], [1]], sparse=True, momentum=0.9, weight_decay=0.1)
    assert torch.equal(after[2:], weight_rows().detach()[2:])
    assert not torch.equal(after[:2], weight_rows().detach()[:2])


def test_momentum_waits_until_a_row_is_drawn_again() -> None:
    # By hand for one row x with gradient 2x: drawn, not drawn, drawn.
    x = weight_rows().detach()[0]
    first = 2 * x
    moved = x - 0.1 * first
    second = 0.9 * first + 2 * moved
    torch.testing.assert_close(trained([[0], [1], [0]], sparse=True, momentum=0.9)[0], moved - 0.1 * second)


def test_state_goes_through_a_checkpoint() -> None:
    table, other = weight_rows(), weight_rows()
    one, two = RowSGD([table], lr=0.1, momentum=0.9), RowSGD([other], lr=0.1, momentum=0.9)
    loss_of(table, [0, 1], sparse=True).backward()
    one.step()
    with torch.no_grad():
        other.copy_(table)
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for parameter, optimizer in ((table, one), (other, two)):
        optimizer.zero_grad()
        loss_of(parameter, [0], sparse=True).backward()
        optimizer.step()
    assert torch.equal(table, other)


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("sgd", torch.optim.SGD, {"momentum": 0.9}),
        ("adam", torch.optim.Adam, {"eps": 0.01}),
        ("adamw", torch.optim.AdamW, {"eps": 0.01}),
        ("rmsprop", torch.optim.RMSprop, {"eps": 0.01, "momentum": 0.5}),
    ],
)
def test_each_name_is_torchs_optimizer(name: str, kind: Any, options: dict[str, float]) -> None:
    ours, theirs = weight_rows(), weight_rows()
    built = build_optimizer(
        name,
        [{"params": [ours], "lr": 0.1, "weight_decay": 0.01}],
        learning_rate=0.1,
        momentum=options.get("momentum"),
        epsilon=options.get("eps"),
    )
    reference = kind([theirs], lr=0.1, weight_decay=0.01, **options)
    for _ in range(3):
        for parameter, optimizer in ((ours, built), (theirs, reference)):
            optimizer.zero_grad()
            loss_of(parameter, [0, 1, 2], sparse=False).backward()
            optimizer.step()
    assert torch.equal(ours, theirs)


def test_gradients_of_rows_are_their_values() -> None:
    table, unused = weight_rows(), weight_rows()
    loss_of(table, [1, 1], sparse=True).backward()
    (values,) = gradients([table, unused])
    torch.testing.assert_close(values, 4 * table.detach()[1:2])


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train on the CPU as on a GPU: by a fused optimiser, the numbers of a batch read behind the next one."""
    monkeypatch.setattr(loop, "_fuses", lambda device: True)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
@pytest.mark.parametrize("options", [{}, {"clip_gradient": 0.01}, {"accumulate": 2}])
def test_reading_one_batch_behind_trains_the_same(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, options: dict[str, Any]
) -> None:
    options = {"optimizer": optimizer, "epochs": 3, **options}
    plain = trainer(**options)
    losses = [result.loss for result in plain.epochs()]
    monkeypatch.setattr(loop, "_fuses", lambda device: True)
    behind = trainer(**options)
    assert [result.loss for result in behind.epochs()] == pytest.approx(losses, rel=1e-5)
    torch.testing.assert_close(weight(behind), weight(plain))


class Failing(Softmax):
    """A value, or a gradient, that is not finite in one batch."""

    def __init__(self, batch: int, *, gradient: bool) -> None:
        super().__init__(5, 2)
        self.batch, self.gradient, self.batches = batch, gradient, 0

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        self.batches += 1
        value = super().forward(embeddings, labels)
        if self.batches != self.batch:
            return value
        # Of a loss that is infinite the gradient may be finite.
        return value + ((embeddings - embeddings.detach()).abs().sqrt().sum() if self.gradient else math.inf)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_step_that_is_not_finite_is_told_behind_it_and_moves_nothing(optimizer: str, gradient: bool) -> None:
    batches = [BATCHES[0], BATCHES[1], np.array([0, 1, 2, 3])]
    done = trainer(softmax(), optimizer=optimizer, batches=lambda epoch: batches[:1], momentum=0.9)
    list(done.epochs())  # one step
    ours = trainer(Failing(2, gradient=gradient), optimizer=optimizer, batches=lambda epoch: batches, momentum=0.9)
    ours.loss.load_state_dict(softmax().state_dict())
    quantity = r"the gradient of 1\.weight is not finite" if gradient else "loss is inf"
    with pytest.raises(NumericError, match=f"{quantity} at epoch 1, iteration 2 .images 2.png, 3.png, 6.png") as caught:
        list(ours.epochs())
    assert ours.loss.batches == 3
    assert caught.value.fix is not None
    assert caught.value.fix.startswith("Lower train.learning_rate")
    torch.testing.assert_close(weight(ours), weight(done), rtol=0, atol=0)


@pytest.mark.usefixtures("fused")
@pytest.mark.parametrize("gradient", [False, True])
def test_an_epoch_whose_last_step_is_not_finite_is_not_given(gradient: bool) -> None:
    with pytest.raises(NumericError, match="at epoch 1, iteration 2"):
        list(trainer(Failing(2, gradient=gradient), epochs=2).epochs())


@pytest.mark.usefixtures("fused")
def test_a_state_is_resumed_fused_or_not_as_its_device_says(monkeypatch: pytest.MonkeyPatch) -> None:
    fused = trainer(optimizer="adam", epochs=2)
    next(iter(fused.epochs()))
    monkeypatch.setattr(loop, "_fuses", lambda device: False)
    plain = trainer(optimizer="adam", epochs=2)
    plain.load_state(fused.state())
    assert [group["fused"] for group in plain.optimizer.param_groups] == [None, None]


def test_rows_move_by_no_gradient_of_a_step_that_is_refused() -> None:
    table = weight_rows()
    optimizer = RowSGD([table], lr=0.1, momentum=0.9, fused=True)
    optimizer.found_inf = torch.ones(())
    (loss_of(table, [0, 1], sparse=True) * math.inf).backward()
    optimizer.step()
    assert torch.equal(table.detach(), weight_rows().detach())


def test_the_data_workers_stay_from_epoch_to_epoch() -> None:
    ours = trainer(epochs=2, workers=1)
    working = [[child.pid for child in multiprocessing.active_children()] for _ in ours.epochs()]
    assert working[0] == working[1] != []
    assert multiprocessing.active_children() == []


def test_closing_the_epochs_ends_the_data_workers() -> None:
    epochs = trainer(epochs=3, workers=1).epochs()
    next(epochs)
    del epochs
    assert multiprocessing.active_children() == []


def on_a_gpu(**options: Any) -> Trainer:
    network, loss, gpu = net(), softmax(), torch.device("cuda")
    network.module.to(gpu)
    return Trainer(network, loss.to(gpu), split(), normalise, trainer(epochs=2, **options).plan)


@pytest.mark.gpu
def test_a_gpu_draws_the_same_masks_for_a_chunk_twice() -> None:
    ours, drawn = on_a_gpu(chunk=2), list[Tensor]()
    dropout = nn.Dropout()
    dropout.register_forward_hook(lambda layer, images, output: drawn.append(output == 0))
    ours.net.module.append(dropout)  # type: ignore[operator] # a Sequential
    ours._backward(torch.from_numpy(PIXELS[BATCHES[0]]), BATCHES[0], 1)
    assert [torch.equal(drawn[one], drawn[two]) for one, two in ((0, 2), (1, 3), (0, 1))] == [True, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop"])
def test_a_gpu_trains_as_a_cpu(optimizer: str) -> None:
    ours, cpu = on_a_gpu(optimizer=optimizer), trainer(optimizer=optimizer, epochs=2)
    losses = [[result.loss for result in one.epochs()] for one in (ours, cpu)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    torch.testing.assert_close(weight(ours).cpu(), weight(cpu), rtol=1e-3, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "options", [{}, {"clip_gradient": 0.01}, {"accumulate": 2}, {"optimizer": "adam"}, {"chunk": 3}]
)
def test_no_step_waits_for_a_gpu(options: dict[str, Any]) -> None:
    ours = on_a_gpu(**options)
    loaded = [(torch.from_numpy(PIXELS[batch]), batch) for batch in BATCHES]
    list(ours._steps(1, loaded))  # allocates
    with never_waiting():
        assert len(list(ours._steps(2, loaded))) == 2
