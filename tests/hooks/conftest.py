from __future__ import annotations

import pytest
import torch

from tests.hooks.models import Layers, Small


@pytest.fixture
def net() -> Layers:
    torch.manual_seed(0)
    return Layers(Small(), {"pool1": "norm", "pool2": "drop", "fc6": "fc6", "aux": "unused"})
