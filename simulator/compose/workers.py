"""Processes that work through a list: one that is killed takes no other's work along.

Each process has a pipe of its own, so that nothing it leaves half done (a lock, half a message)
can be met by another one, and whoever is gone is known by name.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, cast

from simulator.base.errors import SimulationError, expected

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import BaseContext
    from multiprocessing.process import BaseProcess

__all__ = ["noted_signals", "work_apart"]

MOST_TRIES = 2
"""A piece of work whose process was killed is given to another one so often in all."""
GRACE_S = 1.0
"""Once it is to stop, work that is under way may still end so long."""
WATCH_S = 0.25
"""A process looks so often whether the one that started it is still there."""
STOPPING = ("SIGINT", "SIGTERM", "SIGHUP")
"""Signals that ask a run to stop and to write what it has."""


@dataclass(slots=True)
class _Worker:
    process: BaseProcess
    pipe: Connection
    index: int | None = None
    """What it works on."""


class _Workers:
    """The processes at work, and what is left to do."""

    def __init__(self, work: Callable[[Any], Any], items: Sequence[Any], most: int) -> None:
        self.work = work
        self.items = items
        self.most = most
        self.left = deque(range(len(items)))
        self.tries = [0] * len(items)
        self.busy: list[_Worker] = []
        self.idle: list[_Worker] = []
        self.context = _context()

    def give(self) -> None:
        """Hand out work to idle processes and to new ones."""
        while self.left and (self.idle or len(self.busy) < self.most):
            worker = self.idle.pop() if self.idle else self._started()
            if worker is None:
                return
            index = self.left.popleft()
            worker.index = index
            self.tries[index] += 1
            self.busy.append(worker)
            with suppress(OSError):  # killed since: its end is seen where results are read
                worker.pipe.send(self.items[index])

    def _started(self) -> _Worker | None:
        """Return a new process; None: the system allows no more."""
        ours, theirs = self.context.Pipe()
        make = cast(Any, self.context).Process
        process = make(target=_serve, args=(theirs, self.work, os.getpid()), daemon=True)
        try:
            process.start()
        except OSError:
            ours.close()
            self.most = len(self.busy)
            return None
        finally:
            theirs.close()
        return _Worker(process, ours)

    def finished(self, timeout_s: float) -> Iterator[tuple[int, Any]]:
        """Generate what has ended by now: index, and the result or an exception."""
        ready = wait([worker.pipe for worker in self.busy], timeout=timeout_s)
        for worker in [worker for worker in self.busy if worker.pipe in ready]:
            index = worker.index
            assert index is not None
            self.busy.remove(worker)
            try:
                outcome = worker.pipe.recv()
            except (EOFError, OSError, pickle.UnpicklingError):
                code = _ended(worker)
                if self.tries[index] < MOST_TRIES:
                    self.left.append(index)  # last: there may be more memory then
                else:
                    yield index, SimulationError(_lost(code))
                continue
            self.idle.append(worker)
            yield index, outcome

    def close(self) -> None:
        """End all processes and wait for them, so that nothing of them is left at exit."""
        for worker in self.busy:
            worker.process.kill()
        for worker in self.idle:
            worker.pipe.close()
        for worker in (*self.busy, *self.idle):
            worker.process.join(GRACE_S)
            _ended(worker)


def work_apart(
    work: Callable[[Any], Any],
    items: Sequence[Any],
    *,
    most: int,
    stop: threading.Event,
) -> Iterator[tuple[int, Any]]:
    """Generate the place of each item and what *work* returned or raised, as they end.

    Parameters
    ----------
    work
        A function of one item that a process can be given.
    items
        What is to be worked on.
    most
        Processes at a time.
    stop
        Ends it: what is under way has `GRACE_S` to end, the rest is not begun.

    Yields
    ------
    tuple
        Index and result, or index and `CollsimError`: what *work* raised, or a
        `SimulationError` where the process was killed `MOST_TRIES` times.
    """
    workers = _Workers(work, items, most)
    try:
        while not stop.is_set():
            workers.give()
            if not workers.busy:
                if not workers.left:
                    return
                # Not even one process can be started: do the work here.
                index = workers.left.popleft()
                yield index, _outcome(work, items[index])
                workers.most = most
                continue
            yield from workers.finished(0.1)
        end = time.monotonic() + GRACE_S
        while workers.busy and (rest := end - time.monotonic()) > 0:
            yield from workers.finished(rest)
    finally:
        workers.close()


@contextmanager
def noted_signals() -> Iterator[threading.Event]:
    """Note in an event that the run is to stop, and let the usual handler have it at the end.

    Raised in the midst of a pool's work, the usual `KeyboardInterrupt` would lose results.
    Only signals with a handler of Python are noted: those that are ignored stay ignored.
    """
    seen = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield seen
        return
    numbers: list[int] = []

    def note(number: int, _frame: object) -> None:
        numbers.append(number)
        seen.set()

    before = {}
    for name in STOPPING:
        number = getattr(signal, name, None)
        if number is not None and callable(signal.getsignal(number)):
            before[number] = signal.signal(number, note)
    try:
        yield seen
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if numbers:
        cast(Any, before[numbers[0]])(numbers[0], None)


def _serve(pipe: Connection, work: Callable[[Any], Any], parent: int) -> None:
    """Work on what comes through the pipe until it is closed: the life of a process."""
    for name in STOPPING:  # of a whole group of processes: the parent decides
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    while True:
        try:
            item = pipe.recv()
        except (EOFError, OSError):
            return
        outcome = _outcome(work, item)
        try:
            pipe.send(outcome)
        except OSError:  # the parent reads no more
            return
        except Exception as error:  # a result that cannot be pickled
            pipe.send(expected(error))


def _outcome(work: Callable[[Any], Any], item: Any) -> Any:
    try:
        return work(item)
    except Exception as error:
        return expected(error)


def _end_with(parent: int) -> None:
    """End this process soon after its parent, however that one ended."""
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)


def _ended(worker: _Worker) -> int:
    """Return the exit code of a process that was killed or told to end, and free it."""
    worker.pipe.close()
    worker.process.join(GRACE_S)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    code = worker.process.exitcode or 0
    worker.process.close()
    return code


def _lost(code: int) -> str:
    text = f"its process was killed {MOST_TRIES} times, at last "
    if code >= 0:
        return text + f"with exit code {code}"
    memory = " (is there enough memory?)" if -code == getattr(signal, "SIGKILL", 0) else ""
    return text + f"by signal {-code}{memory}"


def _context() -> BaseContext:
    """Return how processes are started: by fork only where no other thread could hold a lock."""
    import multiprocessing

    methods = multiprocessing.get_all_start_methods()
    alone = threading.active_count() == 1
    return multiprocessing.get_context("fork" if alone and "fork" in methods else "spawn")
