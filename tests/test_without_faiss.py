"""Everything but indexes works where faiss is not installed."""

from __future__ import annotations

import json
from pathlib import Path

from layerprobe.values.scores import read_scores
from tests.processes import run_python

RECIPE = """# tiny: a run of seconds
[data]
name = "glyphs"
train_classes = 8
test_classes = 4
validation_classes = 0.5
images_per_class = 4
image_size = 28
[net]
name = "lenet"
fc = [8]
[loss]
name = "smooth_triplet"
[train]
epochs = 1
batch_size = 8
images_per_class = 2
[probe]
layers = ["c3", "fc6"]
metrics = ["kNN@10", "two-nn"]
k = [1]
"""
COMMANDS = (
    "train tiny.toml",
    "probe tiny",
    "choose tiny",
    "plot panels tiny",
    "summary tiny",
    "report tiny",
)
# Runs the command lines one after the other and prints their exit codes.
PROGRAM = """
import json, os, sys
sys.modules["faiss"] = None
from layerprobe.cli import main
codes, out = [], sys.stdout
sys.stdout = open(os.devnull, "w")
for line in sys.argv[1:]:
    sys.argv = ["layerprobe", *line.split()]
    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code)
print(json.dumps(codes), file=out)
"""


def test_without_faiss_only_indexes_fail(tmp_path: Path) -> None:
    (tmp_path / "tiny.toml").write_text(RECIPE)
    lines = [*COMMANDS, "choose tiny --index flat", "export tiny --index flat --out o"]
    done = run_python(PROGRAM, *lines, folder=tmp_path)
    assert json.loads(done.stdout) == [0] * len(COMMANDS) + [5, 5], done.stderr
    fix = "pip install faiss-cpu, unless faiss-gpu or faiss-gpu-cuvs is there; only indexes need faiss."
    assert done.stderr.splitlines()[-1].startswith("error: faiss cannot be imported (")
    assert done.stderr.splitlines()[-1].endswith(fix)
    assert not (tmp_path / "o").exists()
    scores = read_scores(tmp_path / "cache" / "tiny" / "scores.csv")
    assert {score.metric for score in scores if score.value is not None} >= {"R@1", "kNN@10", "two-nn"}
    assert (tmp_path / "cache" / "tiny" / "report.html").stat().st_size > 10_000
