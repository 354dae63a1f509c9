from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import layerprobe
from layerprobe import store
from layerprobe.cli import main
from layerprobe.store import read_feature_head
from layerprobe.system.errors import RecipeError
from layerprobe.values.scores import ScoreTable, read_scores
from layerprobe.workflow.python.probed import Probed
from layerprobe.workflow.run.runs import Run
from tests.workflow.python.test_probe_model import TEST, TRAIN, Loader, loader_of, small_model


def probed(cache: Path, layers: str = "0.0", **asked: object) -> Probed:
    splits = asked.pop("splits", {"train": TRAIN, "test": TEST})
    return layerprobe.probe(small_model(), splits, layers=layers, ks=(1,), pools="max", cache=cache, **asked)  # type: ignore[arg-type] # one test's fields each


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    monkeypatch.setattr(sys, "argv", ["layerprobe", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code


def test_the_run_holds_what_the_result_does(tmp_path: Path) -> None:
    result = probed(tmp_path, "0.1,output")
    run = layerprobe.open_run(tmp_path / result.name)
    assert read_scores(run.run.scores_file) == list(result.scores)
    assert {score.run for score in result.scores} == {result.name}
    for split in ("train", "test"):
        assert np.array_equal(run.features(epoch=0, split=split, layer="output"), result.features[split, "output"])
        classes = np.unique(np.concatenate([*result.labels.values()]))
        assert classes[run.labels(epoch=0, split=split)].tolist() == result.labels[split].tolist()
        assert run.ids(epoch=0, split=split)[:2] == (f"{split}/0", f"{split}/1")


def test_nothing_is_written_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    layerprobe.probe(small_model(), {"test": TEST}, ks=(1,))
    assert not list(tmp_path.iterdir())


def test_further_layers_come_into_the_same_run_in_the_order_of_the_network(tmp_path: Path) -> None:
    last, first = probed(tmp_path, "output"), probed(tmp_path, "0.0")
    assert first.name == last.name
    run = Run(tmp_path / first.name)
    assert [(score.split, score.ranked.layer.layer) for score in run.scores()] == [
        (split, layer) for layer in ("0.0", "output") for split in ("train", "test")
    ]
    assert run.read().layer_order == ("0.0", "output")
    opened = layerprobe.open_run(run.folder)
    assert opened.features(epoch=0, split="test", layer="0.0").shape == (9, 4)
    assert opened.features(epoch=0, split="test", layer="output").shape == (9, 5)


def shuffled() -> Loader:
    """The images of TEST in another order."""
    generator = torch.Generator().manual_seed(3)
    return loader_of(3, 3, 3, 4, 4, 4, 5, 5, 5, seed=1, shuffle=True, generator=generator)


def test_images_in_another_order_are_the_same_run_with_features_in_that_order(tmp_path: Path) -> None:
    first = probed(tmp_path, "output", splits={"test": TEST})
    with pytest.warns(UserWarning, match=r"1 score leaves Sequential-\w+, as .* hold no longer: output"):
        second = probed(tmp_path, "0.0", splits={"test": shuffled()})
    assert first.name == second.name
    # Features of the first order would not belong to the rows of the second.
    opened = layerprobe.open_run(tmp_path / first.name)
    assert np.array_equal(opened.features(epoch=0, split="test", layer="0.0"), second.features["test", "0.0"])
    assert "output" not in str(read_feature_head(opened.run.feature_file(0, "test")).columns)


@pytest.mark.parametrize("post", ["none", "random:2x2"])
@pytest.mark.filterwarnings("ignore:.* hold no longer")
def test_no_score_is_left_whose_features_are_gone(tmp_path: Path, post: str) -> None:
    first = probed(tmp_path, "0.1,output", splits={"train": TRAIN, "test": TEST}, post=post)
    probed(tmp_path, "0.0", splits={"train": TRAIN, "test": shuffled()})
    run = Run(tmp_path / first.name)
    # The training images came in the same order, so that their features are kept.
    assert [(score.split, score.ranked.layer.layer) for score in run.scores()] == [
        ("train", "0.0"),
        ("test", "0.0"),
        ("train", "0.1"),
        ("train", "output"),
    ]
    for split in ("train", "test"):
        stored = {str(layer) for layer in read_feature_head(run.feature_file(0, split)).columns}
        assert {str(score.ranked.layer) for score in run.scores() if score.split == split} == stored


def test_a_probe_that_is_killed_leaves_no_score_whose_features_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run(tmp_path / probed(tmp_path, "output", splits={"test": TEST}).name)

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(store, "write_ranks", killed)
    with pytest.raises(KeyboardInterrupt):
        probed(tmp_path, "0.0", splits={"test": shuffled()})
    assert [str(layer) for layer in read_feature_head(run.feature_file(0, "test")).columns] == ["0.0@max"]
    assert not run.has_scores


def test_scores_of_ranks_in_another_order_leave_the_table(tmp_path: Path) -> None:
    first = probed(tmp_path, "output", splits={"test": TEST})
    run = Run(tmp_path / first.name)
    drawn = [replace(score, metric="R@1(G=3)") for score in run.scores()]
    ScoreTable([*run.scores(), *drawn], stored=[]).write(run.scores_file)
    probed(tmp_path, "output", splits={"test": TEST})
    assert [score.metric for score in run.scores()] == ["R@1", "R@1(G=3)"]
    # Draws are of rows, which are others now.
    with pytest.warns(UserWarning, match="1 score leaves"):
        probed(tmp_path, "output", splits={"test": shuffled()})
    assert [score.metric for score in run.scores()] == ["R@1"]


def test_other_weights_or_images_are_another_run(tmp_path: Path) -> None:
    names = {probed(tmp_path).name, probed(tmp_path, splits={"train": TRAIN, "test": loader_of(3, 3, 4, 4)}).name}
    model = small_model()
    model.get_parameter("1.2.bias").data[0] += 1
    names.add(layerprobe.probe(model, {"train": TRAIN, "test": TEST}, ks=(1,), cache=tmp_path).name)
    assert len(names) == 3
    assert all(name.startswith("Sequential-") for name in names)


def test_a_name_that_no_file_can_have_is_told_before_anything_is_written(tmp_path: Path) -> None:
    model = nn.Sequential()
    model.add_module("a/b", nn.Conv2d(3, 4, 3))
    assert layerprobe.probe(model, {"test": TEST}, layers="a/b", ks=(1,)).features["test", "a/b"].shape == (9, 4)
    with pytest.raises(RecipeError, match=r"layer a/b: features cannot be stored under a name with '/'. Leave"):
        layerprobe.probe(model, {"test": TEST}, layers="a/b", ks=(1,), cache=tmp_path)
    assert not list(tmp_path.iterdir())


def test_other_parts_with_the_same_weights_are_another_run(tmp_path: Path) -> None:
    def name(activation: nn.Module) -> str:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Conv2d(3, 4, 3), activation, nn.Conv2d(4, 4, 3))
        return layerprobe.probe(model, {"test": TEST}, ks=(1,), cache=tmp_path).name

    class Printed(nn.Module):
        """A part that prints an object of its own, at another place in memory each time."""

        def __init__(self) -> None:
            super().__init__()
            self.printed = object()

        def extra_repr(self) -> str:
            return repr(self.printed)

        def forward(self, images: torch.Tensor) -> torch.Tensor:
            return images * 2

    parts = [Printed(), Printed()]
    assert repr(parts[0]) != repr(parts[1])
    assert name(nn.ReLU()) != name(nn.Tanh())
    assert name(parts[0]) == name(parts[1])


def test_runs_and_plots_know_it_and_probe_says_why_it_cannot_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = probed(tmp_path).name
    cache = ("--cache", str(tmp_path))
    assert command(monkeypatch, "runs", "--json", *cache) == 0
    (listed,) = json.loads(capsys.readouterr().out)["runs"]
    assert (listed["run"], listed["state"], listed["epochs_done"]) == (name, "finished", 0)
    for kind in ("layers", "cka"):
        assert command(monkeypatch, "plot", kind, name, "--out", str(tmp_path / f"{kind}.png"), *cache) == 0
    capsys.readouterr()
    for words in (("probe", name), ("layers", name)):
        assert command(monkeypatch, *words, *cache) == 2
        assert "measured from Python: the run stores neither model" in capsys.readouterr().err
    assert command(monkeypatch, "runs", "remove", name, "--yes", *cache) == 0
