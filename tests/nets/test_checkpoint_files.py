"""Folders as torch.distributed.checkpoint writes them in one process; attacks write a file where their code runs."""

from __future__ import annotations

import argparse
import collections
import enum
import functools
import importlib
import io
import operator
import os
import pathlib
import pickle
import re
import subprocess
import types
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, distributed, nn
from torch._C._distributed_c10d import HashStore
from torch.distributed._shard.sharded_tensor.metadata import ShardedTensorMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor
from torchvision import tv_tensors

from layerprobe.nets.checkpoint_files import load_inert, read_checkpoint
from layerprobe.system.errors import DataError

WEIGHTS = {"conv1.weight": torch.arange(6.0).reshape(2, 3), "bn1.num_batches_tracked": torch.tensor(4)}


def equal(left: Mapping[str, Tensor], right: Mapping[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def saved(folder: Path, content: object) -> Path:
    torch.save(content, folder / "w.pt")
    return folder / "w.pt"


def test_a_torch_file_and_a_safetensors_file_give_the_same(tmp_path: Path) -> None:
    safetensors.torch.save_file(WEIGHTS, tmp_path / "w.safetensors")
    assert equal(read_checkpoint(tmp_path / "w.safetensors").tensors, WEIGHTS)
    assert equal(read_checkpoint(saved(tmp_path, WEIGHTS)).tensors, WEIGHTS)


def test_the_keys_of_nested_dicts_stand_before_a_tensors_name(tmp_path: Path) -> None:
    content = {"epoch": 3, "model": {"net": WEIGHTS, "scale": torch.tensor(2.0)}, "optimizer": {0: {"exp_avg": 1}}}
    assert equal(
        read_checkpoint(saved(tmp_path, content)).tensors,
        {f"model.net.{name}": value for name, value in WEIGHTS.items()} | {"model.scale": torch.tensor(2.0)},
    )


def test_parameters_come_without_their_gradients_graph(tmp_path: Path) -> None:
    found = read_checkpoint(saved(tmp_path, {"a": nn.Parameter(torch.ones(2))})).tensors["a"]
    assert type(found) is Tensor
    assert not found.requires_grad


def test_a_dict_that_lies_in_itself_is_read_once(tmp_path: Path) -> None:
    content: dict[str, object] = dict(WEIGHTS)
    content["again"] = content
    assert equal(read_checkpoint(saved(tmp_path, content)).tensors, WEIGHTS)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path, {"a": {"b": torch.ones(1)}, "a.b": torch.zeros(1)})
    with pytest.raises(DataError, match=r"w\.pt: holds two tensors called a\.b\. Save the network's state_dict"):
        read_checkpoint(path)


class AttributedDict:
    """A dict with attributes of the names of methods."""

    def __reduce__(self) -> tuple[object, ...]:
        return (OrderedDict, (), {"items": 1, "keys": 1}, None, iter(WEIGHTS.items()))


class AttributedTensor:
    """A tensor with attributes of the names of methods."""

    def __reduce__(self) -> tuple[object, ...]:
        rebuild, arguments = torch.ones(2).__reduce_ex__(2)
        return (torch._tensor._rebuild_from_type_v2, (rebuild, Tensor, arguments, {"detach": 1, "isfinite": 1}))


def test_attributes_that_a_file_gives_its_dicts_and_tensors_hide_no_method(tmp_path: Path) -> None:
    found = read_checkpoint(saved(tmp_path, {"a": AttributedDict(), "t": AttributedTensor()})).tensors
    assert list(found) == ["a.conv1.weight", "a.bn1.num_batches_tracked", "t"]
    assert found["t"].isfinite().all()


def test_sparse_tensors_and_tensors_without_numbers_are_left_out(tmp_path: Path) -> None:
    content = {"a": torch.ones(1), "b": torch.eye(2).to_sparse(), "c": torch.empty(10**9, device="meta")}
    assert list(read_checkpoint(saved(tmp_path, content)).tensors) == ["a"]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_left_out(tmp_path: Path, layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)], layout=layout)
    assert list(read_checkpoint(saved(tmp_path, {"a": torch.ones(1), "b": nested})).tensors) == ["a"]


