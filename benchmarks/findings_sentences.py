"""The sentences with numbers of docs/results/findings.md, from the scores in docs/results.

    python -m benchmarks.findings_sentences [--figure FILE]

prints every sentence as the scores have it, and what does not hold of it. A sentence is text with numbers filled in,
and the statements that these must bear; tests/benchmarks compares it with the page.
"""

from __future__ import annotations

import argparse
import csv
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
        choices: the rows of choose.csv.
    """

    cells: Mapping[str, Trainings]
    shares: Mapping[str, Trainings]
    shift: Mapping[tuple[str, str], Mapping[int, Values]]
    choices: Sequence[Mapping[str, str]]

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

    def gained(self, cell: str, layer: LayerKey, epoch: int) -> Values:
        """By the post-processing that is best on validation."""
        return self.cells[cell].best(layer, epoch) - self.cells[cell].raw(layer, epoch)

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
    others = ("choose", "choice-rules-omniglot", "choice-rules-emoji", "maps")
    scores = {path.stem: read_scores(path) for path in folder.glob("*.csv") if path.stem not in others}
    emoji = cells_of("findings-emoji", scores["emoji"], scores["emoji-start"])
    omniglot = cells_of("findings-omniglot", scores["omniglot"], scores["omniglot-start"])
    cells = dict(zip([*EMOJI, *OMNIGLOT], [*emoji.values(), *omniglot.values()], strict=True))
    shares = cells_of("findings-share", scores["share"])
    with (folder / "choose.csv").open(encoding="utf-8", newline="") as file:
        choices = list(csv.DictReader(file))
    by_share = {"40 %": shares[SHARES["40 %"]], "80 %": cells[NEW[0]], "100 %": shares[SHARES["100 %"]]}
    return Stored(cells, by_share, shift_recalls(scores["shift"]), choices)


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
    yield Sentence(
        "**A new embedding layer costs more than it gives.** With a new `fc6`, R@1 of unseen emoji ends at"
        f" {mean(new[0])} % (smooth triplet) and {mean(new[1])} % (softmax). In the same runs `blocks.6.0`, the block"
        f" before the network's own output, is {mean(lead[0])} and {mean(lead[1])} points better ({ends(lead[0])};"
        f" {ends(lead[1])}). Without a new layer the output itself reaches {mean(output[0])} and"
        f" {mean(output[1])} %.",
        {"the block leads": all(map(above, lead)), "so does the output": all(map(above, np.subtract(output, new)))},
    )
    equal = [stored.lead(cell, PARTIALLY_WHITENED) for cell in NEW]
    over = [
        stored.post_processed(o, "output") - stored.post_processed(n, "fc6") for o, n in zip(OUTPUT, NEW, strict=True)
    ]
    yield Sentence(
        f"These layers have 128, 320 and 1,280 dimensions. Partially whitened to 128 each, the block is"
        f" {mean(equal[0])} and {mean(equal[1])} points better ({ends(equal[0])}; {ends(equal[1])}), the output without"
        f" a new layer {mean(over[0])} ({ends(over[0])}, not significant) and {mean(over[1])} ({ends(over[1])}).",
        {"the block leads": all(map(above, equal)), "the output once": open_(over[0]) and above(over[1])},
    )
    lead = [stored.lead(cell) for cell in OUTPUT]
    equal = [stored.lead(cell, PARTIALLY_WHITENED) for cell in OUTPUT]
    yield Sentence(
        f"**Without a new layer the output is nearly the best layer.** `blocks.6.0` is {mean(lead[0])} points better"
        f" with the triplet loss ({ends(lead[0])}, not significant) and {mean(lead[1])} with softmax"
        f" ({ends(lead[1])}); partially whitened to 128, {mean(equal[0])} ({ends(equal[0])}) and {mean(equal[1])}"
        f" ({ends(equal[1])}).",
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
    new, old = (_gains(stored, cells) for cells in (NEW, OUTPUT))
    yield Sentence(
        "**`choose` advised to switch** in all six runs with a new `fc6` and in none of the six without. The gains by"
        f" which it decided are {_span(new)} and {_span(old)} points; they are of the test classes that decided, and so"
        " not those to expect on others.",
        _advice_holds(stored),
    )
    before_, after = stored.shift["noise", "blocks.5.2"][0], stored.shift["noise", "blocks.5.2"][12]
    contrast = stored.shift["contrast", "blocks.5.2"]
    houses = [stored.shifted(table, layer) for table in ("house", "house-same") for layer in after_block_4(stored)]
    yield Sentence(
        "**Fine-tuning costs robustness to noise and to low contrast here.** With a new `fc6` and the triplet loss,"
        " R@1 of noisy queries falls from"
        f" {mean(before_)} to {mean(after)} % (`blocks.5.2`), with low contrast from {mean(contrast[0])} to"
        f" {mean(contrast[12])} %. After block 4 no gain on a design house that was not seen is significant.",
        {
            "both are worse": below(after - before_) and below(contrast[12] - contrast[0]),
            "no house gains": all(map(open_, houses)),
        },
    )


def _rows(stored: Stored, cells: Sequence[str]) -> list[Mapping[str, str]]:
    runs = {run for cell in cells for run in stored.cells[cell].runs}
    return [row for row in stored.choices if row["run"] in runs]


def _gains(stored: Stored, cells: Sequence[str]) -> list[float]:
    return [float(row["gain"]) for row in _rows(stored, cells)]


def _span(gains: Sequence[float]) -> str:
    return f"{min(gains):.1f} to {max(gains):.1f}"


def _advice_holds(stored: Stored) -> dict[str, bool]:
    new, old = ([row["advice"] for row in _rows(stored, cells)] for cells in (NEW, OUTPUT))
    return {"six switch": new == ["switch"] * 6, "six do not": len(old) == 6 and "switch" not in old}


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


def layers(stored: Stored) -> Iterator[Sentence]:
    """Layers before and after training."""
    cells = stored.cells

    def top(cell: str, epoch: int) -> tuple[str, Values]:
        every = {layer.layer: cells[cell].raw(layer, epoch) for layer in cells[cell].layers("avg")}
        return max(every.items(), key=lambda item: float(item[1].mean()))

    tops = [top(cell, 12) for cell in EMOJI]
    yield Sentence(
        "The order of the layers changes. Before training `blocks.5.2` has the highest mean"
        f" ({mean(top(EMOJI[0], 0)[1])}); after it `blocks.6.0` has in three of four cells ({mean(tops[1][1])},"
        f" {mean(tops[2][1])} and {mean(tops[3][1])}), and `blocks.5.0` in the fourth ({mean(tops[0][1])}).",
        {
            "before": top(EMOJI[0], 0)[0] == "blocks.5.2",
            "after": [name for name, _ in tops] == ["blocks.5.0", *["blocks.6.0"] * 3],
        },
    )
    yield from _post_processing(stored)


def _post_processing(stored: Stored) -> Iterator[Sentence]:
    late = {cell: [one for one in stored.cells[cell].layers("avg") if one.layer >= "blocks.4"] for cell in EMOJI}
    at_start = {layer: stored.gained(EMOJI[0], layer, 0) for layer in late[EMOJI[0]]}
    at_end = {(cell, layer): stored.gained(cell, layer, 12) for cell, of_cell in late.items() for layer in of_cell}
    more = [place for place, values in at_end.items() if values.mean() > at_start[place[1]].mean()]
    fc6 = NEW[1], key("fc6")
    yield Sentence(
        f"From block 4 on, post-processing gains {means([*at_start.values()])} points before training and"
        f" {means([*at_end.values()])} after it on emoji. Only `fc6` with softmax gains more after training"
        f" ({mean(at_end[fc6])}) than before ({mean(at_start[key('fc6')])}).",
        {"all gain before": all(map(above, at_start.values())), "one gains more": more == [fc6]},
    )
    chosen = stored.cells[OUTPUT[0]].best(key("output"), 12)
    lost = stored.gained(OUTPUT[0], key("output"), 12)
    yield Sentence(
        "Post-processing that is selected on 70 validation classes can lose, too: the output without a new layer,"
        f" triplet loss, has {mean(chosen)} with it and {mean(stored.raw(OUTPUT[0], 'output'))} without"
        f" ({bracketed(lost)}).",
        {"it loses in the mean": lost.mean() < 0},
    )


def epochs(stored: Stored) -> Iterator[Sentence]:
    """Over the epochs."""
    new = {layer: [stored.change(cell, layer, 1) for cell in NEW] for layer in LATE}
    old = [stored.change(cell, layer, 1) for cell in OUTPUT for layer in ("blocks.5.2", "blocks.6.0", "output")]
    output = [stored.change(cell, "output", 1) for cell in OUTPUT]
    characters = {
        (cell, layer): stored.change(cell, layer, 1) for cell in OMNIGLOT for layer in ("layer4.0", "layer4.1", "fc6")
    }
    softmax = [stored.change(NEW[1], layer, epoch) for epoch in (4, 8) for layer in LATE]
    yield Sentence(
        "With a new `fc6`, the change after one epoch is significantly negative at `blocks.6.0`, `output` and, most,"
        " `fc6`, with both losses.",
        {
            "all three fall": all(below(values) for losses in new.values() for values in losses),
            "fc6 most": all(
                new["fc6"][loss].mean() == min(losses[loss].mean() for losses in new.values()) for loss in (0, 1)
            ),
        },
    )
    yield Sentence(
        f"Without a new layer it is not ({gain(output[0])} and {gain(output[1])} points at the output), nor on Omniglot"
        " with the triplet loss. With softmax it is at Omniglot's `layer4.1` and `fc6`"
        f" ({gain(characters[OMNIGLOT[1], 'layer4.1'])} and {gain(characters[OMNIGLOT[1], 'fc6'])}).",
        {
            "none without": not any(map(below, old)),
            "two on Omniglot": [place for place, values in characters.items() if below(values)]
            == [(OMNIGLOT[1], "layer4.1"), (OMNIGLOT[1], "fc6")],
        },
    )
    yield Sentence(
        "The late layers recover; with a new `fc6` and softmax, between epochs 4 and 8. The learning rate falls after"
        " epoch 8.",
        {
            "below at 4": all(values.mean() < 0 for values in softmax[:3]),
            "above at 8": all(map(above, softmax[3:])),
        },
    )


def shares(stored: Stored) -> Iterator[Sentence]:
    """The share of the training classes."""
    least, most = stored.shares["40 %"], stored.shares["100 %"]
    gains = {one.layer: most.raw(one, 12) - least.raw(one, 12) for one in least.layers("avg")}
    leads = [one.raw(key("blocks.5.2"), 12) - one.raw(key("fc6"), 12) for one in (least, most)]
    lost = leads[0] - leads[1]
    yield Sentence(
        f"`fc6` gains most by more training classes, {mean(gains['fc6'])} points with 100 instead of 40 %, and block 5"
        f" least ({mean(gains['blocks.5.2'])}, not significant).",
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
        f" significant after that (means {means(at['house'])}; {means(at['house-same'])}).",
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
    yield Sentence(
        "After training, `fc6` has the lowest mean of the layers after block 4 on every kind of query.",
        {"the lowest": worst == {"fc6"}},
    )
    leads = [stored.shift[table, "blocks.5.2"][12] - stored.shift[table, "fc6"][12] for table in ("same", "classes")]
    yield Sentence(
        "`fc6` falls behind on trained classes as well: `blocks.5.2` leads it by"
        f" {bracketed(leads[0])} points on new images of trained classes, and by {bracketed(leads[1])} on new"
        " classes.",
        {"it leads on both": all(map(above, leads)), "no further": open_(leads[1] - leads[0])},
    )


def _corruptions(stored: Stored) -> Iterator[Sentence]:
    after = after_block_4(stored)
    late = ["blocks.4.2", *after]
    blur, jpeg = ({layer: stored.shifted(table, layer) for layer in after} for table in ("blur", "jpeg"))
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
    yield Sentence(
        "After block 4, JPEG compression changes nothing significantly; blurred queries gain at `blocks.5.0`"
        f" ({gain(blur['blocks.5.0'])}) and `blocks.6.0` ({gain(blur['blocks.6.0'])}).",
        {
            "JPEG": all(map(open_, jpeg.values())),
            "blur": [layer for layer, values in blur.items() if not open_(values)] == ["blocks.5.0", "blocks.6.0"],
            "they gain": above(blur["blocks.5.0"]) and above(blur["blocks.6.0"]),
        },
    )


def regrets(stored: Stored, way: str) -> list[float]:
    """At epoch 12 the mean over the trainings of emoji, and of Omniglot, in points.

    Args:
        way: `last layer`, `best on validation`, both among raw layers; `last of all`, among all post-processings; or
            `choose`, as it was stored.
    """
    by_data = []
    for cells in (EMOJI, OMNIGLOT):
        if way == "choose":
            lost = [float(row["regret"]) for row in _rows(stored, cells)]
        else:
            lost = [_regret(stored, cell, place, way) for cell in cells for place in range(3)]
        by_data.append(float(np.mean(lost)))
    return by_data


def _regret(stored: Stored, cell: str, place: int, way: str) -> float:
    recall = stored.cells[cell].each[place]
    test = {one[2:]: value for one, value in recall.items() if one[:2] == (12, "test")}
    if way != "last of all":
        test = {one: value for one, value in test.items() if one[1] == NO_POST_PROCESSING}
    chosen = key(embedding(cell)), NO_POST_PROCESSING
    if way == "best on validation":
        chosen = max(test, key=lambda candidate: recall[12, "validation", *candidate])
    return max(test.values()) - test[chosen]


def selection(stored: Stored) -> Iterator[Sentence]:
    """Regret of ways to choose a layer."""
    lost, best = regrets(stored, "choose"), regrets(stored, "best on validation")
    candidates = {
        cell: {(one[2], one[3]) for one in stored.cells[cell].each[0] if one[0] == 12} for cell in [*EMOJI, *OMNIGLOT]
    }
    times = [len(kinds) / len({layer for layer, _ in kinds}) for kinds in candidates.values()]
    yield Sentence(
        f"`choose` loses more than the best on validation: it has {min(times):.1f} to {max(times):.1f} times as many"
        " candidates. Which layer exactly was inconclusive in every run: 70 and 14 classes are few.",
        {
            "it loses more": all(one > other for one, other in zip(lost, best, strict=True)),
            "all are inconclusive": {row["verdict"] for row in stored.choices} == {"inconclusive"},
        },
    )


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


SECTIONS = (in_short, overlap, layers, epochs, shares, shift, selection)


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
    for way in ("last layer", "best on validation", "last of all", "choose"):
        print(way, *(f"{regret:.1f}" for regret in regrets(stored, way)))
    print("\n".join(f"| {' | '.join(row)} |" for row in short_table(stored)))


if __name__ == "__main__":
    main()
