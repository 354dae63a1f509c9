"""The sentences with numbers of docs/results/findings.md, from the scores in docs/results.

    python -m benchmarks.findings_sentences [--figure FILE]

prints every sentence as the scores have it, and what does not hold of it. A sentence is text with numbers filled in,
and the statements that these must bear; tests/benchmarks compares it with the page.
"""

from __future__ import annotations

import argparse
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.findings import PARTIALLY_WHITENED, Trainings, cells_of, shift_recalls, shown
from layerprobe.data.subsets import divide_classes
from layerprobe.statistics.seeds import mean_interval
from layerprobe.values.intervals import Interval
from layerprobe.values.layers import NO_POST_PROCESSING, LayerKey
from layerprobe.values.scores import read_scores

FOLDER = Path(__file__).parents[1] / "docs" / "results"
FINDINGS = "docs/results/findings.md"
LOSSES = ("smooth triplet", "softmax")
NEW, OUTPUT, OMNIGLOT = ([f"{way}, {loss}" for loss in LOSSES] for way in ("new fc6", "no new layer", "Omniglot"))
EMOJI = [*NEW, *OUTPUT]
SHARES = {"40 %": "data.validation_classes = 0.6", "100 %": "data.validation_classes = 0.0"}
LATE = ("blocks.6.0", "output", "fc6")

Values = NDArray[np.float64]  # of one number a training


@dataclass(frozen=True)
class Sentence:
    """Text of the page, and the statements that its numbers must bear."""

    text: str
    holds: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """The scores in docs/results.

    Args:
        cells: trainings by the name of their table in docs/results/findings.md.
        shares: `40 %` ... -> trainings on this share of the classes.
        shift: table and layer -> epoch -> R@1 of each training.
    """

    cells: Mapping[str, Trainings]
    shares: Mapping[str, Trainings]
    shift: Mapping[tuple[str, str], Mapping[int, Values]]

    def raw(self, cell: str, layer: str, epoch: int = 12, pool: str = "avg") -> Values:
        """R@1 of a layer without post-processing."""
        return self.post_processed(cell, layer, epoch, NO_POST_PROCESSING, pool)

    def post_processed(
        self, cell: str, layer: str, epoch: int = 12, chain: str = PARTIALLY_WHITENED, pool: str = "avg"
    ) -> Values:
        """R@1 of a layer after post-processing."""
        return self.cells[cell].post_processed(key(layer, pool), epoch, chain)

    def lead(self, cell: str, chain: str = NO_POST_PROCESSING) -> Values:
        """Of the block before the network's own output over the embedding, at the end."""
        return self.post_processed(cell, before(cell), 12, chain) - self.post_processed(
            cell, embedding(cell), 12, chain
        )

    def change(self, cell: str, layer: str, epoch: int = 12) -> Values:
        """Of a raw layer since epoch 0."""
        return self.raw(cell, layer, epoch) - self.raw(cell, layer, 0)

    def shifted(self, table: str, layer: str) -> Values:
        """The change of a layer on a table of the shift."""
        return self.shift[table, layer][12] - self.shift[table, layer][0]


def key(layer: str, pool: str = "avg") -> LayerKey:
    """The key of a layer in the scores, of which outputs are vectors."""
    return LayerKey(layer, "none" if layer in ("output", "fc6") else pool)


def embedding(cell: str) -> str:
    """The layer that the loss is on."""
    return "output" if cell in OUTPUT else "fc6"


def before(cell: str) -> str:
    """The block before the network's own output."""
    return "layer4.1" if cell in OMNIGLOT else "blocks.6.0"


