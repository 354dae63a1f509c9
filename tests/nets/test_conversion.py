"""LoRA merged into weights, against sums by hand; tests/sources/test_hugging_face.py compares it with PEFT."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from layerprobe.nets.checkpoint_files import FileWeights, read_checkpoint
from layerprobe.nets.conversion import fit_module, merge_adapter
from layerprobe.system.errors import DataError, NumericError

PLAIN: dict[str, Any] = {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "base_model_name_or_path": "org/base"}
BASE = {"a.weight": torch.ones(3, 4), "a.bias": torch.zeros(3), "conv.weight": torch.ones(5, 2, 3, 3)}


def adapter(config: dict[str, Any], tensors: dict[str, Tensor]) -> FileWeights:
    named = {f"base_model.model.{name}": tensor for name, tensor in tensors.items()}
    return FileWeights(named, Path("ad"), adapter={**PLAIN, **config})


def low_and_high(name: str, low: Tensor, high: Tensor) -> dict[str, Tensor]:
    return {f"{name}.lora_A.weight": low, f"{name}.lora_B.weight": high}


LINEAR = low_and_high("net.a", torch.arange(8.0).reshape(2, 4), torch.arange(6.0).reshape(3, 2))


@pytest.mark.parametrize(("config", "factor"), [({}, 3.0), ({"use_rslora": True}, 6 / math.sqrt(2))])
def test_a_linear_layer_gets_alpha_by_r_times_the_product(config: dict[str, Any], factor: float) -> None:
    state, notes = merge_adapter(adapter(config, LINEAR), BASE, name="python:x", convert=None)
    low, high = LINEAR.values()
    expected = [[1 + factor * sum(high[i, r] * low[r, j] for r in range(2)) for j in range(4)] for i in range(3)]
    torch.testing.assert_close(state["a.weight"], torch.tensor(expected))
    assert torch.equal(state["conv.weight"], BASE["conv.weight"])
    assert torch.equal(BASE["a.weight"], torch.ones(3, 4))
    assert notes == ("ad: LoRA (r = 2, alpha = 6, base org/base) is merged into the weights of python:x, tensors: 1",)


def test_a_convolution_gets_the_product_at_each_place_of_its_kernel() -> None:
    low, high = torch.randn(2, 2, 3, 3), torch.randn(5, 2, 1, 1)
    state, _ = merge_adapter(adapter({}, low_and_high("conv", low, high)), BASE, name="n", convert=None)
    expected = 1 + 3 * torch.einsum("or,rihw->oihw", high[:, :, 0, 0], low)
    torch.testing.assert_close(state["conv.weight"], expected)


def test_fan_in_fan_out_transposes_the_product() -> None:
    tensors = low_and_high("a", torch.randn(2, 3), torch.randn(4, 2))
    state, _ = merge_adapter(adapter({"fan_in_fan_out": True}, tensors), BASE, name="n", convert=None)
    low, high = tensors.values()
    torch.testing.assert_close(state["a.weight"], 1 + 3 * (high @ low).T)


def test_saved_modules_replace_those_of_the_base_and_a_classifier_is_named() -> None:
    tensors = {**LINEAR, "net.a.bias": torch.full((3,), 7.0), "head.weight": torch.ones(2, 3)}
    state, notes = merge_adapter(adapter({"modules_to_save": ["head"]}, tensors), BASE, name="n", convert=None)
    assert state["a.bias"].tolist() == [7.0, 7.0, 7.0]
    assert notes[1] == "ad: not used of the adapter: head.weight"


@pytest.mark.parametrize(
    ("config", "what"),
    [
        ({"peft_type": "IA3"}, "of peft_type IA3, which PEFT alone merges"),
        ({"use_dora": True}, "with use_dora"),
        ({"bias": "all"}, "with bias"),
        ({"alpha_pattern": {"a": 3}}, "with alpha_pattern"),
        ({"init_lora_weights": "pissa"}, "with init_lora_weights pissa"),
        ({"r": None}, "whose adapter_config.json has no r and lora_alpha"),
    ],
)
def test_what_is_no_sum_of_weights_is_refused_with_the_calls_of_peft(config: dict[str, Any], what: str) -> None:
    calls = re.escape("PeftModel.from_pretrained(MODEL, 'ad').merge_and_unload().save_pretrained('OUT')")
    with pytest.raises(DataError, match=f"^ad: an adapter of PEFT {what}.*{calls}"):
        merge_adapter(adapter(config, LINEAR), BASE, name="n", convert=None)


@pytest.mark.parametrize(
    ("name", "what"),
    [("a.b", "there is no place for a.b.weight"), ("conv", "conv.weight has shape"), ("x", "x.weight")],
)
def test_an_adapter_of_another_model_is_refused(name: str, what: str) -> None:
    tensors = {**low_and_high(name, torch.ones(2, 4), torch.ones(3, 2)), **low_and_high("a", *LINEAR.values())}
    with pytest.raises(DataError, match=f"another model than n: .*{what}.* Name the model that was adapted by --model"):
        merge_adapter(adapter({}, tensors), BASE, name="n", convert=None)


def test_a_folder_or_file_of_an_adapter_is_read_with_its_settings(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(PLAIN))
    torch.save(LINEAR, tmp_path / "adapter_model.bin")
    for path in (tmp_path, tmp_path / "adapter_model.bin"):
        weights = read_checkpoint(path)
        assert weights.adapter == PLAIN
        assert weights.tensors.keys() == LINEAR.keys()


def test_adapted_weights_that_are_not_merged_are_refused_with_the_calls_of_peft() -> None:
    state = {**LINEAR, "net.a.base_layer.weight": torch.ones(3, 4)}
    with pytest.raises(DataError, match=r"an adapter of PEFT that is not merged into its model\. Merge it by PEFT"):
        fit_module(FileWeights(state), torch.nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (low_and_high("a", torch.ones(2, 4), torch.ones(3, 5)), "a.lora_A.weight and its lora_B do not fit"),
        (low_and_high("a", torch.ones(4), torch.ones(3, 2)), "a.lora_A.weight and its lora_B do not fit"),
        ({**LINEAR, "conv.lora_B.weight": torch.ones(5, 2)}, "with conv.lora_B.weight, which PEFT alone merges"),
    ],
)
def test_halves_that_do_not_fit_are_refused(tensors: dict[str, Tensor], message: str) -> None:
    with pytest.raises(DataError, match=message):
        merge_adapter(adapter({}, tensors), BASE, name="n", convert=None)


def test_an_adapter_with_nan_is_refused() -> None:
    tensors = low_and_high("a", torch.full((2, 4), math.nan), torch.ones(3, 2))
    with pytest.raises(NumericError, match="has NaN values"):
        merge_adapter(adapter({}, tensors), BASE, name="n", convert=None)
