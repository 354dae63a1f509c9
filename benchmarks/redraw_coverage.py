"""Whether the intervals of `--interval redraw` cover: simulated draws of classes, and real halves of them.

    python benchmarks/redraw_coverage.py simulated [--sets N] [--units N,...]
    python benchmarks/redraw_coverage.py halves FEATURES.npz [FEATURES.npz ...] [--draws N]

`simulated`: each set is a new draw of classes, 4 to 12 images each, of class centres and noise in 16 dimensions, ranked
anew. Two layers see the same classes and images, each with noise of its own, so that their expected recalls are equal.
`even`: every class has the same noise; `uneven`: noise of a class e^N(0, 0.4); `clusters`: three classes around each
centre of a cluster, which is the unit that is left out. Told are the shares of the sets whose interval covers the mean
of all sets, how often a difference of the two layers is called one (p < 0.05), and both for Tukey's jackknife, from
which nothing is taken off.

`halves`: FEATURES.npz has `features` (N, D), or `first` and `second` of two layers, and `labels` (N,). A random half of
the classes is drawn and set against the other half, each with its own gallery. Halves that have no class in common are
two independent draws from all classes there could be, so that the variance of A - B is the sum of both variances: told
is how often the interval of A - B from the two variances holds 0, and how the variance seen compares with the
jackknife's and with that of resampling queries in a fixed gallery.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from layerprobe import nearest_positive_ranks
from layerprobe.ranking.left_out import left_out_recall
from layerprobe.statistics.jackknife import jackknife, jackknife_intervals

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
DIM, KS = 16, (1, 8)
SPREAD = 0.9  # of the centres


def main() -> None:
    parser = argparse.ArgumentParser(description="Whether the intervals of --interval redraw cover.")
    commands = parser.add_subparsers(dest="command", required=True)
    simulated = commands.add_parser("simulated")
    simulated.add_argument("--sets", type=int, default=1000)
    simulated.add_argument("--units", default="10,20,60,200")
    simulated.add_argument("--kinds", default="even,uneven,clusters")
    halves = commands.add_parser("halves")
    halves.add_argument("files", nargs="+")
    halves.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.command == "simulated":
        print("kind      units  metric  recall  covered  (jackknife)   null rejected  (jackknife)", flush=True)
        for units in map(int, arguments.units.split(",")):
            for kind in arguments.kinds.split(","):
                for row in simulate(kind, units, arguments.sets):
                    print(row, flush=True)
        return
    print(
        "file, layer               metric  recall  held 0  var / jackknife's  / corrected  / gallery fixed", flush=True
    )
    for file in arguments.files:
        with np.load(file) as loaded:
            names = [name for name in ("features", "first", "second") if name in loaded]
            layers, labels = {name: loaded[name] for name in names}, loaded["labels"].astype(np.int64)
        for row in halve(layers, labels, arguments.draws):
            print(f"{Path(file).stem} {row}", flush=True)


def drawn(kind: str, units: int, rng: np.random.Generator) -> tuple[Array, Array, Labels, Labels]:
    """Two layers (N, D), classes (N,) and units (N,) of one draw."""
    classes = units * 3 if kind == "clusters" else units
    labels = np.repeat(np.arange(classes), rng.integers(4, 13, classes))
    around = np.zeros((classes, DIM))
    if kind == "clusters":
        around = 0.7 * SPREAD * rng.normal(size=(units, DIM))[np.arange(classes) // 3]
    centres, noise = SPREAD * rng.normal(size=(3, classes, DIM)), rng.normal(size=(3, len(labels), DIM))
    scale = np.exp(rng.normal(0, 0.4, classes))[labels, None] if kind == "uneven" else 1.0
    # Of a class's place the layers share 80 % of the variance, of an image's noise half.
    first, second = (
        (around + np.sqrt(0.8) * centres[0] + np.sqrt(0.2) * centres[own])[labels]
        + scale * np.sqrt(0.5) * (noise[0] + noise[own])
        for own in (1, 2)
    )
    return first, second, labels, labels // 3 if kind == "clusters" else labels


def simulate(kind: str, units: int, sets: int) -> list[str]:
    """A row of the table for each K."""
    rng = np.random.default_rng(units)
    values, plain = np.empty((sets, 2, len(KS))), np.empty((sets, 2, len(KS)))
    ends = np.empty((sets, len(KS), 2))
    rejected = np.empty((sets, len(KS)))
    for row in range(sets):
        *layers, labels, members = drawn(kind, units, rng)
        tables = [left_out_recall(layer, labels, members, ks=KS, similarity="euclidean") for layer in layers]
        for place, layer in enumerate(layers):
            ranks = nearest_positive_ranks(layer, labels, similarity="euclidean")
            values[row, place] = [ranks.recall(k) for k in KS]
        plain[row] = tukey(tables[0]), tukey(tables[0] - tables[1])
        found = jackknife_intervals(values[row, 0], tables[0])
        ends[row] = [(end.low, end.high) if end else (np.nan, np.nan) for end in found]
        compared = jackknife(values[row, 0] - values[row, 1], tables[0] - tables[1])
        rejected[row] = [difference.p is not None and difference.p < 0.05 for difference in compared]
    t = stdtrit(units - 1, 0.975)
    truth = values[:, 0].mean(0)
    there = ~np.isnan(ends[..., 0])
    covered = ((ends[..., 0] <= truth) & (truth <= ends[..., 1])).sum(0) / there.sum(0)
    by_tukey = (np.abs(values[:, 0] - truth) <= t * np.sqrt(plain[:, 0])).mean(0)
    differences = np.abs(values[:, 0] - values[:, 1])
    rejected_by_tukey = (differences > t * np.sqrt(plain[:, 1])).mean(0)
    return [
        f"{kind:<10}{units:>5}  R@{k:<6}{100 * truth[i]:5.1f}{100 * covered[i]:9.1f}{100 * by_tukey[i]:11.1f}"
        f"{100 * rejected[:, i].mean():16.1f}{100 * rejected_by_tukey[i]:13.1f}"
        for i, k in enumerate(KS)
    ]


def tukey(tables: Array) -> Array:
    """(K,) jackknife variances of tables (K, U, U), from which nothing is taken off."""
    without = tables.sum(2)
    units = without.shape[1]
    variances: Array = (units - 1) / units * np.square(without - without.mean(1, keepdims=True)).sum(1)
    return variances


def halve(layers: dict[str, Array], labels: Labels, draws: int) -> list[str]:
    """A row of the table for each layer, and for the difference of two, at each K."""
    rng, classes = np.random.default_rng(0), np.unique(labels)
    found: dict[str, list[list[tuple[Array, Array, Array, Array]]]] = {}
    for _ in range(draws):
        order = rng.permutation(classes)
        size = len(classes) // 2
        sides: dict[str, list[tuple[Array, Array, Array, Array]]] = {}
        for half in (order[:size], order[size : 2 * size]):
            for name, measured in half_of(layers, labels, half).items():
                sides.setdefault(name, []).append(measured)
        for name, both in sides.items():
            found.setdefault(name, []).append(both)
    rows = []
    t = stdtrit(2 * (len(classes) // 2 - 1), 0.975)
    for name, all_draws in found.items():
        values, plain, corrected, fixed = (
            np.array([[side[i] for side in both] for both in all_draws]) for i in range(4)
        )
        gaps = values[:, 0] - values[:, 1]
        held = (np.abs(gaps) <= t * np.sqrt(corrected.sum(1))).mean(0)
        seen = np.square(gaps).mean(0) / 2
        rows += [
            f"{name:<20} R@{k:<5} {100 * values[..., i].mean():5.1f} {100 * held[i]:8.1f} "
            f"{seen[i] / plain[..., i].mean():12.2f} {seen[i] / corrected[..., i].mean():16.2f} "
            f"{seen[i] / fixed[..., i].mean():12.2f}"
            for i, k in enumerate(KS)
        ]
    return rows


def half_of(layers: dict[str, Array], labels: Labels, half: Labels) -> dict[str, tuple[Array, Array, Array, Array]]:
    """Of each layer, and of two layers' difference: values (K,), and variances (K,) three ways."""
    there = np.isin(labels, half)
    members = np.unique(labels[there], return_inverse=True)[1]
    hits, tables = {}, {}
    for name, layer in layers.items():
        ranks = nearest_positive_ranks(layer[there], members)
        hits[name] = np.array([ranks.hits(k) for k in KS])
        tables[name] = left_out_recall(layer[there], members, members, ks=KS)
    if {"first", "second"} <= layers.keys():
        hits["first - second"] = hits["first"] - hits["second"]
        tables["first - second"] = tables["first"] - tables["second"]
    return {
        name: (hits[name].mean(1), tukey(table), variances(table), fixed(hits[name], members))
        for name, table in tables.items()
    }


def variances(tables: Array) -> Array:
    """(K,) variances that the intervals are made from."""
    t = stdtrit(tables.shape[1] - 1, 0.975)
    found = jackknife(np.zeros(len(tables)), tables)
    return np.array([np.nan if end.high is None else (end.high / t) ** 2 for end in found])


def fixed(hits: Array, members: Labels) -> Array:
    """(K,) variances of means of values (K, Q) over draws of classes, in a gallery that stays."""
    counts = np.bincount(members)
    left = np.array([np.bincount(members, row) - counts * row.mean() for row in hits])
    units = len(counts)
    found: Array = np.square(left).sum(1) / len(members) ** 2 * units / (units - 1)
    return found


if __name__ == "__main__":
    main()
