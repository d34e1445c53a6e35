"""The slow, plain second implementation of the engine's model: one SimPy event per message.

It takes the same `Network`, `Collective` and `Program` objects as the engine and follows the
model's rules one by one, with a SimPy process per (slot, channel) and per connection, a SimPy
Store as mailbox of every edge, and textbook progressive filling over dictionaries.  Nothing is
batched, vectorised or folded; it exists to be read and to disagree.

Rules
-----
1. A slot runs the steps of one channel in order.  All its sends of a step may start when the step
   begins; the next step begins when these sends have left and the step's receives have arrived.
   A rank begins `launch_s` after its call, a switch with the first call of any rank.
2. A connection transmits one message at a time in the order (stage, step, channel), and waits for
   the next in that order even if a later one is ready.
3. A message of m bytes leaves when m bytes have flowed at its rate and arrives `latency_s` later.
   An empty message leaves at once.
4. All messages on the wire share the links max-min fairly; rates change when the set of messages
   on the wire or a capacity changes.
5. A collective is done on a rank when all its channels are through.

Buffers are infinite: a receiver never holds a sender back.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy
from simpy.events import EventPriority

from simulator.engine.traffic import (
    Collective,
    Compute,
    LinkChange,
    Network,
    Program,
    Start,
    Wait,
)
from tests.reference.max_min import progressive_filling

__all__ = ["CallKey", "Message", "Place", "ReferenceOutcome", "reference_simulate"]

CallKey = tuple[str, int]
"""Communicator and position among its calls."""
Place = tuple[int, int, int, int]
"""Stage, step, connection, channel."""


@dataclass(eq=False, slots=True)
class Message:
    """One message and its three instants."""

    call: CallKey
    collective_name: str
    stage_name: str
    stage: int
    step: int
    connection: int
    channel: int
    src: int
    """Slot, not rank."""
    dst: int
    size_bytes: float
    start_s: float = math.nan
    leave_s: float = math.nan
    arrive_s: float = math.nan


@dataclass(slots=True)
class ReferenceOutcome:
    """What the reference tells."""

    rank_end_s: dict[int, float] = field(default_factory=dict)
    call_s: dict[CallKey, dict[int, float]] = field(default_factory=dict)
    """When each rank called, by call and global rank."""
    end_s: dict[CallKey, dict[int, float]] = field(default_factory=dict)
    """When each rank was done, by call and global rank."""
    messages: list[Message] = field(default_factory=list)
    link_bytes: dict[int, float] = field(default_factory=dict)
    busy_s: dict[CallKey, dict[int, float]] = field(default_factory=dict)
    """Time in which each rank had a send on the wire, by call and global rank."""
    n_solves: int = 0
    """How often the sharing was computed anew."""

    @property
    def last_end_s(self) -> float:
        """End of the whole run."""
        return max(self.rank_end_s.values(), default=0.0)


@dataclass(eq=False, slots=True)
class _Flow:
    """A message on the wire."""

    left_bytes: float
    route: dict[int, float]
    max_rate_Bps: float
    done: simpy.Event
    rate_Bps: float = 0.0


class _EndOfInstant(simpy.Event):
    """Fires now, after all that SimPy has in its queue for now (a Timeout cannot say that)."""

    def __init__(self, env: simpy.Environment, callback: Callable[[simpy.Event], None]) -> None:
        super().__init__(env)
        self._ok, self._value = True, None
        self.callbacks.append(callback)
        env.schedule(self, priority=EventPriority(2))  # SimPy's URGENT is 0, its NORMAL is 1


class _Wire:
    """All links, shared max-min fairly by the messages on them (rules 3 and 4)."""

    def __init__(
        self, env: simpy.Environment, network: Network, changes: Iterable[LinkChange]
    ) -> None:
        self.env = env
        self.capacity_Bps = dict(enumerate(network.capacity_Bps.tolist()))
        self.flows: list[_Flow] = []
        self.n_solves = 0
        self._rates_since_s = 0.0
        self._solve_is_due = False
        self._timer_number = 0
        for change in changes:
            env.process(self._change(change, self.capacity_Bps[change.link]))

    def _change(self, change: LinkChange, nominal_Bps: float) -> Generator[Any, Any, None]:
        yield self.env.timeout(change.time_s)
        self._let_flow()
        self.capacity_Bps[change.link] = nominal_Bps * change.factor
        self._ask_for_a_solve()

    def transmit(
        self, size_bytes: float, route: dict[int, float], max_rate_Bps: float
    ) -> simpy.Event:
        """Return an event that fires when the last byte has left."""
        done = self.env.event()
        if size_bytes == 0 or (not route and math.isinf(max_rate_Bps)):
            return done.succeed()
        self._let_flow()
        self.flows.append(_Flow(size_bytes, route, max_rate_Bps, done))
        self._ask_for_a_solve()
        return done

    def _let_flow(self) -> None:
        """Move bytes at the rates that held until now."""
        elapsed_s = self.env.now - self._rates_since_s
        for flow in self.flows:
            flow.left_bytes = max(0.0, flow.left_bytes - flow.rate_Bps * elapsed_s)
        self._rates_since_s = self.env.now

    def _ask_for_a_solve(self) -> None:
        """Solve once, after all that starts or ends at this instant has done so."""
        if self._solve_is_due:
            return
        self._solve_is_due = True
        _EndOfInstant(self.env, self._solve)

    def _solve(self, _: simpy.Event) -> None:
        self._solve_is_due = False
        self.n_solves += 1
        rates = progressive_filling(
            self.capacity_Bps,
            [flow.route for flow in self.flows],
            [flow.max_rate_Bps for flow in self.flows],
        )
        for flow, rate_Bps in zip(self.flows, rates, strict=True):
            flow.rate_Bps = rate_Bps
        self._timer_number += 1
        left_s = [f.left_bytes / f.rate_Bps for f in self.flows if f.rate_Bps > 0]
        if left_s:
            self.env.process(self._timer(self._timer_number, min(left_s)))

    def _timer(self, number: int, delay_s: float) -> Generator[Any, Any, None]:
        """End the flows that are the next to end, unless the rates change before."""
        ending = [
            flow
            for flow in self.flows
            # Equal but for rounding: one instant.
            if flow.rate_Bps > 0 and flow.left_bytes / flow.rate_Bps <= delay_s * (1 + 1e-12)
        ]
        yield self.env.timeout(delay_s)
        if number != self._timer_number:
            return
        self._let_flow()
        for flow in ending:
            self.flows.remove(flow)
            flow.done.succeed()
        self._ask_for_a_solve()


def _covered(intervals: Sequence[tuple[float, float]]) -> float:
    """Return the length of the union of intervals."""
    total_s, until_s = 0.0, -math.inf
    for begin_s, end_s in sorted(intervals):
        total_s += max(0.0, end_s - max(begin_s, until_s))
        until_s = max(until_s, end_s)
    return total_s


class _Call:
    """One collective call on its group."""

    def __init__(
        self,
        world: _World,
        key: CallKey,
        collective: Collective,
    ) -> None:
        self.world = world
        self.key = key
        self.collective = collective
        env = world.env
        connections = collective.connections
        # What each (slot, channel) does, step by step: (sends, receives).
        self.program: dict[
            tuple[int, int], dict[tuple[int, int], tuple[list[Message], list[Message]]]
        ] = defaultdict(lambda: defaultdict(lambda: ([], [])))
        queues: dict[int, list[Message]] = defaultdict(list)
        for stage_number, stage in enumerate(collective.stages):
            for step in range(stage.n_steps):
                sent = stage.messages(step)
                edges = range(len(stage.connection)) if sent.edge is None else sent.edge.tolist()
                sizes = (
                    [float(sent.size_bytes)] * len(edges)
                    if isinstance(sent.size_bytes, int | float)
                    else [float(size) for size in sent.size_bytes]
                )
                for edge, size_bytes in zip(edges, sizes, strict=True):
                    connection = int(stage.connection[edge])
                    channel = int(stage.channel[edge])
                    message = Message(
                        call=key,
                        collective_name=collective.name,
                        stage_name=stage.name,
                        stage=stage_number,
                        step=step,
                        connection=connection,
                        channel=channel,
                        src=int(connections.src[connection]),
                        dst=int(connections.dst[connection]),
                        size_bytes=size_bytes,
                    )
                    world.outcome.messages.append(message)
                    queues[connection].append(message)
                    place = (stage_number, step)
                    self.program[message.src, channel][place][0].append(message)
                    self.program[message.dst, channel][place][1].append(message)
        self.ready = {m: env.event() for queue in queues.values() for m in queue}
        self.left = {m: env.event() for m in self.ready}
        # Messages of one edge may overtake each other if their latencies differ: pick by message.
        self.mailbox: dict[tuple[int, int], simpy.FilterStore] = defaultdict(
            lambda: simpy.FilterStore(env)
        )
        for connection, queue in queues.items():
            queue.sort(key=lambda m: (m.stage, m.step, m.channel))
            env.process(self._connection(connection, queue))
        # Switches are passive: they are there from the first call on.
        for slot, channel in list(self.program):
            if slot >= len(collective.group):
                env.process(self._channel(slot, channel))

    def _connection(self, connection: int, queue: Sequence[Message]) -> Generator[Any, Any, None]:
        """Send the messages of one connection in order, one at a time (rule 2)."""
        world = self.world
        connections = self.collective.connections
        route: dict[int, float] = defaultdict(float)
        for at in range(
            int(connections.indptr[connection]), int(connections.indptr[connection + 1])
        ):
            route[int(connections.link[at])] += float(connections.weight[at])
        max_rate_Bps = float(connections.max_rate_Bps[connection])
        latency_s = float(connections.latency_s[connection])
        for message in queue:
            yield self.ready[message]
            message.start_s = world.env.now
            factor, added_s = world.jitter.get(
                (message.stage, message.step, message.connection, message.channel), (1.0, 0.0)
            )
            yield world.wire.transmit(message.size_bytes * factor, route, max_rate_Bps)
            message.leave_s = world.env.now
            self.left[message].succeed()
            for link, weight in route.items():
                crossed = world.outcome.link_bytes
                crossed[link] = crossed.get(link, 0.0) + weight * message.size_bytes
            world.env.process(self._deliver(message, latency_s + added_s))

    def _deliver(self, message: Message, latency_s: float) -> Generator[Any, Any, None]:
        yield self.world.env.timeout(latency_s)
        message.arrive_s = self.world.env.now
        yield self.mailbox[message.connection, message.channel].put(message)

    def _channel(self, slot: int, channel: int) -> Generator[Any, Any, None]:
        """Run the steps of one channel of one slot (rule 1)."""
        for _, (sends, receives) in sorted(self.program[slot, channel].items()):
            for message in sends:
                self.ready[message].succeed()
            yield self.world.env.all_of(
                [self.left[message] for message in sends]
                + [self._receive(message) for message in receives]
            )

    def _receive(self, message: Message) -> simpy.Event:
        mailbox = self.mailbox[message.connection, message.channel]
        return mailbox.get(lambda item: item is message)

    def run_rank(self, rank: int) -> Generator[Any, Any, None]:
        """Run the part of one rank, from its call to its end (rules 1 and 5)."""
        env, outcome = self.world.env, self.world.outcome
        slot = self.collective.group.tolist().index(rank)
        outcome.call_s.setdefault(self.key, {})[rank] = env.now
        yield env.timeout(self.collective.launch_s)
        mine = [channel for owner, channel in self.program if owner == slot]
        yield env.all_of([env.process(self._channel(slot, channel)) for channel in mine])
        outcome.end_s.setdefault(self.key, {})[rank] = env.now
        sent = [
            message
            for (owner, _), steps in self.program.items()
            if owner == slot
            for sends, _ in steps.values()
            for message in sends
        ]
        outcome.busy_s.setdefault(self.key, {})[rank] = _covered(
            [(message.start_s, message.leave_s) for message in sent]
        )


class _World:
    """The clock, the wire, and the streams of all ranks."""

    def __init__(
        self,
        network: Network,
        changes: Iterable[LinkChange],
        jitter: Mapping[Place, tuple[float, float]],
    ) -> None:
        self.env = simpy.Environment()
        self.wire = _Wire(self.env, network, changes)
        self.jitter = jitter
        self.outcome = ReferenceOutcome()
        self.calls: dict[CallKey, _Call] = {}

    def run_program(self, rank: int, program: Program) -> Generator[Any, Any, None]:
        """Enqueue all operations of a rank at its start; streams run side by side."""
        yield self.env.timeout(program.start_s)
        enqueued: dict[str, list[simpy.Event]] = defaultdict(list)
        work: dict[str, list[simpy.Event]] = defaultdict(list)
        n_calls: dict[str, int] = defaultdict(int)
        for operation in program.operations:
            stream = operation.stream
            before = enqueued[stream][-1:]
            if isinstance(operation, Wait):
                # With `leave`, only calls and computes count.
                others = work[operation.on] if operation.leave else enqueued[operation.on]
                before = before + others[: max(0, len(others) - operation.leave)][-1:]
                body = self._nothing()
            elif isinstance(operation, Compute):
                body = self._compute(operation)
            else:
                key = (operation.communicator, n_calls[operation.communicator])
                n_calls[operation.communicator] += 1
                body = self._start(key, operation, rank)
            enqueued[stream].append(self.env.process(self._after(before, body)))
            if not isinstance(operation, Wait):
                work[stream].append(enqueued[stream][-1])
        yield self.env.all_of([events[-1] for events in enqueued.values() if events])
        self.outcome.rank_end_s[rank] = self.env.now

    def _after(
        self, before: Sequence[simpy.Event], body: Generator[Any, Any, None]
    ) -> Generator[Any, Any, None]:
        yield self.env.all_of(before)
        yield self.env.process(body)

    def _nothing(self) -> Generator[Any, Any, None]:
        yield self.env.timeout(0)

    def _compute(self, operation: Compute) -> Generator[Any, Any, None]:
        yield self.env.timeout(operation.duration_s)

    def _start(self, key: CallKey, operation: Start, rank: int) -> Generator[Any, Any, None]:
        if key not in self.calls:
            self.calls[key] = _Call(self, key, operation.collective)
        yield self.env.process(self.calls[key].run_rank(rank))


def reference_simulate(
    network: Network,
    programs: Sequence[Program],
    *,
    changes: Iterable[LinkChange] = (),
    jitter: Mapping[Place, tuple[float, float]] | None = None,
) -> ReferenceOutcome:
    """Simulate message by message.

    Parameters
    ----------
    network
        Links.
    programs
        What the ranks do; a rank belongs to one program at most.
    changes
        Capacities that change on the way.
    jitter
        For messages of all calls: a factor on the time on the wire and a latency (s) to add, by
        (stage, step, connection, channel); (1, 0) where a key is missing.

    Raises
    ------
    RuntimeError
        If not everything ends.
    """
    world = _World(network, changes, jitter or {})
    ranks = [(int(rank), program) for program in programs for rank in program.ranks]
    if len({rank for rank, _ in ranks}) != len(ranks):
        raise ValueError("a rank stands in two programs")
    for rank, program in ranks:
        world.env.process(world.run_program(rank, program))
    world.env.run()
    waiting = sorted({rank for rank, _ in ranks} - set(world.outcome.rank_end_s))
    if waiting:
        raise RuntimeError(f"ranks {waiting} never end")
    world.outcome.n_solves = world.wire.n_solves
    return world.outcome
