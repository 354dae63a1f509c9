"""What commands print and write for six kinds of run, to compare two trees of layerprobe.

The runs: trained with validation classes, three seeds without, a frozen timm network of random weights, arrays,
`layerprobe.probe` (in memory and kept), and Watch. Every command is a fork of one process that has imported the
packages, with one thread. Times, sizes and the folder of the results are masked in texts; csv and JSON stand as they
are.

    python -m benchmarks.kept_runs OUT [--kinds trained seeds frozen arrays python watch]
    diff -r OUT_A/results OUT_B/results

PYTHONPATH says which tree of layerprobe runs. A difference that is not explained is a defect.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "COLUMNS": "120"}

import h5py  # noqa: F401 - imported before the forks
import matplotlib
import numpy as np
import torch
from torch import Tensor, nn

matplotlib.use("Agg")
MASKS = (
    (r"\d+(?:\.\d+)? (?:ms|s|min|h)\b", "TIME"),
    (r"\d[\d.,]* ?(?:kB|MB|GB)(?:/s)?\b", "SIZE"),
    (r"20\d\d-\d\d-\d\d[T ][\d:.]+(?:\+00:00|Z| UTC)?", "DATE"),
    (r"[^\n]*\d/s\b[^\n]*\n", ""),  # lines of progress
)
PLOTS = "train-vs-test curves loss learnt layers gap histograms spectrum features-2d gradient det cka dims gallery-size"
# those that need no training
PLOTS_OF_FEATURES = "train-vs-test layers gap histograms spectrum features-2d det cka dims gallery-size"
LAYERS = "c1,c3,fc6"
SMALL = (
    "net.name=lenet,net.weights=none,data.train_classes=24,data.test_classes=24,data.images_per_class=8,"
    "train.epochs=2,train.batch_size=16"
)


class Commands:
    """Runs commands and scripts in forks, each with its output in a file of the results."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.results, self.number = folder, folder / "results", 0
        self.results.mkdir(parents=True)

    def command(self, *words: str) -> None:
        """A command line; the files that it names `@file` are written among the results."""
        name = re.sub("[^A-Za-z0-9]+", "-", " ".join(words))[:80].strip("-")
        self.script(name, lambda: _main(words))

    def script(self, name: str, function: Callable[[], object]) -> None:
        """A function, which prints."""
        self.number += 1
        path = self.results / f"{self.number:03d}-{name}.txt"
        child = os.fork()
        if child == 0:
            _run(function, path)
        _, status = os.waitpid(child, 0)
        text = path.read_text(encoding="utf-8", errors="replace").replace(str(self.folder), "FOLDER")
        for pattern, mask in MASKS:
            text = re.sub(pattern, mask, text)
        path.write_text(f"{text}\nexit {os.waitstatus_to_exitcode(status)}\n", encoding="utf-8")

    def keep(self, *files: Path) -> None:
        """Copy files of runs to the results."""
        for file in files:
            if file.exists():
                target = self.results / "files" / file.relative_to(self.folder)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def _main(words: Sequence[str]) -> None:
    from layerprobe.__main__ import main

    sys.argv = ["layerprobe", *words]
    main()


def _run(function: Callable[[], object], path: Path) -> None:
    code = 1
    with path.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    try:
        torch.set_num_threads(1)
        function()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # the child must not return to the parent's loop
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def settings(text: str) -> list[str]:
    """Words `--set KEY=VALUE` of settings separated by commas."""
    return [word for setting in text.split(",") for word in ("--set", setting)]


