"""Several processes under torchrun: the same bytes again, kills at random, and how each fault ends.

A small network is trained for some epochs by two processes with gloo.

    python benchmarks/launches.py same [--hosts]     # two launches; with --hosts also two hosts in network namespaces
    python benchmarks/launches.py kills [--kills 20]
    python benchmarks/launches.py faults [--hosts]

- same: SHA-256 of the last checkpoint of two launches of two processes on one host and, as root, of one process on each
  of two hosts.
- kills: a random process (SIGKILL) at a random time, and the same command until it ends: SHA-256 of the last checkpoint
  beside that of an undisturbed launch.
- faults: seconds from the fault to the end of torchrun, the last process and the run's lock, what layerprobe printed,
  and whether the same command then ends with the checkpoint of an undisturbed launch.

The exit code is 1 if a checkpoint differs, a process outlives its launch, or a fault prints no message or several.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

EPOCHS = 30
TRAIN = (
    "train quick --run r --set net.name=lenet --set data.image_size=28 --set data.train_classes=20"
    " --set data.test_classes=12 --set data.images_per_class=40 --set train.batch_size=24 --set train.decay_at=[]"
    f" --set train.epochs={EPOCHS} --set train.keep=last"
)
TIMEOUT = 8.0  # seconds without a sign of life


@dataclass
class Launch:
    """A launch that has been started."""

    process: subprocess.Popen[bytes]
    output: Path
    mark: str  # in the environment of all its processes

    def ranks(self) -> dict[int, int]:
        """Rank -> process of those that live, also where torchrun has ended."""
        processes = {}
        for folder in Path("/proc").iterdir():
            with contextlib.suppress(OSError, ValueError):
                words = (folder / "environ").read_bytes().decode().split("\0")
                variables = dict(word.partition("=")[::2] for word in words)
                if variables.get("LAUNCH_MARK") == self.mark and "LOCAL_RANK" in variables:
                    processes[int(variables["RANK"])] = int(folder.name)
        return processes

    def text(self) -> str:
        """What was printed."""
        return self.output.read_text()

    def said(self) -> list[str]:
        """The lines of layerprobe that tell how it ended; the others are torchrun's."""
        return [
            line for line in self.text().splitlines() if line.startswith(("error: ", "r: stopped", "ended at once"))
        ]

    def wait_for(self, text: str) -> None:
        """Wait until a text is printed."""
        while text not in self.text():
            if self.process.poll() is not None:
                raise RuntimeError(self.text())
            time.sleep(0.05)


