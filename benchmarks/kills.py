"""Kills at random: is anything lost, or left over, once the same command has run again?

A small network is trained, probed, chosen from, reported and drawn, round after round. Each command is killed (SIGKILL,
with its data workers) and then run again to its end. Half of the kills come at a random time of the command; the others
when a random one of its temporary files appears, so that a half written file is left. Afterwards

- no file that was there before the kill is gone or half: checkpoints are as they were, and a page or figure beside
  `--out` is the old or the new one;
- after the second run checkpoints, scores, the choice and the numbers drawn are those of commands that nobody killed;
- no temporary file is left, in the run or beside `--out`.

An export that replaces one (`export --force`) is killed between its two renames, when no folder has the name: the old
one must be whole beside it, and be back when the next export has begun.

    python benchmarks/kills.py [--kills 100] [--seed 0] [--folder DIR] [--command NAME]

A hundred kills take about half an hour. The exit code is 1 if one of them shows a fault.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

TRAIN = (
    "train quick --run m --set net.name=lenet --set data.image_size=28 --set data.train_classes=20"
    " --set data.test_classes=12 --set data.images_per_class=8 --set data.validation_classes=0.3 --set train.epochs=3"
)
COMMANDS = {
    "train": TRAIN,
    "probe": "probe m --epochs all",
    "choose": "choose m",
    "report": "report m --out out/page.html",
    "plot": "plot layers m --out out/figure.pdf --csv out/figure.csv",
    "export": "export m --layer fc6 --format npz --force --out encoder",
}
TEMPORARY = re.compile(r"\..+\.\d+\.(tmp|old)|\.tmp[0-9A-Za-z]{6}")
# Runs the command line, which is killed once it has renamed the folder of an export.
KILLED_BETWEEN_RENAMES = """
import os, signal
from pathlib import Path

rename = Path.rename

def renamed(path, target):
    rename(path, target)
    if path.name == "encoder":
        os.kill(os.getpid(), signal.SIGKILL)

Path.rename = renamed
from layerprobe.__main__ import main

main()
"""
# What a whole file of `out` begins and ends with.
WHOLE = {".html": (b"<!doctype html>", b"</html>\n"), ".pdf": (b"%PDF", b"%%EOF\n"), ".csv": (b"run,", b"\n")}


def start(words: str, folder: Path, program: tuple[str, ...] = ("-m", "layerprobe")) -> subprocess.Popen[str]:
    """Start a command in a session of its own."""
    repository = str(Path(__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": repository, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *program, *words.split(), "--cache", "cache"]
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def finished(words: str, folder: Path) -> str:
    """Run a command to its end: its code and what it prints."""
    process = start(words, folder)
    out, _ = process.communicate()
    return f"{process.returncode}\n{out}"


def temporaries(folder: Path) -> set[Path]:
    """The temporary files below a folder."""
    return {path for path in folder.rglob("*") if TEMPORARY.fullmatch(path.name)}


def killed(words: str, folder: Path, *, after: float, sightings: int) -> bool:
    """Kill a command after some seconds, or when so many temporary files were seen; False where it ended before."""
    process, seen, begun = start(words, folder), set[Path](), time.monotonic()
    while process.poll() is None:
        if sightings:
            seen |= temporaries(folder)
        if len(seen) >= sightings > 0 or (not sightings and time.monotonic() - begun >= after):
            os.killpg(process.pid, signal.SIGKILL)
            break
        time.sleep(0.0005)
    process.communicate()
    return process.returncode == -signal.SIGKILL


def killed_between_renames(words: str, folder: Path, old: dict[str, str]) -> list[str]:
    """Kill an export between its renames: what is wrong with the old one then, and when the next has begun."""
    process = start(words, folder, ("-c", KILLED_BETWEEN_RENAMES))
    process.communicate()
    if process.returncode != -signal.SIGKILL:
        return ["was not killed between its renames"]
    left = [hashes(path) for path in folder.glob(".encoder.*.old")]
    faults = [] if left == [old] and not (folder / "encoder").exists() else ["the old export is not beside it"]
    # Without --force the next one ends as soon as it sees that the folder is there again.
    next_code = finished(words.replace("--force ", ""), folder).partition("\n")[0]
    is_back = next_code == "2" and hashes(folder / "encoder") == old
    return faults if is_back else [*faults, "the old export is not put back"]


def hashes(folder: Path) -> dict[str, str]:
    """The hash of each file below a folder that has its final name."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    files = [path for path in files if not TEMPORARY.fullmatch(path.name)]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def faults_of_kill(before: dict[str, str], folder: Path) -> list[str]:
    """What a kill has done to files that were there before."""
    after = hashes(folder)
    faults = [f"{name} is gone" for name in before if name not in after]
    weights = [name for name in before if name.endswith(".safetensors")]
    faults += [f"{name} has changed" for name in weights if after.get(name) != before[name]]
    for path in folder.glob("out/*"):
        if not TEMPORARY.fullmatch(path.name):
            first, last = WHOLE[path.suffix]
            content = path.read_bytes()
            faults += [] if content.startswith(first) and content.endswith(last) else [f"{path.name} is half written"]
    return faults