def read_stored(folder: Path = FOLDER) -> Stored:
    """The scores in docs/results."""
    others = ("choice-rules-omniglot", "choice-rules-emoji", "maps")
    scores = {path.stem: read_scores(path) for path in folder.glob("*.csv") if path.stem not in others}
    emoji = cells_of("findings-emoji", scores["emoji"], scores["emoji-start"])
    omniglot = cells_of("findings-omniglot", scores["omniglot"], scores["omniglot-start"])
    cells = dict(zip([*EMOJI, *OMNIGLOT], [*emoji.values(), *omniglot.values()], strict=True))
    shares = cells_of("findings-share", scores["share"])
    by_share = {"40 %": shares[SHARES["40 %"]], "80 %": cells[NEW[0]], "100 %": shares[SHARES["100 %"]]}
    return Stored(cells, by_share, shift_recalls(scores["shift"]))


def mean(values: Values) -> str:
    """In points or percent."""
    return f"{values.mean():.1f}"


def gain(values: Values) -> str:
    """With its sign."""
    return f"{values.mean():+.1f}"


def means(values: Sequence[Values], form: str = "{:.1f}") -> str:
    """The lowest and the highest mean."""
    levels = [one.mean() for one in values]
    return f"{form.format(min(levels))} to {form.format(max(levels))}"


def interval(values: Values) -> Interval:
    """95 %, of the mean; of equal values, the mean."""
    return mean_interval(values) or Interval(float(values.mean()), float(values.mean()))


def ends(values: Values) -> str:
    """Of the interval."""
    return f"{interval(values).low:.1f} to {interval(values).high:.1f}"


def bracketed(values: Values) -> str:
    """The mean with its interval, as in the tables but for the plus."""
    return shown(values)


def above(values: Values) -> bool:
    """Whether the interval lies above 0."""
    return interval(values).low > 0


def below(values: Values) -> bool:
    """Whether the interval lies below 0."""
    return above(-values)


def open_(values: Values) -> bool:
    """Whether the interval includes 0."""
    return not above(values) and not below(values)


def in_short(stored: Stored) -> Iterator[Sentence]:
    """The list at the top."""
    new = [stored.raw(cell, "fc6") for cell in NEW]
    output = [stored.raw(cell, "output") for cell in OUTPUT]
    lead = [stored.lead(cell) for cell in NEW]
    equal = [stored.lead(cell, PARTIALLY_WHITENED) for cell in NEW]
    better = [with_output - with_new for with_output, with_new in zip(output, new, strict=True)]
    over = [
        stored.post_processed(o, "output") - stored.post_processed(n, "fc6") for o, n in zip(OUTPUT, NEW, strict=True)
    ]
    yield Sentence(
        "**A new embedding layer costs more than it gives.** With a new `fc6`, R@1 of unseen emoji ends at"
        f" {mean(new[0])} % (smooth triplet) and {mean(new[1])} % (softmax). Without it, the network's own output"
        f" reaches {mean(output[0])} and {mean(output[1])} %: {mean(better[0])} ({ends(better[0])}) and"
        f" {mean(better[1])} points more ({ends(better[1])}). Partially whitened to the 128 dimensions of `fc6`, it is"
        f" still {mean(over[0])} ({ends(over[0])}, not significant) and {mean(over[1])} points better"
        f" ({ends(over[1])}).",
        {"the output leads": all(map(above, better)), "at 128 once": open_(over[0]) and above(over[1])},
    )
    yield Sentence(
        "**Beside a new layer, the block before the output is better.** In the runs with a new `fc6`, `blocks.6.0` is"
        f" {mean(lead[0])} and {mean(lead[1])} points better than `fc6`; partially whitened to 128 dimensions,"
        f" {mean(equal[0])} and {mean(equal[1])}.",
        {"the block leads": all(map(above, lead)), "at 128, too": all(map(above, equal))},
    )
    lead = [stored.lead(cell) for cell in OUTPUT]
    equal = [stored.lead(cell, PARTIALLY_WHITENED) for cell in OUTPUT]
    yield Sentence(
        f"**Without a new layer the output is nearly the best layer.** `blocks.6.0` is {mean(lead[0])} points better"
        f" with the triplet loss (not significant) and {mean(lead[1])} with softmax; partially whitened to 128"
        f" dimensions, {mean(equal[0])} and {mean(equal[1])}.",
        {"one is open": open_(lead[0]), "softmax leads": above(lead[1]), "at 128 both do": all(map(above, equal))},
    )
    yield from _in_short_of_training(stored)
    lead = [stored.lead(cell) for cell in OMNIGLOT]
    equal = [-stored.lead(cell, PARTIALLY_WHITENED) for cell in OMNIGLOT]
    yield Sentence(
        "**On Omniglot, trained from scratch, neither difference is significant.** The layer before `fc6` is"
        f" {mean(lead[0])} ({ends(lead[0])}) and {mean(lead[1])} points better ({ends(lead[1])}); partially whitened to"
        f" 128 dimensions, `fc6` is {mean(equal[0])} ({ends(equal[0])}) and {mean(equal[1])} better"
        f" ({ends(equal[1])}).",
        {"none is significant": all(map(open_, [*lead, *equal])), "fc6 is ahead": all(v.mean() > 0 for v in equal)},
    )


