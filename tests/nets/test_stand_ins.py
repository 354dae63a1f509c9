"""No code of a file runs: each attack, when it is loaded as pickle means it, writes a file; here none does."""

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
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import tv_tensors

from layerprobe.nets.stand_ins import load_inert
from layerprobe.system.errors import DataError

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
