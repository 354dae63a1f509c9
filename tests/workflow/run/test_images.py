from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from layerprobe.data import pixel_cache
from layerprobe.data.pixel_cache import Entry, fill
from layerprobe.system.errors import BusyError, DataError, EnvironmentFault, InterruptedRun, LayerprobeError
from layerprobe.system.files import sha256
from layerprobe.workflow.manage.cache import list_images
from layerprobe.workflow.probe.estimate_probe import estimate_probe
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run import images as module
from layerprobe.workflow.run.images import Decoding, with_contents
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.train.building import Built, TrainRequest, build, with_decoded_images
from layerprobe.workflow.train.train import train
from tests.workflow.conftest import Silent

Make = Callable[..., TrainRequest]


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every data set is too large to be held in memory."""
    monkeypatch.setattr(pixel_cache, "_LIMIT", 0)


def hash_images(built: Built, request: TrainRequest, listener: Silent) -> Built:
    return replace(built, loaded=with_contents(built.loaded, Decoding(request.cache, listener, request.workers)))


def decode(request: TrainRequest, listener: Silent | None = None) -> Built:
    return with_decoded_images(hash_images(build(request), request, Silent()), request, listener or Silent())


def results(run: Run) -> dict[str, object]:
    """Checkpoints and features, to the bit."""
    found: dict[str, object] = {path.name: sha256(path) for path in run.folder.glob("checkpoints/*.safetensors")}
    for path in sorted(run.folder.glob("features/*.h5")):
        with h5py.File(path) as file:
            for layer, values in file["features"].items():
                found[f"{path.name}/{layer}"] = np.asarray(values).tobytes()
    return found


@pytest.mark.parametrize("transform", ["square", "D1"])
@pytest.mark.parametrize("workers", [0, 2])
def test_with_the_cache_and_without_every_bit_is_the_same(request_for: Make, transform: str, workers: int) -> None:
    found = []
    for cache in ("off", "auto"):
        settings = (f"data.transform={transform}", f"data.cache={cache}", "train.epochs=1", "data.image_size=32")
        run = train(request_for(*settings, run=cache, workers=workers), Silent())
        request = ProbeRequest(layers=("pool1.2", "fc6"), device="cpu", workers=workers)
        probe(run, request, Silent())
        found.append(results(run))
        kept = list_images(run.folder.parent)
        # D1 keeps its training images twice: to train on, and to test on.
        whole = [True, True, True] if transform == "D1" else [True, True]
        assert [entry.complete for entry in kept] == ([] if cache == "off" else whole)
    assert len(found[0]) == 2 + 2 * 2 * 2
    assert found[0] == found[1]


def test_probing_decodes_what_training_did_not_leave(request_for: Make) -> None:
    run = train(request_for("train.epochs=0"), Silent())
    first = {entry.id for entry in list_images(run.folder.parent)}
    shutil.rmtree(run.folder.parent / "images")
    listener = Silent()
    probe(run, ProbeRequest(layers=("fc6",), device="cpu", workers=0), listener)
    assert {entry.id for entry in list_images(run.folder.parent)} == first
    assert listener.heard[0].startswith("decoding 32 images once into ")


def test_an_estimate_decodes_nothing(request_for: Make) -> None:
    request = request_for("train.epochs=0")
    build(request)
    assert list_images(request.cache) == []
    run = train(request, Silent())
    shutil.rmtree(request.cache / "images")
    estimate_probe(run, ProbeRequest(device="cpu", workers=0))
    assert list_images(request.cache) == []


def test_small_data_sets_are_held_in_memory(request_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pixel_cache, "_LIMIT", 2**28)
    request = request_for()
    decode(request)
    assert list_images(request.cache) == []


def test_images_that_are_made_are_not_kept(request_for: Make, tmp_path: Path) -> None:
    from layerprobe.recipe.recipe import load_recipe

    from_recipe.build_dataset(load_recipe("quick"), Decoding(tmp_path, Silent(), 0))
    assert list_images(tmp_path) == []


def test_seeds_and_shares_of_one_data_set_share_it(request_for: Make) -> None:
    for settings in (
        ("train.seed=1", "data.share=0.5"),
        ("train.seed=2",),
        ("data.validation_classes=0.5", "train.batch_size=4"),
    ):
        request = request_for(*settings)
        decode(request)
    assert [(entry.split, entry.images) for entry in list_images(request.cache)].count(("train", 16)) == 1
    assert len(list_images(request.cache)) == 2


def test_a_size_is_a_key(request_for: Make) -> None:
    for size in (16, 32):
        request = request_for(f"data.image_size={size}")
        decode(request)
    sizes = {entry.size - 32 * entry.images for entry in list_images(request.cache)}
    assert sizes == {16 * 16 * 16 * 3, 16 * 32 * 32 * 3}


def test_a_disk_without_room_is_told_before_anything_is_decoded(
    request_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "free_bytes", lambda folder: 32 * 16 * 16 * 3 - 1)
    request = request_for()
    with pytest.raises(EnvironmentFault, match="32 decoded images need about 0 MB more.*data.cache=off"):
        decode(request)
    assert list_images(request.cache) == []
    monkeypatch.setattr(module, "free_bytes", lambda folder: 32 * 16 * 16 * 3)
    decode(request)


def test_what_decoding_will_drop_is_room(request_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    request = request_for()
    decode(request)
    for entry in list_images(request.cache):
        os.truncate(request.cache / "images" / entry.id / "images.i64", 0)
    monkeypatch.setattr(module, "free_bytes", lambda folder: 0)
    decode(request)
    assert all(entry.complete for entry in list_images(request.cache))


def test_a_full_disk_is_told_with_the_folder(request_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill(*values: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "fill", fill)
    request = request_for()
    with pytest.raises(EnvironmentFault, match=f"^{request.cache}/images/.*: disk full: "):
        decode(request)


def test_the_same_command_goes_on_after_a_bad_image(request_for: Make, images: Path) -> None:
    bad = images / "class2/1.png"
    whole = bad.read_bytes()
    bad.write_bytes(bytes(len(whole)))
    request = request_for()
    with pytest.raises(DataError, match="class2/1.png: not an image that can be read"):
        train(request, Silent())
    assert not request.target().exists()
    bad.write_bytes(whole)
    train(request, Silent())
    assert all(entry.complete for entry in list_images(request.cache))


def test_what_another_process_makes_is_waited_for(request_for: Make) -> None:
    from threading import Thread

    request = request_for()
    decode(request)
    entry = Entry(request.cache / "images" / list_images(request.cache)[0].id)
    entry.remove()
    heard = Silent()
    with entry.locked():
        other = Thread(target=decode, args=(request, heard))
        other.start()
        while not any("waiting for another process" in text for text in heard.heard):
            assert other.is_alive()
    other.join()
    assert all(kept.complete for kept in list_images(request.cache))


def test_what_this_process_itself_uses_is_not_waited_for(request_for: Make, images: Path) -> None:
    request = request_for()
    before = decode(request)
    image = images / "class0/1.png"
    shutil.copyfile(images / "class0/2.png", image)
    with pytest.raises(BusyError, match="the train images have changed, and this process still uses them as they were"):
        decode(request)
    del before
    decode(request)


@dataclass
class Signalled(Silent):
    """Sends this process a signal when an image is decoded, the third as a rule."""

    number: int
    left: int = 3

    def __post_init__(self) -> None:
        super().__init__()

    def advance(self, steps: int = 1, **figures: float) -> None:
        self.left -= bool(steps)
        if self.left == 0:
            os.kill(os.getpid(), self.number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_decoding_at_the_next_image(request_for: Make, number: signal.Signals) -> None:
    message = "train: 3 of 16 images are decoded; the same command resumes"
    with pytest.raises(InterruptedRun, match=rf"^{message} \({number.name}\)") as caught:
        decode(request_for(), Signalled(number))
    assert caught.value.exit_code == 128 + number
    listener = Silent()
    decode(request_for(), listener)
    assert "train: 3 of 16 images are decoded already" in listener.heard


def test_a_signal_ends_decoding_by_workers_and_them(request_for: Make) -> None:
    with pytest.raises(InterruptedRun, match="train: 16 of 16 images are decoded; .*SIGTERM"):
        decode(request_for(workers=1), Signalled(signal.SIGTERM, left=1))
    assert multiprocessing.active_children() == []


def test_a_signal_that_comes_last_is_heard(request_for: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def filled(*values: Any, **more: Any) -> None:
        fill(*values, **more)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(module, "fill", filled)
    with pytest.raises(InterruptedRun, match="train: 16 of 16 images are decoded; .*SIGTERM"):
        decode(request_for())


def test_a_worker_that_a_signal_to_all_processes_ended_is_no_fault(
    request_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(*values: object, **more: object) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        raise EnvironmentFault("a data worker was killed")

    monkeypatch.setattr(module, "fill", fill)
    with pytest.raises(InterruptedRun, match="train: 0 of 16 images are decoded"):
        decode(request_for())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_hashing_at_once_and_what_is_hashed_is_kept(request_for: Make, number: signal.Signals) -> None:
    request = request_for()
    built, listener = build(request), Signalled(number)
    former = signal.signal(number, signal.SIG_IGN)  # as a shell has it for a command in the background
    try:
        with pytest.raises(InterruptedRun, match=rf"^stopped \({number.name}\)") as caught:
            hash_images(built, request, listener)
    finally:
        signal.signal(number, former)
    assert (caught.value.exit_code, listener.left) == (128 + number, 0)
    again = Signalled(number, left=-1)
    hash_images(built, request, again)
    images = sum(map(len, built.loaded.splits.values()))
    assert again.left == -1 - (images - 3)


def bitmap(path: Path, seed: int) -> None:
    """Of one size in bytes whatever is in it."""
    pixels = np.random.default_rng(seed).integers(0, 256, (20, 20, 3), np.uint8)
    Image.fromarray(pixels).save(path.with_suffix(".bmp"))
    if path.suffix != ".bmp":
        path.unlink()


def test_neither_another_folders_nor_old_pixels_are_served(request_for: Make, images: Path) -> None:
    for number, path in enumerate(sorted(images.glob("*/*.png"))):
        bitmap(path, number)
    request = request_for()
    decode(request)
    first = sorted(images.glob("*/*.bmp"))[0]
    times = first.stat()
    bitmap(first, 99)
    os.utime(first, ns=(times.st_atime_ns, times.st_mtime_ns))
    found = decode(request_for()).dataset.splits["train"].image(0)
    own = from_recipe.build_dataset(request_for("data.cache=off").recipe).splits["train"].image(0)
    np.testing.assert_array_equal(found, own)


def test_folders_with_the_same_names_and_sizes_are_kept_apart(request_for: Make, images: Path, tmp_path: Path) -> None:
    for number, path in enumerate(sorted(images.glob("*/*.png"))):
        bitmap(path, number)
    other = tmp_path / "other"
    shutil.copytree(images, other)
    for number, path in enumerate(sorted(other.glob("*/*.bmp"))):
        times = path.stat()
        bitmap(path, 1000 + number)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    decode(request_for())
    request = request_for(f"data.root={other}")
    own = from_recipe.build_dataset(request_for(f"data.root={other}", "data.cache=off").recipe).splits["train"].image(0)
    np.testing.assert_array_equal(decode(request).dataset.splits["train"].image(0), own)


def test_small_data_sets_are_decoded_to_disk_for_data_workers(
    request_for: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixel_cache, "_LIMIT", 2**28)
    request = request_for(workers=1)
    decode(request)
    assert [entry.complete for entry in list_images(request.cache)] == [True, True]


@pytest.mark.parametrize(
    ("settings", "fields", "problem"),
    [
        (("net.weights=/nowhere.pth",), {}, "nowhere"),
        (("train.batch_size=100",), {}, "there are 16 training images"),
        ((), {"probe": ("pool9",)}, "unknown layer 'pool9'"),
    ],
)
def test_mistakes_are_told_before_images_are_decoded(
    request_for: Make, settings: tuple[str, ...], fields: dict[str, object], problem: str
) -> None:
    request = request_for(*settings, **fields)
    with pytest.raises(LayerprobeError, match=problem):
        train(request, Silent())
    assert list_images(request.cache) == []