def results(folder: Path) -> dict[str, str]:
    """The hash of each file that has the same bytes whenever it is made."""
    return {name: value for name, value in hashes(folder).items() if re.search(r"\.safetensors$|\.csv$", name)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Kills at random.")
    parser.add_argument("--kills", type=int, default=100, help="how many")
    parser.add_argument("--seed", type=int, default=0, help="of the times of kills")
    parser.add_argument("--folder", type=Path, help="where the runs are made (default: a temporary folder)")
    parser.add_argument("--command", choices=[*COMMANDS], help="the only one that is killed, in one place")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        sys.exit(measure(Path(folder), arguments.kills, random.Random(arguments.seed), arguments.command))


def measure(folder: Path, kills: int, rng: random.Random, only: str | None = None) -> int:
    """Kill and continue; print what that showed, and return the exit code."""
    (folder / "whole").mkdir()
    seconds, printed, expected = dict[str, float](), dict[str, str](), dict[str, dict[str, str]]()
    for name, words in COMMANDS.items():
        begun = time.monotonic()
        printed[name] = finished(words, folder / "whole")
        if not printed[name].startswith("0\n"):
            sys.exit(f"layerprobe {words} failed without a kill: {printed[name]}")
        seconds[name] = time.monotonic() - begun
        expected[name] = results(folder / "whole")
    count, left_by_kills, faults = Counter[str](), 0, list[str]()
    for number in itertools.count(1):
        if count.total() == kills:
            break
        place = folder / ("whole" if only else f"round {number}")
        if not only:
            for name in ("out", "encoder"):
                shutil.copytree(folder / "whole" / name, place / name)
        for name, words in COMMANDS.items():
            if count.total() == kills:
                break
            if only not in (None, name):
                continue
            if name == "export":
                was_killed, found = True, killed_between_renames(words, place, hashes(place / "encoder"))
            else:
                before, sightings = hashes(place), rng.choice((0, rng.randint(1, 4)))
                was_killed = killed(words, place, after=rng.uniform(0, seconds[name]), sightings=sightings)
                found = faults_of_kill(before, place)
            count[name] += was_killed
            left_by_kills += len(temporaries(place))
            found += [] if finished(words, place) == printed[name] else ["prints something else"]
            found += [] if expected[name].items() <= results(place).items() else ["has other results"]
            found += [f"{path.name} is left over" for path in temporaries(place)]
            faults += [f"{place.name}, {name}: {fault}" for fault in found]
            print(f"{count.total()} {name} {'killed' if was_killed else 'ended'} {'; '.join(found)}", flush=True)
    print(f"kills: {', '.join(f'{name} {times}' for name, times in count.items())}")
    print(f"temporary files that kills left: {left_by_kills}; faults: {len(faults)}")
    print(*faults, sep="\n")
    return 1 if faults else 0


if __name__ == "__main__":
    main()
