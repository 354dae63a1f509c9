"""The processes that torchrun starts for one command: the first reads, writes and prints, the others compute for it.

They talk over the key-value store that torchrun keeps: the first process posts calls, every process a sign of life
each half second and its error, if any. Hashes of images go over it too, as the group is not joined yet; features,
ranks and gradients go through `Launch.group`.
"""

from __future__ import annotations

import contextlib
import datetime
import functools
import math
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sized
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from layerprobe.system.computing import local_rank
from layerprobe.system.errors import EnvironmentFault, InterruptedRun, LayerprobeError, RecipeError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup
    from torch.distributed.distributed_c10d import Store

Batch = TypeVar("Batch", bound=Sized)

TIMEOUT = "LAYERPROBE_GROUP_TIMEOUT"
_TIMEOUT = 600.0  # seconds
_BEAT = 0.5  # seconds between two signs of life
_LOST = 6 * _BEAT  # seconds without one after which a process has ended, where a connection has broken
_GRACE = 5.0  # seconds in which a process is to end by itself
_AGAIN = "Run the same command again: what is stored is complete"


class Launch:
    """This process and the others of its launch; by default there are none.

    Args:
        rank: of this process, from 0.
        size: the number of processes.
        timeout: seconds without a sign of life after which a process counts as ended.
    """

    def __init__(self, rank: int = 0, size: int = 1, timeout: float = _TIMEOUT) -> None:
        self.rank, self.size, self.timeout = rank, size, timeout
        self._calls = 0
        self._images = 0  # that the others have counted
        self._told_to_end = False
        self._asked = math.inf  # when `_watch` last began to ask the store
        self._watching: threading.Thread | None = None
        self._ended = threading.Event()
        self._changed: dict[int, tuple[bytes, float]] = {}  # rank -> its last sign of life, and when it changed

    def __reduce__(self) -> tuple[object, ...]:
        return (Launch, ())  # in another process it is another's: a call names its own

    @property
    def is_shared(self) -> bool:
        """Whether there are other processes."""
        return self.size > 1

    @functools.cached_property
    def group(self) -> ProcessGroup | None:
        """The group of all processes, which each joins when it first asks for it; None for a process alone."""
        if not self.is_shared:
            return None
        import torch
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore

        # gloo holds Python's lock until all have joined: who waits for one that has ended could not be told.
        self._store.set(f"joins {self.rank}", "")
        self._wait([f"joins {rank}" for rank in range(self.size)])
        # Signs of life are missed first: the group's own timeout ends a process that lives and does not answer.
        timeout = datetime.timedelta(seconds=self.timeout + 2 * _GRACE)
        store = PrefixStore("group", self._store)
        backend = "gloo"
        if torch.cuda.is_available():
            backend = "cpu:gloo,cuda:nccl"
            torch.cuda.set_device(local_rank() or 0)  # NCCL's own, or all processes would meet on the first GPU
        dist.init_process_group(backend, store=store, rank=self.rank, world_size=self.size, timeout=timeout)
        return dist.group.WORLD

    @functools.cached_property
    def _store(self) -> Store:
        return _connect(self.rank, self.timeout)

    def call(self, function: Callable[..., object] | None, *args: object) -> None:
        """Make every other process call `function(launch, *args)`; None ends the `serve` that it is in.

        In another process than the first it does nothing: that process does what was called already.
        """
        if self.is_shared and not self.rank:
            self._calls += 1
            self._store.set(f"call {self._calls}", pickle.dumps((function, args)))  # type: ignore[arg-type] # bytes are taken

    def wait(self) -> None:
        """In the first process: wait until every other one has done the last call."""
        if self.is_shared and not self.rank:
            self._wait([f"call {self._calls} done {rank}" for rank in range(1, self.size)])

    def counted(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """In another process than the first: pass batches on, and count their images."""
        for batch in batches:
            yield batch
            self._store.add("images", len(batch))

    def images_elsewhere(self) -> int:
        """How many images the other processes have counted since this was asked last."""
        if not self.is_shared:
            return 0
        before, self._images = self._images, self._store.add("images", 0)
        return self._images - before

    def give(self, number: int, result: object) -> None:
        """In another process than the first: keep a numbered result of the present call, until it is taken."""
        self._store.set(f"call {self._calls} result {number}", pickle.dumps(result))  # type: ignore[arg-type] # bytes are taken

    def take(self, number: int) -> Any:
        """In the first process: wait for a numbered result of the last call."""
        key = f"call {self._calls} result {number}"
        self._wait([key])
        result = pickle.loads(self._store.get(key))
        self._store.delete_key(key)
        return result

    def serve(self) -> None:
        """In every process but the first: do what it calls, until it says that this is all."""
        while True:
            self._calls += 1
            key = f"call {self._calls}"
            self._wait([key])
            function, args = pickle.loads(self._store.get(key))
            if self._store.add(f"{key} taken", 1) == self.size - 1:
                self._store.delete_key(key)
            if function is None:
                return
            function(self, *args)
            self._store.set(f"{key} done {self.rank}", "")

    def _wait(self, keys: list[str]) -> None:
        """Wait until the store has all keys, as long as this process lives."""
        pause = 0.001
        while not self._store.check(keys):  # the store's own wait would let no signal through
            if self.rank == 0 and (reported := self._reported(self._store)):
                raise reported
            time.sleep(pause)
            pause = min(2 * pause, 0.1)

    def begin(self, show: Callable[[LayerprobeError], None]) -> None:
        """Watch the other processes from now on, and give signs of life.

        Args:
            show: prints an error that ends this process where its main thread cannot.
        """
        if not self.is_shared:
            return
        if self.rank:  # the first process decides when to stop: Ctrl-C and SIGTERM reach them all
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, lambda *_: setattr(self, "_told_to_end", True))
        threading.Thread(target=self._guard, args=(show,), daemon=True).start()
        self._watching = threading.Thread(target=self._watch, args=(os.getppid(), show), daemon=True)
        self._watching.start()

    def end(self, code: int) -> None:
        """In the first process: end the others, with the same exit code."""
        if self._watching is None:
            return
        with contextlib.suppress(RuntimeError):  # torchrun has ended, and they know
            self._store.set("end", str(code))
        self._ended.set()
        self._watching.join()  # a thread that talks to the store while the interpreter ends would abort it

    def wait_for_end(self, error: LayerprobeError | None) -> NoReturn:
        """In another process than the first: give it an error that is none of the others', and wait for `end`."""
        if error is not None:
            with contextlib.suppress(RuntimeError):
                self._store.set("error", pickle.dumps((self.rank, error)))  # type: ignore[arg-type] # bytes are taken
        if "group" in self.__dict__:
            import torch.distributed as dist

            del self.group
            with contextlib.suppress(RuntimeError):
                dist.destroy_process_group()  # the first process notices that a connection is closed
        while True:
            time.sleep(60)  # `_watch` ends this process

    def lost(self, error: BaseException) -> bool:
        """Whether an error says that the group has broken, whatever the cause."""
        if not self.is_shared or not isinstance(error, RuntimeError):
            return False
        import torch.distributed as dist

        return isinstance(error, dist.DistError) or "gloo" in str(error).lower()

    @contextlib.contextmanager
    def causes_told(self) -> Iterator[None]:
        """Raise the error of another process in place of the one that it leads to in this one."""
        try:
            yield
        except (RuntimeError, InterruptedRun) as error:
            if cause := self.cause(error):
                raise cause from error
            raise

    def cause(self, error: BaseException) -> LayerprobeError | None:
        """The error of another process that an error of the first is due to; None where it is due to none."""
        # torchrun ends all processes by SIGTERM where one has ended.
        ended = isinstance(error, InterruptedRun) and error.exit_code == 128 + signal.SIGTERM
        if not self.is_shared or not (ended or self.lost(error)):
            return None
        deadline = time.monotonic() + _LOST + 2 * _BEAT
        try:
            while time.monotonic() < deadline:
                if (reported := self._reported(self._store)) is not None:
                    return reported
                if silent := self._silent(_LOST):
                    return self._fault(silent, self._store)
                time.sleep(_BEAT / 2)
        except RuntimeError:  # the store is gone
            return EnvironmentFault("torchrun has ended", fix=_AGAIN)
        if ended:
            return None
        return EnvironmentFault(f"the processes lost each other ({str(error).splitlines()[0][:200]})", fix=_AGAIN)

    def _fault(self, silent: list[int], store: Store) -> EnvironmentFault:
        hosts = [f"rank {rank} on {_get(store, f'host {rank}').decode() or 'a host'}" for rank in silent]
        return EnvironmentFault(f"{' and '.join(hosts)} ended or does not answer", fix=_AGAIN)

    def _reported(self, store: Store) -> LayerprobeError | None:
        """The error that another process has reported, under the name of that process."""
        if not (text := _get(store, "error")):
            return None
        error: LayerprobeError
        rank, error = pickle.loads(text)
        error.message = f"rank {rank} on {_get(store, f'host {rank}').decode()}: {error.message}"
        return error

    def _silent(self, seconds: float) -> list[int]:
        """The ranks that have given no sign of life for some seconds."""
        now = time.monotonic()
        return [rank for rank, (_, changed) in self._changed.items() if now - changed > seconds]

    def _watch(self, parent: int, show: Callable[[LayerprobeError], None]) -> None:
        """In a thread: give signs of life, look for those of others, and end this process where it must end."""
        beats, reported_at = 0, 0.0
        try:
            store = _connect(self.rank, self.timeout)
            store.set(f"host {self.rank}", socket.gethostname())
            while os.getppid() == parent and not self._ended.is_set():
                beats, self._asked = beats + 1, time.monotonic()
                store.set(f"alive {self.rank}", str(beats))
                self._look(store)
                if self.rank and (code := _get(store, "end")):
                    os._exit(int(code))
                fault: LayerprobeError | None = self._fault_to_end_for(store)
                if self.rank == 0 and fault is None and (fault := self._reported(store)):
                    reported_at = reported_at or time.monotonic()
                    waited = time.monotonic() - reported_at
                    if waited > _GRACE and callable(signal.getsignal(signal.SIGTERM)):
                        os.kill(os.getpid(), signal.SIGTERM)  # it ends a wait, and the error is raised there
                    fault = fault if waited > 3 * _GRACE else None
                if fault is not None:
                    if self.rank == min({*range(self.size)} - {*self._silent(_LOST)}, default=0):
                        show(fault)
                    if self.rank == 0:
                        store.set("end", str(fault.exit_code))
                    os._exit(fault.exit_code)
                self._ended.wait(_BEAT)
        except RuntimeError:
            pass  # the store is gone: torchrun has ended
        if self._ended.is_set():
            return
        if self.rank:
            os._exit(1)
        os.kill(os.getpid(), signal.SIGTERM)  # the first process stops as it does for any SIGTERM

    def _guard(self, show: Callable[[LayerprobeError], None]) -> None:
        """In a thread: end this process where the store does not answer, as when the network is cut."""
        while time.monotonic() - self._asked < self.timeout:
            if self._ended.wait(_BEAT):
                return
        fault = EnvironmentFault("torchrun's store does not answer: is the network cut?", fix=_AGAIN)
        if self.rank == 0:
            show(fault)
        os._exit(fault.exit_code)

    def _look(self, store: Store) -> None:
        # Of the others a process asks for the first one alone, or many processes would ask the store for nothing else.
        for rank in range(self.size if self.rank == 0 or self._told_to_end else 1):
            sign = _get(store, f"alive {rank}")
            if rank not in self._changed or self._changed[rank][0] != sign:
                self._changed[rank] = sign, time.monotonic()

    def _fault_to_end_for(self, store: Store) -> EnvironmentFault | None:
        """The fault for which this process ends at once, whatever its main thread does."""
        if self.rank == 0:
            silent = self._silent(self.timeout)
        else:  # where the first process lives, it ends this one
            silent = [rank for rank in self._silent(_LOST if self._told_to_end else self.timeout) if rank == 0]
        return self._fault(silent, store) if silent else None