def _in_short_of_training(stored: Stored) -> Iterator[Sentence]:
    first = {layer: [stored.change(cell, layer, 1) for cell in NEW] for layer in LATE}
    tabled = [
        stored.change(cell, layer)
        for cell in EMOJI
        for layer in ("blocks.3.2", "blocks.4.2", "blocks.5.0", "blocks.5.2", *LATE)
        if cell in NEW or layer != "fc6"
    ]
    yield Sentence(
        "**Fine-tuning helps unseen emoji in the end; with a new `fc6` it hurts them at first.** After one epoch"
        f" the last three layers are worse than before training (softmax: {gain(first['fc6'][1])} points at `fc6`,"
        f" {gain(first['output'][1])} at the output). At epoch 12 every layer from `blocks.3.2` on is better, by"
        f" {means(tabled)} points.",
        {
            "hurts at first": all(below(values) for losses in first.values() for values in losses),
            "helps in the end": all(map(above, tabled)),
        },
    )
    before_, after = stored.shift["noise", "blocks.5.2"][0], stored.shift["noise", "blocks.5.2"][12]
    contrast = stored.shift["contrast", "blocks.5.2"]
    yield Sentence(
        "**Fine-tuning costs robustness to noise and to low contrast here.** With a new `fc6` and the triplet loss,"
        " R@1 of noisy queries falls from"
        f" {mean(before_)} to {mean(after)} % (`blocks.5.2`), with low contrast from {mean(contrast[0])} to"
        f" {mean(contrast[12])} %.",
        {"both are worse": below(after - before_) and below(contrast[12] - contrast[0])},
    )


def after_block_4(stored: Stored) -> list[str]:
    """The layers of emoji's network after blocks.4.2."""
    layers = list(dict.fromkeys(layer for _, layer in stored.shift))
    return layers[layers.index("blocks.4.2") + 1 :]


def overlap(_: Stored) -> Iterator[Sentence]:
    """How many test classes two trainings share, and what the intervals are then."""
    shared, share = [], []
    for classes, of_test in ((700, 350), (136, 68)):
        test = [set(divide_classes(classes, classes - of_test, seed)[1]) for seed in range(3)]
        counts = [len(one & other) for one, other in combinations(test, 2)]
        shared.append(f"{min(counts)} to {max(counts)} of {of_test}")
        share.append(np.mean(counts) / of_test)
    ratio = np.sqrt((1 + 2 * max(share)) / (1 - max(share)))
    yield Sentence(
        f"Two test sets share about half of their classes: {shared[0]} emoji, {shared[1]} characters. So the intervals"
        " hold for further runs and splits of these classes; for other classes they are too narrow, by a factor of up"
        f" to {ratio:.1f}.",
        {"about half": bool(max(abs(np.array(share) - 0.5)) < 0.02)},
    )


