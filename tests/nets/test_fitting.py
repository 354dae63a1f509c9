"""Nine layouts as their trainers write them, each loaded bit-equal; and what is refused."""

from __future__ import annotations

import argparse
import copy
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn
from torchvision.models import mnasnet0_5, resnet

from layerprobe.nets.checkpoint_files import FileWeights, read_checkpoint
from layerprobe.nets.conversion import fit_module
from layerprobe.nets.fitting import Fit, TargetNetwork, fit, shapes, with_versions
from layerprobe.system.errors import DataError, NumericError, UnknownNameError


class Narrow(nn.Module):
    """A ResNet's names: a stem, blocks with batch normalisation, one with a shortcut of its own; no classifier."""

    def __init__(self, blocks: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3)
        self.bn1 = nn.BatchNorm2d(4)
        self.layer1 = nn.Sequential(*(resnet.BasicBlock(4, 4) for _ in range(blocks)))
        shortcut = nn.Sequential(nn.Conv2d(4, 8, 1, 2), nn.BatchNorm2d(8))
        self.layer2 = nn.Sequential(resnet.BasicBlock(4, 8, 2, shortcut), resnet.BasicBlock(8, 8))


def network(seed: int, blocks: int = 2) -> Narrow:
    torch.manual_seed(seed)
    net = Narrow(blocks)
    for name, buffer in net.named_buffers():
        if not name.endswith("num_batches_tracked"):
            buffer.uniform_(0.5, 2)
    return net


NET = network(0)
STATE = NET.state_dict()
COUNT = len(STATE)
NEEDED = COUNT - 10  # 10 batch normalisations count their batches


def under(prefix: str, state: Mapping[str, Tensor] = STATE) -> OrderedDict[str, Tensor]:
    return OrderedDict((prefix + name, value) for name, value in state.items())


class Wrapped(nn.Module):
    """A trainer's module around the network, with a head or a loss beside it."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


def plain() -> object:
    return STATE


def data_parallel() -> object:
    return nn.DataParallel(NET).state_dict()


def lightning() -> object:
    module = Wrapped(model=NET, loss_fn=nn.Linear(8, 5, bias=False))
    optimiser = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
    return {
        "epoch": 3,
        "global_step": 120,
        "pytorch-lightning_version": "2.5.0",
        "state_dict": module.state_dict(),
        "callbacks": {"ModelCheckpoint": {"best_model_score": torch.tensor(0.5), "best_model_path": "a.ckpt"}},
        "optimizer_states": [optimiser.state_dict()],
        "hparams_name": "kwargs",
        "hyper_parameters": {"backbone": "resnet18", "args": argparse.Namespace(rate=0.1)},
    }


def pytorch_metric_learning() -> object:
    """The library saves models, optimisers and loss functions of its trainer each in a file; people put them in one."""
    models = {"trunk": nn.DataParallel(NET), "embedder": nn.Linear(8, 4)}
    return {f"{kind}.{name}": value for kind, model in models.items() for name, value in model.state_dict().items()} | {
        "losses": {"metric_loss.W": torch.ones(8, 5)}
    }


def open_metric_learning() -> object:
    extractor = Wrapped(model=Wrapped(model=NET, head=nn.Linear(8, 4)), criterion=nn.Linear(8, 5))
    return {"state_dict": extractor.state_dict(), "epoch": 1}


def backbone() -> object:
    return Wrapped(backbone=NET, head=nn.Linear(8, 4)).state_dict()


def model_state_dict() -> object:
    scores = {"loss": np.float64(0.25), "accuracy": np.float32(0.5)}
    return {"model_state_dict": STATE, "optimizer_state_dict": {"state": {}, "param_groups": []}, "epoch": 4} | scores


def dino() -> object:
    """DINO's main: `student` is a DataParallel module around a backbone with a head, `teacher` is not."""
    student = nn.DataParallel(Wrapped(backbone=network(1), head=nn.Linear(8, 6)))
    teacher = Wrapped(backbone=NET, head=nn.Linear(8, 6))
    return {
        "student": student.state_dict(),
        "teacher": teacher.state_dict(),
        "epoch": 3,
        "args": argparse.Namespace(arch="resnet18", out_dim=6),
        "dino_loss": {"center": torch.zeros(1, 6)},
    }


