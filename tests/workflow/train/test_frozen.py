from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from layerprobe.data.loading import plain_batches
from layerprobe.ranking import recall_at_k
from layerprobe.report.page import render
from layerprobe.summary.table import summary_table, summary_values
from layerprobe.system.errors import DataError, RecipeError, UnknownNameError
from layerprobe.system.files import sha256
from layerprobe.values.layers import LayerKey, RankedLayer
from layerprobe.values.network_input import OwnInput
from layerprobe.values.scores import Score, ScoreTable, Subject
from layerprobe.workflow.compare.answer import answer_of, probe_answer
from layerprobe.workflow.probe.probe import probe
from layerprobe.workflow.probe.selection import ProbeRequest
from layerprobe.workflow.report.report import build_report
from layerprobe.workflow.run import from_recipe
from layerprobe.workflow.run.epoch_weights import last_weights
from layerprobe.workflow.run.facts import data_facts, score_tables
from layerprobe.workflow.run.runs import Run, plan_removal, remove
from layerprobe.workflow.run.seen import state_seen
from layerprobe.workflow.summary.summary import stored_summary
from layerprobe.workflow.train import frozen_request
from layerprobe.workflow.train.frozen import estimate_frozen, frozen_run
from layerprobe.workflow.train.frozen_request import FrozenRequest
from tests.records import rewrite
from tests.workflow.conftest import Silent

CODE = """
from torch import nn

def build():
    model = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))
    return model, {"size": 16, "filter": "bilinear", "crop": 1.0, "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
"""
LAYER = "output"
Requests = Callable[..., FrozenRequest]


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    """The user's own model: a small network that says what images it takes."""
    path = tmp_path / "mine.py"
    path.write_text(CODE)
    return path


@pytest.fixture
def asked(model_file: Path, images: Path, tmp_path: Path) -> Requests:
    def make(weights: str = "none", **fields: object) -> FrozenRequest:
        model = f"python:{model_file}:build"
        return FrozenRequest(model, f"folder:{images}", tmp_path / "cache", weights, device="cpu", workers=0, **fields)  # type: ignore[arg-type] # one test's fields each

    return make


def draw(seed: int) -> nn.Module:
    """The user's model as their own training would build it."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 5))


@pytest.fixture
def checkpoints(tmp_path: Path) -> Path:
    """Three epochs of somebody else's training, whose names count them; they have no order as text."""
    folder = tmp_path / "theirs"
    folder.mkdir()
    for seed, name in enumerate(("epoch2.pt", "epoch9.pt", "epoch10.pt")):
        torch.save(
            {"epoch": seed, "state_dict": {f"model.{k}": v for k, v in draw(seed).state_dict().items()}}, folder / name
        )
    return folder


def measured(request: FrozenRequest, **fields: object) -> tuple[Run, list[Score]]:
    run = frozen_run(request, Silent())
    return run, probe(run, ProbeRequest(device="cpu", workers=0, ks=(1,), **fields), Silent())  # type: ignore[arg-type] # one test's fields each


def by_hand(model: nn.Module, request: FrozenRequest, split: str) -> float:
    """R@1 of the model's own output, from the pixels that the run's recipe gives."""
    recipe = request.recipe()
    images = from_recipe.build_dataset(recipe).splits[split]
    pixels = torch.cat(list(plain_batches(images, batch_size=64, workers=0)))
    inputs = (pixels.permute(0, 3, 1, 2) / 255 - 0.5) / 0.5
    with torch.inference_mode():
        return recall_at_k(model.eval()(inputs).numpy(), images.labels, ks=(1,))[1]


def r1(scores: list[Score], epoch: int, split: str) -> float | None:
    (found,) = [
        s.value for s in scores if (s.epoch, s.split, s.ranked.layer.layer, s.metric) == (epoch, split, LAYER, "R@1")
    ]
    return found


def test_a_model_is_a_run_of_0_epochs(asked: Requests) -> None:
    run, scores = measured(asked())
    record = run.read()
    assert (record.state, record.epochs_done, record.recipe["train"]["epochs"]) == ("finished", 0, 0)
    assert {score.split for score in scores} == {"train", "test"}
    assert {score.epoch for score in scores} == {0}


def test_the_pool_of_an_earlier_probe_does_not_change_the_default(asked: Requests) -> None:
    measured(asked(), layers=("1",), pools=("gem",))
    _, scores = measured(asked(), layers=("1",))
    assert {score.ranked.layer.pool for score in scores} == {"avg"}  # the pool of the model itself


