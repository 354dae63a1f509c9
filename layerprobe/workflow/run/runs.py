"""A run's folder: its files, its record (run.json), its lock, kept checkpoints, and its removal."""

from __future__ import annotations

import contextlib
import datetime
import functools
import itertools
import json
import os
import re
import shlex
import shutil
import socket
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from layerprobe import store
from layerprobe.system.errors import BusyError, DataError, EnvironmentFault, RecipeError, UnknownNameError
from layerprobe.system.files import (
    ReadOnce,
    bytes_below,
    disk_faults_told,
    remove_leftovers,
    require_file,
    require_target,
    write_text,
    written_whole,
)
from layerprobe.system.wording import BYTES, command_text, visible
from layerprobe.values.records import RunRecord
from layerprobe.values.scores import Score, in_network_order, no_scores, read_scores
from layerprobe.values.sections import Keep

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from layerprobe.recipe.recipe import Recipe
    from layerprobe.store import FeatureHead, LayerTables, RankFile
    from layerprobe.values.layers import LayerKey
    from layerprobe.values.retrieval import SearchRules

SCHEMA = 2
_LONGEST = 240  # of the 255 bytes of a folder's name: the rest is for `~1` of --fresh and the members of ensembles
_KEPT = 2**26  # bytes of what is kept in memory of the rank files, so that one command reads each once
_RECORDS_KEPT = 2**22  # bytes of the run.json whose records are kept in memory
_BIN = ".removed"  # runs are moved here before they are deleted, so that no partial run is ever listed
WATCHED = ".watched"  # locked by a watched training from its first epoch to its end
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~-]*")
_RANK_FILE = re.compile(r"epoch-(\d+)\.\w+\.h5")
_FEATURES = re.compile(r"epoch-(\d+)\.([a-z]\w*(?:~\d+)?)(?:\.\d+)?(?:\.h5)?")


