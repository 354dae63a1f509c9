"""What labels gain on frozen layers, judged on classes that the map has not seen: the numbers of docs/results/maps.md.

    python benchmarks/maps.py RUN [RUN ...] --csv FILE [--parts PART ...]

RUN is the folder of a run whose features of its last epoch are stored (`layerprobe probe RUN --epochs last --layers '*'
--pool avg`). From FILE `maps_tables.py` makes the tables and the figure of the page. R@1 is by cosine and exact, ties
by their expected value. Maps give 128 numbers, or as many as a layer has if these are fewer, and are fitted on the
images of the split train alone, or of validation alone; unseen are the classes of test. Where scores.csv of the run has
the R@1 of a map, the two must be equal.

The parts, all but the first fitted on validation alone where there is such a split:

- maps: raw, partially whitened, the learned ones, and where there are more classes than numbers the linear
  discriminants;
- trained: a linear map on unit features, trained with `norm_softmax` and `proxy_anchor` from partial whitening and from
  the learned whitening, at three learning rates. Loss, start, rate and epoch are those of the highest R@1 on a fifth of
  the classes that are fitted on; then it is trained on all of them for as many epochs, and measured on test;
- permuted: the learned maps, fitted with the classes permuted over the images;
- classes: partial whitening and learned whitening, fitted on fewer classes, of runs without validation classes;
- fusion: learned whitening of two layers side by side, or of all. The pair, and the single layer that it is compared
  with, have the highest mean R@1 over fifths of the classes that are fitted on, each fitted on the other four.

A row of the file: R@1 in % on test (unseen), in the first part also on as many test classes as the map is fitted on
(at_equal, the mean of 10 draws), and on the classes that it is fitted on (seen), each searched among themselves; and
the gain on test, with the 95 % interval over the test classes, against this gallery: over partial whitening of the same
layer and images, of trained maps over the learned whitening, of fusions over the single layer.
"""

from __future__ import annotations

import argparse
import csv
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from itertools import combinations
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from numpy.typing import NDArray

from layerprobe.losses.loss import Loss, loss
from layerprobe.measure.extraction import side_by_side
from layerprobe.post_processing.applying import Blocks, process_blocks
from layerprobe.post_processing.chain import parse_chain
from layerprobe.ranking import nearest_positive_ranks
from layerprobe.statistics.bootstrap import differences
from layerprobe.statistics.units import unit_sums
from layerprobe.system.errors import LayerprobeError
from layerprobe.values.intervals import Difference
from layerprobe.values.layers import NO_POST_PROCESSING
from layerprobe.values.scores import read_scores
from layerprobe.workflow.run.opened_run import OpenedRun, open_run

Features = NDArray[np.float32]
Values = NDArray[np.float64]
Labels = NDArray[np.int64]
Apply = Callable[[Features], Features]

SIZE, FOLDS, DRAWS = 128, 5, 10
POOLS = ("avg", "none")
MAPS = {
    "raw": NO_POST_PROCESSING,
    "partially whitened": "l2+whiten:{}:0.5+l2",
    "whitened": "l2+whiten:{}:1+l2",
    "learned": "l2+lwhiten:{}:lw+l2",
    "learned 0.3": "l2+lwhiten:{}:0.3+l2",
    "lda": "l2+lda:{}:lw+l2",
}
RAW, HALF, LEARNED, LDA, TRAINED, ALL = "raw", "partially whitened", "learned", "lda", "trained", "all"
WITH_CLASSES = (LEARNED, "learned 0.3", LDA)
PARTS = ("maps", "trained", "permuted", "classes", "fusion")
# Of which there are tables, and from which pairs are picked; the layers of both networks.
LAYERS = ("blocks.4.2", "blocks.5.0", "blocks.6.0", "layer3.1", "layer4.0", "layer4.1", "output", "fc6")
CANDIDATES = ("blocks.3.2", "blocks.5.2", "layer2.1", *LAYERS)
PERMUTATIONS, CLASS_DRAWS = 3, 5
CLASSES = (10, 20, 50, 100, 200, 280, 350)
LOSSES, RATES, EPOCHS, PATIENCE, BATCH = ("norm_softmax", "proxy_anchor"), (1e-4, 1e-3, 1e-2), 60, 8, 128