GREY = """
from torch import nn

def build():
    model = nn.Sequential(nn.Conv2d(1, 6, 3), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 22 * 10, 5))
    return model, {"size": (24, 12), "mean": 0.5, "std": 0.25}
"""


def test_a_model_of_one_channel_gets_pils_grey_images_at_its_height_and_width(
    asked: Requests, model_file: Path, images: Path
) -> None:
    model_file.write_text(GREY)
    request = asked(seed=3)
    run, scores = measured(request)
    network = run.read().network
    assert network is not None
    assert network.channels == 1
    assert network.input == OwnInput((24, 12), None, mean=(0.5,), std=(0.25,))
    assert "the network takes grey images: colours are converted to luma (ITU-R 601)" in run.read().notes
    net = from_recipe.build_net(request.recipe()).module
    for split in ("train", "test"):
        known = from_recipe.load_dataset(request.recipe().data).splits[split]
        grey = [
            Image.open(images / name).resize((12, 24), Image.Resampling.BILINEAR).convert("L") for name in known.ids
        ]
        pixels = torch.from_numpy(np.stack([np.asarray(picture) for picture in grey])).float()[:, None]
        with torch.inference_mode():
            features = net.eval()((pixels / 255 - 0.5) / 0.25).numpy()
        assert r1(scores, 0, split) == recall_at_k(features, known.labels, ks=(1,))[1]


def test_its_name_is_the_models_with_six_hex_digits(asked: Requests) -> None:
    request = asked()
    name = request.target(request.recipe()).name
    assert name.startswith("python-")
    assert "mine.py-build-" in name
    assert len(name.rpartition("-")[2]) == 6


@pytest.mark.parametrize("weights", ["none", "theirs/epoch2.pt"])
def test_other_groups_are_searched_by_in_the_same_run(
    asked: Requests, images: Path, checkpoints: Path, weights: str
) -> None:
    names = sorted(path.relative_to(images).as_posix() for path in images.rglob("*.png"))
    rows = [f"{name},{name[:6]},test,{name[-5]}" for name in names]
    (images / "set.csv").write_text("\n".join(["path,label,split,camera", *rows]))
    file = weights if weights == "none" else str(checkpoints.parent / weights)
    request = replace(asked(file), data=f"csv:{images / 'set.csv'}")
    grouped = replace(request, settings=("data.group=camera",))
    run, plain = measured(request, layers=(LAYER,))
    features = run.feature_file(0, "test").stat().st_mtime_ns
    same, by_group = measured(grouped, layers=(LAYER,))
    assert same.name == run.name
    assert "group: camera" in by_group[0].notes
    assert run.scores() == by_group
    assert measured(request, layers=(LAYER,))[1] == plain
    assert run.feature_file(0, "test").stat().st_mtime_ns == features


def test_its_images_are_the_models_own(asked: Requests) -> None:
    run = frozen_run(asked(), Silent())
    data = run.read().recipe["data"]
    assert (data["transform"], data["image_size"]) == ("model", 16)


def test_a_model_that_does_not_say_its_images_is_asked_how_to_make_them(asked: Requests, model_file: Path) -> None:
    model_file.write_text(CODE.replace("return model, ", "return model #"))
    with pytest.raises(RecipeError, match="the input of python:.* is not known. Set data.transform = square"):
        frozen_run(asked(), Silent())
    run = frozen_run(asked(settings=("data.transform=square", "data.image_size=20")), Silent())
    assert run.read().recipe["data"]["image_size"] == 20


