"""What scores were measured on: the data set, queries, classes and chance level of each split, and the network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from layerprobe.values.layers import NO_POST_PROCESSING

EPOCH_0 = "epoch 0"  # the start if that network is unknown
START = "start"  # of a watched training, whether or not its weights come from elsewhere
AS_GIVEN = "weights as given"  # of a model of `layerprobe.probe`
SELECTION = "selection classes"  # train, where no network was trained on it
# A note on values, those of a search within folds.
WITHIN_FOLDS = (
    "each fifth of the classes is searched in itself, with post-processing fitted on the other four:"
    " easier than all at once"
)
PAIRS_WITHIN_FOLDS = "pairs within each fifth of the classes, with post-processing fitted on the other four"
_HEADERS = {"validation": "valid.", SELECTION: "selection"}


@dataclass(frozen=True)
class IdenticalImages:
    """The queries of a split that have an identical image in what they search.

    Args:
        layer: whose metric is known without them.
        item: what is identical: an image, or a row of features.
        value: of the metric, a fraction; None where no query is left, or that is not known.
    """

    queries: int
    layer: str
    value: float | None
    metric: str = "R@1"
    item: str = "image"


@dataclass(frozen=True)
class SplitFacts:
    """A split of queries.

    Args:
        classes: of the queries; None if unknown because the stored features were removed.
        gallery: number of searched items; None where the queries are searched among themselves.
        chance: Recall@1 of a random order, as a fraction; None if unknown.
        lone: queries without a right item, which count as misses.
        identical: None where no query has an identical image in what it searches, or that is not known.
    """

    queries: int
    classes: int | None = None
    gallery: int | None = None
    chance: float | None = None
    lone: int = 0
    identical: IdenticalImages | None = None


@dataclass(frozen=True)
class DataFacts:
    """The data on which the scores of a run were measured.

    Args:
        name: of the data set, with its folder's if it has one; empty if unknown.
        splits: split -> its facts, in the order train, validation, test.
        start: the network of epoch 0: untrained; pretrained, if its weights come from elsewhere; `start` of a watched
            training; or `epoch 0`, if the epochs are files of a foreign training.
        held_out: whether the run trained on the training classes only, so that the others are unseen.
        seen: whether a network was, or may have been, trained on the training classes.
        network: name of the network; empty if unknown.
        layers: of the network in execution order, whether or not they were measured; empty if unknown.
        weights: those of the only epoch, where that is no training's: `weights of own.pth`; empty: epochs have numbers.
        unverified: weights of which only the user knows the classes that they were trained on; empty for others.
    """

    name: str
    splits: Mapping[str, SplitFacts]
    start: str = "untrained"
    held_out: bool = False
    seen: bool = True
    network: str = ""
    layers: tuple[str, ...] = ()
    weights: str = ""
    unverified: str = ""

    def without_chance(self) -> DataFacts:
        """The same for a metric other than R@1, of which the chance level is not known."""
        return replace(self, splits={name: replace(split, chance=None) for name, split in self.splits.items()})

    def chosen_on(self, post_processings: Iterable[str]) -> tuple[str, ...]:
        """The splits that may name the best layer, the preferred first.

        Train is one where it is unseen, unless layers are post-processed: post-processing is fitted on it.
        """
        unseen = not self.seen and {*post_processings} <= {NO_POST_PROCESSING}
        return ("validation", "train", "test") if unseen else ("validation", "test")

    @property
    def starts_training(self) -> bool:
        """Whether epoch 0 is known to be the start of the training."""
        return self.start != EPOCH_0


def epoch_text(epoch: int, facts: DataFacts | None) -> str:
    """`epoch 20`, or `weights of own.pth` where a run has these alone."""
    return weights_or_epoch(facts.weights if facts else "", epoch)


def weights_or_epoch(weights: str, epoch: int) -> str:
    """The same of `DataFacts.weights` alone."""
    return weights or f"epoch {epoch}"


def at_epoch_text(epoch: int | str, weights: str) -> str:
    """The same within a sentence, of one epoch or of listed ones: `at epoch 20`, or `with weights of own.pth`."""
    return f"with {weights}" if weights else f"at epoch {epoch}"


def assumed_lines(facts: DataFacts) -> list[str]:
    """The line on the classes that weights of the user's are assumed not to have been trained on; none for others."""
    classes = {
        split: split_facts.classes for split, split_facts in facts.splits.items() if split != "train" or not facts.seen
    }
    return list(filter(None, [assumed_text(facts.unverified, classes)])) if facts.unverified else []


def split_text(split: str, data: Iterable[DataFacts]) -> str:
    """A split's name in text: `selection classes` instead of train where none of the data's networks was trained on it.

    Args:
        data: of all runs that the text is about; without any, the split's own name.
    """
    runs = list(data)
    return chosen_on_text(split) if runs and not any(facts.seen for facts in runs) else split


def chosen_on_text(split: str) -> str:
    """The same of the split that a layer was chosen on, which is train only where the network has not seen it."""
    return SELECTION if split == "train" else split


def cross_fitted_text(test_classes: int, train_classes: int | None, *, sure: bool) -> str:
    """Why a layer is chosen on test classes although there are training classes.

    `cross-fitted on the 350 test classes, as the network may have been trained on the 350 training classes`.

    Args:
        train_classes: None: unknown.
        sure: whether the network is known to have been trained on them.
    """
    count = "" if train_classes is None else f"{train_classes:,} "
    trained = "was" if sure else "may have been"
    return (
        f"cross-fitted on the {test_classes:,} test classes, as the network {trained} trained on the {count}training"
        " classes"
    )