@dataclass(frozen=True, eq=False)
class Images:
    """Images of some classes.

    Args:
        features: layer -> (N, D), in network order.
        labels: (N,) classes.
    """

    features: Mapping[str, Features]
    labels: Labels

    def layer(self, name: str) -> Features:
        """(N, D) of a layer, of several (`A+B`) or of all, each of length 1, side by side."""
        members = self.features if name == ALL else name.split("+")
        return side_by_side([self.features[member] for member in members])

    @property
    def classes(self) -> Labels:
        """(C,) ascending."""
        return np.unique(self.labels)

    def of(self, classes: NDArray[np.integer]) -> Images:
        """The images of some classes."""
        rows = np.isin(self.labels, classes)
        return Images({layer: values[rows] for layer, values in self.features.items()}, self.labels[rows])


@dataclass(frozen=True)
class Row:
    """A map of a layer, fitted on some classes, and its R@1 in percent.

    Args:
        fitted: the split that it is fitted on.
        classes: how many of its classes.
        draw: of these classes, or of a permutation.
        dim: how many numbers it gives.
        at_equal: of the part maps, on as many test classes as `classes`; NaN where there are fewer.
        over: the map that `gain` is over, in points on test; `low` and `high` its interval over the test classes.
        picked: what was picked, and its R@1 where it was.
    """

    run: str
    part: str
    fitted: str
    classes: int
    draw: int
    layer: str
    map: str
    dim: int
    unseen: float
    at_equal: float
    seen: float
    over: str = ""
    gain: float = float("nan")
    low: float = float("nan")
    high: float = float("nan")
    picked: str = ""


def read_images(opened: OpenedRun, epoch: int, split: str) -> Images:
    """The images of a split with the features of every layer, those that are pooled by their average."""
    with opened.run.open_features(epoch, split) as file:
        order = {str(layer): place for place, layer in enumerate(opened.run.read().layer_order)}
        keys = [key for key in file.layers if key.pool in POOLS and key.layer != "pool5"]
        keys.sort(key=lambda key: order.get(key.layer, len(order)))
        features = {key.layer: file.read(key) for key in keys}
    return Images(features, opened.labels(epoch=epoch, split=split).astype(np.int64))


CPU = torch.device("cpu")


def fit(text: str, features: Features, labels: Labels) -> Apply:
    """Fit a chain of post-processing steps on features and their classes."""
    post_process = parse_chain(text).fit(Blocks(features, CPU), features.shape[1], seed=0, labels=labels)

    def apply(rows: Features) -> Features:
        return np.asarray(process_blocks(Blocks(rows, CPU), post_process, len(rows)))

    return apply


def hits_of(values: NDArray[np.floating], labels: Labels) -> Values:
    """(N,) whether each image's nearest other one is of its class, in a search among them by cosine."""
    return nearest_positive_ranks(values, labels).hits(1)


def recall_among(values: NDArray[np.floating], labels: Labels, count: int, draws: int = DRAWS) -> float:
    """R@1 in percent among `count` of the classes, the mean over draws of them; NaN where there are fewer."""
    classes = np.unique(labels)
    if count >= len(classes):
        return 100 * float(hits_of(values, labels).mean()) if count == len(classes) else float("nan")
    recalls = []
    for draw in range(draws):
        rows = np.isin(labels, np.random.default_rng(draw).permutation(classes)[:count])
        recalls.append(hits_of(values[rows], labels[rows]).mean())
    return 100 * float(np.mean(recalls))


def gain_over(hits: Values, others: Values, labels: Labels) -> Difference:
    """The difference of two R@1 in points, with its interval over the classes."""
    (found,) = differences(unit_sums(100 * (hits - others), labels))
    return found


def size_of(features: NDArray[np.floating]) -> int:
    """How many numbers a map that is fitted on (N, D) features gives: images that are the same picture count once."""
    return min(SIZE, int(features.shape[1]), len(np.unique(features, axis=0)) - 1)


def text_of(name: str, features: NDArray[np.floating]) -> str:
    """The chain of a map of `MAPS` that is fitted on (N, D) features."""
    return MAPS[name].format(size_of(features))


@dataclass(frozen=True, eq=False)
class Measured:
    """A map on the images of test, and the row that tells of it."""

    row: Row
    hits: Values

    def over(self, other: Measured, labels: Labels) -> Measured:
        """With the gain over another map."""
        gain = gain_over(self.hits, other.hits, labels)
        low, high = (float("nan") if end is None else end for end in (gain.low, gain.high))
        called = other.row.map if other.row.layer == self.row.layer else other.row.layer
        return replace(self, row=replace(self.row, over=called, gain=gain.value, low=low, high=high))