def truncated() -> bytes:
    whole = io.BytesIO()
    torch.save(WEIGHTS, whole)
    return whole.getvalue()[:-100]


def archive(entry: str) -> bytes:
    with zipfile.ZipFile(content := io.BytesIO(), "w") as entries:
        entries.writestr(entry, b"")
    return content.getvalue()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty. Download it again."),
        (b"<!DOCTYPE html><html>", "this is an HTML page, not weights. Download it again."),
        (b"\n <HTML><body>", "this is an HTML page, not weights. Download it again."),
        (b"version https://git-lfs.github.com/spec/v1\n", "this is a git-lfs pointer, not weights."),
        (truncated(), "truncated, or no weights file. Download it again."),
        (b"just some text", "no weights file of torch or safetensors. Give a file of torch.save or of safetensors."),
        (b'{"weight_map": {}}', "this is JSON, not weights. Name the weights themselves."),
        (b"\x89HDF\r\n\x1a\n", "an HDF5 file, as Keras saves weights. Use the model's weights for PyTorch."),
        (b"GGUF\x03", "a GGUF file. Convert it by transformers: AutoModel.from_pretrained(FOLDER, gguf_file=FILE)"),
        (b"\x1f\x8b\x08", "compressed by gzip. Unpack it and name the file inside."),
        (archive("a.npy"), "arrays of NumPy (.npz), not torch's tensors. timm reads those of its models: model.load"),
        (
            archive("a/constants.pkl"),
            "holds a TorchScript program. Convert it by torch: torch.save(torch.jit.load(FILE)",
        ),
        (archive("a/archive_format"), "holds a program of torch.export (.pt2). Convert it by torch: torch.save(dict("),
        (archive("a/b.pth"), "a zip archive. Unpack it and name the file inside."),
    ],
    ids=lambda value: value[:30] if isinstance(value, str) else "",
)
def test_what_is_no_weights_file_is_said_to_be_what_it_is(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "w.pt").write_bytes(content)
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'w.pt'}: {message}")):
        read_checkpoint(tmp_path / "w.pt")


