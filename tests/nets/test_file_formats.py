from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from layerprobe.nets.file_formats import require_weights_format
from layerprobe.system.errors import DataError


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_programs_of_torch_are_called_so(tmp_path: Path) -> None:
    torch.jit.save(torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2)), tmp_path / "script.pt")
    with pytest.raises(DataError, match=r"script\.pt: holds a TorchScript program\. .*torch\.jit\.load\(FILE\)\.state"):
        require_weights_format(tmp_path / "script.pt")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("a.onnx", "an ONNX graph"),
        ("flax_model.msgpack", "weights of Flax"),
        ("m.ckpt.index", "a part of TensorFlow's"),
    ],
)
def test_formats_without_first_bytes_are_known_by_their_names(tmp_path: Path, name: str, what: str) -> None:
    (tmp_path / name).write_bytes(b"\x08\x07")
    with pytest.raises(DataError, match=rf"{name}: {what}.*\. Use the model's weights for PyTorch\."):
        require_weights_format(tmp_path / name)


def test_a_file_of_torch_passes(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(1)}, tmp_path / "a.pt")
    require_weights_format(tmp_path / "a.pt")