def test_the_same_request_again_computes_nothing(asked: Requests) -> None:
    run, scores = measured(asked())
    before = {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.h5")}
    again, same = measured(asked())
    assert (again, same) == (run, scores)
    assert {path: path.stat().st_mtime_ns for path in run.folder.rglob("*.h5")} == before


def keep_score(run: Run) -> None:
    """Give a run a score, so that it is measured."""
    key = RankedLayer(LayerKey(LAYER, "none"), "none", "cosine")
    ScoreTable([Subject(run.name, "", 0, 0, "test", key).score("R@1", 0.5, 2)]).write(run.scores_file)


@pytest.fixture
def unresolved(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """What makes the next request that is resolved fail, as its model, its loss and their defaults are imported."""

    def refuse(request: FrozenRequest) -> None:
        raise AssertionError(f"resolved: {request}")

    return lambda: monkeypatch.setattr(FrozenRequest, "recipe", refuse)


def test_a_run_of_shards_notices_a_change_in_any_of_them(asked: Requests, tmp_path: Path) -> None:
    state = list(draw(0).state_dict().items())
    shards = [tmp_path / f"pytorch_model-{place:05}-of-00002.bin" for place in (1, 2)]
    torch.save(dict(state[:1]), shards[0])
    torch.save(dict(state[1:]), shards[1])
    run, scores = measured(asked(str(tmp_path / "pytorch_model-*.bin"), run="shards"))
    torch.save(draw(0).state_dict(), tmp_path / "whole.pt")
    assert run.read().epochs == [0]
    assert [score.value for score in scores] == [s.value for s in measured(asked(str(tmp_path / "whole.pt")))[1]]
    shards[1].write_bytes(shards[1].read_bytes().replace(b"bias", b"bIas"))
    with pytest.raises(RecipeError, match="has changed since shards began, whose epoch 0 it is"):
        frozen_run(asked(str(tmp_path / "pytorch_model-*.bin"), run="shards"), Silent())
    with pytest.raises(DataError, match="is not the file that the run wrote; it is epoch 0 of shards"):
        last_weights(run)


@pytest.mark.parametrize("weights", ["none", "model", "epoch2.pt", "*.pt"])
@pytest.mark.parametrize("run", [None, "named"])
def test_the_same_request_again_is_known_by_the_runs_record(
    asked: Requests, checkpoints: Path, unresolved: Callable[[], None], weights: str, run: str | None
) -> None:
    request = asked(str(checkpoints / weights) if weights.endswith("pt") else weights, run=run)
    first, again = Silent(), Silent()
    found = frozen_run(request, first)
    keep_score(found)
    unresolved()
    assert frozen_run(request, again) == found
    assert again.heard == [text for text in first.heard if not text.startswith("note: ")]


def test_settings_in_another_order_are_the_same_request(asked: Requests) -> None:
    settings = ("data.invert=true", "data.train_classes=2")
    run = frozen_run(asked(settings=settings), Silent())
    assert asked(settings=settings[::-1]).find_repeated_run() == run


@pytest.mark.parametrize(
    "other",
    [
        {"seed": 1},
        {"weights": "model"},
        {"run": "named"},
        {"settings": ("data.train_classes=2",)},
        {"settings": ("data.seen=false",)},
        {"data": "folder:elsewhere"},
    ],
)
def test_another_request_is_no_repetition(asked: Requests, other: dict[str, object]) -> None:
    run = frozen_run(asked(), Silent())
    assert asked().find_repeated_run() == run
    assert replace(asked(), **other).find_repeated_run() is None  # type: ignore[arg-type] # one field each


def test_a_named_run_is_no_repetition_of_the_request_without_its_name(asked: Requests) -> None:
    name = frozen_run(asked(), Silent()).name
    remove(plan_removal(asked().cache, name, ()))
    frozen_run(asked(run=name), Silent())
    assert asked().find_repeated_run() is None


def test_the_same_words_in_another_folder_are_no_repetition(
    asked: Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = replace(asked(run="named"), model="python:mine.py:build", data="folder:images")
    monkeypatch.chdir(tmp_path)
    run = frozen_run(request, Silent())
    (tmp_path / "other").mkdir()
    shutil.copy("mine.py", "other")
    monkeypatch.chdir("other")
    assert request.find_repeated_run() is None
    assert replace(request, data="folder:../images").find_repeated_run() is None
    assert replace(request, data=f"folder:{tmp_path / 'images'}").find_repeated_run() == run
    Path("mine.py").write_text(CODE.replace("16", "20"))
    assert replace(request, data=f"folder:{tmp_path / 'images'}").find_repeated_run() is None


def test_a_relative_file_of_weights_is_compared_where_it_is_now(
    asked: Requests, checkpoints: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkpoints)
    frozen_run(asked("epoch2.pt", run="named"), Silent())
    (checkpoints / "other").mkdir()
    shutil.copy("epoch2.pt", "other")
    monkeypatch.chdir("other")
    with pytest.raises(RecipeError, match=r"epoch 0 is .*theirs/epoch2.pt, and would now be .*other/epoch2.pt"):
        frozen_run(asked("epoch2.pt", run="named"), Silent())


def test_a_module_that_the_models_file_imports_is_compared_too(asked: Requests, model_file: Path) -> None:
    (model_file.parent / "sizes.py").write_text("SIZE = 16")
    model_file.write_text(f"from sizes import SIZE\n{CODE.replace('16', 'SIZE')}")
    run = frozen_run(asked(run="named"), Silent())
    assert asked(run="named").find_repeated_run() == run
    (model_file.parent / "sizes.py").write_text("SIZE = 20")
    assert asked(run="named").find_repeated_run() is None


def test_what_another_version_resolved_is_resolved_anew(asked: Requests, monkeypatch: pytest.MonkeyPatch) -> None:
    run = frozen_run(asked(), Silent())
    monkeypatch.setattr(frozen_request, "__version__", "another")
    assert asked().find_repeated_run() is None
    assert frozen_run(asked(), Silent()) == run
    assert asked().find_repeated_run() == run


def test_a_request_that_its_run_does_not_state_is_kept_with_it(asked: Requests) -> None:
    run = frozen_run(asked(), Silent())
    rewrite(run, request="")
    assert asked().find_repeated_run() is None
    assert frozen_run(asked(), Silent()) == run
    assert asked().find_repeated_run() == run


def test_a_run_whose_recipe_was_changed_gets_that_of_the_request_again(asked: Requests) -> None:
    run = frozen_run(asked(), Silent())
    state_seen(run, seen=False)
    heard = Silent()
    frozen_run(asked(), heard)
    assert heard.heard == [f"{run.name}: data.seen = true from now on; nothing is measured again"]
    assert run.read().recipe["data"]["seen"] is True


def test_a_copy_of_a_run_is_no_repetition(asked: Requests) -> None:
    run = frozen_run(asked(), Silent())
    copy = run.folder.with_name(f"{run.name[:-6]}000000")
    shutil.copytree(run.folder, copy)
    assert asked().find_repeated_run() == run
    shutil.rmtree(run.folder)
    assert asked().find_repeated_run() is None


def test_a_run_that_is_damaged_is_told_as_ever(asked: Requests) -> None:
    run = frozen_run(asked(), Silent())
    run.record_file.write_text("{")
    assert asked().find_repeated_run() is None
    with pytest.raises(DataError, match="not JSON"):
        frozen_run(asked(), Silent())


def test_drawn_weights_follow_the_seed(asked: Requests) -> None:
    one, other = (frozen_run(replace(asked(), seed=seed), Silent()) for seed in (0, 1))
    assert one != other
    assert one.read().hashes != other.read().hashes
    assert one.read().experiment == other.read().experiment


def test_files_of_weights_are_the_epochs_of_their_names(asked: Requests, checkpoints: Path) -> None:
    request, heard = asked(f"{checkpoints}/*.pt"), Silent()
    run = frozen_run(request, heard)
    scores = probe(run, ProbeRequest(device="cpu", workers=0, ks=(1,)), heard)
    assert "epoch 2 is epoch2.pt, 9 is epoch9.pt, 10 is epoch10.pt" in heard.heard
    assert [Path(file.path).name for file in run.read().weights_files] == ["epoch2.pt", "epoch9.pt", "epoch10.pt"]
    assert {score.epoch for score in scores} == {2, 9, 10}
    for seed, epoch in enumerate((2, 9, 10)):
        for split in ("train", "test"):
            assert r1(scores, epoch, split) == by_hand(draw(seed), request, split)


@pytest.mark.parametrize(("asked_for", "found"), [("last", {10}), ("2,last", {2, 10}), ("9", {9})])
def test_epochs_are_asked_for_by_the_numbers_in_the_names(
    asked: Requests, checkpoints: Path, asked_for: str, found: set[int]
) -> None:
    _, scores = measured(asked(f"{checkpoints}/*.pt"), layers=(LAYER,), epochs=asked_for)
    assert {score.epoch for score in scores} == found


def test_an_epoch_without_a_file_is_refused_with_those_that_have_one(asked: Requests, checkpoints: Path) -> None:
    with pytest.raises(RecipeError, match=r"--epochs 1: .* has epochs 2, 9, 10"):
        measured(asked(f"{checkpoints}/*.pt"), epochs="1")


def test_copies_and_files_without_an_epoch_are_left_out_and_named(asked: Requests, checkpoints: Path) -> None:
    torch.save(draw(1).state_dict(), checkpoints / "best.pt")  # the weights of epoch 9, under other names
    torch.save(draw(5).state_dict(), checkpoints / "last.pt")
    torch.save(draw(6).state_dict(), checkpoints / "epoch9-v1.pt")
    request, heard = asked(f"{checkpoints}/*.pt"), Silent()
    run = frozen_run(request, heard)
    assert [file.epoch for file in run.read().weights_files] == [2, 9, 10]
    lines = [
        "best.pt is left out: it has the weights of epoch 9, epoch9.pt",
        "epoch9-v1.pt, last.pt: left out, without an epoch of its own in the name; to measure it, rename it like"
        " epoch11.pt",
    ]
    assert [note for note in run.read().notes if "left out" in note] == lines
    assert [line for line in heard.heard if "left out" in line] == [f"note: {line}" for line in lines]
    keep_score(run)
    stored = run.record_file.read_text()
    assert frozen_run(request, Silent()) == run
    assert run.record_file.read_text() == stored


def test_a_file_that_changes_how_epochs_are_told_is_refused(asked: Requests, checkpoints: Path) -> None:
    for number, name in ((2, "a.pt"), (9, "b.pt"), (10, "c.pt")):
        (checkpoints / f"epoch{number}.pt").rename(checkpoints / name)
    run = frozen_run(asked(f"{checkpoints}/*.pt", run="counted"), Silent())
    assert run.read().epochs == [0, 1, 2]
    torch.save(draw(7).state_dict(), checkpoints / "epoch12.pt")
    with pytest.raises(RecipeError, match=r"epoch 0 is .*a\.pt, and would now be no file"):
        frozen_run(asked(f"{checkpoints}/*.pt", run="counted"), Silent())


def test_files_of_weights_are_not_copied(asked: Requests, checkpoints: Path) -> None:
    run, _ = measured(asked(f"{checkpoints}/*.pt"))
    assert not (run.folder / "checkpoints").exists()
    assert run.read().untrained is False
    remove(plan_removal(run.folder.parent, run.name, ("checkpoints",)))
    assert len(list(checkpoints.iterdir())) == 3
    assert run.read().checkpoints_removed == ()


def test_the_table_does_not_call_their_first_epoch_untrained(asked: Requests, checkpoints: Path) -> None:
    run, scores = measured(asked(f"{checkpoints}/*.pt"))
    assert not any("untrained" in note for table in score_tables(run, scores) for note in table.notes)


def test_the_weights_of_one_file_are_called_by_its_name_wherever_an_epoch_would_be(
    asked: Requests, tmp_path: Path
) -> None:
    torch.save(draw(0).state_dict(), tmp_path / "own.pth")
    run, scores = measured(asked(str(tmp_path / "own.pth")))
    facts, name = data_facts(run, scores), "weights of own.pth"
    assert (facts.weights, {score.epoch for score in scores}) == (name, {0})
    tables = [*score_tables(run, scores), summary_table(stored_summary(run))]
    for table in tables:
        assert name in table.heading[0]
        assert not any("epoch 0" in text for text in (*table.heading, *table.notes))
    page = render(build_report([run], gallery=False))
    assert f'"weights":"{name}"' in page
    assert "assumed, not verified: own.pth was not trained on the 4 test classes" in page


@pytest.mark.parametrize("seen", ["true", "false"])
def test_tables_and_summary_name_the_classes_that_weights_of_a_file_are_assumed_not_to_have_seen(
    asked: Requests, tmp_path: Path, seen: str
) -> None:
    torch.save(draw(0).state_dict(), tmp_path / "own.pth")
    run, scores = measured(asked(str(tmp_path / "own.pth"), settings=(f"data.seen={seen}",)))
    classes = "4 selection and 4 test" if seen == "false" else "4 test"
    line = f"assumed, not verified: own.pth was not trained on the {classes} classes"
    for table in (
        score_tables(run, scores)[0],
        summary_table(stored_summary(run)),
        probe_answer(run, answer_of(run, scores)),
    ):
        assert line in " ".join(text.strip() for text in table.notes)
    assert line in summary_values(stored_summary(run))["notes"]


def test_further_files_are_further_epochs(asked: Requests, checkpoints: Path) -> None:
    run, _ = measured(asked(f"{checkpoints}/*.pt"))
    torch.save(draw(7).state_dict(), checkpoints / "epoch11.pt")
    again, scores = measured(asked(f"{checkpoints}/*.pt"))
    assert (again, again.read().epochs_done) == (run, 11)
    assert r1(scores, 11, "test") == by_hand(draw(7), asked(), "test")


def test_a_file_of_an_earlier_epoch_is_that_epoch(asked: Requests, checkpoints: Path) -> None:
    frozen_run(asked(f"{checkpoints}/*.pt"), Silent())
    torch.save(draw(7).state_dict(), checkpoints / "epoch1.pt")
    run, scores = measured(asked(f"{checkpoints}/*.pt"), layers=(LAYER,))
    assert [file.epoch for file in run.read().weights_files] == [1, 2, 9, 10]
    assert r1(scores, 1, "test") == by_hand(draw(7), asked(), "test")


def test_a_file_before_those_counted_is_refused(asked: Requests, checkpoints: Path) -> None:
    for name, seed in (("b.pth", 1), ("c.pth", 2)):
        torch.save(draw(seed).state_dict(), checkpoints / name)
    frozen_run(asked(f"{checkpoints}/*.pth"), Silent())
    torch.save(draw(7).state_dict(), checkpoints / "a.pth")
    with pytest.raises(RecipeError, match=r"epoch 0 is .*b.pth, and would now be .*a.pth"):
        frozen_run(asked(f"{checkpoints}/*.pth"), Silent())


def test_a_file_that_has_changed_is_never_measured_under_the_old_name(asked: Requests, checkpoints: Path) -> None:
    frozen_run(asked(f"{checkpoints}/epoch2.pt"), Silent())
    torch.save(draw(7).state_dict(), checkpoints / "epoch2.pt")
    with pytest.raises(RecipeError, match=r"epoch2.pt: has changed since .* began, whose epoch 0 it is"):
        frozen_run(asked(f"{checkpoints}/epoch2.pt"), Silent())


@pytest.mark.parametrize("weights", ["none", "model"])
def test_weights_that_a_changed_file_gave_are_never_measured_as_those_of_now(
    asked: Requests, model_file: Path, weights: str
) -> None:
    frozen_run(asked(weights), Silent())
    model_file.write_text(CODE.replace("return model", "nn.init.ones_(model[0].weight)\n    return model"))
    with pytest.raises(RecipeError, match=r"mine.py: has changed since .* began. Restore it"):
        frozen_run(asked(weights), Silent())
    frozen_run(asked(weights, run="now"), Silent())


def test_what_is_stored_outlives_the_files(asked: Requests, checkpoints: Path) -> None:
    run, scores = measured(asked(f"{checkpoints}/*.pt"), layers=(LAYER,))
    for path in checkpoints.iterdir():
        path.unlink()
    assert probe(run, ProbeRequest(layers=(LAYER,), device="cpu", workers=0, ks=(1,)), Silent()) == scores
    with pytest.raises(DataError, match=r"epoch2.pt: cannot be read"):
        probe(run, ProbeRequest(layers=("1",), device="cpu", workers=0), Silent())


@pytest.mark.parametrize("name", ["absent.pt", "epoch2.pt"])
def test_an_absent_file_is_an_error_of_data(asked: Requests, checkpoints: Path, name: str) -> None:
    if (checkpoints / name).exists():
        frozen_run(asked(f"{checkpoints / name}"), Silent())
        (checkpoints / name).unlink()
    with pytest.raises(DataError, match=f"{name}: no readable weights file: No such file or directory. Name one"):
        frozen_run(asked(f"{checkpoints / name}"), Silent())


def test_a_pipe_in_the_place_of_weights_is_not_waited_for(asked: Requests, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "w.pt")
    for refuse in (asked(f"{tmp_path}/w.pt").require_ready, lambda: frozen_run(asked(f"{tmp_path}/w.pt"), Silent())):
        with pytest.raises(DataError, match=r"w\.pt: a pipe, socket or device, not a file\. Put a file in its place"):
            refuse()


def test_a_file_of_another_network_leaves_no_run(asked: Requests, tmp_path: Path) -> None:
    torch.save(nn.Linear(3, 2).state_dict(), tmp_path / "other.pt")
    with pytest.raises(DataError, match="other.pt: weights of another network than python:"):
        frozen_run(asked(str(tmp_path / "other.pt")), Silent())
    assert not list((tmp_path / "cache").glob("*/run.json"))


def test_the_weights_of_a_run_are_its_last_epochs(asked: Requests, checkpoints: Path) -> None:
    run, scores = measured(asked(f"{checkpoints}/*.pt"))
    _, found = measured(asked(f"run:{run.name}"))
    assert r1(found, 0, "test") == r1(scores, 10, "test")


def test_the_weights_of_a_run_are_those_that_it_recorded(asked: Requests, checkpoints: Path) -> None:
    run = frozen_run(asked(f"{checkpoints}/*.pt"), Silent())
    record = run.read()
    last = replace(record.weights_files[-1], sha256="0" * 64)
    rewrite(run, weights_files=(*record.weights_files[:-1], last))
    with pytest.raises(DataError, match="epoch10.pt: is not the file that the run wrote; it is epoch 10 of"):
        frozen_run(asked(f"run:{run.name}", run="other"), Silent())


def test_weights_of_a_run_that_saw_other_images_are_told(asked: Requests, checkpoints: Path) -> None:
    seen = frozen_run(asked(f"{checkpoints}/epoch2.pt"), Silent())
    same, other = Silent(), Silent()
    frozen_run(asked(f"run:{seen.name}", run="same"), same)
    frozen_run(asked(f"run:{seen.name}", run="other", settings=("data.invert=true",)), other)
    assert not any("made in another way" in text for text in same.heard)
    assert any(f"{seen.name} was trained on images made in another way" in text for text in other.heard)


def test_other_images_need_another_name(asked: Requests, images: Path) -> None:
    frozen_run(asked(run="one"), Silent())
    with pytest.raises(RecipeError, match="data.train_classes: "):
        frozen_run(asked("none", run="one", settings=("data.train_classes=2",)), Silent())


@pytest.mark.parametrize("weights", ["none", "file"])
def test_another_folder_of_other_images_needs_another_name(
    asked: Requests, images: Path, checkpoints: Path, weights: str
) -> None:
    request = asked(str(checkpoints / "epoch2.pt") if weights == "file" else weights)
    run = frozen_run(request, Silent())
    keep_score(run)
    other = replace(request, data=f"folder:{shutil.copytree(images, images.parent / 'other')}")
    assert frozen_run(other, Silent()).folder == run.folder
    assert run.read().recipe["data"]["root"] == str(images.parent / "other")
    next((images.parent / "other").glob("*/*.png")).unlink()
    shutil.copytree(images.parent / "other", images.parent / "third")
    third = replace(request, data=f"folder:{images.parent / 'third'}")
    with pytest.raises(RecipeError, match="has the images in .*other, and those in .*third are others"):
        frozen_run(third, Silent())


def test_without_training_classes_a_split_is_test_alone(asked: Requests) -> None:
    _, scores = measured(asked(settings=("data.train_classes=0",)))
    assert {score.split for score in scores} == {"test"}
    assert {score.n for score in scores} == {32}


def test_an_estimate_leaves_nothing(asked: Requests, tmp_path: Path) -> None:
    name, estimate = estimate_frozen(asked(), ProbeRequest(device="cpu", workers=0))
    assert name == asked().target(asked().recipe()).name
    assert estimate.disk > 0
    assert not list((tmp_path / "cache").glob("*/run.json"))


def test_an_estimate_finds_the_run_whose_weights_are_measured(asked: Requests) -> None:
    frozen_run(asked(run="first"), Silent())
    name, _ = estimate_frozen(asked("run:first", run="second"), ProbeRequest(device="cpu", workers=0))
    assert name == "second"


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"model": "tim:resnet50"}, UnknownNameError, "unknown source in --model 'tim'. Did you mean 'timm'?"),
        ({"model": "resnet50"}, RecipeError, "--model resnet50: not a source and a model. Write it like timm:NAME"),
        ({"settings": ("train.epochs=3",)}, RecipeError, "--set train.epochs=3: a model is only measured"),
    ],
)
def test_a_request_that_names_no_model_or_sets_another_key_is_refused(
    asked: Requests, changes: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=re.escape(message)):
        replace(asked(), **changes).recipe()  # type: ignore[arg-type] # one field each


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.marker,)


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("pipe", "a pipe, socket or device, not a file"),
        ("folder", "a folder without model"),
        ("size", r"has 1 bytes, expected [0-9,]+; it is epoch 2 of .*"),
        ("content", "is not the file that the run wrote"),
        ("code", "Python code"),
    ],
)
def test_weights_that_a_record_names_are_read_as_tensors_alone(
    asked: Requests, checkpoints: Path, tmp_path: Path, kind: str, message: str
) -> None:
    run = frozen_run(asked(f"{checkpoints}/*.pt"), Silent())
    record, path, marker = run.read(), tmp_path / "named.pt", tmp_path / "marker"
    named = replace(record.weights_files[0], path=str(path))
    if kind == "pipe":
        os.mkfifo(path)
        named = replace(named, size=0)
    elif kind == "folder":
        path.mkdir()
        named = replace(named, size=path.stat().st_size)
    elif kind == "size":
        path.write_bytes(b"x")
    elif kind == "content":
        path.write_bytes(bytes(named.size))
    else:
        torch.save({"weights": Payload(marker)}, path)
        named = replace(named, sha256=sha256(path), size=path.stat().st_size)
    rewrite(run, weights_files=(named, *record.weights_files[1:]))
    with pytest.raises(DataError, match=message):
        probe(run, ProbeRequest(layers=(LAYER,), epochs="2", device="cpu", workers=0), Silent())
    assert not marker.exists()


