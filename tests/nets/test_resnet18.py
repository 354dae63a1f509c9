from __future__ import annotations

import torch
from torch import nn
from torchvision import models

from layerprobe.nets.resnet18 import build


def test_layers_are_the_blocks_the_pool_and_the_head() -> None:
    net = build(fc=[64])
    blocks = [f"layer{stage}.{block}" for stage in range(1, 5) for block in range(2)]
    assert list(net.layers) == [*blocks, "pool5", "fc6"]
    assert all(name == path for name, path in net.layers.items())


def test_with_torchvisions_weights_it_computes_torchvisions_pooled_features() -> None:
    torch.manual_seed(0)
    theirs = models.resnet18(weights=None).eval()
    net = build(fc=[], weights=theirs.state_dict())
    theirs.fc = nn.Identity()
    images = torch.randn(2, 3, 64, 64)
    with torch.inference_mode():
        torch.testing.assert_close(net.module.eval()(images), theirs(images), rtol=1e-5, atol=1e-6)
    assert net.embedding_dim == 512
    assert not net.new_parameters