def verbs(commands: Commands, run: str) -> None:
    """Every command that reads a run."""
    run_command = commands.command
    for words in (
        "summary {0}", "summary {0} --json", "choose {0}", "choose {0} --json", "choose {0} --layers fc6/*,c1 --json",
        "choose {0} --metric MAP@R --json", "compare {0}:c3 {0}:fc6", "compare {0}:c3 {0}:fc6 --json",
        "compare {0}:c3 {0}:fc6 --interval redraw --json", "threshold {0}", "threshold {0} --json",
        "report {0} --out report.html", "runs", "explain {0} --layers c3,fc6",
        "export {0} --layer c3 --out exported-{0}", "export {0} --force --out exported-{0}",
    ):  # fmt: skip
        run_command(*words.format(run).split())
    for plot in PLOTS.split():
        run_command("plot", plot, run, "--csv", f"{run}-{plot}.csv", "--out", f"{run}-{plot}.png")
    run_command("plot", "panels", run, "--csv", f"{run}-panels.csv", "--out", f"{run}-panels.png")
    run_command("plot", "recall-at-k", run, "--csv", f"{run}-recall-at-k.csv", "--out", f"{run}-recall-at-k.png")
    commands.keep(Path(f"cache/{run}/scores.csv").absolute(), *sorted(Path.cwd().glob(f"{run}-*.csv")))
    commands.keep(*sorted(Path(f"exported-{run}").absolute().glob("export.json")))
    with contextlib.suppress(OSError):
        shutil.rmtree(f"exported-{run}")


def trained(commands: Commands) -> None:
    """A training with validation classes and post-processing."""
    words = ["train", "quick", "--run", "trained", *settings(SMALL), "--set", "data.validation_classes=0.34"]
    commands.command(*words)
    probe = ["--layers", LAYERS, "--post", "none,l2+pca:16+l2,l2+whiten:16:0.5+l2,binary", "--metrics", "MAP@R,NMI"]
    commands.command("probe", "trained", *probe)
    commands.command("probe", "trained", *probe)
    verbs(commands, "trained")
    commands.command("export", "trained", "--layer", "fc6/l2+pca:16+l2", "--out", "exported-post-processed")


def seeds(commands: Commands) -> None:
    """Three trainings of one recipe without validation classes."""
    for seed in range(3):
        commands.command("train", "quick", "--run", f"seed{seed}", *settings(SMALL), "--set", f"train.seed={seed}")
        commands.command("probe", f"seed{seed}", "--layers", "*")
    names = ["seed0", "seed1", "seed2"]
    commands.command("choose", *names)
    commands.command("choose", *names, "--json")
    for further in ([], ["--json"], ["--seeds", "--json"], ["--seeds"], ["--seeds", "--interval", "redraw", "--json"]):
        commands.command("compare", "seed0:c3", "seed0:fc6", *further)
    for plot in ("layers", "curves", "train-vs-test", "gap", "recall-at-k", "dims"):
        commands.command("plot", plot, *names, "--csv", f"seeds-{plot}.csv", "--out", f"seeds-{plot}.png")
    commands.command("plot", "over-key", *names, "--key", "train.seed", "--csv", "seeds-over-key.csv", "--out", "o.png")
    commands.command("report", *names, "--out", "seeds.html")
    commands.keep(*sorted(Path.cwd().glob("seeds-*.csv")), Path("cache/seed1/scores.csv").absolute())


def frozen(commands: Commands) -> None:
    """A frozen timm network of random weights on a folder of images with train and test classes."""
    import timm
    from PIL import Image

    torch.manual_seed(0)
    torch.save(timm.create_model("resnet10t").state_dict(), "resnet10t.pth")
    rng = np.random.default_rng(0)
    for number in range(30):
        folder = Path("images", f"class{number:02d}")
        folder.mkdir(parents=True)
        pattern = rng.random((6, 6, 3))
        for image in range(6):
            noisy = np.clip(pattern + rng.normal(0, 0.25, pattern.shape), 0, 1)
            Image.fromarray((noisy * 255).astype(np.uint8)).resize((48, 48)).save(folder / f"{image}.png")
    model = ["--model", "timm:resnet10t", "--weights", "resnet10t.pth", "--data", "folder:images"]
    small = ["--set", "data.image_size=64"]
    commands.command("choose", *model, *small, "--run", "frozen", "--layers", "layer1.0,layer2.0,layer3.0,output")
    commands.command("choose", *model, *small, "--run", "frozen", "--json")
    commands.command("choose", *model, *small, "--run", "unseen", "--not-trained-on-these")
    commands.command("probe", "frozen", "--layers", "layer2.0,layer3.0+output,output", "--post", "none,l2+pca:8+l2")
    for words in (
        "summary frozen", "choose frozen --json", "choose frozen --index flat,ivfpq --json", "threshold frozen --json",
        "compare frozen:layer2.0 frozen:output --json", "report frozen --out frozen.html", "explain frozen",
        "export frozen --out exported-frozen", "runs",
    ):  # fmt: skip
        commands.command(*words.split())
    for plot in (*PLOTS_OF_FEATURES.split(), "panels"):
        commands.command("plot", plot, "frozen", "--csv", f"frozen-{plot}.csv", "--out", f"frozen-{plot}.png")
    files = [Path("cache/frozen/scores.csv"), Path("cache/unseen/scores.csv"), *sorted(Path().glob("frozen-*.csv"))]
    commands.keep(*(path.absolute() for path in files), Path("exported-frozen/export.json").absolute())