DEEP = """
from torch import nn

class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6))
        self.body = nn.Sequential(nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6))
        self.project = nn.Linear(6, 4)

    def forward(self, images):
        return self.project(self.body(self.stem(images)).mean((2, 3)))

def build():
    return Deep(), {"size": 16, "filter": "bilinear", "crop": 1.0}
"""


@pytest.fixture
def deep(model_file: Path) -> dict[str, torch.Tensor]:
    """Tensors of two blocks and a projection, a network that the model's file now builds."""
    model_file.write_text(DEEP)
    torch.manual_seed(4)
    parts = {"stem": (nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6)), "body": (nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6))}
    named = nn.ModuleDict({name: nn.Sequential(*part) for name, part in parts.items()})
    named["project"] = nn.Linear(6, 4)
    return dict(named.state_dict())


def test_a_backbone_alone_is_measured_up_to_its_last_layer(
    asked: Requests, deep: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    torch.save(deep, tmp_path / "all.pt")
    backbone = {f"encoder.{key}": value for key, value in deep.items() if not key.startswith("project")}
    torch.save(backbone, tmp_path / "backbone.pt")
    _, expected = measured(asked(str(tmp_path / "all.pt"), run="all"), layers=("*",))
    request, heard = asked(str(tmp_path / "backbone.pt"), run="part"), Silent()
    run = frozen_run(request, heard)
    scores = probe(run, ProbeRequest(device="cpu", workers=0, ks=(1,), layers=("*",)), heard)
    line = "backbone.pt has no project.weight, project.bias: layers that need them are left out, project, output"
    assert f"note: {line}" in heard.heard
    assert line in run.read().notes
    assert {score.ranked.layer.layer for score in scores} == {"stem", "body"}
    assert [(x.split, x.ranked.layer.layer, x.value) for x in scores] == [
        (x.split, x.ranked.layer.layer, x.value) for x in expected if x.ranked.layer.layer in ("stem", "body")
    ]
    again = frozen_run(request, Silent())
    assert again.read().new_parameters == ("model.project.bias", "model.project.weight")
    said = "the file of weights has no project.bias, project.weight, which it needs"
    for layer in ("output", "project", "stem+output@avg", "o*"):
        with pytest.raises(RecipeError, match=said):
            probe(again, ProbeRequest(device="cpu", workers=0, ks=(1,), layers=(layer,)), Silent())


def test_layers_that_one_of_several_files_lacks_are_left_out_at_all_epochs(
    asked: Requests, deep: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    torch.save(deep, tmp_path / "epoch1.pt")
    torch.save({key: value for key, value in deep.items() if not key.startswith("project")}, tmp_path / "epoch2.pt")
    _, scores = measured(asked(f"{tmp_path}/epoch*.pt"), layers=("*",))
    assert {(score.epoch, score.ranked.layer.layer) for score in scores} == {
        (e, x) for e in (1, 2) for x in ("stem", "body")
    }


@pytest.mark.parametrize(
    ("kept", "message"),
    [
        (("body", "project"), "stem.0.weight is missing"),
        (("stem", "project"), "body.0.weight is missing"),
        (("stem.0",), "tensors are missing"),
        (("stem", "body", "project.bias"), "project.weight has shape"),
    ],
)
def test_a_file_that_lacks_more_than_the_last_layers_is_of_another_network(
    asked: Requests, deep: dict[str, torch.Tensor], tmp_path: Path, kept: tuple[str, ...], message: str
) -> None:
    tensors = {key: value for key, value in deep.items() if key.startswith(kept)}
    torch.save(tensors | ({"project.weight": torch.ones(5, 6)} if "body" in kept else {}), tmp_path / "their.pt")
    with pytest.raises(DataError, match=f"weights of another network than .*{message}"):
        frozen_run(asked(str(tmp_path / "their.pt")), Silent())
    assert not list((tmp_path / "cache").glob("*/run.json"))


def test_a_python_file_without_its_prefix_is_told_the_prefix(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"the prefix is missing. Give python:mine\.py:build\.$"):
        FrozenRequest("mine.py:build", "glyphs", tmp_path).require_ready()
