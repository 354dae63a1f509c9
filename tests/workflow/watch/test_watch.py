from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import layerprobe
from layerprobe import store
from layerprobe.cli import main
from layerprobe.system.errors import BusyError, RecipeError, UnknownNameError
from layerprobe.values.scores import Score
from layerprobe.workflow.report.report import is_worked_on
from layerprobe.workflow.run.facts import data_facts
from layerprobe.workflow.run.runs import Run
from layerprobe.workflow.watch.watched_images import keep_random_state
from tests.workflow.watch.trainings import Augmented, generators, loaders, network, saved, trained, watching

Measured = dict[tuple[str, str, str], tuple[float | None, float | None, float | None]]


def values(scores: tuple[Score, ...] | list[Score], epoch: int) -> Measured:
    found = [score for score in scores if score.epoch == epoch]
    return {(x.split, str(x.ranked), x.metric): (x.value, x.low, x.high) for x in found}


def epochs_of(folder: Path) -> list[int]:
    run = Run(folder / "watched")
    scored = sorted({score.epoch for score in run.scores()})
    assert [path.name for path in sorted((run.folder / "ranks").iterdir())] == [
        f"epoch-{epoch:04d}.{split}.h5" for epoch in scored for split in ("test", "train")
    ]
    return scored


def test_the_bits_of_a_training_are_those_without_it(tmp_path: Path) -> None:
    assert trained(watching(tmp_path)) == trained(lambda *_: None)
    assert epochs_of(tmp_path) == [0, 1, 2]


def test_each_epoch_is_logged_and_at_the_end_figures_and_page(
    tmp_path: Path, tracker_calls: list[tuple[object, ...]]
) -> None:
    watch, model = watching(tmp_path, log="kept:there"), network()
    returned = [watch(model, epoch) for epoch in range(2)]
    begun, *logged = tracker_calls
    assert begun[:3] == ("begin", "there", "watched")
    for epoch, values in enumerate(returned):
        numbers: Any = logged[epoch][2]
        assert logged[epoch][:2] == ("log", epoch)
        assert values.items() <= numbers.items()
        gap = values["train_R@1/output"] - values["test_R@1/output"]
        assert numbers["gap_R@1/output"] == pytest.approx(gap)
    watch.close()
    watch.close()
    assert [call[:2] for call in tracker_calls[3:]] == [
        *(("figure", kind) for kind in ("layers", "train-vs-test", "gap", "curves")),
        ("file", "report.html"),
        ("close", "finished"),
    ]