def timm_saver() -> object:
    classified = Wrapped(**dict(NET.named_children()), fc=nn.Linear(8, 5))
    averaged = Wrapped(**dict(network(1).named_children()), fc=nn.Linear(8, 5))
    return {
        "epoch": 2,
        "arch": "resnet18",
        "state_dict": classified.state_dict(),
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(4, 3, 3, 3)}}, "param_groups": [{"lr": 0.1}]},
        "version": 2,
        "args": argparse.Namespace(model="resnet18", opt="sgd"),
        "amp_scaler": {"scale": 65536.0},
        "state_dict_ema": averaged.state_dict(),
        "metric": np.float64(71.5),
    }


def layerprobe_checkpoint() -> object:
    return under("net.", under("", STATE) | {"fc6.weight": torch.ones(4, 8)}) | {"loss.scale": torch.tensor(4.0)}


LAYOUTS: dict[str, tuple[Callable[[], object], str | None, str]] = {
    "plain": (plain, None, ""),
    "DDP": (data_parallel, None, "module"),
    "Lightning": (lightning, None, "state_dict.model"),
    "pytorch-metric-learning": (pytorch_metric_learning, None, "trunk.module"),
    "open-metric-learning": (open_metric_learning, None, "state_dict.model.model"),
    "backbone": (backbone, None, "backbone"),
    "model_state_dict": (model_state_dict, None, "model_state_dict"),
    "DINO": (dino, "teacher", "teacher.backbone"),
    "timm": (timm_saver, "state_dict", "state_dict"),
    "layerprobe": (layerprobe_checkpoint, None, "net"),
}


def written(path: Path, content: object) -> Path:
    torch.save(content, path)
    return path


def assert_is_the_network(found: Fit) -> None:
    """Loaded into another network, the tensors make it the same bit by bit."""
    other = network(9)
    other.load_state_dict(dict(found.tensors))
    assert all(torch.equal(value, STATE[name]) for name, value in other.state_dict().items())


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "legacy"])
def test_the_file_of_a_trainer_is_read_bit_by_bit(tmp_path: Path, layout: str, as_zip: bool) -> None:
    make, part, prefix = LAYOUTS[layout]
    torch.save(make(), tmp_path / "w.pt", _use_new_zipfile_serialization=as_zip)
    found = fit_module(read_checkpoint(tmp_path / "w.pt", part), network(5))
    assert found.prefix == prefix
    assert_is_the_network(found)


@pytest.mark.parametrize("prefix", ["", "module.", "model.", "net."])
def test_a_safetensors_file_is_read_bit_by_bit(tmp_path: Path, prefix: str) -> None:
    safetensors.torch.save_file(under(prefix), tmp_path / "w.safetensors")
    assert_is_the_network(fit_module(read_checkpoint(tmp_path / "w.safetensors"), network(5)))


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "a._orig_mod.module.b.module."])
def test_prefixes_of_wrappers_are_taken_off_and_said(prefix: str) -> None:
    found = fit_module(FileWeights(under(prefix), Path("folder/w.pt")), network(5))
    assert_is_the_network(found)
    assert found.notes == (f"w.pt: {prefix!r} is taken off the names of {COUNT} tensors",)


def test_wrappers_may_stand_within_the_names() -> None:
    wrapped = r"\1._fsdp_wrapped_module._checkpoint_wrapped_module._orig_mod.module"
    state = {re.sub(r"^(layer\d\.\d)", wrapped, name): value for name, value in STATE.items()}
    assert state.keys() != STATE.keys()
    assert_is_the_network(fit_module(under("model.", state), network(5)))


def test_a_wrapped_network_takes_a_bare_file_and_a_wrapped_one() -> None:
    wrapped = nn.DataParallel(network(5))
    for state in (STATE, under("module."), under("state_dict.module.")):
        wrapped.load_state_dict(dict(fit_module(state, wrapped).tensors))
        assert all(torch.equal(value, STATE[name[7:]]) for name, value in wrapped.state_dict().items())


# --- several fits