def _features() -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Three layers of 60 classes of 6 rows, with their labels and splits."""
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(60), 6)
    classes = rng.normal(size=(60, 24))[labels]
    noise = {"early": 2.5, "middle": 1.0, "late": 1.4}
    layers = {name: (classes + rng.normal(size=classes.shape) * n).astype(np.float32) for name, n in noise.items()}
    layers["late"] = np.concatenate([layers["late"], rng.normal(size=(360, 40)).astype(np.float32)], 1)
    return layers, labels, np.where(labels < 25, "train", np.where(labels < 35, "validation", "test"))


def arrays(commands: Commands) -> None:
    """Files and arrays of one's own features."""
    import layerprobe

    layers, labels, splits = _features()
    clusters = labels // 3
    np.savez("all.npz", labels=labels, **layers)
    np.savez("splits.npz", labels=labels, split=splits, **layers)
    two = np.where(splits == "validation", "test", splits)
    np.savez("two.npz", labels=labels, split=two, **layers)
    np.savez("collapsed.npz", labels=labels, **layers, constant=np.ones((360, 4), np.float32))
    for name in ("all", "splits", "two", "collapsed"):
        for words in ("choose {}.npz", "choose {}.npz --json", "threshold {}.npz --json"):
            commands.command(*words.format(name).split())
        commands.command("export", f"{name}.npz", "--out", f"exported-{name}")
        commands.keep(Path(f"exported-{name}/export.json").absolute())
    commands.command("choose", "two.npz", "--not-trained-on-these", "--json")
    commands.command("choose", "all.npz", "--metric", "MAP@R", "--json")
    commands.command("choose", "all.npz", "--layers", "mid*,late", "--json")
    commands.command("choose", "all.npz", "--index", "flat,ivfpq", "--json")
    for name, given in (("none", {}), ("splits", {"splits": splits}), ("two", {"splits": two}),
                        ("unseen", {"splits": two, "seen": False}), ("clusters", {"clusters": clusters})):  # fmt: skip

        def chosen(given: dict[str, Any] = given) -> None:
            choice = layerprobe.choose(layers, labels, **given)
            print(choice)
            print(repr(choice))

        commands.script(f"choose-dict-{name}", chosen)


def _loaders() -> dict[str, list[tuple[Tensor, Tensor]]]:
    generator = torch.Generator().manual_seed(0)
    patterns = torch.rand(40, 3, 12, 12, generator=generator)
    loaders = {}
    for split, classes in (("train", range(16)), ("validation", range(16, 24)), ("test", range(24, 40))):
        labels = torch.tensor(list(classes)).repeat_interleave(6)
        images = patterns[labels] + 0.25 * torch.randn(len(labels), 3, 12, 12, generator=generator)
        loaders[split] = list(zip(images.split(20), labels.split(20), strict=True))
    return loaders


def _network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16, 12))