def test_a_tracker_that_draws_and_raises_leaves_the_bits_of_the_training(
    tmp_path: Path, tracker_calls: list[tuple[object, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained(watching(tmp_path, log="raising:later")) == trained(lambda *_: None)
    assert capsys.readouterr().err.count("watch: --log raising:later: nothing more is logged there: no network") == 1


def test_a_continued_run_is_logged_from_its_first_epoch(
    tmp_path: Path, tracker_calls: list[tuple[object, ...]]
) -> None:
    first = watching(tmp_path)
    first(network(), 0)
    first.close()
    watching(tmp_path, log=["kept"])(network(), 1)
    assert [call[1] for call in tracker_calls if call[0] == "log"] == [0, 1]


def test_an_unknown_tracker_is_told_before_the_training(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="unknown tracker 'wanb'. Did you mean 'wandb'"):
        watching(tmp_path, log="wanb:project")


def test_workers_of_a_loader_draw_no_seed_from_the_generators(tmp_path: Path) -> None:
    model, before = network(), saved(generators())
    watching(tmp_path, splits=loaders(num_workers=1))(model, 0)
    assert saved(generators()) == before


def frozen_parts() -> Any:
    """A model in training mode whose batch normalisation is not, with gradients, a frozen weight and a user's hook."""
    model = network().train()
    model[0][1].eval()
    model(torch.ones(2, 3, 8, 8)).sum().backward()
    model[0][0].weight.requires_grad_(requires_grad=False)
    model[1].register_forward_hook(lambda *_: None)
    return model


def state_of(model: nn.Module) -> bytes:
    parts = [(part.training, len(part._forward_hooks), len(part._forward_pre_hooks)) for part in model.modules()]
    gradients = [(weight.grad, weight.requires_grad) for weight in model.parameters()]
    return saved([parts, gradients, model.state_dict(), generators()])


def test_modes_gradients_buffers_hooks_and_generators_are_as_before(tmp_path: Path) -> None:
    model = frozen_parts()
    before = state_of(model)
    watching(tmp_path)(model, 0)
    assert state_of(model) == before


class Failing(nn.Module):
    """A part that draws and fails from some call on."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False

    def forward(self, images: Tensor) -> Tensor:
        if self.fails:
            torch.rand(1)
            raise RuntimeError("broken")
        return images


def test_they_are_as_before_after_an_error_too(tmp_path: Path) -> None:
    part, watch = Failing(), watching(tmp_path)
    model = nn.Sequential(*frozen_parts(), part)
    watch(model, 0)
    part.fails = True
    before = state_of(model)
    with pytest.raises(RuntimeError, match="broken"):
        watch(model, 1)
    assert state_of(model) == before
    assert epochs_of(tmp_path) == [0]


def test_values_are_those_of_probe_on_the_same_images(tmp_path: Path) -> None:
    splits, model = loaders(noise=0), network()
    watch = watching(tmp_path, splits=splits, share=None, ks=(1, 2), metrics=["MAP@R"], layers="*")
    watch(model, 0)
    model[0][0].weight.data += 0.1
    logged = watch(model, 1)
    whole = {split: loader.dataset for split, loader in splits.items()}
    batches = {split: [(data.images, torch.tensor(data.labels))] for split, data in whole.items()}  # type: ignore[attr-defined] # Augmented's
    probed = layerprobe.probe(model, batches, ks=(1, 2), metrics=["MAP@R"])
    expected = values(probed.scores, 0)
    assert len(expected) == 2 * 4 * 3  # splits, layers and metrics
    assert values(Run(tmp_path / "watched").scores(), 1) == expected
    assert logged == {f"{split}_{metric}/{layer}": x[0] for (split, layer, metric), x in expected.items()}


def test_the_embedding_is_the_input_of_a_models_classifier(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = network()
    model = whole[:-1]
    model.add_module("classifier", whole[-1])
    logged = watching(tmp_path)(model, 0)
    bare = watching(tmp_path / "bare")(whole[:-1], 0)
    assert logged == bare
    recorded = Run(tmp_path / "watched").read().network
    assert recorded is not None
    assert str(recorded.embedding) == "output"
    assert "watch: output is the input of the model's classifier; layer classifier is what that gives" in (
        capsys.readouterr().err.splitlines()
    )


def test_a_line_an_epoch_says_recall_gap_best_layer_and_its_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(watching(tmp_path, share=None), epochs=1)
    first, *lines = capsys.readouterr().err.splitlines()
    images = "all 12 classes, 48 images"
    assert first == f"watch: train: {images}; test: {images}; run {tmp_path / 'watched'}"
    scores = {(x.epoch, x.split, x.ranked.layer.layer): x.value for x in Run(tmp_path / "watched").scores()}
    for epoch, line in enumerate(lines):
        train, test = (100 * (scores[epoch, split, "output"] or 0) for split in ("train", "test"))
        assert line.startswith(
            f"watch: epoch {epoch}: output train {train:.1f} %, test {test:.1f} %, gap {train - test:+.1f}"
        )
    assert len(lines) == 2
    assert lines[0].endswith(" s)")
    assert lines[1].endswith(" % of an epoch)")


def test_every_skips_epochs(tmp_path: Path) -> None:
    watch, model = watching(tmp_path, every=2), network()
    logged = [watch(model, epoch) for epoch in range(4)]
    assert [bool(values) for values in logged] == [True, False, True, False]
    assert epochs_of(tmp_path) == [0, 2]


def test_an_absent_epoch_0_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watching(tmp_path)(network(), 1)
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("watch: no epoch 0, which shows what training changes and when the gap opens: call watch")


def changed(model: Any) -> Any:
    model[0][0].weight.data += 1
    return model


def test_an_epoch_given_twice_is_replaced_and_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    watch, model = watching(tmp_path), network()
    watch(model, 0)
    watch(model, 1)
    before = values(Run(tmp_path / "watched").scores(), 1)
    watch(changed(model), 1)
    assert "watch: epoch 1 is measured again, in place of its first values" in capsys.readouterr().err
    assert epochs_of(tmp_path) == [0, 1]
    assert values(Run(tmp_path / "watched").scores(), 1) != before


def test_an_earlier_epoch_is_refused(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    watch(network(), 3)
    with pytest.raises(RecipeError, match=r"epoch 2 comes after epoch 3\. Give epochs in ascending order"):
        watch(network(), 2)
    assert epochs_of(tmp_path) == [3]


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    watch, model = watching(tmp_path), network()
    watch(model, 0)
    model[4] = nn.Linear(8, 3)
    with pytest.raises(RecipeError, match=r"other parts than at the first epoch: 4 \(Linear weight \(12, 8\) bias"):
        watch(model, 1)


def test_a_new_training_moves_the_run_of_its_name_aside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained(watching(tmp_path))
    experiment = Run(tmp_path / "watched").read().experiment
    trained(watching(tmp_path), epochs=1)
    assert "watch: watched had epochs 0 to 2, and is now watched~1" in capsys.readouterr().err
    assert epochs_of(tmp_path) == [0, 1]
    assert Run(tmp_path / "watched~1").read().epochs_done == 2
    # Two trainings are no seeds of one experiment.
    assert Run(tmp_path / "watched").read().experiment != experiment


def test_texts_name_the_classes_of_a_watched_training_and_of_the_one_that_continues_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def named(loader: Any) -> list[tuple[torch.Tensor, list[str], list[int]]]:
        with keep_random_state():
            torch.manual_seed(1)
            return [(images, [f"c{label}" for label in labels.tolist()], labels.tolist()) for images, labels in loader]

    by_name = {split: named(loader) for split, loader in loaders().items()}
    numbered = {split: [(images, labels) for images, _, labels in of_split] for split, of_split in by_name.items()}
    given = watching(tmp_path / "a", splits=by_name, share=None)
    expected = watching(tmp_path / "b", splits=numbered, share=None)
    assert given(network(), 0) == expected(network(), 0)
    ignored = "watch: of each batch of 3 parts the first two are read as images and labels, the others are ignored"
    assert capsys.readouterr().err.splitlines().count(ignored) == 1
    run = Run(tmp_path / "a" / "watched")
    assert store.read_feature_head(run.feature_file(0, "train")).class_names[:2] == ("c0", "c1")
    given.close()
    again = watching(tmp_path / "a", splits=by_name, share=None)
    assert again(network(), 1) == expected(network(), 1)


def test_val_is_validation_and_a_function_reads_a_dataset(tmp_path: Path) -> None:
    dataset: Any = [{"x": image, "y": label, "label": 0} for image, label in (Augmented(200)[row] for row in range(40))]
    data: Any = torch.utils.data.StackDataset(dataset)
    watch = watching(tmp_path, splits={"val": data}, batch=lambda item: (item[0]["x"], item[0]["y"]))
    assert {name.partition("_")[0] for name in watch(network(), 0)} == {"validation"}


def test_a_resumed_training_continues_its_run_on_the_same_images(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, watch = network(), watching(tmp_path, share=0.5)
    for epoch in range(3):
        watch(model, epoch)
    run = Run(tmp_path / "watched")
    before, first = run.read(), values(run.scores(), 0)
    watch.close()
    capsys.readouterr()
    again = watching(tmp_path, share=0.9)
    again(changed(model), 1)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "watch: watched is continued at epoch 1; epochs 1 to 2 are measured again"
    assert "train: " in lines[1]
    assert epochs_of(tmp_path) == [0, 1]
    again(model, 2)
    assert epochs_of(tmp_path) == [0, 1, 2]
    assert values(run.scores(), 0) == first
    assert values(run.scores(), 1) == values(run.scores(), 2) != first
    assert (run.read().contents, run.read().experiment) == (before.contents, before.experiment)


def test_a_run_is_not_continued_on_other_images(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    watch(network(), 0)
    watch.close()
    for splits, split in ((loaders(noise=0.2), "train"), ({"train": loaders()["train"]}, "test")):
        with pytest.raises(RecipeError, match=rf"has other {split} images than are given now\. Give its images"):
            watching(tmp_path, splits=splits)(network(), 1)
    assert epochs_of(tmp_path) == [0]


def test_a_run_is_not_continued_with_another_network(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    watch(network(), 0)
    watch.close()
    other = network()
    other[4] = nn.Linear(8, 3)  # a layer of the same name
    with pytest.raises(RecipeError, match=r"watched: has another network than is given now: .*\. Give its model, or"):
        watching(tmp_path)(other, 1)
    assert epochs_of(tmp_path) == [0]


def test_a_name_that_another_kind_of_run_has_is_refused(tmp_path: Path) -> None:
    name = layerprobe.probe(network(), {"test": loaders()["test"]}, ks=(1,), cache=tmp_path).name
    with pytest.raises(RecipeError, match=rf"{name} is a run of layerprobe\.probe\. Watch by another name="):
        watching(tmp_path, name=name)(network(), 0)


def test_two_trainings_at_once_need_two_names(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    watch(network(), 0)
    with pytest.raises(BusyError, match=r"in use by another training or command\. Watch by another name="):
        watching(tmp_path)(network(), 0)


def interrupted(*_: object, **__: object) -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Ctrl-C interrupts, also where the shell that started the tests ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_while_an_epoch_is_stored_leaves_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, model, write_ranks = watching(tmp_path), network(), store.write_ranks
    watch(model, 0)

    def write(*given: object, **named: object) -> None:
        monkeypatch.setattr(store, "write_ranks", write_ranks)
        interrupted()
        write_ranks(*given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "write_ranks", write)
    with pytest.raises(KeyboardInterrupt):
        watch(model, 1)
    assert epochs_of(tmp_path) == [0, 1]
    assert len(values(Run(tmp_path / "watched").scores(), 1)) == 4


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_while_an_epoch_is_measured_leaves_the_ones_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch, model = watching(tmp_path), network()
    watch(model, 0)
    monkeypatch.setattr("layerprobe.workflow.watch.watch.search", interrupted)
    with pytest.raises(KeyboardInterrupt):
        watch(model, 1)
    assert epochs_of(tmp_path) == [0]


def test_features_are_kept_of_the_first_and_the_last_epoch(tmp_path: Path) -> None:
    trained(watching(tmp_path), epochs=3)
    names = sorted(path.name for path in (tmp_path / "watched" / "features").iterdir())
    assert names == [f"epoch-{epoch:04d}.{split}.h5" for epoch in (0, 3) for split in ("test", "train")]


def test_a_run_is_worked_on_until_it_is_closed(tmp_path: Path) -> None:
    watch = watching(tmp_path)
    watch(network(), 0)
    run = Run(tmp_path / "watched")
    assert (is_worked_on(run), run.read().state) == (True, "training")
    watch.close()
    assert (is_worked_on(run), run.read().state) == (False, "finished")


def test_the_gap_is_compared_with_that_of_the_start(tmp_path: Path) -> None:
    trained(watching(tmp_path))
    run = Run(tmp_path / "watched")
    facts = data_facts(run, run.scores())
    assert (facts.start, facts.starts_training) == ("start", True)


def with_validation() -> dict[str, object]:
    validation = torch.utils.data.DataLoader(Augmented(200), 8)
    return {**loaders(), "validation": validation}


@pytest.mark.parametrize(
    "words",
    [
        ("plot", "curves"),
        ("plot", "gap"),
        ("plot", "train-vs-test"),
        ("plot", "cka"),
        ("choose",),
        ("summary",),
        ("runs",),
        ("compare", "watched:0", "watched:output"),
        ("report",),
    ],
    ids=" ".join,
)
def test_every_command_reads_the_run(
    words: tuple[str, ...], closed_run: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = [] if words[0] in ("compare", "runs") else ["watched"]
    out = ["--out", str(tmp_path / ("page.html" if words[0] == "report" else "page.png"))]
    asked = [*words, *run, *(out if words[0] in ("plot", "report") else []), "--cache", str(closed_run)]
    monkeypatch.setattr(sys, "argv", ["layerprobe", *asked])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0


@pytest.fixture(scope="module")
def closed_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cache")
    watch = watching(folder, splits=with_validation())
    trained(watch)
    watch.close()
    return folder


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"splits": {}}, RecipeError, "there is no split to watch"),
        ({"splits": {"gallery": []}}, UnknownNameError, "unknown split 'gallery'"),
        ({"every": 0}, RecipeError, r"every is 0\. Give a whole number of epochs from 1"),
        ({"share": 2}, RecipeError, r"share is 2\. Give a share of an epoch in \(0, 1\]"),
        ({"metrics": "MAP"}, UnknownNameError, "unknown metric 'MAP'"),
        ({"metrics": "accuracy"}, RecipeError, "accuracy needs the classifier"),
        ({"ks": (0,)}, RecipeError, "K = 0"),
        ({"name": "a/b"}, RecipeError, "'a/b' cannot name a run"),
        ({"name": 1}, TypeError, "name must be text, not int"),
        ({"splits": {"test": 1}}, TypeError, "the test loader must be a DataLoader"),
        ({"share": "0.1"}, TypeError, "share must be a share of an epoch's time, or None for all images, not str"),
        ({"ks": 1}, TypeError, "ks must be whole numbers"),
        ({"layers": 1}, TypeError, "layers must be a name or a sequence of names"),
    ],
)
def test_wrong_words_are_refused_before_the_training(
    options: dict[str, object], error: type[Exception], message: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        watching(tmp_path, **options)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("epoch", [-1, 0.5, True, "1"])
def test_an_epoch_is_a_whole_number(epoch: int, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="the epoch is .* Give a whole number: 0 before training, 1 after an epoch"):
        watching(tmp_path)(network(), epoch)


def test_a_slow_measurement_watches_fewer_classes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    classes = {"train": torch.utils.data.DataLoader(Augmented(0, classes=60), 8), "test": loaders()["test"]}
    # An epoch is said to take a second or none at all.
    seen = {}
    for least in (1e9, 0.0):
        monkeypatch.setattr("layerprobe.workflow.watch.watch.least_epoch", lambda *_, least=least: least)
        watch = watching(tmp_path, splits=classes, share=0.9)
        watch(network(), 0)
        watch.close()
        seen[least] = Run(tmp_path / "watched").read().notes
    assert seen[1e9][0] == "train: all 60 classes, 240 images"
    assert seen[0.0][0] == "train: 10 of 60 classes, 20 of 240 images"


def test_the_default_name_is_that_of_the_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYERPROBE_CACHE", str(tmp_path))
    watching(tmp_path, name=None, cache=None)(network(), 0)
    assert Run(tmp_path / "Sequential").read().recipe_name == "Sequential"


def test_stored_features_are_those_of_the_drawn_classes(tmp_path: Path) -> None:
    watch = watching(tmp_path, share=0.2)
    watch(network(), 0)
    labels = layerprobe.open_run(tmp_path / "watched").labels(epoch=0, split="train")
    assert len(np.unique(labels)) == 10


def test_grey_images_that_are_no_squares_are_watched(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 6 * 14, 5))
    labels = torch.arange(12) // 3
    splits = {name: [(torch.randn(12, 1, 8, 16), labels + first)] for name, first in (("train", 0), ("test", 4))}
    found = watching(tmp_path, splits=splits, layers="*")(model, 0)
    assert [name.partition("/")[2] for name in found if name.startswith("test")] == ["1@avg", "3", "output"]
