"""What groups and lists cost a ranking: 20,000 vectors of 256 numbers, searched among themselves.

    python benchmarks/search_rules.py [--items N] [--repeats N]

CPU seconds of one thread, and their ratio to the ranking by class alone; medians, the searches in turn. The listed
positives are the items of each query's class, so that its counts must be those by class: they are compared.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from layerprobe import nearest_positive_ranks
from layerprobe.values.retrieval import Ranks, SearchRules

DIM, PER_CLASS, GROUPS, LISTED = 256, 10, 6, 10


def main() -> None:
    parser = argparse.ArgumentParser(description="What groups and lists cost a ranking.")
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    rng, n = np.random.default_rng(0), arguments.items
    labels = np.arange(n) // PER_CLASS
    features = rng.standard_normal((n // PER_CLASS + 1, DIM), dtype=np.float32)[labels]
    features += 1.5 * rng.standard_normal((n, DIM), dtype=np.float32)
    rows = np.repeat(np.arange(n), PER_CLASS)
    same = rows // PER_CLASS * PER_CLASS + np.tile(np.arange(PER_CLASS), n)
    rules = {
        "class alone": None,
        "groups": SearchRules(groups=rng.integers(GROUPS, size=n)),
        "ignored": SearchRules(ignored=np.unique(rng.integers(n, size=(LISTED * n, 2)), axis=0)),
        "positives": SearchRules(positives=np.stack([rows, same], 1)[same < n]),
    }
    nearest_positive_ranks(features[:500], labels[:500])
    took: dict[str, list[float]] = {name: [] for name in rules}
    found: dict[str, Ranks] = {}
    for _ in range(arguments.repeats):
        for name, rule in rules.items():
            before = time.process_time()
            found[name] = nearest_positive_ranks(features, labels, rules=rule)
            took[name].append(time.process_time() - before)
    medians = {name: statistics.median(seconds) for name, seconds in took.items()}
    for name, seconds in medians.items():
        print(f"{name:<12}{seconds:8.2f} s{seconds / medians['class alone']:8.2f} x")
    by_class, by_list = found["class alone"], found["positives"]
    if not all((getattr(by_class, field) == getattr(by_list, field)).all() for field in ("closer", "tied_positives")):
        raise SystemExit("the listed positives give other counts than the classes")


if __name__ == "__main__":
    main()
