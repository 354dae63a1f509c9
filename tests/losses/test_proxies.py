from __future__ import annotations

import pytest
import torch

from layerprobe.losses.proxies import normal, uniform


def test_first_values_are_spread_as_named() -> None:
    torch.manual_seed(0)
    bounded, gaussian = uniform(2000, 16), normal(2000, 16)
    assert bounded.abs().max().item() == pytest.approx(0.25, rel=1e-3)
    assert bounded.abs().max() <= 0.25
    assert gaussian.norm(dim=1).square().mean().item() == pytest.approx(1, rel=0.02)
