from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from layerprobe.nets.net import Net
from layerprobe.workflow.run.epoch_weights import load_file


class Turned(nn.Linear):
    """Its first version stored the weight transposed; it turns that of a file which does not say its version."""

    _version = 2

    def _load_from_state_dict(self, state: Any, prefix: str, metadata: dict[str, int], *rest: Any) -> None:
        if metadata.get("version", 1) < 2:
            state[f"{prefix}weight"] = state[f"{prefix}weight"].T
        super()._load_from_state_dict(state, prefix, metadata, *rest)


def test_weights_of_a_file_are_not_taken_for_those_of_an_older_class(tmp_path: Path) -> None:
    weight: Tensor = torch.arange(9.0).reshape(3, 3)
    torch.save({"state_dict": {"model.part.weight": weight, "model.part.bias": torch.zeros(3)}}, tmp_path / "their.pt")
    model = nn.Sequential()
    model.add_module("part", Turned(3, 3))
    load_file(Net(model, {}, 3, frozenset()), "mine", tmp_path / "their.pt", None)
    assert torch.equal(model.state_dict()["part.weight"], weight)