def post_processing(stored: Stored) -> Iterator[Sentence]:
    """What is selected on validation, on test."""
    chosen = stored.cells[OUTPUT[0]].best(key("output"), 12)
    lost = chosen - stored.raw(OUTPUT[0], "output")
    yield Sentence(
        "Post-processing that is selected on 70 validation classes can lose: the output without a new layer, triplet"
        f" loss, has {mean(chosen)} with it and {mean(stored.raw(OUTPUT[0], 'output'))} without ({bracketed(lost)}).",
        {"it loses in the mean": lost.mean() < 0},
    )


def shares(stored: Stored) -> Iterator[Sentence]:
    """The share of the training classes."""
    least, most = stored.shares["40 %"], stored.shares["100 %"]
    gains = {one.layer: most.raw(one, 12) - least.raw(one, 12) for one in least.layers("avg")}
    leads = [one.raw(key("blocks.5.2"), 12) - one.raw(key("fc6"), 12) for one in (least, most)]
    lost = leads[0] - leads[1]
    yield Sentence(
        f"With the smooth triplet loss, `fc6` gains most by more training classes, {mean(gains['fc6'])} points with 100"
        f" instead of 40 %, and block 5 least ({mean(gains['blocks.5.2'])}, not significant).",
        {
            "fc6 most": all(above(gains["fc6"] - values) for layer, values in gains.items() if layer != "fc6"),
            "block 5 least": min(gains, key=lambda layer: float(gains[layer].mean())) == "blocks.5.2",
            "not significant": open_(gains["blocks.5.2"]),
        },
    )
    yield Sentence(
        f"So the lead of `blocks.5.2` over `fc6` falls from {mean(leads[0])} points after 140 classes to"
        f" {mean(leads[1])} after 350, by {bracketed(lost)}.",
        {"it falls": above(lost)},
    )


def shift(stored: Stored) -> Iterator[Sentence]:
    """A graded shift."""
    after = after_block_4(stored)
    at = {table: [stored.shifted(table, layer) for layer in after] for table, _ in stored.shift}
    from_4 = ["blocks.4.2", *after]
    known = [stored.shifted("classes", layer) for layer in from_4]
    house = [stored.shifted(table, "blocks.4.2") for table in ("house", "house-same")]
    yield Sentence(
        f"From `blocks.4.2` on, fine-tuning gains {means(known)} points on new classes by known houses. By an unseen"
        f" house it gains {mean(house[0])} at `blocks.4.2` ({mean(house[1])} on trained classes), and nothing"
        " significant after that.",
        {
            "blocks.4.2 gains": all(map(above, house)),
            "none after it": all(map(open_, [*at["house"], *at["house-same"]])),
        },
    )
    yield from _corruptions(stored)
    worst = {
        min(after, key=lambda layer, table=table: float(stored.shift[table, layer][12].mean()))  # type: ignore[misc]
        for table in at
    }
    leads = [stored.shift[table, "blocks.5.2"][12] - stored.shift[table, "fc6"][12] for table in ("same", "classes")]
    yield Sentence(
        "After training, `fc6` has the lowest mean of the layers after block 4 on every kind of query, on trained"
        f" classes as well: `blocks.5.2` leads it by {bracketed(leads[0])} points on new images of trained classes,"
        f" and by {bracketed(leads[1])} on new classes.",
        {"the lowest": worst == {"fc6"}, "it leads on both": all(map(above, leads))},
    )


def _corruptions(stored: Stored) -> Iterator[Sentence]:
    after = after_block_4(stored)
    late = ["blocks.4.2", *after]
    noise = {layer: stored.shifted("noise", layer) for _, layer in stored.shift}
    first = [values for layer, values in noise.items() if layer < "blocks.3"]
    contrast = [-stored.shifted("contrast", layer) for layer in after if layer >= "blocks.5.2" or layer in LATE]
    yield Sentence(
        f"Noise costs {means([-noise[layer] for layer in late])} points from `blocks.4.2` on, and nothing significant"
        f" in the blocks 0 to 2; low contrast costs {means(contrast)} points from `blocks.5.2` on.",
        {
            "late layers fall": all(below(noise[layer]) for layer in late),
            "early ones do not": all(map(open_, first)) and len(first) == 5,
            "contrast costs": all(map(above, contrast)) and len(contrast) == 5,
        },
    )


