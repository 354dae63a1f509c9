"""Several trainings at once, each in a process with one thread, that ends with this one."""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import torch
from threadpoolctl import threadpool_limits

from layerprobe.system.computing import serve, start_method
from layerprobe.system.errors import BusyError, EnvironmentFault, LayerprobeError, NumericError
from layerprobe.system.memory import keep_freed_memory, memory_faults_told
from layerprobe.system.progress import Listener, Silent, Task, stoppable
from layerprobe.workflow.run.runs import named_run, require_free
from layerprobe.workflow.study.plan import StudyTraining
from layerprobe.workflow.study.request import StudyRequest
from layerprobe.workflow.train.train import train

THREADS = 1  # of each process; another number would give other bits
_PAUSE = 0.5  # seconds between two looks at runs that another process holds


def train_all(
    waiting: list[StudyTraining],
    request: StudyRequest,
    is_finished: Callable[[StudyTraining], bool],
    listener: Listener,
) -> None:
    """Train the runs of a study; one that another process holds is waited for.

    Args:
        waiting: the trainings that are not finished.
        request: how many are trained at once, and the devices that they take in turn.
        is_finished: asked again before each is begun, as another process may have trained it.

    Raises:
        LayerprobeError: the first error of a training; after one that diverged the others are trained all the same.
    """
    name = request.study.name
    with listener.task(f"study {name}", len(waiting), "trainings") as task, stoppable() as stop:
        crew = _Crew([*waiting], request, is_finished, listener, task)
        try:
            while crew.goes_on() and not stop:
                crew.start()
                crew.listen()
            if stop:  # let the processes end at their next step
                for _, process, _ in crew.running.values():
                    process.terminate()
                for _, process, _ in crew.running.values():
                    process.join()
        finally:  # stored files are complete
            for _, process, _ in crew.running.values():
                process.kill()
        stop.raise_if_asked(f"study {name}: stopped; the same command resumes")
    if crew.errors:
        raise crew.errors[0]


@dataclass(frozen=True)
class _Sender(Silent):
    """In a training's process: sends what it says to the main one."""

    connection: Connection

    def say(self, text: str) -> None:
        """Send a line."""
        with contextlib.suppress(OSError):  # the main process has ended
            self.connection.send(text)


def _serve(training: StudyTraining, device: str, connection: Connection) -> None:
    serve()
    keep_freed_memory()
    torch.set_num_threads(THREADS)
    ended: LayerprobeError | None = None
    try:
        with threadpool_limits(THREADS), memory_faults_told():
            train(training.request(device), _Sender(connection))
    except LayerprobeError as error:
        ended = error
    connection.send(ended)


@dataclass
class _Crew:
    """The trainings that wait, and the processes that train, each with its device's place in the list."""

    waiting: list[StudyTraining]
    request: StudyRequest
    is_finished: Callable[[StudyTraining], bool]
    listener: Listener
    task: Task
    running: dict[Connection, tuple[StudyTraining, BaseProcess, int]] = field(default_factory=dict)
    errors: list[LayerprobeError] = field(default_factory=list)
    waited_for: set[str] = field(default_factory=set)

    def goes_on(self) -> bool:
        """Whether something is left to do."""
        if not all(isinstance(error, NumericError) for error in self.errors):
            self.waiting.clear()
        return bool(self.waiting or self.running)

    def start(self) -> None:
        """Begin those that wait and that nobody holds, as far as there are jobs for them."""
        if start_method() == "forkserver":
            multiprocessing.set_forkserver_preload([__name__])  # torch is imported once
        context = multiprocessing.get_context(start_method())
        for training in [*self.waiting]:
            if len(self.running) >= self.request.at_once:
                return
            try:
                require_free(named_run(training.cache, training.run))
            except BusyError as error:
                self._wait_for(training, error)
                continue
            self.waiting.remove(training)
            if self.is_finished(training):
                self._done(training)
                continue
            place = self._free_place()
            ours, theirs = context.Pipe(duplex=False)
            arguments = training, self.request.devices[place], theirs
            process = context.Process(target=_serve, args=arguments, name=training.run)  # type: ignore[attr-defined] # of every start method
            process.start()
            theirs.close()
            self.running[ours] = training, process, place

    def _free_place(self) -> int:
        """The first device in the list with the fewest trainings."""
        taken = [place for _, _, place in self.running.values()]
        return min(range(len(self.request.devices)), key=taken.count)

    def listen(self) -> None:
        """Hear what the processes say, for a moment."""
        if not self.running:
            time.sleep(_PAUSE)
            return
        ready = wait([*self.running], _PAUSE)
        for connection, (training, process, _) in [*self.running.items()]:
            if connection not in ready:
                continue
            try:
                message = connection.recv()
            except EOFError:
                process.join()
                fix = "The same command resumes; where memory ran out, lower --jobs"
                message = EnvironmentFault(f"its process ended with exit code {process.exitcode}", fix=fix)
            if isinstance(message, str):
                self.listener.say(f"{training.run}: {message.removeprefix(f'{training.run}: ')}")
                continue
            process.join()
            del self.running[connection]
            self._ended(training, message)

    def _ended(self, training: StudyTraining, error: LayerprobeError | None) -> None:
        if isinstance(error, BusyError):
            self._wait_for(training, error)
            self.waiting.append(training)
            # Others that run this study meet us at each run, if all go in the same order.
            random.shuffle(self.waiting)
        elif isinstance(error, NumericError) and self.is_finished(training):
            self.listener.say(f"{training.run}: {error.message}; it counts as the worst")
            self.task.advance()
        elif error is not None:
            error.message = f"{training.run}: {error.message}"
            self.errors.append(error)
            if self.running:
                self.listener.say(f"{error.message}; the trainings that have begun go on")
        else:
            self._done(training)

    def _wait_for(self, training: StudyTraining, error: BusyError) -> None:
        if training.run not in self.waited_for:
            self.waited_for.add(training.run)
            self.listener.say(f"{training.run}: {error.message}; waiting for it")

    def _done(self, training: StudyTraining) -> None:
        self.listener.say(f"{training.run}: finished")
        self.task.advance()


@contextlib.contextmanager
def as_in_training() -> Iterator[None]:
    """The threads of a training's process, for an estimate of its time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(THREADS)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
