from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from layerprobe.ranking import nearest_positive_ranks
from layerprobe.values.retrieval import SearchRules

# What each of two processes runs: it knows its rank and shares nothing but the features and a file to meet at.
PROCESS = """
import json, sys
from dataclasses import replace
import numpy as np
import torch.distributed as dist
from layerprobe.ranking import nearest_positive_ranks, products, search
from tests.ranking.test_team import answers

rank, meeting = int(sys.argv[1]), sys.argv[2]
# Each may find another product the fastest.
search.float32 = lambda device: replace(products.float32(device), tile=(512, 768)[rank])
dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=2)
print(json.dumps(answers(dist.group.WORLD)))
dist.destroy_process_group()
"""


def answers(group: Any) -> list[list[list[int]]]:
    """Counts of queries among themselves and in a gallery: several tiles each, with ties and lone queries."""
    rng = np.random.default_rng(0)
    labels = np.append(np.arange(2999) % 700, 1000)
    features = rng.normal(size=(701, 12))[np.minimum(labels, 700)] + 0.7 * rng.normal(size=(3000, 12))
    features[::7] = features[3]
    pairs = np.unique(rng.integers(0, 3000, (5000, 2)), axis=0)
    asked: tuple[dict[str, Any], ...] = (
        {},
        {"gallery": features[1000:], "gallery_labels": labels[1000:]},
        {"resolve": (1, 4)},
        {"rules": SearchRules(groups=np.arange(3000) % 5, ignored=pairs[::2])},
        {"rules": SearchRules(positives=pairs)},
        {
            "rules": SearchRules(
                label_sets=np.array([(label, one) for label in range(1001) for one in (label, label // 3)])
            )
        },
    )
    found = []
    for keywords in asked:
        ranks = nearest_positive_ranks(features, labels, group=group, **keywords)
        found.append(
            [x.tolist() for x in (ranks.closer, ranks.closer_high, ranks.tied_negatives, ranks.tied_positives)]
        )
    return found


def test_two_processes_give_the_integers_of_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROCESS]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "meeting")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    first, second = (json.loads(process.communicate(timeout=120)[0]) for process in processes)
    assert first == second == answers(None)
