"""What a result of `layerprobe.probe` chooses, compares and reports."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerprobe
from layerprobe.cli import main
from layerprobe.system.errors import DataError, LayerprobeError, RecipeError, UnknownNameError
from layerprobe.values.choice import Choice, choice_lines, verdict_text
from layerprobe.workflow.choose.choose_features import choose_file
from layerprobe.workflow.choose.feature_files import read_user_features
from layerprobe.workflow.choose.request import ChooseRequest
from layerprobe.workflow.python.probed import Probed
from tests.workflow.python.test_probe_model import small_model


def images_of(first: int, last: int) -> list[tuple[Tensor, Tensor]]:
    """A batch of 4 noisy images of each class."""
    drawn = torch.Generator().manual_seed(first)
    labels = torch.arange(first, last).repeat_interleave(4)
    colours = torch.randn(last, 3, 1, 1, generator=torch.Generator().manual_seed(9))[labels]
    return [(colours + torch.randn(len(labels), 3, 12, 12, generator=drawn), labels)]


TRAIN, TEST = images_of(0, 12), images_of(12, 26)


def probed(**asked: object) -> Probed:
    asked = {"splits": {"train": TRAIN, "test": TEST}, "metrics": ["MAP@R"], "ks": (1,)} | asked
    return layerprobe.probe(small_model(), **asked)  # type: ignore[arg-type] # one test's fields each


@pytest.fixture(scope="module")
def result() -> Probed:
    return probed()


def rows(result: Probed) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    splits = list(result.labels)
    names = ["0.0@avg", "0.1@avg", "output"]
    features = {name: np.concatenate([result.features[split, name] for split in splits]) for name in names}
    labels = [result.labels[split] for split in splits]
    return features, np.concatenate(labels), np.repeat(splits, [len(own) for own in labels])


def without_pools(choice: Choice) -> str:
    """The text, whose lines break elsewhere, without the pools that are part of an array's name."""
    return " ".join(str(choice).replace("@avg", "").split()).replace("pool - avg ", "")


@pytest.mark.parametrize("seen", [True, False])
def test_the_choice_is_that_of_the_same_arrays(result: Probed, seen: bool) -> None:
    features, labels, splits = rows(result)
    ours, theirs = result.choose(seen=seen), layerprobe.choose(features, labels, splits=splits, seen=seen)
    assert without_pools(ours) == without_pools(theirs)
    assert (ours.selected.name, ours.gain, ours.max_loss, ours.shares) == (
        theirs.selected.name,
        theirs.gain,
        theirs.max_loss,
        theirs.shares,
    )
    assert layerprobe.choose(result, seen=seen) == ours


def test_a_choice_is_printed_as_the_command_prints_it(result: Probed, tmp_path: Path) -> None:
    features, labels, splits = rows(result)
    np.savez(tmp_path / "features.npz", labels=labels, split=splits, **features)  # type: ignore[arg-type] # names -> arrays
    of_command = choose_file(
        read_user_features(tmp_path / "features.npz"),
        ChooseRequest(within=5, layers=("output", "0.1*"), metric="MAP@R"),
    )
    choice = result.choose(metric="MAP@R", layers="output,0.1", within=5)
    assert repr(choice) == "\n".join(choice_lines(of_command))
    assert choice.candidates == 4


def test_a_gallery_or_concatenated_layers_alone_cannot_be_chosen_on(result: Probed) -> None:
    searched = probed(splits={"test": TEST, "gallery": images_of(12, 26)})
    with pytest.raises(RecipeError, match="test is searched in a gallery, .*Probe without the gallery"):
        searched.choose()
    with pytest.raises(RecipeError, match="only concatenated layers were probed. Probe single ones"):
        probed(layers="0.0+output").choose()
    assert probed(layers="0.0+output,0.0,output").choose().candidates == 4
    with pytest.raises(DataError, match="has labels and splits of its own. Give the result alone"):
        layerprobe.choose(result, [0, 1])


