"""The tables and the figure of docs/results/maps.md, from the numbers that `maps.py` wrote.

    python -m benchmarks.maps_tables docs/results/maps.csv [--figure docs/img/maps-classes.png]

A number is the mean over the trainings, each with a class split of its own, in percent; in brackets after a difference
its 95 % interval (Student's t), or, where the heading says so, that of the first training over its test classes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.findings import markdown, shown
from benchmarks.maps import ALL, HALF, LEARNED, MAPS, RAW, TRAINED, Row, Values, read_rows
from layerprobe.plots.figure import FONT, PanelLayout, add_legend, encode_figure, make_panels, styles
from layerprobe.statistics.seeds import mean_interval


@dataclass(frozen=True, eq=False)
class Stored:
    """The rows of a file, of runs named NETWORK-SEED."""

    rows: Sequence[Row]

    def networks(self) -> list[str]:
        """Those that the file has, in the order of `NETWORKS`."""
        there = {network_of(row) for row in self.rows}
        return [network for network in NETWORKS if network in there]

    def select(self, network: str, **values: object) -> list[Row]:
        """The rows of a network with these values."""
        wanted = values.items()
        return [row for row in self.rows if network_of(row) == network and all(getattr(row, k) == v for k, v in wanted)]

    def layers(self, network: str) -> list[str]:
        """Those of which there are tables, in network order."""
        return list(dict.fromkeys(row.layer for row in self.select(network, part="maps")))

    def each(self, network: str, value: str = "unseen", /, **values: object) -> Values:
        """(S,) a value of each training, the mean over its draws; empty where there is none."""
        by_run: dict[str, list[float]] = {}
        for row in self.select(network, **values):
            by_run.setdefault(row.run, []).append(getattr(row, value))
        return np.array([np.mean(numbers) for _, numbers in sorted(by_run.items())])

    def shown(self, network: str, value: str = "unseen", /, **values: object) -> str:
        """The mean over the trainings."""
        numbers = self.each(network, value, **values)
        return f"{numbers.mean():.1f}" if len(numbers) else "-"

    def gain(self, network: str, of: str, over: str, **values: object) -> Values:
        """(S,) R@1 of a map less that of another, in points."""
        return self.each(network, map=of, **values) - self.each(network, map=over, **values)

    def over_classes(self, network: str, **values: object) -> str:
        """The gain in the first training, with its interval over the test classes."""
        row = min(self.select(network, **values), key=lambda row: row.run)
        # Where all images have the same hits there is no interval.
        return f"{row.gain:+.1f}" + ("" if np.isnan(row.low) else f" [{row.low:+.1f}, {row.high:+.1f}]")


NETWORKS = {
    "lite0": "pretrained",
    "emoji-fc6": "new fc6, softmax",
    "emoji-output": "no new layer, softmax",
    "omniglot": "Omniglot, softmax",
}
PRETRAINED = "lite0"


def network_of(row: Row) -> str:
    """The name of its run without the seed."""
    return row.run.rpartition("-")[0]


def fitted_of(stored: Stored, network: str) -> list[str]:
    """The splits that maps are fitted on."""
    return list(dict.fromkeys(row.fitted for row in stored.select(network, part="maps")))


def pretrained_table(stored: Stored) -> list[list[str]]:
    """Every map of every layer of the pretrained network."""
    names = [*MAPS, TRAINED]
    rows = [
        [
            "layer",
            "numbers",
            *names,
            "learned - partially whitened",
            "the same, first split, over classes",
            "learned - raw",
        ]
    ]
    for layer in stored.layers(PRETRAINED):
        of: dict[str, object] = {"layer": layer, "part": "maps"}
        levels = [stored.shown(PRETRAINED, map=name, **of) for name in MAPS]
        levels.append(stored.shown(PRETRAINED, map=TRAINED, layer=layer, part="trained"))
        over_half, over_raw = (shown(stored.gain(PRETRAINED, LEARNED, name, **of), sign=True) for name in (HALF, RAW))
        dim = stored.select(PRETRAINED, map=LEARNED, **of)[0].dim
        over_classes = stored.over_classes(PRETRAINED, map=LEARNED, **of)
        rows.append([f"`{layer}`", str(dim), *levels, over_half, over_classes, over_raw])
    return rows


def tuned_table(stored: Stored) -> list[list[str]]:
    """Fine-tuned networks: maps that are fitted on the training classes, and on the validation classes."""
    rows = [["network", "layer", "raw"]]
    for split in ("train", "validation"):
        rows[0] += [f"{split}: {HALF}", LEARNED, "gain", "first training, over classes"]
    for network in stored.networks()[1:]:
        for place, layer in enumerate(stored.layers(network)):
            row = ["" if place else NETWORKS[network], f"`{layer}`", stored.shown(network, layer=layer, map=RAW)]
            for split in fitted_of(stored, network):
                of: dict[str, object] = {"layer": layer, "part": "maps", "fitted": split}
                row += [stored.shown(network, map=name, **of) for name in (HALF, LEARNED)]
                row.append(shown(stored.gain(network, LEARNED, HALF, **of), sign=True))
                row.append(stored.over_classes(network, map=LEARNED, **of))
            rows.append(row)
    return rows


def seen_table(stored: Stored) -> list[list[str]]:
    """R@1 on the classes that maps are fitted on, less that on as many unseen ones."""
    rows = [
        [
            "network",
            "layer",
            *(f"{split}: {name}" for split in ("train", "validation") for name in (RAW, HALF, LEARNED)),
        ]
    ]
    for network in stored.networks():
        for place, layer in enumerate(stored.layers(network)):
            row = ["" if place else NETWORKS[network], f"`{layer}`"]
            for split in fitted_of(stored, network):
                for name in (RAW, HALF, LEARNED):
                    of: dict[str, object] = {"layer": layer, "part": "maps", "fitted": split, "map": name}
                    row.append(
                        shown(stored.each(network, "seen", **of) - stored.each(network, "at_equal", **of), sign=True)
                    )
            rows.append(row + ["-"] * (len(rows[0]) - len(row)))
    return rows


def fusions(stored: Stored, network: str, split: str) -> dict[str, Values]:
    """Learned whitening of the picked single layer, the picked pair and all layers: (S,) R@1 on test."""
    rows = sorted(stored.select(network, part="fusion", fitted=split, map=LEARNED), key=lambda row: row.run)
    kinds = {
        "single": [row for row in rows if row.layer != ALL and "+" not in row.layer],
        "pair": [row for row in rows if "+" in row.layer],
        ALL: [row for row in rows if row.layer == ALL],
    }
    return {kind: np.array([row.unseen for row in chosen]) for kind, chosen in kinds.items()}


def picked_layers(stored: Stored, network: str, split: str) -> str:
    """The single layers and pairs that were picked, by training."""
    picked: dict[str, list[str]] = {}
    for row in stored.select(network, part="fusion", fitted=split, map=LEARNED):
        if row.layer != ALL:
            picked.setdefault(row.run, []).append(f"`{row.layer}`")
    return "; ".join(" and ".join(layers) for _, layers in sorted(picked.items()))


def fusion_table(stored: Stored) -> list[list[str]]:
    """Two layers side by side and all of them, against the best single one."""
    rows = [
        [
            "network",
            "fitted on",
            "single",
            "pair",
            "all",
            "pair - single",
            "all - single",
            "all - single, first training, over classes",
            "picked pairs",
        ]
    ]
    for network in stored.networks():
        split = fitted_of(stored, network)[-1]
        of = fusions(stored, network, split)
        gains = [shown(of[kind] - of["single"], sign=True) for kind in ("pair", ALL)]
        gains.append(stored.over_classes(network, part="fusion", fitted=split, layer=ALL, map=LEARNED))
        levels = [f"{each.mean():.1f}" for each in of.values()]
        rows.append([NETWORKS[network], split, *levels, *gains, picked_layers(stored, network, split)])
    return rows


def controls_table(stored: Stored) -> list[list[str]]:
    """Gain over partial whitening with the classes as they are and permuted, and trained maps less the learned one."""
    names = (LEARNED, "learned 0.3")
    heads = [head for name in names for head in (name, "permuted")]
    rows = [["network", "layer", *heads, TRAINED, "trained - learned", "first training, over classes"]]
    for network in stored.networks():
        split = fitted_of(stored, network)[-1]
        for place, layer in enumerate(stored.layers(network)):
            of: dict[str, object] = {"fitted": split, "layer": layer}
            row = ["" if place else f"{NETWORKS[network]}, {split}", f"`{layer}`"]
            for name in names:
                for part in ("maps", "permuted"):
                    row.append(shown(stored.each(network, "gain", part=part, map=name, **of), sign=True))
            trained = stored.each(network, part="trained", **of)
            less = trained - stored.each(network, part="maps", map=LEARNED, **of)
            over_classes = stored.over_classes(network, part="trained", **of)
            rows.append([*row, f"{trained.mean():.1f}", shown(less, sign=True), over_classes])
    return rows


def class_gains(stored: Stored, layer: str, over: str) -> dict[int, Values]:
    """Number of classes -> (S,) the gain of learned whitening that is fitted on so many, in points."""
    gains = {}
    for count in sorted({row.classes for row in stored.select(PRETRAINED, part="classes")}):
        of: dict[str, object] = {"part": "classes", "layer": layer, "classes": count}
        learned = stored.each(PRETRAINED, map=LEARNED, **of)
        raw = stored.each(PRETRAINED, part="maps", layer=layer, map=RAW)
        gains[count] = learned - (raw if over == RAW else stored.each(PRETRAINED, map=HALF, **of))
    return gains


def wins_from(gains: Mapping[int, Values]) -> str:
    """The number of classes from which on every interval of the mean lies above 0."""
    lows = {count: interval.low if (interval := mean_interval(each)) else -np.inf for count, each in gains.items()}
    winning = [count for count in lows if all(low > 0 for more, low in lows.items() if more >= count)]
    return str(min(winning)) if winning else "none"


def classes_table(stored: Stored) -> list[list[str]]:
    """The gain by the number of classes, over partial whitening and over the raw layer."""
    each = {
        (layer, over): class_gains(stored, layer, over) for layer in stored.layers(PRETRAINED) for over in (HALF, RAW)
    }
    counts = list(next(iter(each.values())))
    rows = [["layer", "over", *map(str, counts), "wins from"]]
    for (layer, over), gains in each.items():
        cells = [shown(gains[count], sign=True) for count in counts]
        rows.append([f"`{layer}`" if over == HALF else "", over, *cells, wins_from(gains)])
    return rows


def against_tuning_table(stored: Stored) -> list[list[str]]:
    """The fine-tuned networks less learned whitening of the pretrained one, on the same test classes."""
    of: dict[str, object] = {"layer": "blocks.5.0", "map": LEARNED}
    pretrained = {
        "280 classes": stored.each(PRETRAINED, part="classes", classes=280, **of),
        "350 classes": stored.each(PRETRAINED, part="maps", **of),
        "350 classes, all layers": fusions(stored, PRETRAINED, "train")[ALL],
    }
    heads = [f"- pretrained, {called} ({each.mean():.1f})" for called, each in pretrained.items()]
    rows = [["fine-tuned network", "layer", "map", "R@1", *heads]]
    for network, embedding in {"emoji-fc6": "fc6", "emoji-output": "output"}.items():
        for layer, name, split in (
            (embedding, RAW, "train"),
            ("blocks.6.0", RAW, "train"),
            ("blocks.5.0", LEARNED, "train"),
            ("blocks.5.0", LEARNED, "validation"),
        ):
            tuned = stored.each(network, part="maps", fitted=split, layer=layer, map=name)
            called = name if name == RAW else f"{name}, {split}"
            less = [shown(tuned - each, sign=True) for each in pretrained.values()]
            rows.append([NETWORKS[network], f"`{layer}`", called, f"{tuned.mean():.1f}", *less])
    return rows


def draw_classes(stored: Stored) -> bytes:
    """The gain by the number of classes, a panel for each map that it is over, as a PNG."""
    layers = stored.layers(PRETRAINED)
    figure, panels = make_panels(
        [f"over {over}" for over in (HALF, RAW)],
        PanelLayout(width=3.4, height=2.6, right=0.25, notes=[FIGURE_NOTE], key=0.25),
    )
    drawn = styles(layers)
    for axes, over in zip(panels, (HALF, RAW), strict=True):
        for place, layer in enumerate(layers):
            gains = class_gains(stored, layer, over)
            means = np.array([each.mean() for each in gains.values()])
            ends = [mean_interval(each) for each in gains.values()]
            reach = [0.0 if end is None else end.high - mean for end, mean in zip(ends, means.tolist(), strict=True)]
            x = np.array(list(gains)) * 1.03 ** (place - (len(layers) - 1) / 2)  # side by side
            line = axes.errorbar(x, means, reach, linewidth=1.4, elinewidth=0.8, markersize=4.5)
            line.lines[0].set(color=drawn[layer].colour, marker=drawn[layer].marker)
            for bar in line.lines[2]:
                bar.set_color(drawn[layer].colour)
        axes.axhline(0, color="0.55", linewidth=1, linestyle=":", zorder=1)
        axes.set_xscale("log")
        ticks = [count for count in gains if count != 280]  # beside 350 there is no room
        axes.set_xticks(ticks, [str(count) for count in ticks])
        axes.minorticks_off()
        axes.set_xlabel("classes that the map is fitted on", fontsize=FONT)
    panels[0].set_ylabel("gain in R@1 on unseen classes, points", fontsize=FONT)
    kinds = [{"color": drawn[layer].colour, "marker": drawn[layer].marker, "label": layer} for layer in layers]
    add_legend(panels[0], kinds)
    return encode_figure(figure, "png")


FIGURE_NOTE = (
    "learned whitening of frozen layers, EfficientNet-Lite0; mean over three class splits (5 draws of classes each) "
    "with its 95 % interval, Student's t"
)
TABLES: dict[str, Callable[[Stored], list[list[str]]]] = {
    "pretrained": pretrained_table,
    "fine-tuned": tuned_table,
    "against fine-tuning": against_tuning_table,
    "seen minus unseen": seen_table,
    "number of classes": classes_table,
    "controls": controls_table,
    "fusion": fusion_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description="The tables and the figure of docs/results/maps.md.")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--figure", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    stored = Stored(read_rows(arguments.file))
    for name, table in TABLES.items():
        print(f"### {name}\n\n{markdown(table(stored))}\n")
    if arguments.figure:
        arguments.figure.write_bytes(draw_classes(stored))


if __name__ == "__main__":
    main()
