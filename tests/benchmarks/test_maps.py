"""The arithmetic of `benchmarks/maps.py`, and the numbers of docs/results/maps.md."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import layerprobe
from benchmarks import maps
from benchmarks.findings import markdown
from benchmarks.maps import (
    HALF,
    LEARNED,
    MAPS,
    RAW,
    Bench,
    Images,
    Row,
    Setting,
    as_text,
    benches_of,
    drawn,
    folds_of,
    hits_of,
    maps_part,
    measure,
    permuted_part,
    pick_training,
    project,
    read_rows,
    recall_among,
    recall_within,
    start_of,
    text_of,
    trainings,
    unit,
)
from benchmarks.maps_tables import (
    PRETRAINED,
    TABLES,
    Stored,
    class_gains,
    draw_classes,
    network_of,
    seen_table,
    wins_from,
)
from layerprobe.data.splits import Dataset, Split
from layerprobe.data.subsets import with_validation
from layerprobe.losses.loss import loss
from layerprobe.values.scores import read_scores

FINDINGS = Path(__file__).parents[2] / "docs" / "results"
PAGE = FINDINGS / "maps.md"


def images_of(classes: range, *, seed: int = 0, dim: int = 12) -> Images:
    """Eight images a class: its centre, and five times as much noise along half of the axes."""
    rng = np.random.default_rng(seed)
    labels = np.repeat(np.array(classes), 8)
    noise = rng.normal(size=(len(labels), dim)) * np.where(np.arange(dim) < dim // 2, 5, 1)
    values = (rng.normal(size=(len(classes), dim)).repeat(8, 0) + 0.5 * noise).astype(np.float32)
    return Images({"fc6": values, "output": np.abs(values)[:, :5]}, labels)


@pytest.fixture
def bench() -> Bench:
    return Bench("lite0-0", "train", images_of(range(20)), images_of(range(20, 40), seed=1))


def brute_force(values: np.ndarray, labels: np.ndarray) -> float:
    """R@1 in percent by loops."""
    hits = 0
    for i, row in enumerate(values.astype(np.float64)):
        cosines = [row @ other / np.linalg.norm(row) / np.linalg.norm(other) for other in values.astype(np.float64)]
        cosines[i] = -np.inf
        hits += labels[int(np.argmax(cosines))] == labels[i]
    return 100 * hits / len(labels)


def test_recall_is_that_of_a_search_by_loops(bench: Bench) -> None:
    row = bench.closed_form("maps", "fc6", RAW).row
    assert row.unseen == pytest.approx(brute_force(bench.test.layer("fc6"), bench.test.labels))
    assert row.seen == pytest.approx(brute_force(bench.fit_on.layer("fc6"), bench.fit_on.labels))


def test_recall_among_fewer_classes_is_the_mean_over_draws_of_them(bench: Bench) -> None:
    values, labels = bench.test.layer("fc6"), bench.test.labels
    expected = []
    for draw in range(3):
        drawn = np.isin(labels, np.random.default_rng(draw).permutation(np.unique(labels))[:6])
        expected.append(brute_force(values[drawn], labels[drawn]))
    assert recall_among(values, labels, 6, draws=3) == pytest.approx(np.mean(expected))
    assert recall_among(values, labels, 20) == pytest.approx(brute_force(values, labels))
    assert np.isnan(recall_among(values, labels, 21))


def test_tied_images_count_by_their_expected_value() -> None:
    # All four are the same: the nearest of three others is the one of the class in one of three orders.
    assert hits_of(np.ones((4, 2)), np.array([0, 0, 1, 1])).tolist() == pytest.approx([1 / 3] * 4)


def test_maps_are_fitted_on_their_images_alone(bench: Bench) -> None:
    other = replace(bench, test=images_of(range(20, 40), seed=2))
    assert bench.closed_form("maps", "fc6", LEARNED).row.seen == other.closed_form("maps", "fc6", LEARNED).row.seen


def test_the_learned_map_gains_where_classes_differ_less_than_their_images(bench: Bench) -> None:
    half, learned = (bench.closed_form("maps", "fc6", name) for name in (HALF, LEARNED))
    gain = learned.over(half, bench.test.labels).row
    assert gain.gain == pytest.approx(learned.row.unseen - half.row.unseen)
    assert (gain.over, gain.low > 0) == (HALF, True)
    assert gain.low < gain.gain < gain.high


def test_a_map_gives_no_more_numbers_than_the_images_allow(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    assert text_of(HALF, rng.normal(size=(300, 200))) == "l2+whiten:128:0.5+l2"
    assert text_of(HALF, rng.normal(size=(300, 12))) == "l2+whiten:12:0.5+l2"
    assert text_of(RAW, rng.normal(size=(64, 200))) == "none"
    few = rng.normal(size=(64, 200))
    # 64 images, and the same with two of them once more, vary in 63 directions.
    assert {text_of(LEARNED, rows) for rows in (few, np.concatenate([few, few[:2]]))} == {"l2+lwhiten:63:lw+l2"}
    assert "lda" in bench.maps_of("fc6")
    assert "lda" not in replace(bench, fit_on=images_of(range(12))).maps_of("fc6")


def test_permuted_classes_have_their_images_and_no_gain(bench: Bench) -> None:
    rows = [row for row in permuted_part(bench) if (row.layer, row.map) == ("fc6", LEARNED)]
    gains = [row.gain for row in rows]
    true = next(row for row in maps_part(bench) if (row.layer, row.map) == ("fc6", LEARNED))
    assert [row.draw for row in rows] == [0, 1, 2]
    assert true.gain > 10 > max(gains)


def test_folds_divide_the_classes() -> None:
    folds = folds_of(np.arange(23))
    assert sorted(np.concatenate(folds).tolist()) == list(range(23))
    assert {len(fold) for fold in folds} == {4, 5}


def test_recall_within_folds_is_of_maps_fitted_on_the_others(bench: Bench) -> None:
    images = bench.fit_on
    expected = []
    for held in folds_of(images.classes):
        fold = Bench("fold", "train", images.of(np.setdiff1d(images.classes, held)), images.of(held))
        expected.append(fold.closed_form("maps", "fc6", LEARNED).row.unseen)
    assert recall_within(images, "fc6") == pytest.approx(np.mean(expected))


def test_layers_stand_side_by_side_each_of_length_1(bench: Bench) -> None:
    joint = bench.test.layer("fc6+output")
    for part, layer in ((joint[:, :12], "fc6"), (joint[:, 12:], "output")):
        assert part == pytest.approx(unit(bench.test.layer(layer)), abs=1e-6)
    assert np.array_equal(joint, bench.test.layer("all"))


@pytest.mark.parametrize("name", [HALF, LEARNED])
def test_the_start_of_a_training_has_the_neighbours_of_the_closed_form(bench: Bench, name: str) -> None:
    features = unit(bench.fit_on.layer("fc6"))
    matrix = start_of(name, features, bench.fit_on.labels).double().numpy()
    values = project(bench.test.layer("fc6"), mean=features.mean(0), matrix=matrix)
    assert np.array_equal(hits_of(values, bench.test.labels), bench.closed_form("maps", "fc6", name).hits)
    assert np.square(matrix).mean() == pytest.approx(1 / 12)


@pytest.mark.parametrize("name", maps.LOSSES)
def test_the_first_step_of_a_training_moves_each_entry_by_the_rate(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Adam's first step is the learning rate times the sign of the gradient; the decay of 1e-4 times the rate is less.
    monkeypatch.setattr(maps, "BATCH", 10_000)
    images = images_of(range(6))
    features = unit(images.layer("fc6"))
    start = start_of(LEARNED, features, images.labels)
    matrices = trainings(features, images.labels, start, Setting(name, LEARNED, 1e-3))
    before, after = next(matrices), next(matrices)
    moved = np.abs(after - before)
    assert np.array_equal(before, start.double().numpy())
    assert moved == pytest.approx(np.full_like(moved, 1e-3), rel=0.02)
    criterion, targets = loss(name, start.shape[1], 6), torch.from_numpy(images.labels)
    costs = [criterion(torch.from_numpy((features - features.mean(0)) @ m).float(), targets) for m in (before, after)]
    assert costs[1] < costs[0]


def test_a_training_is_picked_on_a_fifth_of_the_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maps, "EPOCHS", 2)
    images = images_of(range(20))
    setting, epochs, recall = pick_training(images, "fc6")
    held = folds_of(images.classes)[0]
    rest, fold = images.of(np.setdiff1d(images.classes, held)), images.of(held)
    features = unit(rest.layer("fc6"))
    start = start_of(setting.start, features, rest.labels)
    matrix = [m for _, m in zip(range(epochs + 1), trainings(features, rest.labels, start, setting), strict=False)][-1]
    values = project(fold.layer("fc6"), mean=features.mean(0), matrix=matrix)
    assert recall == pytest.approx(brute_force(values, fold.labels))
    assert epochs <= 2


def test_280_of_350_classes_are_those_that_validation_classes_leave() -> None:
    labels = np.arange(700) // 2 * 2  # not numbered from 0 to 349
    train = Split("train", labels, tuple(map(str, range(700))), lambda index: np.zeros((1, 1, 3), np.uint8))
    left = with_validation(Dataset({"train": train}, tuple(map(str, range(700)))), 0.2).splits["train"]
    assert set(left.labels.tolist()) == set(drawn(np.unique(labels), 280, 0).tolist())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """The folder of a run of a small network on noise around the colours of 40 classes."""
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU()), nn.Conv2d(6, 4, 3)]
    model = nn.Sequential(OrderedDict(layer4=nn.Sequential(*blocks)))
    splits = {}
    for split, classes in {"train": range(15), "validation": range(15, 25), "test": range(25, 40)}.items():
        labels = torch.tensor(classes).repeat_interleave(5)
        images = torch.rand(40, 3, 1, 1)[labels] + 0.4 * torch.randn(len(labels), 3, 8, 8)
        splits[split] = [(images, labels)]
    chains = ["none", MAPS[HALF].format(4), MAPS[HALF].format(6), MAPS[LEARNED].format(4)]
    result = layerprobe.probe(
        model, splits, layers="layer4.0@avg,layer4.1@avg", post=chains, ks=[1], cache=tmp_path / "cache"
    )
    return tmp_path / "cache" / result.name


@pytest.mark.filterwarnings("ignore:.*dimensions")
def test_recall_is_that_of_the_scores_of_the_run(run: Path) -> None:
    stored = {
        (str(score.ranked.layer.layer), score.ranked.post_processing): 100 * (score.value or 0)
        for score in read_scores(run / "scores.csv")
        if (score.split, score.metric) == ("test", "R@1")
    }
    bench = benches_of(run)[0]
    measured = {(row.layer, MAPS[row.map].format(row.dim)): row.unseen for row in maps_part(bench)}
    both = stored.keys() & measured.keys()
    assert len({chain for _, chain in both}) == 4
    assert {key: measured[key] for key in both} == pytest.approx({key: stored[key] for key in both})


@pytest.mark.filterwarnings("ignore:.*dimensions")
def test_a_run_is_measured_on_both_splits_and_compared_with_its_scores(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maps, "EPOCHS", 1)
    measure([run], maps.PARTS, tmp_path / "maps.csv")
    rows = read_rows(tmp_path / "maps.csv")
    assert {(row.part, row.fitted) for row in rows} == {
        ("maps", "train"),
        *((part, "validation") for part in ("maps", "trained", "permuted", "fusion")),
    }
    assert "maps, fitted on train: 12 rows, 5 as stored" in capsys.readouterr().out
    scores = run / "scores.csv"
    text = scores.read_text()
    scores.write_text(re.sub(r"(test,layer4.0,avg,none,cosine,R@1),[\d.]+", r"\1,0.015625", text))
    with pytest.raises(SystemExit, match=r"layer4.0, raw: .*, in scores.csv 1.5625"):
        measure([run], ["maps"], tmp_path / "maps.csv")


def row_of(run: str, **values: object) -> Row:
    return replace(Row(run, "maps", "train", 350, 0, "fc6", RAW, 128, 50.0, 50.0, 60.0), **values)  # type: ignore[arg-type]


def test_a_row_is_read_back(tmp_path: Path) -> None:
    row = row_of("lite0-1", map=HALF, over=RAW, gain=1.25, low=-1.0, high=2.5, picked="a, b")
    file = tmp_path / "maps.csv"
    names = list(Row.__dataclass_fields__)
    cells = [as_text(getattr(row, name)) for name in names]
    file.write_text(",".join(names) + "\n" + ",".join(f'"{cell}"' for cell in cells) + "\n")
    assert read_rows(file) == [row]


def test_seen_less_unseen_is_at_an_equal_number_of_classes() -> None:
    rows = [row_of(f"lite0-{s}", map=name, at_equal=52.0 + s) for s in range(3) for name in (RAW, HALF, LEARNED)]
    _, (_, layer, raw, *_) = seen_table(Stored(rows))
    # 60 less 52, 53 and 54: a mean of 7, sd 1, t of 2 degrees of freedom 4.303 / sqrt 3 = 2.484
    assert (layer, raw) == ("`fc6`", "+7.0 [+4.5, +9.5]")


def test_the_gain_by_classes_is_the_mean_over_draws_and_over_raw() -> None:
    values = {(HALF, 0): 50.0, (HALF, 1): 52.0, (LEARNED, 0): 53.0, (LEARNED, 1): 57.0}
    rows = [
        row_of(f"lite0-{s}", part="classes", classes=20, draw=draw, map=name, unseen=value + s * (name == LEARNED))
        for s in range(2)
        for (name, draw), value in values.items()
    ]
    rows += [row_of(f"lite0-{s}", unseen=45.0) for s in range(2)]
    assert class_gains(Stored(rows), "fc6", HALF)[20].tolist() == [4.0, 5.0]
    assert class_gains(Stored(rows), "fc6", RAW)[20].tolist() == [10.0, 11.0]


def test_a_map_wins_from_the_classes_on_where_every_interval_is_above_0() -> None:
    sure, unsure = np.array([1.0, 1.1, 1.2]), np.array([-1.0, 1.0, 3.0])
    assert wins_from({10: sure, 20: unsure, 50: sure, 100: sure}) == "50"
    assert wins_from({10: sure, 20: unsure}) == "none"


@pytest.fixture(scope="module")
def stored() -> Stored:
    return Stored(read_rows(FINDINGS / "maps.csv"))


def test_every_map_is_measured_in_three_trainings(stored: Stored) -> None:
    runs: dict[tuple[object, ...], set[str]] = {}
    for row in stored.rows:
        if row.part != "fusion":  # whose layers are picked
            key = network_of(row), row.part, row.fitted, row.classes, row.draw, row.layer, row.map
            runs.setdefault(key, set()).add(row.run)
    assert {len(names) for names in runs.values()} == {3}


def test_numbers_in_the_text_of_the_page_stand_in_the_tables(stored: Stored) -> None:
    tables = {number for table in TABLES.values() for number in re.findall(r"\d+\.\d", markdown(table(stored)))}
    text = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if not line.startswith("|")]
    stated = {number for line in text for number in re.findall(r"(?<![\d.:])\d+\.\d(?![\d.:])", line)}
    assert stated - tables <= {"2.0", "0.3"}  # the factor of the findings, a shrinkage


def test_the_figure_is_drawn(stored: Stored) -> None:
    assert draw_classes(stored).startswith(b"\x89PNG")
    assert all(len(each) == 3 for each in class_gains(stored, stored.layers(PRETRAINED)[0], HALF).values())