def assumed_text(weights: str, classes: Mapping[str, int | None]) -> str:
    """`assumed, not verified: own.pth was not trained on the 20 validation and 78 test classes`.

    Args:
        weights: what only the user knows the training classes of.
        classes: split -> the number of its classes; None: unknown. Without any the text is empty.
    """
    names = [
        f"{'' if count is None else f'{count:,} '}{chosen_on_text(split).removesuffix(' classes')}"
        for split, count in classes.items()
    ]
    listed = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
    return f"assumed, not verified: {weights} was not trained on the {listed} classes" if listed else ""


def split_header(split: str, data: Iterable[DataFacts]) -> str:
    """The same for a narrow column: `selection`, `valid.`."""
    text = split_text(split, data)
    return _HEADERS.get(text, text)


def fact_lines(facts: DataFacts) -> list[str]:
    """A line for each split: `glyphs test: 1,360 queries, 68 classes, chance R@1 1.4 %`."""
    lines = []
    for split, split_facts in facts.splits.items():
        parts = [f"{split_facts.queries:,} queries"]
        parts += [] if split_facts.classes is None else [f"{split_facts.classes:,} classes"]
        parts += [] if split_facts.gallery is None else [f"a gallery of {split_facts.gallery:,}"]
        parts += [] if split_facts.chance is None else [f"chance R@1 {level_text(100 * split_facts.chance)}"]
        parts += (
            [f"{split_facts.lone:,} queries without a right item"] if 2 * split_facts.lone > split_facts.queries else []
        )
        lines.append(f"{facts.name} {split_text(split, [facts])}: {', '.join(parts)}".lstrip())
        if split_facts.identical is not None:
            lines.append(f"{split_text(split, [facts])}: {identical_text(split_facts.identical, split_facts.queries)}")
    return lines


def caveat_lines(facts: DataFacts) -> list[str]:
    """The lines on splits where many queries lack a right item, or some have an identical image."""
    lines = []
    for split, split_facts in facts.splits.items():
        name = split_text(split, [facts])
        if 2 * split_facts.lone > split_facts.queries:
            lines.append(f"{name}: {split_facts.lone:,} of {split_facts.queries:,} queries without a right item")
        if split_facts.identical is not None:
            lines.append(f"{name}: {identical_text(split_facts.identical, split_facts.queries)}")
    return lines


def identical_text(identical: IdenticalImages, queries: int) -> str:
    """How many queries have an identical image in what they search, and what the metric is without them."""
    count_text = f"{identical.queries:,} of {queries:,} queries have an identical {identical.item} in what they search"
    if identical.value is None:
        return count_text
    return f"{count_text}; without those {identical.metric} of {identical.layer} is {100 * identical.value:.1f} %"


def level_text(percent: float) -> str:
    """A chance level with one decimal, or two digits below 1 %: `11.1 %`, `0.0088 %`."""
    return f"{percent:.1f} %" if percent >= 1 else f"{percent:.2g} %"


def run_lines(runs: Mapping[str, DataFacts], splits: Collection[str] | None = None) -> list[str]:
    """A figure's caption: the data set, the gallery, and the queries, classes and chance level of each split.

    Runs measured on the same data share a line.

    Args:
        splits: shown in the figure; None for all.
    """
    return _by_run({run: _caption(facts, splits) for run, facts in runs.items()})


def image_lines(runs: Mapping[str, DataFacts], splits: Collection[str] | None = None) -> list[str]:
    """The caption of a figure without a search: the data set, and the images and classes of each split.

    Args:
        splits: shown in the figure; None for all.
    """
    return _by_run({run: _caption(facts, splits, searched=False) for run, facts in runs.items()})


def _by_run(captions: Mapping[str, list[str]]) -> list[str]:
    runs: dict[tuple[str, ...], list[str]] = {}
    for run, lines in captions.items():
        if lines:
            runs.setdefault(tuple(lines), []).append(run)
    if len(runs) == 1 and len(captions) == len(next(iter(runs.values()))):
        return list(next(iter(runs)))
    return [f"{', '.join(names)}: {'; '.join(lines)}" for lines, names in runs.items()]


def _caption(facts: DataFacts, splits: Collection[str] | None, *, searched: bool = True) -> list[str]:
    facts_by_split = {
        split: split_facts for split, split_facts in facts.splits.items() if splits is None or split in splits
    }
    among = searched and any(
        split_facts.classes is not None and split_facts.gallery is None for split_facts in facts_by_split.values()
    )
    parts = [facts.name] if facts.name else []
    parts += ["each query is compared with the other images of its split"] if among else []
    lines = [", ".join(parts)] if parts and facts_by_split else []
    for split, split_facts in facts_by_split.items():
        new = " not trained on" if facts.held_out and split != "train" else ""
        text = f"{split_text(split, [facts])}: {split_facts.queries:,} {'queries' if searched else 'images'}"
        text += "" if split_facts.classes is None else f" of {split_facts.classes:,} classes{new}"
        if searched:
            text += "" if split_facts.gallery is None else f" in a gallery of {split_facts.gallery:,}"
            text += "" if split_facts.chance is None else f", chance R@1 {level_text(100 * split_facts.chance)}"
        lines.append(text)
    return lines


def common_start(runs: Iterable[DataFacts]) -> str:
    """The start that all runs share, else `epoch 0`."""
    starts = {facts.start for facts in runs} or {DataFacts.start}
    return starts.pop() if len(starts) == 1 else EPOCH_0


def common_chance(runs: Iterable[DataFacts]) -> dict[str, float]:
    """Split -> chance level, as a fraction, if all runs with the split share it."""
    levels: dict[str, set[float]] = {}
    for facts in runs:
        for split, split_facts in facts.splits.items():
            if split_facts.chance is not None:
                levels.setdefault(split, set()).add(split_facts.chance)
    return {split: values.pop() for split, values in levels.items() if len(values) == 1}