def python(commands: Commands) -> None:
    """layerprobe.probe in memory and kept, with every method of its result."""
    import layerprobe
    from layerprobe.system.errors import LayerprobeError

    def probed(cache: str | None, splits: Sequence[str]) -> None:
        loaders = {name: loader for name, loader in _loaders().items() if name in splits}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            post = ["none", "binary"] + (["l2+pca:4+l2"] if "train" in splits else [])
            result = layerprobe.probe(
                _network(), loaders, layers="1,3,4+5,output", post=post, metrics=["MAP@R"], cache=cache
            )
            print(result, result.table(), result.frame().to_csv(), sep="\n")
            choice = result.choose()
            print(choice, repr(choice), result.choose(seen=False, metric="MAP@R"), sep="\n")
            print(result.compare("3@avg", "output"), repr(result.compare("3@avg", "output", metric="MAP@R")))
            name = f"{'kept' if cache else 'memory'}-{'-'.join(splits)}"
            result.report(f"{name}.html")
            for plot in (*PLOTS_OF_FEATURES.split(), "recall-at-k"):
                try:
                    result.plot(plot).savefig(f"{name}-{plot}.png")
                    print(plot, "drawn")
                except LayerprobeError as error:
                    print(plot, type(error).__name__, error)
            print({key: float(np.asarray(value, np.float64).sum()) for key, value in result.features.items()})
        print(*(warning.message for warning in told), sep="\n")

    for splits in (("train", "validation", "test"), ("train", "test"), ("test",)):
        for cache in (None, "cache"):
            commands.script(f"probe-{'-'.join(splits)}-{cache}", lambda c=cache, s=splits: probed(c, s))  # type: ignore[misc]
    for run in sorted(Path("cache").glob("Sequential-*")):
        for words in (
            "summary {}",
            "choose {} --json",
            "compare {}:3@avg {}:output --json",
            "report {} --out kept.html",
        ):
            commands.command(*words.replace("{}", run.name).split())
        for plot in ["layers", "histograms", "det", "cka", "dims", "gallery-size"]:
            commands.command("plot", plot, run.name, "--csv", f"{run.name}-{plot}.csv", "--out", "kept.png")
        commands.keep(
            (run / "scores.csv").absolute(), *(p.absolute() for p in sorted(Path().glob(f"{run.name}-*.csv")))
        )


def watch(commands: Commands) -> None:
    """Watch in a loop of one's own."""
    import layerprobe

    def watched() -> None:
        loaders, network = _loaders(), _network()
        watch = layerprobe.Watch(loaders, layers="1,3,output", name="watched", share=None)
        optimizer = torch.optim.SGD(network.parameters(), 0.05)
        print(watch(network, 0))
        for epoch in (1, 2):
            for images, labels in loaders["train"]:
                optimizer.zero_grad()
                nn.functional.cross_entropy(network(images)[:, :12], labels % 12).backward()
                optimizer.step()
            print(watch(network, epoch))
        watch.close()

    commands.script("watch", watched)
    for words in (
        "summary watched", "choose watched --json", "compare watched:1@avg watched:output --json",
        "plot curves watched --csv watched-curves.csv", "plot gap watched --csv watched-gap.csv",
        "plot train-vs-test watched --csv watched-tvt.csv", "report watched --out watched.html", "runs",
    ):  # fmt: skip
        commands.command(*words.split())
    commands.keep(
        Path("cache/watched/scores.csv").absolute(), *(p.absolute() for p in sorted(Path().glob("watched-*.csv")))
    )


KINDS = {"trained": trained, "seeds": seeds, "frozen": frozen, "arrays": arrays, "python": python, "watch": watch}


def main() -> None:
    """Make the runs of the kinds, each in a folder of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    import layerprobe.cli  # noqa: F401 - before the forks

    for kind in arguments.kinds:
        folder = (arguments.out / kind).absolute()
        folder.mkdir(parents=True)
        os.chdir(folder)
        commands = Commands(folder)
        KINDS[kind](commands)
        target = arguments.out.absolute() / "results" / kind
        target.parent.mkdir(exist_ok=True)
        shutil.copytree(folder / "results", target)


if __name__ == "__main__":
    main()