def test_student_and_teacher_are_an_error_that_lists_both_and_how_to_choose(tmp_path: Path) -> None:
    path = written(tmp_path / "dino.pth", dino())
    message = (
        f"{path}: several sets of weights fit: 'student.backbone', 'teacher.backbone'."
        f" Choose one: {path}#student.backbone or {path}#teacher.backbone."
    )
    with pytest.raises(DataError, match=f"^{re.escape(message)}$"):
        fit_module(read_checkpoint(path), network(5))
    student = network(1).state_dict()
    for part in ("student", "student.backbone", "student.module", "student.module.backbone"):
        found = fit_module(read_checkpoint(path, part), network(5)).tensors
        assert all(torch.equal(found[name], value) for name, value in student.items())


def test_a_moving_average_beside_the_weights_is_an_error_and_can_be_chosen(tmp_path: Path) -> None:
    path = written(tmp_path / "w.pt", timm_saver())
    with pytest.raises(DataError, match=r"several sets of weights fit: 'state_dict', 'state_dict_ema'\. Choose one"):
        fit_module(read_checkpoint(path), network(5))
    found = fit_module(read_checkpoint(path, "state_dict_ema"), network(5)).tensors
    assert torch.equal(found["conv1.weight"], network(1).state_dict()["conv1.weight"])


def test_a_part_that_is_itself_a_fit_is_taken_before_those_inside_of_it() -> None:
    tensors = under("model.") | under("model.ema.", network(1).state_dict())
    with pytest.raises(DataError, match="Choose one: FILE#model or FILE#model.ema"):
        fit_module(tensors, network(5))
    assert_is_the_network(fit_module(FileWeights(tensors, part="model"), network(5)))
    top = STATE | under("ema.", network(1).state_dict())
    with pytest.raises(DataError, match="fit: the top of the file, 'ema'. Choose one: FILE# or FILE#ema"):
        fit_module(top, network(5))
    assert_is_the_network(fit_module(FileWeights(top, part=""), network(5)))


def test_copies_with_the_same_numbers_are_one_fit(tmp_path: Path) -> None:
    copies = {"model": STATE, "best": copy.deepcopy(STATE), "tied": STATE}
    assert_is_the_network(fit_module(read_checkpoint(written(tmp_path / "w.pt", copies)), network(5)))


def test_an_unknown_part_names_the_known_ones(tmp_path: Path) -> None:
    path = written(tmp_path / "w.pt", dino())
    with pytest.raises(UnknownNameError, match=r"unknown part of the file 'teachr'\. Did you mean 'teacher'\?"):
        fit_module(read_checkpoint(path, "teachr"), network(5))


def test_a_part_without_the_network_is_refused_though_another_has_it() -> None:
    tensors = under("a.") | {"b.conv1.weight": STATE["conv1.weight"]}
    with pytest.raises(DataError, match=f"{NEEDED - 1} of {NEEDED} tensors are missing .* under 'b': conv1.bias is"):
        fit_module(FileWeights(tensors, part="b"), network(5))


# --- other networks


def test_a_narrower_network_is_told_how_much_does_not_fit_and_where(tmp_path: Path) -> None:
    state = {name: value for name, value in STATE.items() if not name.startswith("layer1.1.conv")}
    state["conv1.weight"] = torch.zeros(4, 1, 3, 3)
    path = written(tmp_path / "w.pt", {"state_dict": under("model.", state)})
    message = (
        f"{path}: weights of another network than mine: 3 of {NEEDED} tensors are missing or have another"
        " shape under 'state_dict.model': layer1.1.conv1.weight is missing, layer1.1.conv2.weight is missing,"
        " conv1.weight has shape (4, 1, 3, 3), not (4, 3, 3, 3). Name the network"
    )
    with pytest.raises(DataError, match=re.escape(message)):
        fit_module(read_checkpoint(path), network(5), name="mine")


def test_a_file_that_shares_no_name_is_refused() -> None:
    with pytest.raises(DataError, match=r"than this network: none of its \d+ tensors is there\. Name the network"):
        fit_module({"a.b": torch.ones(1)}, network(5))


def test_a_deeper_network_is_refused_although_it_has_every_tensor() -> None:
    deeper = network(0, blocks=3).state_dict()
    with pytest.raises(DataError, match=r"there is no place for layer1\.2\.conv1\.weight and 9 more\. Name"):
        fit_module(under("model.", deeper), network(5))


