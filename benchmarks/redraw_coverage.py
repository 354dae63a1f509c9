"""Whether the intervals of `compare --interval redraw` cover: simulated draws of classes, and real halves of them.

    python benchmarks/redraw_coverage.py simulated [--sets N] [--units N,...]
    python benchmarks/redraw_coverage.py halves FEATURES.npz [FEATURES.npz ...] [--draws N]

`simulated`: each set is a new draw of classes, 4 to 12 images each, of class centres and noise in 16 dimensions, ranked
anew. Two layers see the same classes and images, each with noise of its own, so that their expected recalls are equal.
`even`: every class has the same noise; `uneven`: noise of a class e^N(0, 0.4); `clusters`: three classes around each
centre of a cluster, which is the unit that is left out; `lognormal` and `pareto`: even noise, and classes of
6 e^N(0, 1) or 3 (1 + Pareto(1.2)) images, 2 to 300. Printed are the effective number of units, the recall of the first
layer, and how often the two layers are called different (p < 0.05: the interval of the difference leaves out 0); beside
it the same by Tukey's jackknife, from which nothing is taken off, with U - 1 degrees of freedom.

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
from layerprobe.statistics.jackknife import jackknife
from layerprobe.statistics.units import effective_number

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
    simulated.add_argument("--kinds", default="even,uneven,clusters,lognormal,pareto")
    halves = commands.add_parser("halves")
    halves.add_argument("files", nargs="+")
    halves.add_argument("--draws", type=int, default=200)
    arguments = parser.parse_args()
    if arguments.command == "simulated":
        print("kind      units  effective  metric  recall  told apart  (jackknife)", flush=True)
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
    labels = np.repeat(np.arange(classes), sizes(kind, classes, rng))
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


def sizes(kind: str, classes: int, rng: np.random.Generator) -> Labels:
    """(classes,) numbers of images."""
    if kind == "lognormal":
        drawn_sizes = 6 * np.exp(rng.standard_normal(classes))
    elif kind == "pareto":
        drawn_sizes = 3 * (1 + rng.pareto(1.2, classes))
    else:
        return rng.integers(4, 13, classes)
    return np.clip(np.round(drawn_sizes), 2, 300).astype(np.int64)


def simulate(kind: str, units: int, sets: int) -> list[str]:
    """A row of the table for each K."""
    rng = np.random.default_rng(units)
    values, plain = np.empty((sets, 2, len(KS))), np.empty((sets, len(KS)))
    rejected, effective = np.empty((sets, len(KS))), np.empty(sets)
    for row in range(sets):
        *layers, labels, members = drawn(kind, units, rng)
        tables = [left_out_recall(layer, labels, members, ks=KS, similarity="euclidean") for layer in layers]
        for place, layer in enumerate(layers):
            ranks = nearest_positive_ranks(layer, labels, similarity="euclidean")
            values[row, place] = [ranks.recall(k) for k in KS]
        plain[row] = tukey(tables[0] - tables[1])
        queries = np.bincount(members).astype(np.float64)
        effective[row] = effective_number(queries)
        compared = jackknife(values[row, 0] - values[row, 1], tables[0] - tables[1], np.tile(queries, (len(KS), 1)))
        rejected[row] = [difference.p is not None and difference.p < 0.05 for difference in compared]
    differences = np.abs(values[:, 0] - values[:, 1])
    rejected_by_tukey = (differences > stdtrit(units - 1, 0.975) * np.sqrt(plain)).mean(0)
    return [
        f"{kind:<10}{units:>5}{effective.mean():11.1f}  R@{k:<6}{100 * values[:, 0, i].mean():5.1f}"
        f"{100 * rejected[:, i].mean():12.1f}{100 * rejected_by_tukey[i]:13.1f}"
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
        name: (hits[name].mean(1), tukey(table), variances(table, np.bincount(members)), fixed(hits[name], members))
        for name, table in tables.items()
    }


def variances(tables: Array, queries: Labels) -> Array:
    """(K,) variances that the intervals are made from."""
    t = stdtrit(max(effective_number(queries.astype(np.float64)) - 1, 1.0), 0.975)
    intervals = jackknife(np.zeros(len(tables)), tables, np.tile(queries, (len(tables), 1)))
    return np.array([np.nan if end.high is None else (end.high / t) ** 2 for end in intervals])


def fixed(hits: Array, members: Labels) -> Array:
    """(K,) variances of means of values (K, Q) over draws of classes, in a gallery that stays."""
    counts = np.bincount(members)
    left = np.array([np.bincount(members, row) - counts * row.mean() for row in hits])
    units = len(counts)
    found: Array = np.square(left).sum(1) / len(members) ** 2 * units / (units - 1)
    return found


if __name__ == "__main__":
    main()