def test_a_truncated_safetensors_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.torch.save_file(WEIGHTS, path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(DataError, match=r"w\.safetensors: truncated, or no safetensors file"):
        read_checkpoint(path)


def test_an_absent_file_is_an_error_with_the_ways_out(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"w\.pt: no readable weights file: No such file .* net\.weights=none"):
        read_checkpoint(tmp_path / "w.pt")


@pytest.mark.parametrize("content", [{"epoch": 3, "history": [1.0]}, torch.ones(2)])
def test_a_file_of_something_else_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(
        DataError, match=r"does not hold tensors by their names\. Save the network's state_dict\(\) alone\."
    ):
        read_checkpoint(saved(tmp_path, content))


@pytest.mark.parametrize("content", [nn.Linear(2, 2), {"epoch": 3, "model": nn.Linear(2, 2)}], ids=["alone", "nested"])
def test_a_whole_module_is_called_so_with_the_call_that_saves_its_state(tmp_path: Path, content: object) -> None:
    message = r"holds a Python object, such as a whole module, .* torch\.save\(torch\.load\(FILE, weights_only=False\)"
    with pytest.raises(DataError, match=message):
        read_checkpoint(saved(tmp_path, content))


@pytest.mark.parametrize("name", ["_fsdp_wrapped_module._flat_param", "layer1.flat_param"])
def test_flat_parameters_of_fsdp_are_called_so(tmp_path: Path, name: str) -> None:
    path = saved(tmp_path, {"model": {name: torch.ones(9)}})
    message = rf"the part of FSDP's weights that one process has: model\.{name} is all .*get_model_state_dict"
    with pytest.raises(DataError, match=message):
        read_checkpoint(path)


@pytest.mark.filterwarnings("ignore:.*pickling/unpickling of the DeviceMesh")
def test_the_pieces_of_fsdps_tensors_are_called_so(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    try:
        piece = distribute_tensor(torch.ones(2), init_device_mesh("cpu", (1,)))
        saved(tmp_path, {"model": {"a": piece, "count": torch.ones(1)}})
    finally:
        distributed.destroy_process_group()
    (tmp_path / "sharded").mkdir()
    for path in (tmp_path / "w.pt", saved(tmp_path / "sharded", {"a": ShardedTensorMetadata()})):
        with pytest.raises(DataError, match=r"the part of FSDP's weights that one process has: .* Save the whole"):
            read_checkpoint(path)


@pytest.mark.parametrize(
    "name", ["zero_pp_rank_0_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"]
)
def test_a_piece_of_zero_is_called_so_with_the_command_of_deepspeed(tmp_path: Path, name: str) -> None:
    (tmp_path / "latest").write_text("global_step3\n")
    (tmp_path / "global_step3").mkdir()
    torch.save({"module": {}}, tmp_path / "global_step3" / name)
    command = re.escape(f"python {tmp_path}/zero_to_fp32.py {tmp_path} OUT")
    with pytest.raises(DataError, match=rf"DeepSpeed's ZeRO, .*{command}"):
        read_checkpoint(tmp_path / "global_step3" / name)


def test_safetensors_are_read_under_any_name(tmp_path: Path) -> None:
    safetensors.torch.save_file(WEIGHTS, tmp_path / "a.bin")
    assert equal(read_checkpoint(tmp_path / "a.bin").tensors, WEIGHTS)


def test_a_file_of_torch_by_the_name_of_safetensors_is_called_so(tmp_path: Path) -> None:
    saved(tmp_path, WEIGHTS).rename(tmp_path / "w.safetensors")
    with pytest.raises(
        DataError, match=r"a file of torch\.save, not of safetensors\. Change its name to end in \.pt\."
    ):
        read_checkpoint(tmp_path / "w.safetensors")


def test_a_shard_is_read_with_the_others(tmp_path: Path) -> None:
    for place, (name, tensor) in enumerate(WEIGHTS.items(), 1):
        torch.save({name: tensor}, tmp_path / f"pytorch_model-{place:05}-of-00002.bin")
    assert equal(read_checkpoint(tmp_path / "pytorch_model-00002-of-00002.bin").tensors, WEIGHTS)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for place in (1, 2):
        torch.save(WEIGHTS, tmp_path / f"m-{place}-of-2.bin")
    with pytest.raises(DataError, match=r"m-2-of-2\.bin: holds two tensors called conv1\.weight"):
        read_checkpoint(tmp_path / "m-1-of-2.bin")


FORMATS = pytest.mark.parametrize("as_zip", [True, False], ids=["zip", "legacy"])


# --- what trainers write beside the weights


@dataclass
class Config:
    rate: float = 0.1
    sizes: list[int] = field(default_factory=lambda: [1, 2])


class Options(dict[str, object]):
    """A dict whose items are attributes too, as configuration packages have it."""

    def __init__(self, *args: object, **options: object) -> None:
        super().__init__(*args, **options)
        self.__dict__["frozen"] = True


class Sizes(list[int]):
    pass


class Colour(enum.Enum):
    RED = 1

    def __reduce_ex__(self, protocol: object) -> tuple[object, ...]:
        # As from Python 3.11.4 on; before, a member was a call of getattr, and a file that names this is refused.
        return Colour, (self.value,)


class Slotted:
    __slots__ = ("rate",)

    def __init__(self) -> None:
        self.rate = 0.1


BESIDE = {
    "namespace": argparse.Namespace(rate=0.1, out=pathlib.PurePosixPath("runs")),
    "path": Path("runs"),
    "simple_namespace": types.SimpleNamespace(rate=0.1),
    "dataclass": Config(),
    "slots": Slotted(),
    "dict_subclass": Options(rate=0.1),
    "list_subclass": Sizes([1, 2]),
    "defaultdict": collections.defaultdict(list, loss=[0.1]),
    "frozenset": frozenset({1, 2}),
    "enum": Colour.RED,
    "class": Config,
    "optimiser": torch.optim.SGD([torch.zeros(1)], 0.1),
    "version": torch.__version__,
    "numpy_scalar": np.float64(0.5),
    "numpy_array": np.arange(3),
}


@FORMATS
@pytest.mark.parametrize("kind", [*BESIDE, "all"])
def test_tensors_beside_an_object_of_a_foreign_class_are_read(tmp_path: Path, kind: str, as_zip: bool) -> None:
    beside = BESIDE if kind == "all" else BESIDE[kind]
    weights = {"a": torch.arange(3.0), "b": torch.ones(2)}
    content = {"args": beside, "state_dict": weights, "again": beside}
    torch.save(content, tmp_path / "w.pt", _use_new_zipfile_serialization=as_zip)
    found = load_inert(tmp_path / "w.pt")
    assert isinstance(found, dict)
    assert all(torch.equal(found["state_dict"][name], value) for name, value in weights.items())


def test_a_module_beside_tensors_is_a_stand_in(tmp_path: Path) -> None:
    torch.save({"loss": nn.MSELoss(), "w": torch.ones(2)}, tmp_path / "w.pt")
    found = load_inert(tmp_path / "w.pt")
    assert isinstance(found, dict)
    assert not isinstance(found["loss"], nn.Module)


@pytest.mark.parametrize(
    ("write", "what"),
    [
        (
            lambda path: torch.save(nn.MSELoss(), path, _use_new_zipfile_serialization=False),
            r"a module as an object, in torch's old format\. Where its code can be imported: torch\.save\(torch\.load",
        ),
        (
            lambda path: torch.save(tv_tensors.Image(torch.ones(3, 2, 2)), path),
            r"tensors of a class of its own\. Save the network's state_dict\(\) alone\.",
        ),
    ],
    ids=["module", "subclass"],
)
def test_what_is_no_state_dict_is_said_to_be_what_it_is(
    tmp_path: Path, write: Callable[[Path], None], what: str
) -> None:
    write(tmp_path / "w.pt")
    with pytest.raises(DataError, match=rf"w\.pt: holds {what}"):
        load_inert(tmp_path / "w.pt")


def test_items_of_a_foreign_dict_and_a_foreign_list_are_kept(tmp_path: Path) -> None:
    torch.save({"options": Options(rate=0.1), "sizes": Sizes([1, 2]), "config": Config()}, tmp_path / "w.pt")
    found = load_inert(tmp_path / "w.pt")
    assert isinstance(found, dict)
    assert type(found["options"]) is collections.OrderedDict
    assert dict(found["options"]) == {"rate": 0.1}
    assert found["sizes"] == [1, 2]


def test_a_stand_in_keeps_nothing_of_its_object_and_cannot_be_called(tmp_path: Path) -> None:
    torch.save({"config": Config()}, tmp_path / "w.pt")
    content = load_inert(tmp_path / "w.pt")
    assert isinstance(content, dict)
    assert not hasattr(content["config"], "__dict__")
    assert not callable(content["config"])


def test_no_stand_in_outlives_the_reading(tmp_path: Path) -> None:
    before = set(torch.serialization.get_safe_globals())
    torch.save({"config": Config(), "options": Options(rate=0.1)}, tmp_path / "w.pt")
    load_inert(tmp_path / "w.pt")
    assert set(torch.serialization.get_safe_globals()) == before


# --- attacks


class Call:
    """Pickled, it is a call of a function, which unpickling carries out; the function may be what a call gives."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call

    def __call__(self) -> None:
        """Pickle takes only what can be called for a function."""


class Touching:
    """A class of the user's own module whose state writes a file."""

    def __reduce__(self) -> tuple[object, ...]:
        return (Touching, (), "canary")

    def __setstate__(self, state: str) -> None:
        Path(state).touch()


def touch(path: str) -> None:
    Path(path).touch()


def nested(save: Callable[[object, io.BytesIO], object]) -> bytes:
    save(Call(os.system, "touch canary"), inner := io.BytesIO())
    return inner.getvalue()


# What a file does when its code runs -> the name by which it is refused; without one it comes out inert.
ATTACKS: dict[str, tuple[object, str]] = {
    "os.system": (Call(os.system, "touch canary"), "posix.system"),
    "subprocess": (Call(subprocess.call, ["touch", "canary"]), "commands.call"),
    "eval": (Call(eval, "open('canary', 'w').close()"), "builtins.eval"),
    "exec": (Call(exec, "open('canary', 'w').close()"), "builtins.exec"),
    "partial": (Call(Call(functools.partial, touch, "canary")), "functools.partial"),
    "getattr": (
        Call(Call(getattr, Call(importlib.import_module, "os"), "system"), "touch canary"),
        "builtins.getattr",
    ),
    "methodcaller": (Call(Call(operator.methodcaller, "touch"), Path("canary")), "operator.methodcaller"),
    "open": (Call(open, "canary", "w"), "io.open"),
    "nested pickle": (Call(pickle.loads, nested(pickle.dump)), "pickle.loads"),
    "nested torch": (Call(torch.storage._load_from_bytes, nested(torch.save)), "torch.storage._load_from_bytes"),
    "function of a package": (Call(touch, "canary"), ""),
    "class of a package": (Touching(), ""),
    "by a dict's state": ({"a": collections.OrderedDict(a=Touching())}, ""),
}


@FORMATS
@pytest.mark.filterwarnings("ignore:unclosed file")  # of the attack that opens one
@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_that_would_run_is_refused_by_name_or_inert(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, as_zip: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    attack, function = ATTACKS[name]
    content = {"a": attack, "w": torch.ones(2)}
    torch.save(content, "w.pt", _use_new_zipfile_serialization=as_zip)
    torch.load("w.pt", weights_only=False)
    assert Path("canary").exists()  # unprotected, the file does what it is made for
    Path("canary").unlink()
    if function:
        what = f"w.pt: holds Python code ({function}); layerprobe does not run it. Convert it to safetensors."
        with pytest.raises(DataError, match=re.escape(what)):
            load_inert(Path("w.pt"))
    else:
        found = load_inert(Path("w.pt"))
        assert isinstance(found, dict)
        assert torch.equal(found["w"], torch.ones(2))
    assert not Path("canary").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("name", ["posix.system", f"{__name__}.Touching"])
def test_code_in_a_plain_pickle_is_named_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, protocol: int
) -> None:
    monkeypatch.chdir(tmp_path)
    attack = Call(os.system, "touch canary") if name == "posix.system" else Touching()
    Path("w.pt").write_bytes(pickle.dumps({"w": [1.0], "a": attack}, protocol=protocol))
    what = f"w.pt: holds Python code ({name}); layerprobe does not run it. Convert it to safetensors."
    with pytest.raises(DataError, match=re.escape(what)):
        load_inert(Path("w.pt"))
    assert not Path("canary").exists()


def test_code_in_a_pickle_that_ends_early_is_named(tmp_path: Path) -> None:
    # It runs before the end is missed.
    (tmp_path / "w.pt").write_bytes(pickle.dumps(Call(os.system, "true"), protocol=0)[:-1])
    with pytest.raises(DataError, match=r"w\.pt: holds Python code \(posix.system\)"):
        load_inert(tmp_path / "w.pt")


def test_a_second_name_of_a_module_is_read_through_its_reference(tmp_path: Path) -> None:
    # From protocol 4 on, the text `pathlib` is written once, and remembered for the second name.
    content = [pathlib.PurePosixPath("a"), pathlib.PureWindowsPath("b"), Call(os.system, "true")]
    (tmp_path / "w.pt").write_bytes(pickle.dumps(content, protocol=4))
    with pytest.raises(DataError, match=r"w\.pt: holds Python code \(posix.system\)"):
        load_inert(tmp_path / "w.pt")


def test_a_plain_pickle_of_data_is_told_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "w.pt").write_bytes(pickle.dumps({"a": [1.0], "args": argparse.Namespace(rate=0.1)}))
    with pytest.raises(DataError, match=r"w\.pt: a plain pickle, .* Save the network's state_dict\(\) alone"):
        load_inert(tmp_path / "w.pt")


@pytest.mark.parametrize("call", range(3))
def test_code_in_the_pickles_before_the_content_of_a_legacy_file_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: int
) -> None:
    """A legacy file begins with three small pickles of its own."""
    monkeypatch.chdir(tmp_path)
    torch.save({"w": torch.ones(2)}, "w.pt", _use_new_zipfile_serialization=False)
    with Path("w.pt").open("rb") as stream:
        pieces = []
        for _ in range(3):
            start = stream.tell()
            pickle.load(stream)
            end = stream.tell()
            stream.seek(start)
            pieces.append(stream.read(end - start))
        rest = stream.read()
    pieces[call] = pickle.dumps(Call(touch, "canary"), protocol=2)
    Path("w.pt").write_bytes(b"".join(pieces) + rest)
    with pytest.raises(DataError, match=r"w\.pt: (holds Python code|truncated)"):
        load_inert(Path("w.pt"))
    assert not Path("canary").exists()