def regrets(stored: Stored, way: str) -> list[float]:
    """At epoch 12 the mean over the trainings of emoji, and of Omniglot, in points.

    Args:
        way: `last layer` or `best on validation`, of the raw layers.
    """
    return [
        float(np.mean([_regret(stored, cell, place, way) for cell in cells for place in range(3)]))
        for cells in (EMOJI, OMNIGLOT)
    ]


def _regret(stored: Stored, cell: str, place: int, way: str) -> float:
    recall = stored.cells[cell].each[place]
    test = {one[2:]: value for one, value in recall.items() if one[:2] == (12, "test") and one[3] == NO_POST_PROCESSING}
    chosen = key(embedding(cell)), NO_POST_PROCESSING
    if way == "best on validation":
        chosen = max(test, key=lambda candidate: recall[12, "validation", *candidate])
    return max(test.values()) - test[chosen]


def short_table(stored: Stored) -> list[list[str]]:
    """The rows of the first table: the embedding and the block before the output, before and after."""
    rows = []
    for cell, what in zip(
        (NEW[1], OUTPUT[1], NEW[0], OUTPUT[0]),
        (
            "softmax on a new layer of 128",
            "softmax on the output of 1,280",
            "smooth triplet on a new layer",
            "smooth triplet on the output",
        ),
        strict=True,
    ):
        levels = [stored.raw(cell, layer, epoch) for layer in (embedding(cell), "blocks.6.0") for epoch in (0, 12)]
        leads = bracketed(stored.lead(cell)), bracketed(stored.lead(cell, PARTIALLY_WHITENED))
        rows.append([what, f"`{embedding(cell)}`", *map(mean, levels), *leads])
    return rows


SECTIONS = (in_short, overlap, post_processing, shares, shift)


def sentences(stored: Stored) -> list[Sentence]:
    """All of them, in the order of the page."""
    return [sentence for section in SECTIONS for sentence in section(stored)]


def draw_layers(stored: Stored) -> bytes:
    """R@1 of the raw layers of emoji's network before and after training, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.4, 3.2), layout="constrained")
    for axes, cells in zip(figure.subplots(1, 2, sharey=True), (NEW, OUTPUT), strict=True):
        names = [one.layer for one in stored.cells[cells[0]].layers("avg")]
        lines = [(cells[0], 0, "before training", "0.55"), *zip(cells, (12, 12), LOSSES, ("C0", "C1"), strict=True)]
        for cell, epoch, label, colour in lines:
            recalls = np.array([stored.raw(cell, name, epoch) for name in names])
            for run in recalls.T:
                axes.plot(run, color=colour, linewidth=0.6, alpha=0.5)
            axes.plot(recalls.mean(1), color=colour, linewidth=2, label=label)
        axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
        axes.set_title(cells[0].partition(",")[0], fontsize=10)
        axes.grid(axis="y", alpha=0.3)
    figure.axes[0].set_ylabel("R@1 of unseen emoji, %")
    figure.axes[0].legend(frameon=False, fontsize=8, loc="lower right")
    written = io.BytesIO()
    figure.savefig(written, format="png", dpi=150)
    return written.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="The sentences and the figure of docs/results/findings.md.")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    figure = parser.parse_args().figure
    stored = read_stored()
    if figure:
        figure.write_bytes(draw_layers(stored))
    for sentence in sentences(stored):
        print(sentence.text)
        for statement, holds in sentence.holds.items():
            if not holds:
                print(f"    does not hold: {statement}")
    for way in ("last layer", "best on validation"):
        print(way, *(f"{regret:.1f}" for regret in regrets(stored, way)))
    print("\n".join(f"| {' | '.join(row)} |" for row in short_table(stored)))


if __name__ == "__main__":
    main()