def started(environment: Mapping[str, str]) -> Launch:
    """The launch of this process: what torchrun's environment variables say, or this process alone.

    Raises:
        RecipeError: the timeout is no number of seconds; the first process alone tells of it.
    """
    if "TORCHELASTIC_RUN_ID" not in environment or environment.get("WORLD_SIZE", "1") == "1":
        return Launch()
    text = environment.get(TIMEOUT, f"{_TIMEOUT:g}")
    try:
        timeout = float(text)
        if not 2 * _LOST <= timeout < 1e7:
            raise ValueError
    except ValueError:
        if environment["RANK"] != "0":
            raise SystemExit(RecipeError.exit_code) from None
        raise RecipeError(f"{TIMEOUT}={text}: must be a number of seconds from {2 * _LOST:g} on") from None
    return Launch(int(environment["RANK"]), int(environment["WORLD_SIZE"]), timeout)


def _connect(rank: int, timeout: float) -> Store:
    """A connection to the store that torchrun keeps, or the first process where torchrun keeps none."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined] # its stub lacks it
    from torch.distributed.distributed_c10d import PrefixStore

    hosts = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = TCPStore(address, port, is_master=hosts, timeout=datetime.timedelta(seconds=timeout), multi_tenant=True)
    return PrefixStore(f"layerprobe {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)


def _get(store: Store, key: str) -> bytes:
    """A value of the store; empty where there is none yet."""
    return bytes(store.get(key)) if store.check([key]) else b""