@dataclass(frozen=True)
class Run:
    """A run's folder below the cache, and the paths of its files."""

    folder: Path

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def in_folder(self) -> Run | None:
        """The run whose folder keeps files beside its tables, such as its choice; None of one in memory alone."""
        return self

    @property
    def record_file(self) -> Path:
        """run.json."""
        return self.folder / "run.json"

    @property
    def forwards_file(self) -> Path:
        """forwards.json, what dry forwards showed of the network."""
        return self.folder / "forwards.json"

    @property
    def scores_file(self) -> Path:
        """scores.csv."""
        return self.folder / "scores.csv"

    @property
    def choice_file(self) -> Path:
        """choice.json, what `choose` selected."""
        return self.folder / "choice.json"

    @property
    def training_log_file(self) -> Path:
        """metrics.jsonl, a line per training epoch."""
        return self.folder / "metrics.jsonl"

    @property
    def written_folders(self) -> tuple[Path, ...]:
        """Folders that only the holder of the lock writes to; plots need no lock."""
        folders = [self.folder / name for name in ("checkpoints", "features", "ranks")]
        return self.folder, *folders, *(path for path in folders[1].glob("epoch-*") if path.is_dir())

    def checkpoint_file(self, epoch: int) -> Path:
        """Weights of an epoch."""
        return self.folder / "checkpoints" / f"epoch-{epoch:04d}.safetensors"

    def resume_file(self, *, previous: bool = False) -> Path:
        """State to resume from."""
        return self.folder / "checkpoints" / ("resume.previous.pt" if previous else "resume.pt")

    def feature_file(self, epoch: int, split: str) -> Path:
        """Features of an epoch and split: the first file, beside which further ones lie."""
        return self.folder / "features" / f"epoch-{epoch:04d}.{split}.h5"

    def rank_file(self, epoch: int, split: str) -> Path:
        """Ranks of an epoch and split."""
        return self.folder / "ranks" / f"epoch-{epoch:04d}.{split}.h5"

    def has_features(self, epoch: int, split: str) -> bool:
        """Whether features of an epoch and split are stored."""
        return store.has_feature_files(self.feature_file(epoch, split))

    def stored_features(self) -> set[tuple[int, str]]:
        """The epochs and splits whose features are stored, and samples of splits, `train~200000`."""
        names = (path.name for path in (self.folder / "features").glob("epoch-*"))
        matches = (match for name in names if (match := _FEATURES.fullmatch(name)))
        return {item for match in matches if self.has_features(*(item := (int(match[1]), match[2])))}

    def layer_dims(self) -> dict[LayerKey, int]:
        """The dimensions of the layers whose features are stored of any epoch and split, or of a sample."""
        dims: dict[LayerKey, int] = {}
        for epoch, split in sorted(self.stored_features()):
            with contextlib.suppress(DataError, BusyError):
                dims |= self.feature_head(epoch, split).dims
        return dims

    def remove_features(self, epoch: int, split: str) -> None:
        """Remove the features of an epoch and split; for the holder of the lock."""
        store.remove_feature_files(self.feature_file(epoch, split))

    def has_ranks(self, epoch: int, split: str) -> bool:
        """Whether ranks of an epoch and split are stored."""
        return self.rank_file(epoch, split).exists()

    def ranked_epochs(self, split: str) -> list[int]:
        """The epochs with a rank file of a split, ascending."""
        names = (path.name for path in self.rank_file(0, split).parent.glob(f"epoch-*.{split}.h5"))
        return sorted(int(match[1]) for name in names if (match := _RANK_FILE.fullmatch(name)))

    def ranks(self, epoch: int, split: str) -> RankFile:
        """The rank file of an epoch and split, read once while it does not change."""
        return self._read_ranks(self.rank_file(epoch, split))

    @functools.cached_property
    def _read_ranks(self) -> ReadOnce[RankFile]:
        return ReadOnce(store.read_rank_file, _KEPT)

    def feature_head(self, epoch: int, split: str) -> FeatureHead:
        """What the feature files of an epoch and split say of themselves, each read once while it does not change."""
        return store.read_feature_head(self.feature_file(epoch, split), self.read_head)

    @functools.cached_property
    def read_head(self) -> ReadOnce[FeatureHead]:
        """What one feature file says of itself, read once while it does not change."""
        return ReadOnce(store.read_one_head, _KEPT)

    def open_features(self, epoch: int, split: str) -> contextlib.AbstractContextManager[LayerTables]:
        """The features of the layers of an epoch and split."""
        return store.open_feature_file(self.feature_file(epoch, split))

    @functools.cached_property
    def fold_fits(self) -> dict[tuple[Any, ...], Any]:
        """Maps of layers that are fitted by fold of classes, kept while the run is open."""
        return {}

    def stored_rules(self, split: str) -> SearchRules | None:  # noqa: ARG002 - no file has them
        """The search rules that are stored beside the features: none, as the data set has them."""
        return None

    def stored_units(self, split: str) -> NDArray[np.int64] | None:  # noqa: ARG002 - no file has them
        """The clusters of images that are stored beside the features: none, as the data set has them."""
        return None

    def plot_file(self, kind: str) -> Path:
        """Default file of a plot."""
        return self.folder / "plots" / f"{kind}.png"

    def command(self, *words: str) -> str:
        """A command on this run, as typed in a shell: `probe`, or `plot curves`, the run, and the words after it."""
        verbs = 2 if words[0] == "plot" else 1
        return command_text(*words[:verbs], self.name, *words[verbs:], cache=self.folder.parent)

    def exists(self) -> bool:
        """Whether there is a record."""
        return self.record_file.is_file()

    def read(self) -> RunRecord:
        """run.json, parsed once while it does not change."""
        if self.record_file.is_symlink():
            self.require_no_links()
        return _READ_RECORD(self.record_file).record

    def write(self, record: RunRecord) -> None:
        """Write run.json, with the present time as `touched`."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        values = {**record.as_json(), "schema": SCHEMA, "touched": now}
        write_text(self.record_file, json.dumps(values, indent=1) + "\n")
        _READ_RECORD.forget(self.record_file)

    def sizes(self) -> dict[str, int]:
        """Size in bytes of the run (`total`) and of each of its folders."""
        folders = {path.name: bytes_below(path) for path in sorted(self.folder.iterdir()) if path.is_dir()}
        return {"total": bytes_below(self.folder), **folders}

    @property
    def has_scores(self) -> bool:
        """Whether scores.csv has a row below its header; probing may have removed all others."""
        if not self.scores_file.exists():
            return False
        require_file(self.scores_file)
        with self.scores_file.open("rb") as stream:
            return len(list(itertools.islice(stream, 2))) > 1

    @property
    def is_measured(self) -> bool:
        """Whether any layer was ranked; features alone may be left by a probe that met a damaged image."""
        return self.has_scores or any((self.folder / "ranks").glob("*.h5"))

    def scores(self) -> list[Score]:
        """The scores in scores.csv in network order, under the run's present name, which `--fresh` may have changed.

        Raises:
            DataError: there is none.
        """
        scores = [
            score if score.run == self.name else replace(score, run=self.name)
            for score in read_scores(self.scores_file)
        ]
        if not scores:
            raise no_scores(self.scores_file)
        layer_order: tuple[str, ...] = ()
        with contextlib.suppress(DataError):  # scores can be shown without a readable record
            layer_order = self.read().layer_order
        return in_network_order(scores, layer_order)

    def is_held(self) -> bool | None:
        """Whether a process of this machine holds the run's lock or watches it; None if the system does not tell."""
        inodes = []
        try:
            for name in (".lock", WATCHED):
                with contextlib.suppress(FileNotFoundError):
                    inodes.append(f":{(self.folder / name).stat().st_ino}")
            lines = Path("/proc/locks").read_text(encoding="ascii").splitlines() if inodes else []
        except OSError:
            return None
        # `1: FLOCK  ADVISORY  WRITE 4711 00:35:1234 0 EOF`; a waiting process has `->` before FLOCK
        return any(words[1] == "FLOCK" and words[5].endswith(tuple(inodes)) for words in map(str.split, lines))

    def log(self, *lines: str) -> None:
        """Append lines to log.txt, under one time."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        path = self.folder / "log.txt"
        before = b""
        with contextlib.suppress(FileNotFoundError):
            require_file(path)
            before = path.read_bytes()
        text = "\n".join(visible(line, keep=BYTES) for line in lines)
        # Replaced, not appended to: the file of a received folder may be a hard link.
        with written_whole(path) as aside:
            aside.write_bytes(before + f"{now} {text}\n".encode(errors="surrogateescape"))

    def require_no_links(self) -> None:
        """Check that there is no link below the folder; the folder itself may be one."""
        for folder, *names in os.walk(self.folder):
            for path in (Path(folder, name) for name in itertools.chain(*names)):
                if path.is_symlink():
                    raise DataError(
                        "a link below a run's folder is not followed",
                        file=path,
                        fix="Delete it or put the files themselves in its place; only the whole folder may be a link",
                    )

    def remove_leftovers(self) -> None:
        """Remove the temporary files that killed processes left; for the holder of the lock."""
        remove_leftovers(*self.written_folders)


def named_run(cache: Path, name: str) -> Run:
    """The run of a valid name; it need not exist."""
    if len(name) > _LONGEST:
        raise RecipeError(f"the run's name {name[:20]!r}... has {len(name)} letters", fix=f"Use at most {_LONGEST}")
    if not _NAME.fullmatch(name) or name == "images":
        raise RecipeError(f"{name!r} cannot name a run", fix="Use letters, digits and . _ + ~ -")
    return Run(cache / name)


def recipe_run(cache: Path, recipe: Recipe) -> Run:
    """The run NAME-HASH of a recipe."""
    return named_run(cache, f"{recipe.name}-{recipe.identity()[:6]}")


@dataclass(frozen=True)
class _ReadRecord:
    """A record, and the size of its run.json."""

    record: RunRecord
    nbytes: int


def _read_record(path: Path) -> _ReadRecord:
    try:
        require_file(path)
        text = path.read_text(encoding="utf-8")
        values = json.loads(text, parse_constant=_refuse)
    except FileNotFoundError as error:
        fix = f"{command_text('runs', cache=path.parent.parent)} lists the known ones"
        raise DataError("no such run", file=path.parent, fix=fix) from error
    except OSError as error:
        raise DataError.unreadable(error, file=path) from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"not JSON: {error}", file=path, fix="Train it again with --fresh") from error
    if not isinstance(values, dict) or type(values.get("schema")) is not int:
        raise DataError("not the record of a run", file=path, fix="Train it again with --fresh")
    if values["schema"] != SCHEMA:
        versions = values.get("versions")
        by = versions.get("layerprobe") if isinstance(versions, dict) else None
        raise DataError(
            f"written by layerprobe {by} (format {values['schema']}); this one reads format {SCHEMA}",
            file=path,
            fix="Read it by that version, or train it again with --fresh",
        )
    try:
        return _ReadRecord(RunRecord.of_json(values), len(text))
    except ValueError as error:
        raise DataError(str(error), file=path, fix="Correct it, or train it again with --fresh") from error


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not a JSON number")


# One for all objects of a run: a command makes several.
_READ_RECORD = ReadOnce(_read_record, _RECORDS_KEPT)


def list_runs(cache: Path) -> list[tuple[Run, RunRecord]]:
    """Every readable run and its record, last touched first."""
    require_target(cache)
    runs = []
    for file in cache.glob("*/run.json"):
        with contextlib.suppress(DataError):
            runs.append((Run(file.parent), Run(file.parent).read()))
    return sorted(runs, key=lambda item: item[1].touched, reverse=True)


def damaged_runs(cache: Path) -> list[tuple[Run, DataError]]:
    """Every run with an unreadable record, and its error, by name."""
    damaged = []
    for file in sorted(cache.glob("*/run.json")):
        try:
            Run(file.parent).read()
        except DataError as error:
            damaged.append((Run(file.parent), error))
    return damaged


def find_run(cache: Path, name: str | None) -> Run:
    """The run of a name; the last touched run if there is none."""
    if name is not None and (run := named_run(cache, name)).exists():
        run.require_no_links()
        return run
    runs = [run for run, _ in list_runs(cache)]
    if not runs and (damaged := damaged_runs(cache)):
        raise damaged[0][1]
    if not runs:
        train = command_text("train", "quick", cache=cache)
        probe = command_text("probe", "--model", "SOURCE", "--data", "folder:DIR", cache=cache)
        fix = f"Train one: {train}, or measure a model: {probe}"
        raise DataError("there is no run yet", file=cache, fix=fix)
    if name is not None:
        raise UnknownNameError("run", name, [run.name for run in runs], file=cache)
    runs[0].require_no_links()
    return runs[0]


def set_aside(run: Run) -> Run:
    """Move a run's folder to the first free of NAME~1, NAME~2 ... and return it there."""
    number = 1
    while (aside := run.folder.with_name(f"{run.name}~{number}")).exists():
        number += 1
    run.folder.rename(aside)
    return Run(aside)