def start(folder: Path, command: str = TRAIN, *, host: int | None = None, timeout: float = TIMEOUT) -> Launch:
    """Start a command under torchrun, with two processes or, of two hosts, one."""
    mark = f"{random.random()}"
    environment = os.environ | {
        "PYTHONPATH": str(Path(__file__).parents[1]),
        "OMP_NUM_THREADS": "1",
        "LAYERPROBE_GROUP_TIMEOUT": f"{timeout:g}",
        "GLOO_SOCKET_IFNAME": "lo" if host is None else f"v{host}",
        "LAUNCH_MARK": mark,
    }
    inside = [] if host is None else ["ip", "netns", "exec", f"host{host}"]
    nodes = (
        ["--standalone", "--nproc-per-node", "2"]
        if host is None
        else [
            "--nnodes=2",
            "--nproc-per-node=1",
            f"--node-rank={host}",
            "--master-addr=10.77.0.1",
            "--master-port=29511",
        ]
    )
    torchrun = [*inside, sys.executable, "-m", "torch.distributed.run", *nodes, "-m", "--", "layerprobe"]
    output = folder / f"output-{mark}"
    with output.open("w") as stream:
        process = subprocess.Popen(
            [*torchrun, *command.split()],
            cwd=folder,
            env=environment,
            stdout=stream,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return Launch(process, output, mark)


def checkpoint(folder: Path) -> str:
    """SHA-256 of the last epoch's weights; empty where it is not trained."""
    path = folder / f"cache/r/checkpoints/epoch-{EPOCHS:04d}.safetensors"
    return sha256(path.read_bytes()).hexdigest() if path.exists() else ""


@contextlib.contextmanager
def new_folder() -> Iterator[Path]:
    """An empty folder."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@contextlib.contextmanager
def two_hosts() -> Iterator[None]:
    """Two network namespaces, `host0` and `host1`, with a cable between them; as root."""
    commands = [
        "ip netns add host0", "ip netns add host1", "ip link add v0 type veth peer name v1",
        "ip link set v0 netns host0", "ip link set v1 netns host1",
        "ip -n host0 addr add 10.77.0.1/24 dev v0", "ip -n host1 addr add 10.77.0.2/24 dev v1",
        *(f"ip -n host{i} link set {device} up" for i in (0, 1) for device in ("lo", f"v{i}")),
    ]  # fmt: skip
    try:
        for command in commands:
            subprocess.run(command.split(), check=True)
        yield
    finally:
        for name in ("host0", "host1"):
            subprocess.run(["ip", "netns", "del", name], check=False)


def undisturbed() -> str:
    """The checkpoint of a launch that nothing disturbs."""
    with new_folder() as folder:
        launch = start(folder)
        if launch.process.wait():
            raise RuntimeError(launch.text())
        return checkpoint(folder)


def on_two_hosts() -> str:
    """The checkpoint of one process on each of two hosts."""
    with two_hosts(), new_folder() as folder:
        launches = [start(folder, host=host) for host in (0, 1)]
        codes = [launch.process.wait() for launch in launches]
        if any(codes):
            raise RuntimeError("\n".join(launch.text() for launch in launches))
        return checkpoint(folder)


def same(hosts: bool) -> bool:
    """Print the checkpoints of several launches; whether they are one."""
    checkpoints = [undisturbed(), undisturbed()] + [on_two_hosts()] * hosts
    for name, text in zip(("2 processes", "2 processes again", "2 hosts"), checkpoints, strict=False):
        print(f"{name:20} {text}", flush=True)
    return len({*checkpoints}) == 1


def kills(count: int, seed: int) -> bool:
    """Kill processes at random, then start again; whether the checkpoint is that of an undisturbed launch."""
    wanted, random_time, killed = undisturbed(), random.Random(seed), 0
    with new_folder() as folder:
        while True:
            launch = start(folder)
            if killed < count:
                with contextlib.suppress(RuntimeError):
                    launch.wait_for("epoch")
                time.sleep(random_time.uniform(0, 1.0))
                if ranks := launch.ranks():
                    rank = random_time.choice([*ranks])
                    os.kill(ranks[rank], signal.SIGKILL)
                    killed += 1
                    epochs = sum(line.startswith("epoch ") for line in launch.text().splitlines())
            code = launch.process.wait()
            if code == 0 and killed >= count:
                break
            if code == 0:  # it had ended before: from the beginning
                if checkpoint(folder) != wanted:
                    return False
                shutil.rmtree(folder / "cache")
            else:
                print(f"kill {killed}: rank {rank} after {epochs} epochs of this start: {launch.said()}", flush=True)
        print(f"{killed} kills; the same checkpoint: {checkpoint(folder) == wanted}")
        return checkpoint(folder) == wanted


def cut(launch: Launch) -> None:  # noqa: ARG001 - as every fault
    """Take the cable out of the second host."""
    subprocess.run(["ip", "-n", "host1", "link", "set", "v1", "down"], check=True)


def to_rank(rank: int, number: int) -> Callable[[Launch], None]:
    """Sends a signal to a process."""
    return lambda launch: os.kill(launch.ranks()[rank], number)


def to_torchrun(number: int) -> Callable[[Launch], None]:
    """Sends a signal to torchrun."""
    return lambda launch: os.kill(launch.process.pid, number)


FAULTS: dict[str, Callable[[Launch], None]] = {
    "SIGKILL of rank 1": to_rank(1, signal.SIGKILL),
    "SIGKILL of rank 0": to_rank(0, signal.SIGKILL),
    "SIGSTOP of rank 1": to_rank(1, signal.SIGSTOP),
    "SIGINT of torchrun": to_torchrun(signal.SIGINT),
    "SIGTERM of torchrun": to_torchrun(signal.SIGTERM),
    "SIGKILL of torchrun": to_torchrun(signal.SIGKILL),
}


def fault(name: str, act: Callable[[Launch], None], wanted: str, *, hosts: bool = False) -> bool:
    """Print how a launch ends after a fault; whether it ends with one message and can go on."""
    with new_folder() as folder, two_hosts() if hosts else contextlib.nullcontext():
        launches = [start(folder, host=host) for host in (0, 1)] if hosts else [start(folder)]
        launches[0].wait_for("epoch 3/")
        began = time.monotonic()
        act(launches[0])
        codes = [launch.process.wait() for launch in launches]
        torchrun = time.monotonic() - began
        while any(launch.ranks() for launch in launches) and time.monotonic() - began < 120:
            time.sleep(0.1)
        last = time.monotonic() - began
        said = [line for launch in launches for line in launch.said()]
        again = start(folder)
        resumed = again.process.wait() == 0 and checkpoint(folder) == wanted
        is_right = last < 120 and resumed and len(said) == 1 and "bug" not in said[0]
        print(
            f"{name:22} torchrun ends after {torchrun:.1f} s ({codes}), the last process {last:.1f} s; resumed to the"
            f" same bytes: {resumed}\n    {said}",
            flush=True,
        )
        return is_right


def hashing() -> bool:
    """Hash and decode for longer than the timeout; whether the launch goes on."""
    with new_folder() as folder:
        import numpy as np
        from PIL import Image

        pixels = np.random.default_rng(0).integers(0, 256, (64, 600, 600, 3), np.uint8)
        for index in range(2_000):
            path = folder / f"images/{index % 20:03d}/{index}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels[index % 64, 0, 0] = index % 256, index // 256, 0
            Image.fromarray(pixels[index % 64]).save(path, compress_level=0)
        words = f"train quick --run r --data folder:{folder}/images --set net.name=lenet"
        settings = " --set data.image_size=28 --set train.epochs=1 --set train.batch_size=24 --workers 0"
        began = time.monotonic()
        launch = start(folder, words + settings, timeout=6)
        code = launch.process.wait()
        seconds = time.monotonic() - began
        print(f"hashing and decoding  exit code {code} after {seconds:.0f} s, timeout 6 s {launch.said()}")
        return code == 0


def main() -> None:
    """Run one part and exit with 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("same", "kills", "faults"))
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hosts", action="store_true")
    options = parser.parse_args()
    if options.part == "same":
        right = same(options.hosts)
    elif options.part == "kills":
        right = kills(options.kills, options.seed)
    else:
        wanted = undisturbed()
        results = [fault(name, act, wanted) for name, act in FAULTS.items()]
        if options.hosts:
            results.append(fault("cable of host 1 cut", cut, wanted, hosts=True))
        right = all([*results, hashing()])
    sys.exit(not right)


if __name__ == "__main__":
    main()