def test_a_network_beside_a_deeper_one_is_found() -> None:
    tensors = under("large.", network(1, blocks=3).state_dict()) | under("small.")
    assert_is_the_network(fit_module(tensors, network(5)))


@pytest.mark.parametrize("name", ["num_batches_tracked", "relative_position_index", "attn_mask"])
def test_buffers_that_a_network_makes_itself_may_be_missing_or_too_many(name: str) -> None:
    with_buffer, without = network(5), network(5)
    with_buffer.layer1.register_buffer(name, torch.ones(3))
    assert_is_the_network(fit_module(STATE, with_buffer))
    more = under("", STATE) | {f"layer1.{name}": torch.ones(3)}
    found = fit_module(more, without)
    assert_is_the_network(found)
    assert found.notes == ()


def test_an_extra_number_of_a_layer_is_no_such_buffer() -> None:
    with pytest.raises(DataError, match=r"there is no place for layer1\.scale\. Name"):
        fit_module(STATE | {"layer1.scale": torch.ones(3)}, network(5))


@pytest.mark.parametrize(
    "prefix", ["", "model.", "state_dict.model.", "module.", "net.model.", "state_dict.model.model."]
)
def test_names_below_the_root_of_a_module_around_the_network_are_enough(prefix: str) -> None:
    own = {f"model.{name}": shape for name, shape in shapes(network(5)).items()} | {"fc6.weight": (4, 8)}
    given = under(prefix) | {f"{prefix}fc.weight": torch.ones(5, 8)}
    found = fit(given, TargetNetwork("mine", own, ["fc6.weight"], root="model"))
    assert found.tensors.keys() == {f"model.{name}" for name in STATE}
    assert all(torch.equal(found.tensors[f"model.{name}"], value) for name, value in STATE.items())
    deeper = under(prefix, network(0, blocks=3).state_dict())
    with pytest.raises(DataError, match=r"there is no place for layer1\.2\.conv1\.weight and 9 more\. Name"):
        fit(deeper, TargetNetwork("mine", own, ["fc6.weight"], root="model"))


def test_a_runs_head_is_taken_with_the_network_below_the_root() -> None:
    own = {f"model.{name}": shape for name, shape in shapes(network(5)).items()} | {"fc6.weight": (4, 8)}
    given = under("net.model.") | {"net.fc6.weight": torch.ones(4, 8), "loss.scale": torch.ones(1)}
    found = fit(given, TargetNetwork("mine", own, ["fc6.weight"], root="model"))
    assert (found.prefix, found.notes) == ("net", ())
    assert torch.equal(found.tensors["fc6.weight"], torch.ones(4, 8))


def test_many_fits_are_counted() -> None:
    tensors = {f"layers.{i}.weight": torch.full((2, 2), float(i)) for i in range(9)}
    with pytest.raises(DataError, match=r"'layers\.3' and 5 more\. Choose one: FILE#layers\.0 or .* and 5 more\."):
        fit_module(tensors, nn.Linear(2, 2, bias=False))


