"""Write a rank's tasks in order, and wait for one of them later."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from simulator.training.plan import Call, Compute, Purpose, Task, Traffic, Wait

__all__ = ["Mark", "Tape", "joined", "streams_of"]

Mark = tuple[str, int]
"""A stream, and how many tasks it held when the mark was set."""


class Tape:
    """A list of tasks that remembers how many each stream holds.

    Collectives over a single rank, and computes and calls of nothing, are left out.

    Parameters
    ----------
    sizes
        Ranks in a group of each axis; missing ones are single.
    after
        A tape that stands before this one: its marks can be waited for here, as long as no other
        tape between the two uses their streams.
    """

    def __init__(self, sizes: dict[str, int], *, after: Tape | None = None) -> None:
        self.tasks: list[Task] = []
        self._sizes = sizes
        self._held: Counter[str] = Counter() if after is None else Counter(after._held)

    def put(self, tasks: Iterable[Task]) -> None:
        """Append tasks made elsewhere."""
        for task in tasks:
            self.tasks.append(task)
            if not isinstance(task, Wait):
                self._held[task.stream] += 1

    def compute(
        self, name: str, duration_s: float, purpose: Purpose, stream: str = "compute"
    ) -> None:
        """Append a computation."""
        if duration_s > 0:
            self.put((Compute(name=name, duration_s=duration_s, purpose=purpose, stream=stream),))

    def call(
        self,
        name: str,
        collective: str,
        size_bytes: float,
        axis: str,
        *,
        stream: str,
        traffic: Traffic = "data",
        after: str | None = "compute",
    ) -> None:
        """Append a collective."""
        if size_bytes > 0 and self._sizes.get(axis, 1) > 1:
            call = Call(
                name=name,
                collective=collective,
                size_bytes=int(size_bytes),
                axis=axis,
                traffic=traffic,
                stream=stream,
                after=after,
            )
            self.put((call,))

    def mark(self, stream: str) -> Mark:
        """Return the mark of all that the stream holds now."""
        return stream, self._held[stream]

    def wait(self, mark: Mark, stream: str = "compute") -> None:
        """Let `stream` wait for what was enqueued up to a mark."""
        on, held = mark
        if held > 0:
            self.tasks.append(Wait(on=on, stream=stream, leave=self._held[on] - held))


def joined(parts: Sequence[Sequence[Task]]) -> tuple[Task, ...]:
    """Return parts one after another; computes that meet and serve one purpose become one."""
    tasks: list[Task] = []
    for part in parts:
        for task in part:
            last = tasks[-1] if tasks else None
            if (
                isinstance(task, Compute)
                and isinstance(last, Compute)
                and (task.stream, task.purpose) == (last.stream, last.purpose)
            ):
                first_name = last.name.split(" … ")[0]
                name = last.name
                if task.name != first_name:
                    name = f"{first_name} … {task.name.rsplit(' ', 1)[-1]}"
                tasks[-1] = replace(last, name=name, duration_s=last.duration_s + task.duration_s)
            else:
                tasks.append(task)
    return tuple(tasks)


def streams_of(tasks: Iterable[Task]) -> tuple[str, ...]:
    """Return the streams that hold computes, calls or transfers, in order of first use."""
    return tuple(dict.fromkeys(t.stream for t in tasks if not isinstance(t, Wait)))
