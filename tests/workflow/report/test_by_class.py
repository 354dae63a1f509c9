"""The classes and confusions of a report: those of the command, with each picture once, or a line on why not."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from layerprobe.report.values import Report, ShownClasses
from layerprobe.system.progress import Silent
from layerprobe.values.classes import ComparedClasses
from layerprobe.workflow.classes.classes import compare_classes
from layerprobe.workflow.classes.request import ClassesRequest
from layerprobe.workflow.report import by_class as module
from layerprobe.workflow.report.by_class import compare_by_class
from layerprobe.workflow.report.report import build_report
from layerprobe.workflow.report.report_gallery import Galleries
from layerprobe.workflow.run.runs import Run
from tests.workflow.choose.test_choose import network_of
from tests.workflow.selection_runs import C2, FC6, labels_of, write_run
from tests.workflow.stored_ranks import ranked


def features_of(split: str, classes: int) -> dict[str, NDArray[np.float32]]:
    """c2 and fc6 around the centres of classes; the first two of test have one centre, as if they were one class."""
    rng, labels = np.random.default_rng(0), labels_of(split, classes)
    of_classes = labels - labels[0]
    of_classes[of_classes == 1] = 0 if split == "test" else 1
    values = {"c2@max": 3, "fc6@none": 4}
    return {
        name: (3 * rng.normal(size=(classes, dim))[of_classes] + rng.normal(size=(len(labels), dim))).astype(np.float32)
        for name, dim in values.items()
    }


def run_of(cache: Path, name: str = "one", classes: int = 20) -> Run:
    sizes = {"validation": 20, "test": classes}
    ranked_on = {split: {C2: np.ones(4 * size), FC6: np.ones(4 * size)} for split, size in sizes.items()}
    features = {split: features_of(split, size) for split, size in sizes.items()}
    return write_run(cache, name, ranked_on, features=features, network=network_of("fc6"))


def shown_of(report: Report) -> ShownClasses:
    assert report.classes is not None
    return report.classes


def compared_by_command(run: Run) -> ComparedClasses:
    return compare_classes(run, ClassesRequest(), Silent())


def test_the_page_has_the_sentence_and_numbers_of_the_command(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    compared, shown = compared_by_command(run), shown_of(build_report([run]))
    assert (shown.verdict, shown.classes) == (compared.verdict, compared.classes)
    assert shown.lead == "R@1 in % of each test class, 80 images, at epoch 2. A: c2@max, B: fc6."
    assert shown.notes[0].startswith("one: ")  # why these two layers
    assert set(compared.notes) <= set(shown.notes)
    largest = compared.confusions[:12]
    assert [(x.name, x.nearest, x.examples) for x in shown.confusions[:12]] == [
        (x.name, x.nearest, x.examples) for x in largest
    ]
    assert shown.confusions[0].text.startswith(f"{largest[0].a} of 4 images by A, {largest[0].b} by B")
    assert shown.confusion_notes[0] == (
        f"the largest 12 of {len(compared.confusions)} pairs; layerprobe classes one --confusions pairs.csv"
        f" --cache {tmp_path} has all"
    )


def test_candidates_for_one_class_are_shown_beside_the_largest_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(tmp_path)
    candidates = {frozenset(x.names): " and ".join(x.layers) for x in compared_by_command(run).two_names}
    assert frozenset(("200", "201")) in candidates
    monkeypatch.setattr(module, "_CONFUSIONS", 0)
    monkeypatch.setattr(module, "_CANDIDATES", len(candidates))
    shown = {frozenset((x.name, x.nearest)): x.text for x in shown_of(build_report([run])).confusions}
    assert shown.keys() == candidates.keys()
    for pair, layers in candidates.items():
        assert shown[pair].endswith(f"; one class under two names? (by {layers})")
    monkeypatch.setattr(module, "_CANDIDATES", len(candidates) - 1)
    (_, note) = shown_of(build_report([run])).confusion_notes
    assert note.startswith("further candidates for one class under two names: ")
    assert note.count(" and 2") == 1  # of one pair


def test_of_many_classes_both_ends_are_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CLASSES", 6)
    run = run_of(tmp_path)
    classes, shown = compared_by_command(run).classes, shown_of(build_report([run]))
    assert shown.classes == (*classes[:3], *classes[-3:])
    text = "6 of 20 classes: the 3 that lose most and the 3 that gain most; layerprobe classes one --csv classes.csv"
    assert any(note.startswith(text) for note in shown.notes)


def test_a_picture_that_the_gallery_has_is_on_the_page_once(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    (page,) = build_report([run]).runs
    example = compared_by_command(run).confusions[0].examples[0]
    galleries = Galleries(pictures=(b"other", example.image.encode()), readers={"one": lambda name: name.encode()})
    by_class = compare_by_class(run, page, galleries)
    assert by_class.shown is not None
    pictures = (*galleries.pictures, *by_class.pictures)
    assert len(set(pictures)) == len(pictures)
    assert by_class.shown.confusions[0].pictures[0][0] == 1
    for confusion in by_class.shown.confusions:
        shown = [(pictures[image].decode(), pictures[nearest].decode()) for image, nearest in confusion.pictures]
        assert shown == [(pair.image, pair.nearest) for pair in confusion.examples]


def test_confusions_without_images_have_no_pictures(tmp_path: Path) -> None:
    report = build_report([run_of(tmp_path)])
    assert report.pictures == ()
    assert {pair for x in shown_of(report).confusions for pair in x.pictures} == {(-1, -1)}
    assert any(note.startswith("no images of one are shown: ") for note in report.notes)


def test_classes_of_several_runs_are_not_compared(tmp_path: Path) -> None:
    report = build_report([run_of(tmp_path), run_of(tmp_path, "two")])
    assert report.classes is None
    assert not any("are not compared" in note for note in report.notes)


def require_note(report: Report, text: str) -> None:
    assert report.classes is None
    assert any(note.startswith(f"classes of one are not compared: {text}") for note in report.notes)


def test_a_single_class_is_not_compared(tmp_path: Path) -> None:
    require_note(build_report([run_of(tmp_path, classes=1)]), "test has a single class")


def test_what_would_take_minutes_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = run_of(tmp_path)
    monkeypatch.setattr(module, "PAIRS", 80 * 80 - 1)
    text = f"80 images are searched for among 80, which takes minutes; layerprobe classes one --cache {tmp_path}"
    require_note(build_report([run]), text)
    monkeypatch.setattr(module, "PAIRS", 80 * 80)
    assert build_report([run]).classes is not None


def test_a_choice_that_would_rank_layers_anew_is_not_made(tmp_path: Path) -> None:
    by_layer = {C2: np.ones(80), FC6: np.ones(80), ranked("fc6@none", "l2+whiten:2:0.5+l2"): np.ones(80)}
    run = write_run(tmp_path, "one", {"train": by_layer, "test": by_layer}, network=network_of("fc6"))
    require_note(build_report([run]), "no choice is stored")


def test_gone_features_are_named(tmp_path: Path) -> None:
    run = run_of(tmp_path)
    run.feature_file(2, "test").unlink()
    require_note(build_report([run]), "the features of c2@max at epoch 2 are gone")