@dataclass(frozen=True, eq=False)
class Bench:
    """The images of a run that maps are fitted on, and those of its test classes.

    Args:
        run: its name.
        fitted: the split that maps are fitted on.
    """

    run: str
    fitted: str
    fit_on: Images
    test: Images

    def measure(self, part: str, layer: str, name: str, apply: Apply, draw: int = 0) -> Measured:
        """A map that is fitted on `fit_on`."""
        seen, unseen = (apply(images.layer(layer)) for images in (self.fit_on, self.test))
        count, labels = len(self.fit_on.classes), self.test.labels
        hits = hits_of(unseen, labels)
        at_equal = recall_among(unseen, labels, count) if part == "maps" else float("nan")
        on_test, on_seen = (100 * float(each.mean()) for each in (hits, hits_of(seen, self.fit_on.labels)))
        where = self.run, part, self.fitted, count, draw
        return Measured(Row(*where, layer, name, unseen.shape[1], on_test, at_equal, on_seen), hits)

    def closed_form(self, part: str, layer: str, name: str, draw: int = 0, labels: Labels | None = None) -> Measured:
        """A map of `MAPS`, fitted with the classes of the images or with others."""
        features = self.fit_on.layer(layer)
        apply = fit(text_of(name, features), features, self.fit_on.labels if labels is None else labels)
        return self.measure(part, layer, name, apply, draw)

    @property
    def layers(self) -> list[str]:
        """Those of which there are tables."""
        return [layer for layer in self.test.features if layer in LAYERS]

    def maps_of(self, layer: str) -> list[str]:
        """The maps that there are enough classes for."""
        size = size_of(self.fit_on.layer(layer))
        return [name for name in MAPS if name != LDA or len(self.fit_on.classes) > size]


def maps_part(bench: Bench) -> Iterator[Row]:
    """Every closed form of every layer."""
    for layer in bench.layers:
        half = bench.closed_form("maps", layer, HALF)
        for name in bench.maps_of(layer):
            found = half if name == HALF else bench.closed_form("maps", layer, name).over(half, bench.test.labels)
            yield found.row


def permuted_part(bench: Bench) -> Iterator[Row]:
    """The learned maps, fitted with classes permuted over the images."""
    for layer in bench.layers:
        half = bench.closed_form("permuted", layer, HALF)
        for name in (name for name in bench.maps_of(layer) if name in WITH_CLASSES):
            for draw in range(PERMUTATIONS):
                labels = np.random.default_rng(draw).permutation(bench.fit_on.labels)
                yield bench.closed_form("permuted", layer, name, draw, labels).over(half, bench.test.labels).row


def drawn(classes: Labels, count: int, draw: int) -> Labels:
    """Some classes at random. Draw 0 of 280 of 350 is what `data.validation_classes = 0.2` leaves to train on."""
    # `with_validation` holds out the first ones of this order.
    return np.random.default_rng(draw).permutation(classes)[len(classes) - count :]


def classes_part(bench: Bench) -> Iterator[Row]:
    """Fitted on fewer classes, several draws of them where they are much fewer."""
    classes = bench.fit_on.classes
    for count in CLASSES:
        draws = CLASS_DRAWS if count < 280 else 1
        for draw in range(draws) if count <= len(classes) else ():
            fewer = replace(bench, fit_on=bench.fit_on.of(drawn(classes, count, draw)))
            for layer in bench.layers:
                half = fewer.closed_form("classes", layer, HALF, draw)
                yield half.row
                yield fewer.closed_form("classes", layer, LEARNED, draw).over(half, bench.test.labels).row


def folds_of(classes: Labels) -> list[Labels]:
    """The classes in `FOLDS` parts, drawn at random."""
    return np.array_split(np.random.default_rng(0).permutation(classes), FOLDS)


def recall_within(images: Images, layer: str) -> float:
    """Mean R@1 in percent of learned whitening on each fifth of the classes, fitted on the others."""
    recalls = []
    for held in folds_of(images.classes):
        rest, fold = images.of(np.setdiff1d(images.classes, held)), images.of(held)
        features = rest.layer(layer)
        apply = fit(text_of(LEARNED, features), features, rest.labels)
        recalls.append(hits_of(apply(fold.layer(layer)), fold.labels).mean())
    return 100 * float(np.mean(recalls))