@contextlib.contextmanager
def locked(run: Run) -> Iterator[None]:
    """Hold the run's lock; the kernel frees it when the process ends, however it ends."""
    import fcntl

    lock = run.folder / ".lock"
    try:
        run.folder.mkdir(parents=True, exist_ok=True)
        run.require_no_links()
        # O_NONBLOCK: opening a pipe must not wait for its other end.
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        raise EnvironmentFault(
            f"cannot write: {error.strerror}", file=run.folder, fix="Choose another --cache"
        ) from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise DataError("not a file", file=lock, fix="Delete it")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 1000).decode(errors="replace") or "another process"
            raise BusyError(f"run is in use by {holder}", file=run.folder, fix="Wait for it or end it") from error
        # A hard link may be to somebody's own file: it is locked, and not written to.
        if status.st_nlink == 1:
            now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
            os.ftruncate(descriptor, 0)
            with disk_faults_told(lock):
                os.write(descriptor, f"pid {os.getpid()} on {socket.gethostname()} since {now}".encode())
        yield
    finally:
        os.close(descriptor)


def require_free(run: Run) -> None:
    """Check that no other process holds the run's lock; the run need not exist."""
    if run.exists():
        with locked(run):
            pass


def command_line() -> str:
    """The command as typed, quoted for a shell."""
    return shlex.join(["layerprobe", *sys.argv[1:]])