class Overflowing(nn.Module):
    """A first block whose features are not finite."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)])
        self.infinite = nn.Flatten(0, 0)

    def forward(self, images: Tensor) -> Tensor:
        maps = self.blocks[0](images)
        self.infinite(maps / 0)
        pooled: Tensor = self.blocks[1](maps).mean((2, 3))
        return pooled


def test_a_layer_whose_features_are_not_finite_is_skipped_with_a_note() -> None:
    splits = {"test": TEST}
    result = layerprobe.probe(Overflowing(), splits, layers="infinite,output,blocks.1", pools="avg", ks=(1,))
    choice = result.choose()
    assert "skipped: its features are not finite: infinite@avg" in "\n".join(choice_lines(choice, full=True))
    assert choice.candidates == 2  # the output and the last block, whose mean it is, count once


def test_a_classifier_after_the_embedding_is_not_taken_for_it() -> None:
    model = nn.Sequential(small_model(), nn.Linear(5, 3))
    model.add_module("classifier", nn.Linear(3, 8))
    choice = layerprobe.probe(model, {"test": TEST}, layers="*,classifier", ks=(1,)).choose()
    assert choice.embedding is not None
    assert choice.embedding.layer.name == "output"


def test_a_comparison_has_the_numbers_and_the_text_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result = probed(cache=tmp_path, post="none,l2+pca:3+l2")
    for words in (("0.1", "output"), ("0.0", "output/l2+pca:3+l2", "--metric", "MAP@R", "--split", "train")):
        monkeypatch.setattr("sys.argv", ["layerprobe", "compare", *words, "--cache", str(tmp_path)])
        with pytest.raises(SystemExit):
            main()
        options = dict(zip((word[2:] for word in words[2::2]), words[3::2], strict=True))
        found = result.compare(*words[:2], **options)
        assert capsys.readouterr().out == f"{found}\n"
        assert "they differ in dimensions" in str(found)


def test_a_comparison_needs_no_cache(result: Probed) -> None:
    found = result.compare("0.1", "output")
    one, other = (result.ranks["test", name].hits(1) for name in ("0.1", "output"))
    assert found.difference is not None
    assert found.difference.value == pytest.approx(one.mean() - other.mean())
    assert found.notes == ("0.1@avg and output: they differ in dimensions (6, 5)",)


def test_a_layer_is_compared_by_the_similarity_that_was_asked_for() -> None:
    found = probed(similarity="euclidean", layers="0.1,output").compare("0.1", "output")
    assert str(found).startswith("0.1@avg and output do not differ significantly on the test classes")


@pytest.mark.parametrize(
    ("a", "options", "kind", "message"),
    [
        ("0.11", {}, RecipeError, "layer '0.11' is not ranked. Known: 0.0@avg, 0.1@avg, output"),
        ("0.*", {}, RecipeError, "0.* may name several layers. Name one"),
        ("netA:0.1", {}, RecipeError, "netA:0.1 names a run. Name a layer of this result"),
        (
            "0.1",
            {"split": "validation"},
            UnknownNameError,
            "unknown split of Sequential: 'validation'. Known: train, test",
        ),
        ("0.1", {"metric": "mAP"}, DataError, "no scores of mAP. Probe with metrics='mAP'"),
        ("0.1", {"metric": "NMI"}, RecipeError, "NMI is not the mean of a value for each query"),
    ],
)
def test_what_cannot_be_compared_is_told(
    result: Probed, a: str, options: dict[str, str], kind: type[LayerprobeError], message: str
) -> None:
    with pytest.raises(kind, match=re.escape(message)):
        result.compare(a, "output", **options)


def test_a_page_is_written_of_a_result_in_memory(result: Probed, tmp_path: Path) -> None:
    result.report(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert verdict_text(result.choose()) in page
    assert "the embedding output" in page  # the finding
    assert "no images are shown: a probe from Python keeps none" in page
    assert "layerprobe-" not in page  # the folder that is gone
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def test_a_page_of_a_kept_result_names_its_scores(tmp_path: Path) -> None:
    result = probed(cache=tmp_path / "cache")
    result.report(tmp_path / "page.html", metric="MAP@R")
    assert f"cache/{result.name}/scores.csv" in (tmp_path / "page.html").read_text()


def test_classes_that_the_model_has_not_seen_are_selection_classes_all_over_a_page(tmp_path: Path) -> None:
    result = probed(cache=tmp_path / "cache")
    result.report(tmp_path / "page.html", seen=False)
    page = (tmp_path / "page.html").read_text()
    assert "On the selection classes they reach" in page  # the finding
    assert "selection classes: 48 queries of 12 classes" in page  # a figure's caption
    assert "selection and test recall of every layer" in page
    result.report(tmp_path / "page.html")  # a kept run does not change
    page = (tmp_path / "page.html").read_text()
    assert "On the training classes they reach" in page


def test_a_page_that_cannot_be_made_is_refused_before_the_work(result: Probed, tmp_path: Path) -> None:
    with pytest.raises(LayerprobeError, match=r"cannot be written as '.txt'. Name it .html"):
        result.report(tmp_path / "page.txt")
    with pytest.raises(DataError, match=re.escape("no scores of R@3. Probe with ks=(1, 3)")):
        result.report(tmp_path / "page.html", metric="R@3")