def fusion_part(bench: Bench) -> Iterator[Row]:
    """The pair and the single layer that are picked within folds, and all layers; partially whitened, too."""
    single = [layer for layer in bench.test.features if layer in CANDIDATES]
    pairs = ["+".join(pair) for pair in combinations(single, 2)]
    within = {layer: recall_within(bench.fit_on, layer) for layer in (*single, *pairs)}
    picked = [max(layers, key=within.__getitem__) for layers in (single, pairs)]
    best = bench.closed_form("fusion", picked[0], LEARNED)
    for layer in (*picked, ALL):
        told = f"{within[layer]:.4f} within folds" if layer in within else ""
        for name in (HALF, LEARNED):
            found = bench.closed_form("fusion", layer, name)
            if layer != picked[0] or name != LEARNED:
                found = found.over(best, bench.test.labels)
            yield replace(found.row, picked=told)


@dataclass(frozen=True)
class Setting:
    """How a linear map is trained."""

    loss: str
    start: str
    rate: float

    def __str__(self) -> str:
        return f"{self.loss} from {self.start}, {self.rate:g}"


SETTINGS = [Setting(name, start, rate) for name in LOSSES for start in (HALF, LEARNED) for rate in RATES]


def unit(features: Features) -> Values:
    """(N, D) of length 1; zero vectors stay."""
    values = features.astype(np.float64)
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    return values / np.where(lengths == 0, 1, lengths)


def start_of(name: str, features: Values, labels: Labels) -> torch.Tensor:
    """(D, D') the matrix of a closed form, whose entries have a mean square of 1 / D: only its directions count."""
    dim = features.shape[1]
    text = text_of(name, features).removeprefix("l2+").removesuffix("+l2")
    apply = parse_chain(text).fit(Blocks(features, CPU), dim, seed=0, labels=labels)
    matrix = apply(torch.eye(dim, dtype=torch.float64)) - apply(torch.zeros(1, dim, dtype=torch.float64))
    scaled: torch.Tensor = (matrix / (matrix.square().mean() * dim).sqrt()).float()
    return scaled


def optimiser_of(matrix: torch.nn.Parameter, criterion: Loss, rate: float) -> torch.optim.Optimizer:
    """AdamW; the loss's own parameters learn at their own rate if it states one, else at 10 times the map's."""
    groups = [{"params": [matrix], "lr": rate, "weight_decay": 1e-4}]
    for group in criterion.parameter_groups():
        groups.append({"params": group.parameters, "lr": group.learning_rate or 10 * rate, "weight_decay": 0.0})
    return torch.optim.AdamW(groups)


def trainings(features: Values, labels: Labels, start: torch.Tensor, setting: Setting) -> Iterator[Values]:
    """The matrix before training and after each epoch."""
    centred = torch.from_numpy(features - features.mean(0)).float()
    classes, targets = np.unique(labels, return_inverse=True)
    matrix = torch.nn.Parameter(start.clone())
    criterion = loss(setting.loss, start.shape[1], len(classes))
    optimiser = optimiser_of(matrix, criterion, setting.rate)
    order, targets_of = torch.Generator().manual_seed(0), torch.from_numpy(targets)
    while True:
        yield matrix.detach().double().numpy().copy()
        for rows in torch.randperm(len(centred), generator=order).split(BATCH):
            optimiser.zero_grad()
            criterion(centred[rows] @ matrix, targets_of[rows]).backward()
            optimiser.step()


def pick_training(images: Images, layer: str) -> tuple[Setting, int, float]:
    """The setting and the epochs with the highest R@1 on the first fifth of the classes; of equal ones the first."""
    held = folds_of(images.classes)[0]
    rest, fold = images.of(np.setdiff1d(images.classes, held)), images.of(held)
    features, searched = unit(rest.layer(layer)), unit(fold.layer(layer))
    starts = {name: start_of(name, features, rest.labels) for name in (HALF, LEARNED)}
    best = SETTINGS[0], 0, -1.0
    for setting in SETTINGS:
        highest, since = -1.0, 0
        for epoch, matrix in enumerate(trainings(features, rest.labels, starts[setting.start], setting)):
            recall = 100 * float(hits_of((searched - features.mean(0)) @ matrix, fold.labels).mean())
            highest, since = (recall, 0) if recall > highest else (highest, since + 1)
            if recall > best[2]:
                best = setting, epoch, recall
            if since == PATIENCE or epoch == EPOCHS:
                break
    return best


def project(rows: Features, *, mean: Values, matrix: Values) -> Features:
    """(N, D') unit features, less a mean, times a matrix."""
    return ((unit(rows) - mean) @ matrix).astype(np.float32)