def other_training(command: str, run_name: str, setting: str) -> str:
    """A `layerprobe train` command with a further setting, for a run of another name; empty for another command."""
    words = shlex.split(command)
    if words[:2] != ["layerprobe", "train"]:
        return ""
    named = {index + 1 for index, word in enumerate(words) if word == "--run"}
    training = [
        word
        for index, word in enumerate(words)
        if index not in named and word not in ("--run", "--fresh") and not word.startswith("--run=")
    ]
    return shlex.join([*training, "--set", setting, "--run", run_name])


def wanted_epochs(keep: Keep, last_epoch: int) -> set[int]:
    """The epochs whose checkpoints `train.keep` keeps: all, last, or N for the epochs 0, N, 2N ... and the last."""
    if keep == "last":
        return {last_epoch}
    return {*range(0, last_epoch + 1, 1 if keep == "all" else keep), last_epoch}


def kept_epochs(run: Run, record: RunRecord) -> list[int]:
    """The epochs whose checkpoints were not removed, ascending; of an ensemble, from no member."""
    records = [record, *(named_run(run.folder.parent, name).read() for name in record.members)]
    removed = {epoch for member in records for epoch in member.checkpoints_removed}
    return [epoch for epoch in record.epochs if epoch not in removed]


def require_kept(run: Run, record: RunRecord, epoch: int) -> None:
    """Check that the checkpoint of an epoch was not removed."""
    epochs = kept_epochs(run, record)
    if epoch not in epochs:
        fix = f"Kept: epochs {', '.join(map(str, epochs))}" if epochs else "Train it again with --fresh"
        raise RecipeError(f"the checkpoint of epoch {epoch} was removed", file=run.folder, fix=fix)