class Beyond:
    """A tensor of a million numbers over a storage of two."""

    def __reduce__(self) -> tuple[object, ...]:
        storage = torch.ones(2).untyped_storage()
        typed = torch.storage.TypedStorage(wrap_storage=storage, dtype=torch.float32, _internal=True)
        return (torch._utils._rebuild_tensor_v2, (typed, 0, (10**6,), (1,), False, collections.OrderedDict()))


@FORMATS
def test_a_tensor_beyond_its_storage_is_refused(tmp_path: Path, as_zip: bool) -> None:
    torch.save({"w": Beyond()}, tmp_path / "w.pt", _use_new_zipfile_serialization=as_zip)
    with pytest.raises(DataError, match=r"w\.pt: truncated, or no weights file"):
        load_inert(tmp_path / "w.pt")


def test_a_compressed_file_is_refused_before_it_unfolds(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1000)}, tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as stored,
        zipfile.ZipFile(tmp_path / "w.pt", "w", zipfile.ZIP_DEFLATED) as deflated,
    ):
        for part in stored.namelist():
            deflated.writestr(part, stored.read(part))
    with pytest.raises(DataError, match=r"w\.pt: compressed, which torch\.save never does"):
        load_inert(tmp_path / "w.pt")


def test_entries_that_share_their_bytes_are_refused(tmp_path: Path) -> None:
    """A table of contents that lists one entry many times makes a small file unfold to any size."""
    torch.save({"w": torch.zeros(1000)}, tmp_path / "w.pt")
    with zipfile.ZipFile(tmp_path / "w.pt", "a") as archive:
        large = max(archive.infolist(), key=lambda entry: entry.file_size)
        archive.filelist.extend([large] * 9)
        archive.comment = b"rewritten"  # so that the table is written anew
    with pytest.raises(DataError, match=r"w\.pt: claims more bytes than the file has"):
        load_inert(tmp_path / "w.pt")