def trained_part(bench: Bench) -> Iterator[Row]:
    """A trained map of every layer, less the learned one."""
    for layer in bench.layers:
        setting, epochs, recall = pick_training(bench.fit_on, layer)
        features, labels = unit(bench.fit_on.layer(layer)), bench.fit_on.labels
        each = trainings(features, labels, start_of(setting.start, features, labels), setting)
        matrix = next(matrix for epoch, matrix in enumerate(each) if epoch == epochs)

        apply = partial(project, mean=features.mean(0), matrix=matrix)
        learned = bench.closed_form("trained", layer, LEARNED)
        found = bench.measure("trained", layer, TRAINED, apply).over(learned, bench.test.labels)
        yield replace(found.row, picked=f"{setting}, {epochs} epochs: {recall:.4f}")


MEASURES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "maps": maps_part,
    "trained": trained_part,
    "permuted": permuted_part,
    "classes": classes_part,
    "fusion": fusion_part,
}


def benches_of(path: Path) -> list[Bench]:
    """The splits of a run that maps are fitted on: train, and validation if there is one."""
    opened = open_run(path)
    files = sorted((path / "features").glob("epoch-*.test.h5"))
    if not files:
        raise SystemExit(f"maps.py: {path} has no features of test; layerprobe probe {path.name} stores them")
    epoch = int(files[-1].name.split(".")[0].removeprefix("epoch-"))
    splits = [
        split for split in ("train", "validation") if files[-1].with_name(f"epoch-{epoch:04d}.{split}.h5").exists()
    ]
    test = read_images(opened, epoch, "test")
    return [Bench(opened.run.name, split, read_images(opened, epoch, split), test) for split in splits]


def require_stored(bench: Bench, rows: Sequence[Row], scores: Path) -> int:
    """Check that R@1 is that of scores.csv wherever it has the same map; how many these are.

    Raises:
        SystemExit: one that is not.
    """
    stored = {
        (score.epoch, score.ranked.layer.layer, score.ranked.post_processing): 100 * score.value
        for score in read_scores(scores)
        if (score.split, score.metric, score.ranked.similarity) == ("test", "R@1", "cosine")
        and score.ranked.layer.pool in POOLS
        and score.value is not None
    }
    last, compared = max(epoch for epoch, *_ in stored), 0
    for row in rows:
        key = last, row.layer, MAPS[row.map].format(row.dim)
        # Chains in scores.csv are fitted on train.
        if key in stored and (row.fitted == "train" or row.map == RAW):
            compared += 1
            if abs(stored[key] - row.unseen) > 1e-9:
                which = f"{bench.run}, {row.layer}, {row.map}"
                raise SystemExit(f"maps.py: {which}: {row.unseen}, in scores.csv {stored[key]}")
    return compared


def measure(paths: Sequence[Path], parts: Sequence[str], file: Path) -> None:
    """Write the rows of some runs, as they are measured."""
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.writer(opened, lineterminator="\n")
        writer.writerow([field.name for field in fields(Row)])
        for path in paths:
            *others, last = benches_of(path)
            for bench in (*others, last):
                for part in parts if bench is last else set(parts) & {"maps"}:
                    # Fewer classes are asked for where there are many.
                    if part == "classes" and len(bench.fit_on.classes) < max(CLASSES):
                        continue
                    rows = list(MEASURES[part](bench))
                    writer.writerows([as_text(value) for value in astuple(row)] for row in rows)
                    opened.flush()
                    same = f", {require_stored(bench, rows, path / 'scores.csv')} as stored" if part == "maps" else ""
                    print(f"{bench.run}, {part}, fitted on {bench.fitted}: {len(rows)} rows{same}", flush=True)


def as_text(value: object) -> str:
    """A cell of the file."""
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.4f}"
    return str(value)


def read_rows(file: Path) -> list[Row]:
    """The rows of a file that `measure` wrote."""
    kinds = {field.name: {"int": int, "float": float, "str": str}[str(field.type)] for field in fields(Row)}
    with file.open(newline="", encoding="utf-8") as opened:
        return [
            Row(**{name: kinds[name](value or ("nan" if kinds[name] is float else "")) for name, value in row.items()})
            for row in csv.DictReader(opened)
        ]


def main() -> None:
    parser = argparse.ArgumentParser(description="What labels gain on frozen layers, on classes that are not seen.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--csv", type=Path, required=True, metavar="FILE")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, metavar="PART")
    arguments = parser.parse_args()
    measure(arguments.runs, arguments.parts, arguments.csv)


if __name__ == "__main__":
    try:
        main()
    except LayerprobeError as error:
        raise SystemExit(f"maps.py: {error}") from error