def unwanted_epochs(run: Run, keep: Keep, *, finished: bool) -> list[int]:
    """The epochs whose checkpoints exist although `train.keep` does not keep them."""
    record = run.read()
    if record.weights_files:  # somebody else's files, whose numbers may be large
        return []
    done = record.epochs_done
    stay = wanted_epochs(keep, done) | (set() if finished else {done - 1, done})
    return [epoch for epoch in range(done + 1) if epoch not in stay and run.checkpoint_file(epoch).exists()]


def remove_checkpoints(run: Run, epochs: Iterable[int]) -> None:
    """Remove checkpoints and their resume states; for the holder of the lock.

    run.json is written first: the next call removes what a kill left.
    """
    record = run.read()
    removed = tuple(sorted({*record.checkpoints_removed, *epochs}))
    done = record.epochs_done
    states = [run.resume_file(previous=epoch < done) for epoch in (done - 1, done) if epoch in removed]
    if removed != record.checkpoints_removed:
        names = {state.name for state in states}
        hashes = {name: digest for name, digest in record.hashes.items() if name not in names}
        run.write(replace(record, checkpoints_removed=removed, hashes=hashes))
    # The states first: `unwanted_epochs` finds the checkpoints that a kill left.
    for path in [*states, *map(run.checkpoint_file, removed)]:
        path.unlink(missing_ok=True)


@dataclass(frozen=True)
class Removal:
    """Runs and parts to remove; no parts: all."""

    runs: tuple[Run, ...]
    parts: tuple[str, ...]
    size: int


def plan_removal(cache: Path, name: str, parts: Sequence[str] = ()) -> Removal:
    """Plan the removal of a run, and of an ensemble's members; a removal that was killed can be planned again."""
    unfinished = Run(cache / _BIN / named_run(cache, name).name)
    run = unfinished if unfinished.folder.is_dir() and not named_run(cache, name).exists() else find_run(cache, name)
    owners: dict[str, set[str]] = {}
    for other, record in list_runs(cache):
        for member in record.members:
            owners.setdefault(member, set()).add(other.name)
    if run is not unfinished and name in owners and tuple(parts) != ("features",):
        (owner, *_) = sorted(owners[name])
        raise RecipeError(
            f"{name} is a member of the ensemble {owner}, which needs it",
            fix=f"Remove {owner}, which removes its members too, or only the --features of {name}",
        )
    # Members that another ensemble shares, such as the new one after --fresh, stay.
    members = [
        named_run(cache, member) for member, names in owners.items() if names == {run.name} and run is not unfinished
    ]
    runs = (*(member for member in members if member.exists()), run)
    folders = [folder for removed_run in runs for folder in _folders(removed_run, parts)]
    for path in (*(removed_run.folder for removed_run in runs), *folders):
        if path.is_symlink():
            raise DataError("a link is not followed", file=path, fix="Remove its target and the link yourself")
    return Removal(runs, tuple(parts), sum(map(bytes_below, folders)))


def remove(removal: Removal) -> None:
    """Execute a planned removal; after a kill, the same removal completes it."""
    with contextlib.ExitStack() as held:
        for run in removal.runs:
            held.enter_context(locked(run))
        if not removal.parts:
            _discard(removal.runs)
            return
        for run in removal.runs:
            # External weights stay.
            if "checkpoints" in removal.parts and not (record := run.read()).weights_files:
                remove_checkpoints(run, range(record.epochs_done + 1))
            for folder in _folders(run, removal.parts):
                if folder.exists():
                    shutil.rmtree(folder)


def _folders(run: Run, parts: Sequence[str]) -> list[Path]:
    return [run.folder / name for name in parts] or [run.folder]


def _discard(runs: Sequence[Run]) -> None:
    cache = runs[-1].folder.parent
    folder = cache if cache.name == _BIN else cache / _BIN
    with locked(Run(folder)):
        for run in runs:
            aside = folder / run.name
            if aside != run.folder:
                if aside.exists():
                    shutil.rmtree(aside)
                run.folder.rename(aside)
        shutil.rmtree(folder)