class Headed(nn.Module):
    """ConvNeXt's end: a norm of the network and the classifier are both in `head`."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stages = nn.Sequential(nn.Linear(4, 4))
        self.head = nn.Sequential(OrderedDict(norm=nn.LayerNorm(4)))
        if classes:
            self.head.add_module("fc", nn.Linear(4, classes))


def test_a_classifier_beside_a_norm_of_the_network_is_left_and_said() -> None:
    found = fit_module(Headed(3).state_dict(), Headed(0))
    assert found.notes == (
        "not used of the weights: head.fc.weight (there is no such layer), head.fc.bias (there is no such layer)",
    )


@pytest.mark.parametrize("name", ["stages.0.se.fc.weight", "stages.1.weight", "head.scale.weight", "stages.fc.gamma"])
def test_what_is_no_classifier_needs_a_place(name: str) -> None:
    tensor = torch.ones(4) if name.startswith("head") else torch.ones(4, 4)
    with pytest.raises(DataError, match=rf"there is no place for {re.escape(name)}\. Name"):
        fit_module(Headed(0).state_dict() | {name: tensor}, Headed(0))


# --- what is said


def test_what_is_not_used_is_said_heads_above_all(tmp_path: Path) -> None:
    found = fit_module(read_checkpoint(written(tmp_path / "w.pt", timm_saver()), "state_dict"), network(5))
    assert found.notes == (
        f"w.pt: 'state_dict.' is taken off the names of {COUNT + 2} tensors",
        "w.pt: not used, since not under 'state_dict': state_dict_ema.conv1.weight, state_dict_ema.conv1.bias,"
        f" state_dict_ema.bn1.weight, state_dict_ema.bn1.bias and {COUNT + 2 - 4} more",
        "not used of the weights: fc.weight (there is no such layer), fc.bias (there is no such layer)",
    )


def test_a_head_of_another_shape_is_left_and_said_and_one_of_the_same_shape_taken() -> None:
    given = STATE | {"fc6.weight": torch.ones(4, 8)}
    for rows, taken in ((4, True), (5, False)):
        own = shapes(network(5)) | {"fc6.weight": (rows, 8)}
        found = fit(under("net.", given), TargetNetwork("mine", own, ["fc6.weight"]))
        assert ("fc6.weight" in found.tensors) == taken
        assert ("fc6.weight" in found.left) != taken
        assert found.notes == ()  # layerprobe's own file


# --- numbers


def test_a_small_file_that_claims_many_numbers_is_refused_before_they_are_made(tmp_path: Path) -> None:
    net = nn.Linear(10**4, 10**6, bias=False, device="meta")
    path = written(tmp_path / "w.pt", {"weight": torch.zeros(1).expand(10**6, 10**4)})
    with pytest.raises(DataError, match=r"w\.pt: the file holds fewer numbers than weight has by its shape\. Download"):
        fit_module(read_checkpoint(path), net)


@pytest.mark.parametrize(("value", "word"), [(float("nan"), "NaN"), (float("inf"), "infinite")])
def test_weights_that_are_not_finite_are_refused_by_tensor(tmp_path: Path, value: float, word: str) -> None:
    path = written(tmp_path / "w.pt", {"weight": torch.tensor([[1.0, value]]), "bias": torch.ones(1)})
    with pytest.raises(NumericError, match=rf"w\.pt: weight has {word} values") as caught:
        fit_module(read_checkpoint(path), nn.Linear(2, 1))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("save", [torch.save, safetensors.torch.save_file])
def test_complex_weights_are_refused_by_tensor(tmp_path: Path, save: Callable[[object, Path], None]) -> None:
    path = tmp_path / ("w.pt" if save is torch.save else "w.safetensors")
    save({"weight": torch.ones(1, 2), "bias": torch.ones(1) * 1j}, path)
    with pytest.raises(DataError, match=r"bias holds complex numbers\. Use"):
        fit_module(read_checkpoint(path), nn.Linear(2, 1))


def test_numbers_of_8_bits_are_asked_too() -> None:
    state = {"weight": torch.ones(1, 2).to(torch.float8_e4m3fn), "bias": torch.ones(1)}
    module = nn.Linear(2, 1)
    module.load_state_dict(dict(fit_module(state, module).tensors))
    assert torch.equal(module.weight, torch.ones(1, 2))


def test_what_is_not_used_need_not_be_finite() -> None:
    assert_is_the_network(fit_module(STATE | {"fc.weight": torch.tensor([torch.nan])}, network(5)))


def test_a_network_that_asks_for_its_version_is_loaded() -> None:
    """torchvision's MNASNet refuses tensors of which it does not know the version."""
    first, second = mnasnet0_5(), mnasnet0_5()
    tensors = dict(fit_module(under("model.", first.state_dict()), second).tensors)
    with pytest.raises(ValueError, match="version"):
        second.load_state_dict(tensors)
    second.load_state_dict(with_versions(tensors, second))
    assert torch.equal(second.state_dict()["layers.0.weight"], first.state_dict()["layers.0.weight"])


def test_weights_with_parametrizations_are_called_so() -> None:
    net = copy.deepcopy(NET)
    nn.utils.parametrizations.weight_norm(net.conv1)
    with pytest.raises(DataError, match=r"weights with torch's parametrizations, such as weight_norm"):
        fit_module({f"model.{name}": tensor for name, tensor in net.state_dict().items()}, NET)
    assert fit_module(net.state_dict(), net).prefix == ""
