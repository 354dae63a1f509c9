from __future__ import annotations

import torch
from torch import Tensor, nn

from layerprobe.nets.freezing import FrozenBatchNorm
from layerprobe.nets.resnet18 import build

IMAGES = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(2))
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def trained(module: nn.Module) -> dict[str, Tensor]:
    """The state after a step of training in which the whole network was told to learn."""
    module.requires_grad_(True).train()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, weight_decay=0.1)
    module(IMAGES).square().sum().backward()
    optimizer.step()
    return module.state_dict()


def is_norm(name: str) -> bool:
    return ".bn" in name or name.startswith("bn") or "downsample.1" in name


def test_statistics_weights_and_biases_stay_whatever_the_mode() -> None:
    net = build(fc=[8], freeze_bn=True)
    before = {name: value.clone() for name, value in net.module.state_dict().items()}
    after = trained(net.module)
    assert any(is_norm(name) for name in before)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {name for name in before if not is_norm(name)}


def test_without_it_they_move() -> None:
    net = build(fc=[8])
    before = {name: value.clone() for name, value in net.module.state_dict().items()}
    after = trained(net.module)
    assert not any(torch.equal(before[name], after[name]) for name in before)


def test_in_training_it_computes_what_a_plain_network_does_in_evaluation() -> None:
    weights = trained(build(fc=[8], seed=1).module)
    frozen = build(fc=[8], weights=weights, freeze_bn=True).module.train()
    assert torch.equal(frozen(IMAGES), build(fc=[8], weights=weights).module.eval()(IMAGES))


def test_the_state_has_the_same_names_and_goes_from_one_to_the_other() -> None:
    plain, frozen = build(fc=[8], seed=1).module, build(fc=[8], seed=2, freeze_bn=True).module
    frozen.load_state_dict(trained(plain), strict=True)
    plain.load_state_dict(frozen.state_dict(), strict=True)
    assert torch.equal(frozen(IMAGES), plain.eval()(IMAGES))


def test_frozen_tensors_are_no_new_parameters() -> None:
    names = build(fc=[8], freeze_bn=True).new_parameters
    assert "layer4.1.conv2.weight" in names
    assert not [name for name in names if is_norm(name)]


def test_a_block_from_scratch_learns_its_own() -> None:
    module = build(fc=[8], freeze_bn=True, from_scratch=["layer4.1"]).module
    learning = [path for path, part in module.named_modules() if isinstance(part, nn.BatchNorm2d)]
    assert learning == ["layer4.1.bn1", "layer4.1.bn2"]


def test_the_heads_norm_goes_on_learning_its_statistics() -> None:
    module = build(fc=[8], norm="batch", freeze_bn=True).module.train()
    module(IMAGES)
    assert module.state_dict()["norm5.num_batches_tracked"] == 1


def test_the_gradient_passes_through_to_what_lies_before() -> None:
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(3).eval()
    with torch.no_grad():
        norm.weight.uniform_(1, 2)
    images, copies = IMAGES.clone().requires_grad_(), IMAGES.clone().requires_grad_()
    FrozenBatchNorm(norm).train()(images).square().sum().backward()
    norm(copies).square().sum().backward()
    assert images.grad is not None
    assert copies.grad is not None
    torch.testing.assert_close(images.grad, copies.grad)
